"""Template "conv2d_winograd": convolutions of stride 1 with fewer products.

    Y = A^T [ sum over channels of (G g G^T) * (B^T d B) ] A        for every 4x4 tile of results

Kernels are 3x3, or a line of 2 to 7 taps, whose tiles are a line of results (`line_transforms`);
their taps may be at any distance (dilation). The weight is transformed ahead of the runs, in
float64; a 3x3 weight then takes four times its bytes. A block of tiles goes through three stages,
and what lies between them stays in L2: the transform of x, 36 products on the registered f32
microkernels, and the inverse transform with the epilogue in registers (Lavin and Gray, arXiv
1509.09308; with the points of transforms.py). Padding and incomplete tiles need no copy. Threads
take blocks of their own or, where there are few tiles, share the output channels of each block,
with a barrier between the stages. Images may be of any number and size.

Results differ from those of "conv2d" by rounding: see
`convolution.winograd.transforms.expected_error`.

Convolutions of 8-bit integers have tiles of 2x2 results and 16 products of words, four ninths, and
are exact (`word_transforms`). That is for CPUs without VNNI, where a product of words takes as many
instructions as one of bytes, and more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.tile import Address
from microkernels.vector.expressions import Expr, materialise, parameter
from microkernels.vector.memory import PREFETCH_LLVM_IR
from tir_schedules.convolution.geometry import ConvGeometry, ConvTemplate
from tir_schedules.core.blocking import Panels
from tir_schedules.core.emission import (
    ceil_div,
    choose,
    kernel_function,
    opaque_block,
    operand_parameters,
    share_of,
    tensor_parameter,
)
from tir_schedules.core.extents import extent, read_extents
from tir_schedules.core.product_plan import PANELS_AHEAD, PRODUCTS_PER_FETCH, is_integer
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_open
from tir_schedules.core.template import Packing, register_template
from tir_schedules.product.tile_config import RESULT_DTYPES
from tir_schedules.product.zero_points import expressed_bytes

from .algorithm import Algorithm, kernel_reason
from .config import WinogradConfig, check, default_config, space
from .output_transform import flat_epilogue
from .panel_product import Panel, PanelProduct
from .problem import WinogradProblem
from .program import Block, WinogradProgram, estimate, for_size, nests, products
from .word_transforms import MOST_CHANNELS, words_of_bytes


def _reject_types(region: Region, isa: Isa) -> str | None:
    """Why the numbers of a region are none that the template multiplies, or None."""
    x, w = region.inputs[:2]
    if (x.dtype, w.dtype) == ("float32", "float32"):
        return None
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
    return None


class WinogradPacking(Packing[WinogradConfig]):
    """The weight, transformed."""

    def pack(
        self, region: Region, config: WinogradConfig, isa: Isa, index: int, array: np.ndarray
    ) -> np.ndarray:
        """The transformed weight: panels [products][C][nr], one behind the other."""
        matrix = Algorithm.of(region).transformed_weight(array).reshape(-1, array.shape[-1])
        return _panels(region, config).pack(matrix).view(array.dtype)

    def unpack(
        self, region: Region, config: WinogradConfig, isa: Isa, index: int, expr: relax.Expr
    ) -> relax.Expr:
        """The weight [*kernel, C, OC] as an expression of its packed form; floats are rounded."""
        op, (*_, channels, n) = relax.op, region.inputs[1].shape
        algorithm, integers = Algorithm.of(region), is_integer(region)
        lines, columns = algorithm.axes
        of_lines, of_columns = (
            relax.const(axis.g_inverse.astype(np.float32)) for axis in algorithm.axes
        )
        if integers:  # exact in f32: numbers of 12 bits, and halves
            expr = op.astype(words_of_bytes(expr, packed_elements(region, config)), "float32")
        matrix = _panels(region, config).unpack(expr)
        half = op.matmul(of_lines, op.reshape(matrix, (lines.reach, columns.reach * channels * n)))
        whole = op.matmul(of_columns, op.reshape(half, (lines.taps, columns.reach, channels * n)))
        weight = op.reshape(whole, region.inputs[1].shape)
        return op.astype(weight, region.inputs[1].dtype) if integers else weight

    def express(
        self, region: Region, config: WinogradConfig, isa: Isa, index: int, expr: relax.Expr
    ) -> relax.Expr:
        """The packed weight as a Relax expression of one [*kernel, C, OC]."""
        op, (*_, channels, n) = relax.op, region.inputs[1].shape
        algorithm, integers = Algorithm.of(region), is_integer(region)
        lines, columns = algorithm.axes
        of_lines, of_columns = (relax.const(axis.g, "float64") for axis in algorithm.axes)
        wide = op.reshape(op.astype(expr, "float64"), (lines.taps, columns.taps * channels * n))
        half = op.reshape(op.matmul(of_lines, wide), (lines.reach, columns.taps, channels * n))
        whole = op.astype(op.matmul(of_columns, half), "int32" if integers else "float32")
        matrix = op.reshape(whole, (algorithm.products * channels, n))
        packed = _panels(region, config).express(matrix)
        if not integers:
            return packed
        count = packed_elements(region, config)
        return expressed_bytes(packed, count, region.inputs[1].dtype, algorithm.bytes)

    def shape(
        self, region: Region, config: WinogradConfig, isa: Isa, index: int
    ) -> tuple[int, ...]:
        """Shape of the packed weight, in elements of its type."""
        parts = 2 if is_integer(region) else 1
        return (parts * packed_elements(region, config),)


PACKING = WinogradPacking()


def packed_elements(region: Region, config: WinogradConfig) -> int:
    """Elements of the packed weight as they are multiplied."""
    return _panels(region, config).size


def _panels(region: Region, config: WinogradConfig) -> Panels:
    """The layout of the weights of all products together: panel by panel, each of every product."""
    return replace(
        config.plan(WinogradProblem.of(region)).panels, runs=Algorithm.of(region).products
    )


class Winograd(ConvTemplate[WinogradConfig]):
    """A convolution of stride 1 with fewer products: of 3x3 taps, or of taps in a line."""

    name = "conv2d_winograd"
    config_type = WinogradConfig
    default_config = staticmethod(default_config)
    space = staticmethod(space)
    check = staticmethod(check)
    nests = staticmethod(nests)
    estimate = staticmethod(estimate)
    products = staticmethod(products)
    packing = PACKING

    def build(self, region: Region, config: WinogradConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel; its weight parameter is flat, as `pack` makes it."""
        kernel = check(region, config, isa)
        with kernel_function("conv2d_winograd") as builder:
            x = tensor_parameter("X", region.inputs[0])
            w = parameter("W", PACKING.shape(region, config, isa, 1), region.inputs[1].dtype)
            operands = operand_parameters(region)
            out = tensor_parameter("Y", region.output)
            if region.is_open:
                read_extents()
            with opaque_block("winograd"), llvm_functions(PREFETCH_LLVM_IR):
                epilogue = flat_epilogue(region, operands, kernel)
                problem = WinogradProblem.of(region)
                dtype, element = region.inputs[0].dtype, problem.algorithm.element
                if element != region.inputs[1].dtype:
                    size = packed_elements(region, config)
                    w = I.decl_buffer((size,), element, data=w.data, align=1)

                def emit(sample: Expr | None) -> None:
                    own = replace(problem, sample=sample)
                    WinogradProgram(own, config, kernel, x, dtype, w, out, epilogue).emit()

                if ConvGeometry.of(region).opens_image:
                    problem = WinogradProblem.opened(region)
                    tiles = problem.opened_tiles
                    each = OpenWinogradProgram.steps_of(tiles, config)
                    OpenWinogradProgram(
                        problem, config, kernel, x, dtype, w, out, epilogue, tiles, each
                    ).emit()
                elif region.is_open:
                    with (
                        I.serial(extent(region.inputs[0].shape[0])) as sample,
                        opaque_block("image"),
                    ):
                        emit(sample)
                else:
                    emit(None)
        return builder.get()

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        x, w = region.inputs[:2]
        reason = _reject_types(region, isa)
        if reason is not None:
            return reason
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

    def opens(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region with open sizes, or None."""
        geometry = ConvGeometry.of(region)
        margins_of = zip(geometry.before, geometry.after, strict=True)
        of_axes = zip(geometry.extents, geometry.kernel, geometry.dilation, margins_of, strict=True)
        for size, taps, step, margins in of_axes:
            # Elsewhere an image without pixels has no results, and nothing is read.
            if is_open((size,)) and sum(margins) > (taps - 1) * step:
                return f"padding of {list(margins)} around an extent that may be 0"
        return super().opens(region, isa)

    def at_run_time(self, region: Region, config: WinogradConfig) -> str:
        """What is decided at run time, for `explain`."""
        if not ConvGeometry.of(region).opens_image:
            return "how many images"
        blocks = f"the tiles of all images in blocks of {config.m_block}"
        return (
            f"{blocks}, by {config.rows}; a quarter, a half or three quarters of these for the rest"
        )


CONV2D_WINOGRAD = register_template(Winograd())


# The stages of the template "conv2d_winograd" over images whose sizes are known at run time only.
#
#     for each team's share of all tiles of all images
#         for each block of whole register tiles
#             as for known sizes, but for the register tiles: whole ones in a loop, and one for what
#             is left, whose code has a quarter, a half or three quarters of the rows
#
# Only the last register tile of a team is not whole. Rows that it has too many are multiplied, and
# nobody reads their results.


@dataclass(frozen=True)
class OpenWinogradProgram(WinogradProgram):
    """The program of a problem that `WinogradProblem.opened` made.

    Attributes
    ----------
    tiles : Expr
        How many there are.
    each : Expr
        How many blocks a team takes.
    """

    tiles: Expr
    each: Expr

    @staticmethod
    def steps_of(tiles: Expr, config: WinogradConfig) -> Expr:
        """Emits how many blocks a team takes of so many tiles."""
        of_team = ceil_div(ceil_div(tiles, config.threads_tiles), config.rows)
        return materialise(ceil_div(of_team, config.m_block // config.rows))

    @property
    def _teams(self) -> int:
        return self.config.threads_tiles

    @property
    def _most(self) -> int:
        return self.config.m_block

    @property
    def _each(self) -> Expr | int:
        return self.each

    @contextmanager
    def _block(self, team: Expr, step: Expr) -> Iterator[Block]:
        """A share of the register tiles of a team's share of the tiles."""
        rows = self.config.rows
        first, own = share_of(self.tiles, team, self._teams)
        start, count = share_of(materialise(ceil_div(own, rows)), step, self.each)
        with I.If(count > 0), I.Then():
            tiles = materialise(tirx.Min(count * rows, own - start * rows))
            yield Block(materialise(first + start * rows), tiles, step)

    def _products(self, block: Block, number: Expr, panel: Panel) -> None:
        panels = self.config.panels(self.problem, self.kernel)
        for_size(panels, number, lambda width: self._multiply_open(panel.of(width), block.tiles))

    def _multiply_open(self, panel: Panel, tiles: Expr) -> None:
        """The products of a panel."""
        rows = self.config.rows
        sizes = sorted({-(-rows * quarter // 4) for quarter in range(1, 5)})
        most = sizes[-2] if len(sizes) > 1 else 0  # rows of a tile that is not whole
        whole = materialise(I.floordiv(tiles + (rows - 1 - most), rows))
        left = materialise(tiles - whole * rows)
        kind: Expr = tirx.const(0, "int32")
        for size in sizes[:-2]:
            kind = kind + tirx.Cast("int32", left > size)
        kind = materialise(kind)
        with I.serial(self.problem.algorithm.products) as number, opaque_block("product"):
            product = self._product(panel, number)
            with I.serial(whole) as tile:
                self._register_tile(product, tile, rows)
            if most:
                with I.If(left > 0), I.Then():
                    choose(
                        kind,
                        range(len(sizes) - 1),
                        lambda which: self._register_tile(product, whole, sizes[which]),
                    )

    def _register_tile(self, product: PanelProduct, number: Expr, rows: int) -> None:
        """So many rows from those of the tile `number` on."""
        first, panel, width = number * self.config.rows, product.panel.first, product.panel.width
        tiles = self.config.m_block // self.config.rows
        prefetch, lines = product.prefetch, math.ceil(width / tiles)
        if lines * PRODUCTS_PER_FETCH > rows * width or tiles > PANELS_AHEAD * width:
            prefetch = None

        def load_b(j: int, ks: Sequence[Expr | int]) -> Expr | Address:
            if prefetch is not None and j == 0:
                for line in range(lines):
                    prefetch.fetch(panel, (number * product.steps + ks[0]) * lines + line, 0)
            return product.load_b(panel, width, ks[0], j)

        with opaque_block("tile"):
            result = product.kernel.emit(
                rows,
                width,
                (product.steps,),
                lambda i, ks: product.load_a(first + i, ks[0]),
                load_b,
            )
            for i in range(rows):
                for j in range(width):
                    product.store(first + i, panel + j, result.value(i, j), j == width - 1)
