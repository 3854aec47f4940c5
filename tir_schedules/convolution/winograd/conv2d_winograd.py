"""Template "conv2d_winograd": convolutions of stride 1 with fewer products.

    Y = A^T [ sum over channels of (G g G^T) * (B^T d B) ] A        for every 4x4 tile of results

Kernels are 3x3, or a line of 2 to 7 taps, whose tiles are a line of results (`algorithm`). Taps may
have any distance (dilation). The weight is transformed before the first run, in float64; a 3x3
weight then takes four times its bytes. A block of tiles goes through three stages, whose
intermediate results stay in L2: the transform of x, 36 products on the registered f32
microkernels, and the inverse transform with the epilogue in registers (Lavin and Gray, arXiv
1509.09308; with the points of algorithm.py). Padding and incomplete tiles need no copy. Each
thread takes blocks; if there are few tiles, threads share the output channels of each block,
with a barrier between the stages. The number and the sizes of images may be dynamic.

Results differ from those of "conv2d" by rounding: see
`convolution.winograd.algorithm.expected_error`.

Convolutions of 8-bit integers have tiles of 2x2 results and 16 products of words, four ninths, and
are exact (`algorithm`). They are for CPUs without VNNI, where four products of words take four
instructions, and four products of bytes three to six (`microkernels.kernels.byte_pairs`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from microkernels.vector.expressions import parameter
from microkernels.vector.memory import PREFETCH_LLVM_IR
from tir_schedules.convolution.geometry import ConvGeometry, ConvTemplate
from tir_schedules.core import emission, loop_nest
from tir_schedules.core.arrays import A, as_bytes, as_type, sliced
from tir_schedules.core.extents import extent, read_extents
from tir_schedules.core.product_plan import Product, is_integer
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_dynamic
from tir_schedules.core.template import PackedInput, register_template
from tir_schedules.product.tile_config import RESULT_DTYPES

from .algorithm import MOST_CHANNELS, Algorithm, kernel_reason
from .config import WinogradConfig, check, default_config, space, winograd_cost
from .program import WinogradStages
from .tiles import WinogradProblem, flat_epilogue


class WinogradWeight(PackedInput):
    """The transformed weight: panels [products][C][nr], one after the other."""

    def __init__(self, region: Region, config: WinogradConfig, _isa: Isa, _index: int = 1) -> None:
        self.region, self.algorithm = region, Algorithm.of(region)
        *_, self.channels, self.n = region.inputs[1].shape
        # Panel by panel, the weights of every product.
        plan = config.plan(WinogradProblem.of(region))
        self.panels = replace(plan.panels, runs=self.algorithm.products)
        self.integers = is_integer(region)
        self.shape = ((2 if self.integers else 1) * self.panels.size,)

    def pack(self, array: A) -> A:
        inside = self.algorithm.transformed_weight(array, self.channels * self.n)
        packed = self.panels.pack(as_type(inside, "int32" if self.integers else "float32"))
        if not self.integers:
            return packed
        return as_bytes(packed, self.panels.size, "int8", self.algorithm.bytes)

    def unpack(self, expr: relax.Expr) -> relax.Expr:
        op, tensor, (lines, columns) = relax.op, self.region.inputs[1], self.algorithm.axes
        of_lines, of_columns = (
            relax.const(axis.g_inverse.astype(np.float32)) for axis in (lines, columns)
        )
        if self.integers:  # words of two bytes, of 12 bits; they and their halves are exact in f32
            pairs = op.reshape(op.astype(expr, "int32"), (self.panels.size, 2))
            low, high = (sliced(pairs, 1, at, at + 1) for at in (0, 1))
            low = op.bitwise_and(low, relax.const(255, "int32"))
            words = op.add(low, op.multiply(high, relax.const(256, "int32")))
            expr = op.astype(op.reshape(words, (self.panels.size,)), "float32")
        inside = self.channels * self.n
        matrix = self.panels.unpack(expr)
        half = op.matmul(of_lines, op.reshape(matrix, (lines.reach, columns.reach * inside)))
        whole = op.matmul(of_columns, op.reshape(half, (lines.taps, columns.reach, inside)))
        weight = op.reshape(whole, tensor.shape)
        return op.astype(weight, tensor.dtype) if self.integers else weight


# The loops of the products of Winograd's tiles, for `explain`.
#
# blocks of tiles > panels > products > row block > K block > tile


def nests(region: Region, config: WinogradConfig) -> Iterator[loop_nest.LoopNest]:
    """The loops of the products, between the transforms."""
    problem, kernel = WinogradProblem.of(region), microkernel_named(config.kernel)
    geometry, tiles = problem.geometry, problem.tiles
    count = sum(group.count for group in config.blocks(problem)[0])
    teams, members = config.teams(problem), config.threads_panels
    block = tiles / count
    k, n_vectors = geometry.channels, math.ceil(geometry.out_channels / kernel.lanes)
    share = n_vectors / members
    panels = loop_nest.pieces(share, config.vectors)
    tiling = loop_nest.Tiling(config.rows, config.vectors, config.m_block, config.k_block)
    # `panels` counts the panels, so the loops of one product have a single panel.
    inner = loop_nest.product_loops(
        (block, share / panels, k), tiling, kernel.lanes, ("tiles", "panel", "C")
    )
    count_of, item = problem.algorithm.products, float(problem.algorithm.bytes)
    weight = item * count_of * k * kernel.lanes

    def touched(tiles: float, vectors: float) -> loop_nest.Bytes:
        results = 4.0 * count_of * tiles * vectors * kernel.lanes
        return item * count_of * tiles * k, weight * vectors, results

    loops = [
        loop_nest.Loop("thread", teams * members, "parallel", touched(tiles, n_vectors)),
        loop_nest.Loop("block", count / teams, "serial", touched(tiles / teams, share)),
        loop_nest.Loop("panel", panels, "serial", touched(block, share)),
        loop_nest.Loop("matrix", count_of, "serial", touched(block, share / panels)),
        *inner,
    ]
    useful = geometry.out_channels / (n_vectors * kernel.lanes)
    useful *= math.prod(geometry.outputs) * geometry.batch / (problem.algorithm.results * tiles)
    balance = loop_nest.balance_of(count, teams) * loop_nest.balance_of(n_vectors, members)
    yield loop_nest.LoopNest(loop_nest.nested(loops), geometry.flops / 2, useful, balance)


def products(region: Region, config: WinogradConfig, machine: Machine) -> Iterator[Product]:
    """One of the f32 products; AMX tiles do not multiply them."""
    plan = config.plan(WinogradProblem.of(region))
    yield Product(
        part=region,
        plan=replace(plan, m=config.m_block),
        copies=0,
        cycles=winograd_cost(region, config, machine).compute,
        others=list,
    )


class Winograd(ConvTemplate[WinogradConfig]):
    """A convolution of stride 1 with fewer products: of 3x3 taps, or of a line of taps."""

    name = "conv2d_winograd"
    config_type = WinogradConfig
    default_config = staticmethod(default_config)
    space = staticmethod(space)
    check = staticmethod(check)
    nests = staticmethod(nests)
    products = staticmethod(products)
    packing = WinogradWeight

    def estimate(self, region: Region, config: WinogradConfig, machine: Machine) -> float:
        """Cycles of the busiest thread."""
        return winograd_cost(region, config, machine).total

    def build(self, region: Region, config: WinogradConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel; its weight parameter is flat, as `WinogradWeight.pack` makes it."""
        kernel = check(region, config, isa)
        with emission.kernel_function("conv2d_winograd") as builder:
            x = emission.tensor_parameter("X", region.inputs[0])
            weight = WinogradWeight(region, config, isa)
            w = parameter("W", weight.shape, region.inputs[1].dtype)
            operands = emission.operand_parameters(region)
            out = emission.tensor_parameter("Y", region.output)
            read_extents()
            with emission.opaque_block("winograd"), llvm_functions(PREFETCH_LLVM_IR):
                epilogue = flat_epilogue(region, operands, kernel)
                problem = WinogradProblem.of(region)
                element = problem.algorithm.element
                if element != region.inputs[1].dtype:
                    w = I.decl_buffer((weight.panels.size,), element, data=w.data, align=1)

                with ExitStack() as scope:
                    if ConvGeometry.of(region).has_dynamic_image:
                        problem = WinogradProblem.of(region, counted=True)
                    elif region.is_dynamic:
                        images = extent(region.inputs[0].shape[0])
                        problem = replace(problem, sample=scope.enter_context(I.serial(images)))
                        scope.enter_context(emission.opaque_block("image"))
                    WinogradStages(problem, config, kernel, x, w, out, epilogue).emit()
        return builder.get()

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        x, w = region.inputs[:2]
        if (x.dtype, w.dtype) != ("float32", "float32"):
            if w.dtype != "int8" or x.dtype not in ("uint8", "int8"):
                return f"a convolution of {x.dtype} by {w.dtype}"
            if len(region.inputs) > 2 or isinstance(region.attrs.get("a_zero_point"), str):
                return "a zero point that is not known"
            if not Algorithm.of(region).kernels(isa):
                return "8-bit integers, which are multiplied by one instruction"
            if region.integer("b_zero_point", 0) != 0:
                return "a zero point of the weight"
            if x.shape[-1] > MOST_CHANNELS:
                return f"{x.shape[-1]} channels of 8-bit integers, whose sums may be too large"
        if region.output.dtype not in RESULT_DTYPES:
            return f"output of type {region.output.dtype}"
        if not w.constant:
            return "the weight is not constant"
        geometry = ConvGeometry.of(region)
        if (reason := kernel_reason(region)) is not None:
            return reason
        if set(geometry.strides) != {1}:
            return "strides"
        if geometry.groups != 1:
            return f"{geometry.groups} groups"
        if min(*x.shape, *geometry.outputs, geometry.out_channels) <= 0:
            return "a dimension is 0"
        return None

    def reject_dynamic(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region with dynamic sizes, or None."""
        geometry = ConvGeometry.of(region)
        margins_of = zip(geometry.before, geometry.after, strict=True)
        of_axes = zip(geometry.extents, geometry.kernel, geometry.dilation, margins_of, strict=True)
        for size, taps, step, margins in of_axes:
            # With less padding, an image without pixels has no results, and nothing is read.
            if is_dynamic((size,)) and sum(margins) > (taps - 1) * step:
                return f"padding of {list(margins)} around an extent that may be 0"
        return super().reject_dynamic(region, isa)

    def at_run_time(self, region: Region, config: WinogradConfig) -> str:
        """What is decided at run time, for `explain`."""
        if not ConvGeometry.of(region).has_dynamic_image:
            return "how many images"
        blocks = f"the tiles of all images in blocks of {config.m_block}"
        return f"{blocks}, by {config.rows}; a tail by a quarter, a half or three quarters of that"


CONV2D_WINOGRAD = register_template(Winograd())
