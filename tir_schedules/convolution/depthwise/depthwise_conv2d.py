"""Template "depthwise_conv2d": every channel has a filter of its own; channels last.

    Y[n, h, w, c] = epilogue(sum over i, j of X[n, h s + i d - p, w s' + j d' - p', c] * W[i, j, c])

One or two axes, any kernel, strides, padding and dilation; vectors lie along the channels. f32 is
read in place (`convolution.depthwise.direct`). For integers and bfloat16, kr taps of a column are
interleaved for the multiply-add of the matmul kernels (`convolution.depthwise.staged`).
Integer sums are exact in int32, zero points included (zero_points.py); padded pixels have the value
of the zero point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import DataType, relax, tirx

from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.vector import bfloat16
from microkernels.vector.expressions import Expr, parameter
from tir_schedules.convolution.direct.config import reject_operands
from tir_schedules.convolution.geometry import ConvGeometry, ConvTemplate
from tir_schedules.core import emission, extents
from tir_schedules.core.arrays import A, as_bytes, chosen, joined, padded, permuted, reshaped
from tir_schedules.core.loop_nest import Bytes, Loop, LoopNest, balance_of, nested, pieces
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region
from tir_schedules.core.template import PackedInput, register_template
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.product.zero_points import ZeroPoints, named_inputs

from .config import (
    DepthwiseConfig,
    DepthwiseProblem,
    check,
    default_config,
    dot_kernel,
    is_too_large,
    space,
)
from .direct import DirectTiles
from .results import DepthwiseTiles, Results
from .staged import Groups, StagedTiles


class DepthwiseWeight(PackedInput):
    """The weight [*kernel, 1, C] of a region, flat, as the tiles of a configuration read it.

    f32            [C / lanes][KH][KW][lanes]
    interleaved    [C / (lanes kr)][pair][KW][kr][lanes][kr], then int32 [C] if zero points
                   need it
    """

    def __init__(self, region: Region, config: DepthwiseConfig, isa: Isa, _index: int = 1) -> None:
        self.region, self.problem = region, check(region, config, isa)
        self.kernel, self.lanes, problem = dot_kernel(region, isa), isa.f32_lanes, self.problem
        if self.kernel is None:
            self.width = math.ceil(problem.channels / self.lanes) * self.lanes
            self.size = problem.taps * self.width
        else:
            self.lanes, self.kr = self.kernel.lanes, self.kernel.kr
            unit = self.lanes * self.kr
            self.width = math.ceil(problem.channels / unit) * unit
            self.groups = Groups.of(problem, config.rows, self.kr)
            self.size = self.groups.elements(problem, unit)
        self.shape = (self.size + (4 * self.width if self._has_term else 0),)

    @property
    def _has_term(self) -> bool:
        if self.kernel is None or not is_integer(self.region):
            return False
        return ZeroPoints.of(self.region, self.kernel).needs_column_sums

    def pack(self, array: A) -> A:
        problem, width, lanes = self.problem, self.width, self.lanes
        own = reshaped(array, (problem.taps, 1, problem.channels))
        whole = padded(own, (0, 0, width - problem.channels))
        if self.kernel is None:
            vectors = reshaped(whole, (problem.taps, width // lanes, lanes))
            return joined([permuted(vectors, (1, 0, 2))])
        kr, groups = self.kr, self.groups
        rows, columns = problem.rows.taps, problem.columns.taps
        # One row of zeros behind the rows of taps serves the places without a tap.
        taken = [rows if tap is None else tap for pair in groups.pairs for tap in groups.taps[pair]]
        with_zeros = padded(reshaped(whole, (rows, columns * width)), (1, 0))
        blocks = (len(groups.pairs), kr, columns, width // (lanes * kr), kr, lanes)
        parts = [permuted(reshaped(chosen(with_zeros, 0, taken), blocks), (3, 0, 2, 4, 5, 1))]
        if self._has_term:
            every = np.ones((1, problem.taps), bool)
            terms = ZeroPoints.of(self.region, self.kernel).column_terms(whole, every)
            parts.append(as_bytes(terms, width, self.kernel.b_dtype))
        return joined(parts)

    def unpack(self, expr: relax.Expr) -> relax.Expr:
        op, problem, width, lanes = relax.op, self.problem, self.width, self.lanes
        if self.kernel is None:
            parts = (width // lanes, problem.taps, lanes)
            taps = op.permute_dims(op.reshape(expr, parts), [1, 0, 2])
        else:
            # The first row of a tile has its taps in order, and its pairs come first.
            kr, columns = self.kr, problem.columns.taps
            own = math.ceil(problem.rows.taps / kr)
            flat = op.strided_slice(expr, [0], [0], [self.size])
            blocks = (width // (lanes * kr), len(self.groups.pairs), columns, kr, lanes, kr)
            first = op.strided_slice(op.reshape(flat, blocks), [1], [0], [own])
            taps = op.permute_dims(first, [1, 5, 2, 0, 3, 4])
            taps = op.reshape(taps, (own * kr, columns * width))
            taps = op.strided_slice(taps, [0], [0], [problem.rows.taps])
        lines = op.reshape(taps, (problem.taps, width))
        channels = op.strided_slice(lines, [1], [0], [problem.channels])
        return op.reshape(channels, self.region.inputs[1].shape)


# The loops of a depthwise convolution, for `explain`:
#
# threads > blocks of channels > samples > bands > tiles of columns > taps > tile

X_DTYPES = {
    "float32": ("float32",),
    "bfloat16": ("bfloat16", "float32"),
    "int8": ("uint8", "int8", "float32"),
}


WHY_VECTORS = "every channel has a window of its own: no matrix product for tiles"


def nests(region: Region, config: DepthwiseConfig) -> Iterator[LoopNest]:
    """The loops of the convolution; vectors are counted as 64 bytes of f32."""
    problem = DepthwiseProblem.of(region)
    yield lines_nest(region, config, problem.rows.outputs, problem.batch)


def lines_nest(region: Region, config: DepthwiseConfig, lines: int, samples: int) -> LoopNest:
    """The loops for `lines` lines of the result in each of `samples` samples."""
    problem, lanes = DepthwiseProblem.of(region), 16
    item = DataType(region.inputs[0].dtype).itemsize
    vectors = math.ceil(problem.channels / lanes)
    rows, columns = min(config.rows, lines), min(config.columns, problem.columns.outputs)
    bands, tiles = pieces(lines, rows), pieces(problem.columns.outputs, columns)
    most = min(config.vectors, vectors)
    chunks = pieces(vectors, config.blocks * most)
    block = vectors / chunks
    parts = pieces(block, most)
    width = block / parts
    threads = min(config.threads, samples * bands * chunks)
    columns_each, rows_each = problem.columns.outputs / tiles, lines / bands
    my_chunks, my_samples, my_bands = _share((chunks, samples, bands), threads)

    def touched(samples: float, lines: float, columns: float, vectors: float) -> Bytes:
        high = min(problem.rows.extent, problem.rows.span(lines))
        wide = min(problem.columns.extent, problem.columns.span(columns))
        channels = vectors * lanes
        results = 4.0 * samples * lines * columns * channels
        return samples * high * wide * channels * item, problem.taps * channels * 4.0, results

    outputs = problem.columns.outputs
    tile = touched(1, rows_each, columns_each, width)
    my_lines = my_bands * rows_each
    mine = touched(my_samples, my_lines, outputs, my_chunks * block)
    of_block = touched(1, rows_each, columns_each, block)
    loops = [
        Loop("thread", threads, "parallel", touched(samples, lines, outputs, vectors)),
        Loop("channel block", my_chunks, "serial", mine),
        Loop("sample", my_samples, "serial", touched(my_samples, my_lines, outputs, block)),
        Loop("band", my_bands, "serial", touched(1, my_lines, outputs, block)),
        Loop("tile", tiles, "serial", touched(1, rows_each, outputs, block)),
        Loop("channel tile", parts, "serial", of_block),
        Loop("tap", problem.taps, "reduction", tile),
        Loop("pixel", rows_each * columns_each, "unrolled", tile),
        Loop("vector", width, "unrolled", touched(1, 1, 1, width)),
        Loop("lane", lanes, "vector", touched(1, 1, 1, 1)),
    ]
    operations = float(samples * lines * outputs * problem.channels * problem.taps)
    useful = problem.channels / (vectors * lanes)
    return LoopNest(
        nested(loops), operations, useful, balance_of(samples * bands * chunks, threads)
    )


def _share(rounds: Sequence[float], threads: float) -> Iterator[float]:
    """Iterations of nested loops that one thread runs: the threads divide them in order."""
    for count in rounds:
        here = min(count, threads)
        yield count / here
        threads /= here


def depthwise_tiles(
    region: Region,
    config: DepthwiseConfig,
    isa: Isa,
    buffers: Sequence[Expr],
    out: Expr,
    leading_of: Callable[[Expr], Sequence[Expr]] = extents.row_itself,
) -> DepthwiseTiles:
    """The tiles of a region for its buffers: inputs, operands, and the result as a matrix.

    `leading_of` is that of `Results`.
    """
    problem, image = DepthwiseProblem.of(region), region.inputs[0]
    x, w, *further = buffers[: len(region.inputs)]
    flat, views = extents.flat_operands(region, buffers[len(region.inputs) :])
    kernel, lanes = dot_kernel(region, isa), isa.f32_lanes
    narrow: Callable[[Expr], Expr] = bfloat16.narrow
    if kernel is not None:
        lanes, narrow = kernel.lanes, kernel.narrow
    results = Results(flat, problem, lanes, out, Epilogue(flat, views, narrow), leading_of)
    if kernel is None:
        x = extents.as_elements(x, image)
        return DirectTiles(problem, config, lanes, x, w, results)
    x, inputs = extents.flat_view(x, image, extents.as_matrix(image)), named_inputs(region, further)
    return StagedTiles(region, problem, config, kernel, x, w, inputs, results)


class DepthwiseConv2d(ConvTemplate[DepthwiseConfig]):
    """A convolution in which every channel has a filter of its own."""

    name = "depthwise_conv2d"
    config_type = DepthwiseConfig
    default_config = staticmethod(default_config)
    space = staticmethod(space)
    check = staticmethod(check)
    nests = staticmethod(nests)
    packing = DepthwiseWeight

    def why_vectors(self, region: Region, config: DepthwiseConfig, machine: Machine) -> str:
        """Why the kernel uses vectors and not AMX tiles."""
        return WHY_VECTORS

    def build(self, region: Region, config: DepthwiseConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel; its weight parameter is flat, as `DepthwiseWeight.pack` makes it."""
        check(region, config, isa)
        with emission.kernel_function("depthwise_conv2d") as builder:
            x = emission.tensor_parameter("X", region.inputs[0])
            w = parameter("W", DepthwiseWeight(region, config, isa).shape, region.inputs[1].dtype)
            further = [*emission.input_parameters(region, 2), *emission.operand_parameters(region)]
            y = emission.tensor_parameter("Y", region.output)
            extents.read_extents()
            y = extents.flat_view(y, region.output, extents.as_matrix(region.output))
            tiles = depthwise_tiles(region, config, isa, (x, w, *further), y)
            items = tiles.items
            tasks = min(config.threads, items) if isinstance(items, int) else config.threads
            with emission.task_loop(tasks) as task:
                tiles.share(I.floordiv(task * items, tasks), I.floordiv((task + 1) * items, tasks))
        return builder.get()

    def kernel_name(self, region: Region, config: DepthwiseConfig, isa: Isa) -> str:
        """ISA, types and tile, for example "avx512_f32_depthwise_1x7x16"."""
        kernel, types = dot_kernel(region, isa), f"{isa.vector_level}_f32"
        channels = config.vectors * isa.f32_lanes
        if kernel is not None:
            types = kernel.name.removesuffix(f"_{kernel.mr}x{kernel.nr}")
            channels = kernel.lanes * kernel.kr
        return f"{types}_depthwise_{config.rows}x{config.columns}x{channels}"

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        rank = len(region.inputs[0].shape) - 2
        if rank not in (1, 2):
            return f"a depthwise convolution of {rank} axes"
        reason = reject_operands(region, X_DTYPES)
        if reason is not None:
            return reason
        geometry = ConvGeometry.of(region)
        if not geometry.groups == geometry.channels == geometry.out_channels:
            return (
                f"{geometry.groups} groups, {geometry.channels} channels of x and "
                f"{geometry.out_channels} of the result"
            )
        if is_too_large(DepthwiseProblem.of(region), dot_kernel(region, isa)):
            return f"a kernel of {' by '.join(map(str, geometry.kernel))}"
        return None

    def at_run_time(self, region: Region, config: DepthwiseConfig) -> str:
        """What is decided at run time, for `explain`."""
        if not DepthwiseProblem.of(region).has_dynamic_image:
            return "how many images"
        text = f"lines in tiles of {config.columns} pixels, of which the last one may overlap"
        if config.rows > 1 and region.inputs[1].dtype == "float32":
            text += f"; {config.rows} lines at once, unless a line is shorter than a tile"
        return text


DEPTHWISE_CONV2D = register_template(DepthwiseConv2d())
