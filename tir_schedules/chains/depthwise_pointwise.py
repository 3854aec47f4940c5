"""Template "depthwise_pointwise": a depthwise convolution and the matmul over its channels.

    part 0: H[p, c] = epilogue(depthwise convolution of X)     a band of lines, kept in L2
    part 1: Y[p, n] = epilogue(sum over c of H[p, c] * W[c, n])

Threads share the bands. The first part writes all pixels and channels of a band to a buffer of the
task, from which the matmul reads its rows. So the tensor between the two, often the largest of a
block of MobileNet, never leaves L2. With integers and bfloat16 the first part keeps its ring of
staged rows from one band to the next. The number of images and their extents may be dynamic: bands
are then cut when the kernel runs.

The parts are regions like those outside of a chain; the attribute "sources" says where their inputs
and operands come from (parts.py). The kernel's parameters are the merged region's inputs, then
the last part's output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.errors import ConfigError
from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr, Index, bind, materialise
from microkernels.vector.memory import PREFETCH_LLVM_IR
from tir_schedules.convolution.depthwise import depthwise_conv2d
from tir_schedules.convolution.depthwise.config import DepthwiseProblem
from tir_schedules.core import emission, extents
from tir_schedules.core.loop_nest import LoopNest, balance_of, pieces, within
from tir_schedules.core.product_plan import Product, quantizes_dynamically
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template, register_template, template_for
from tir_schedules.cost import amx_cost, parallel
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.product import dynamic_rows, matmul
from tir_schedules.product.matmul_product import MatmulProduct
from tir_schedules.product.tile_config import dimensions, plan_of

from . import depthwise_pointwise_cost as pair_cost
from . import parts
from .depthwise_pointwise_cost import PairConfig

# The loops and the product of a depthwise and a pointwise convolution, without building them.
#
# bands > the loops of the depthwise part, those of the matmul


def nests(region: Region, config: PairConfig) -> Iterator[LoopNest]:
    """The loops of both parts in bands."""
    region, config = pair_cost.usual(region, config)
    problem = DepthwiseProblem.of(region.parts[0])
    lines = min(config.lines, problem.rows.outputs)
    bands = problem.batch * pieces(problem.rows.outputs, lines)
    share = problem.batch * problem.rows.outputs / lines  # a partial last band counts in part
    first = depthwise_conv2d.lines_nest(region.parts[0], config.depthwise, lines, samples=1)
    (second,) = matmul.MATMUL.nests(pair_cost.pointwise_rows(region, lines), config.pointwise)
    kind = parallel.kind_of(config.threads > 1)
    balance = balance_of(bands, min(config.threads, bands))
    for nest in (first, second):
        yield within("band", share, kind, nest, balance)


def products(region: Region, config: PairConfig, machine: Machine) -> Iterator[Product]:
    """The matmul of a band."""
    known, bands = pair_cost.usual(region, config)
    image = DepthwiseProblem.of(known.parts[0])
    one = dataclasses.replace(machine, threads=1)
    rows = pair_cost.pointwise_rows(known, bands.lines)
    product = matmul.product_of(rows, config.pointwise, one)
    copies = pair_cost.bands_of(image, bands.lines)
    yield dataclasses.replace(product, part=region.parts[1], copies=copies)


def why_vectors(region: Region, config: PairConfig, machine: Machine) -> str:
    """Why the parts stay on vectors."""
    second = amx_cost.reasons(products(region, config, machine), machine)
    return f"part 0: {depthwise_conv2d.WHY_VECTORS}" + (f"; part 1: {second}" if second else "")


OPS = ("depthwise_conv2d", "matmul")


class _Pair:
    """Emits both parts, for the kernel's parameters.

    Attributes
    ----------
    lines, bands : int or Expr
        Lines of a band, except for the last one of an image, and bands of an image.
    """

    def __init__(
        self, region: Region, config: PairConfig, isa: Isa, inputs: Sequence[Expr], output: Expr
    ) -> None:
        self.config, self.isa = config, isa
        self.problem, self.kernel = pair_cost.check(region, config, isa)
        self.is_dynamic = self.problem.has_dynamic_image
        if self.is_dynamic:  # the matmul's rows are then those of a matrix
            region = region.replace(parts=(region.parts[0], extents.dynamic_view(region.parts[1])))
        self.region = region
        self.given = [parts.as_read(region, inputs, number) for number in range(2)]
        m, n, _ = dimensions(region.parts[1])
        self.output = extents.reshaped(output, region.output, (m, n))
        self.lines: Index = config.lines
        self.bands: Index = -(-self.problem.rows.outputs // config.lines)
        if not self.is_dynamic:
            return
        # The numbers of `cut_lines`, for extents that the kernel reads off its arguments.
        named, largest, ceil_div = emission.named, emission.largest, emission.ceil_div
        outputs, width, images = map(
            extents.extent,
            (self.problem.rows.outputs, self.problem.columns.outputs, self.problem.batch),
        )
        tiles = named(largest(ceil_div(outputs, config.lines), 1))
        line = extents.as_expr(largest(width, 1) * config.lines)
        most = named(largest(I.floordiv(config.pixels, line), 1))
        bands = ceil_div(tiles, most)
        if config.threads > 1:
            images = largest(images, 1)
            total = ceil_div(images * bands, config.threads) * config.threads
            bands = emission.smallest(tiles, ceil_div(total, images))
        self.lines = named(ceil_div(tiles, named(bands)) * config.lines)
        self.bands = named(ceil_div(outputs, self.lines))

    def share(self, first: Expr, last: Expr) -> None:
        """Emits the bands from `first` to `last`, in the calling thread."""
        lines, width = self.lines, extents.extent(self.problem.columns.outputs)
        outputs = extents.extent(self.problem.rows.outputs)
        named = materialise if self.is_dynamic else bind
        made, config = self.region.parts[0].output, self.config
        pixels: Index = config.lines * width
        if self.is_dynamic:
            least = config.lines * extents.allocated(self.problem.columns.outputs)
            pixels = emission.largest(config.pixels, least)
        self.rows = parts.rows_between(made, pixels, parts.row_pitch(made, self.kernel))
        buffers = [buffer for buffer in self.given[0] if buffer is not None]
        given = self.region.parts[0], config.depthwise, self.isa, buffers, self.rows
        tiles = depthwise_conv2d.depthwise_tiles(*given, lambda at: [at - self.first])
        # Loops begin at 0: with another start, TVM loses it in the bounds of inner loops.
        with tiles.prepared(), I.serial(last - first) as number:
            item = bind(first + number)
            band, sample = I.floormod(item, self.bands), I.floordiv(item, self.bands)
            if self.is_dynamic:
                band, sample = materialise(band), materialise(sample)
            line = named(band * lines)
            self.first = named((sample * outputs + line) * width)
            most = tirx.Min(extents.as_expr(lines), outputs - line)
            with emission.opaque_block("depthwise"):
                height = self.config.depthwise.rows
                begins = tirx.any(tirx.EQ(number, 0), tirx.EQ(line, 0))
                count = I.floordiv(most + (height - 1), height)
                tiles.bands(sample, I.floordiv(line, height), count, begins)
            if not isinstance(lines, int) or not isinstance(outputs, int):
                self._product(materialise(most * width))
                return
            rest = outputs % lines
            if not rest:
                self._product(lines * width)
                return
            whole, product = band < outputs // lines, self._product
            emission.branch(whole, lambda: product(lines * width), lambda: product(rest * width))

    def _product(self, rows: Index) -> None:
        """The matmul of the first `rows` rows of the band."""
        part, given, kernel = self.region.parts[1], self.given[1], self.kernel
        buffers = [buffer for buffer in given[1:] if buffer is not None]
        constants, operands = buffers[: len(part.inputs) - 1], buffers[len(part.inputs) - 1 :]
        epilogue = Epilogue(part, operands, kernel.narrow, self.first)
        source = (self.rows, lambda row: [row])
        target = (self.output, lambda row: [self.first + row])
        config = self.config.pointwise
        product = MatmulProduct(part, config, kernel, constants, epilogue, source, target)
        with emission.opaque_block("pointwise"):
            product.run(rows, most=plan_of(part, config).m_block)


class DepthwisePointwise(Template[PairConfig]):
    """A depthwise convolution and the matmul over its channels."""

    name = "depthwise_pointwise"
    config_type = PairConfig
    any_sizes = True
    check = staticmethod(pair_cost.check)
    kernel_name = staticmethod(parts.parts_kernel_name)
    reference = staticmethod(parts.chain_reference)
    nests = staticmethod(nests)
    products = staticmethod(products)
    why_vectors = staticmethod(why_vectors)
    packing = staticmethod(parts.packing)

    def default_config(self, region: Region, machine: Machine) -> PairConfig:
        """The bands that `estimate_pair` prefers; no tuning is needed."""
        return pair_cost.estimate_pair(region, machine).config

    def space(self, region: Region, machine: Machine) -> Iterator[PairConfig]:
        """The default; other bands; then other numbers for one part at a time."""
        default = self.default_config(region, machine)
        if region.is_dynamic:
            yield default
            return
        yield from dict.fromkeys((default, *pair_cost.variations(region, default, machine)))

    def build(self, region: Region, config: PairConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel; weights are flat, as `pack` makes them."""
        pair_cost.check(region, config, isa)
        with emission.kernel_function("depthwise_pointwise") as builder:
            inputs = parts.parts_parameters(region, config, isa)
            output = emission.tensor_parameter("C", region.output)
            extents.read_extents()
            pair = _Pair(region, config, isa, inputs, output)
            pair.kernel.admit()
            items = extents.extent(pair.problem.batch) * pair.bands  # bands of all images
            tasks = min(config.threads, items) if isinstance(items, int) else config.threads
            with emission.task_loop(tasks) as task, llvm_functions(PREFETCH_LLVM_IR):
                pair.share(I.floordiv(task * items, tasks), I.floordiv((task + 1) * items, tasks))
        return builder.get()

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        if tuple(part.op for part in region.parts) != OPS:
            return f"parts {', '.join(part.op for part in region.parts) or 'missing'}"
        first, second = region.parts
        for part in region.parts:
            reason = template_for(part.op).rejection(part, isa)
            if reason is not None:
                return f"{part.op}: {reason}"
        if "window" in second.attrs or not second.inputs[1].constant:
            return "matmul: windows, or a weight that is not constant"
        if quantizes_dynamically(second) or any(
            s.op == "range" for p in region.parts for s in p.epilogue
        ):
            return "a range over all pixels"
        try:
            sources = parts.sources_of(region)
        except ConfigError as error:
            return str(error)
        if [source for source in sources[1] if source.part] != [sources[1][0]]:
            return "the depthwise result is not just what the matmul multiplies"
        made, read = first.output, second.inputs[0]
        if (made.dtype, made.size, made.shape[-1]) != (read.dtype, read.size, read.shape[-1]):
            return f"{made} where {read} is read"
        return parts.reject_inputs(region)

    def at_run_time(self, region: Region, config: PairConfig) -> str:
        """What is decided at run time, for `explain`."""
        if not DepthwiseProblem.of(region.parts[0]).has_dynamic_image:
            return "how many images"
        bands = f"bands of {config.lines} lines, or of more with up to {config.pixels} pixels"
        return f"{bands}; {dynamic_rows.tile_choices(plan_of(region.parts[1], config.pointwise))}"


DEPTHWISE_POINTWISE = register_template(DepthwisePointwise())
