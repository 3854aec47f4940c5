"""Panels that are widened or scaled in cache before tiles multiply them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.kernels.byte_pairs import word_tile
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.tile import Address, Tile
from microkernels.vector import bfloat16
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import blocking, emission, extents, size
from tir_schedules.core.product_plan import Piece, ProductPlan
from tir_schedules.core.region import Region

from .prefetch import Prefetch
from .tile_products import LoadPanel, OperandB, RegisterTiles, TileContext, add_step

if TYPE_CHECKING:
    from .matmul_product import PackedWeight

# Least static numbers of rows for which widening panels pays: of bfloat16, of 8-bit integers.
FEWEST_ROWS, FEWEST_INTEGER_ROWS = 16, 8


# Operands that are widened in cache before they are multiplied.
#
#     8-bit integers   vpmaddwd multiplies words, where bytes may saturate (see `byte_pairs`)
#     bfloat16         without instructions for it, or with slow ones, products are in f32
#
# To widen both operands next to every product takes as many instructions as the products. A panel
# of the weight is widened once for a block of rows, and a row once for all panels. Few rows widen
# the weight next to the products, which then is half as many bytes. Either way gives equal products
# and adds them up in equal order.


@dataclass(frozen=True)
class WideProduct(RegisterTiles):
    """How widened operands are multiplied.

    Attributes
    ----------
    kernel : Microkernel
        The register tile.
    dtype : str
        Element type of the operands in cache.
    parts : int
        Steps of K of the tile in one step of the plan.
    """

    kernel: Microkernel
    dtype: str
    parts: int = 1

    def emit(self, tile: TileContext) -> Tile:
        """See `RegisterTiles.emit`; the loop variables are a step of the plan and a part of it."""
        result = self.kernel.begin(tile.rows, tile.vectors, tile.init)
        with I.serial(tile.piece[1]) as step:
            for part in range(self.parts):
                add_step(self.kernel, result, tile, (step, part))
        return result

    @property
    def fewest_rows(self) -> int:
        """The least number of rows for which widening pays."""
        return FEWEST_INTEGER_ROWS if self.dtype == "int16" else FEWEST_ROWS

    def place(self, first: Index, ks: Sequence[Index]) -> Index:
        """The tile's step of K for loop variables of `emit`, in a block that begins at `first`."""
        return (first + ks[0]) * self.parts + ks[1]

    def begins(self, ks: Sequence[Index]) -> bool:
        """Whether a step of the plan begins."""
        return ks[1] == 0

    def widen(self, value: Expr) -> Expr:
        """Elements that the kernel multiplies, in the wider type."""
        return bfloat16.widen(value) if self.dtype == "float32" else ex.cast(self.dtype, value)

    def spread(self, buffer: Expr, index: Sequence[Index]) -> Expr:
        """The elements of A of one step of the tile, from `index` on."""
        kernel = self.kernel
        *row, column = index
        lanes, kr = kernel.lanes, kernel.kr
        if kr == 1:
            return kernel.spread(buffer[(*row, ex.ramp(column, 1))])
        pair = I.reinterpret(f"int{16 * kr}", buffer[(*row, ex.ramp(column, kr))])
        return I.reinterpret(ex.vector_type(self.dtype, kr * lanes), ex.splat(pair, lanes))


def wide_product(kernel: Microkernel, m: int, rows: int, vectors: int) -> WideProduct | None:
    """How tiles of `rows` by `vectors` multiply widened operands; None if they do not.

    Parameters
    ----------
    kernel : Microkernel
        The kernel that the weight is packed for.
    m : int
        Rows of the whole product.
    """
    integers = kernel.b_dtype == "int8"
    if kernel.isa_name not in ("avx2", "avx512") or kernel.b_dtype not in ("int8", "bfloat16"):
        return None
    if not size.is_dynamic((m,)) and m < (FEWEST_INTEGER_ROWS if integers else FEWEST_ROWS):
        return None
    if integers:
        return WideProduct(word_tile(kernel), "int16", 2)
    tiles = kernels_for(kernel.isa, "float32", "float32")
    fitting = (each for each in tiles if rows <= each.mr and vectors <= each.vectors)
    tile = min(fitting, key=lambda each: each.mr * each.vectors, default=None)
    return None if tile is None else WideProduct(tile, "float32", kernel.kr)


def wide_product_of(plan: ProductPlan) -> WideProduct | None:
    """How a plan's tiles multiply widened operands; None if they do not."""
    return wide_product(plan.kernel, plan.m, plan.rows, plan.vectors)


def staged_panel(buffer: Expr, first: Index, width: int, lanes: int) -> LoadPanel:
    """A reader of a block of a panel, from step `first` on, that has a buffer of its own."""

    def load_b(_panel: Index, _width: int, step: Index, j: int) -> Expr | Address:
        return buffer[ex.ramp(((step - first) * width + j) * lanes, lanes)]

    return load_b


@dataclass
class WidePanels(OperandB):
    """Widens blocks of a packed weight.

    Parameters
    ----------
    panels : Panels
        The layout of a packed matrix.
    weight : Buffer
        The packed weight, flat.
    wide : WideProduct
        How it is multiplied.
    steps, vectors : int
        Size of the largest block of a panel; its buffer is allocated in the PrimFunc under
        construction.
    prefetch : Prefetch or None
        How the packed weight is prefetched.
    """

    staged = True

    panels: blocking.Panels
    weight: Expr
    wide: WideProduct
    steps: int
    vectors: int
    prefetch: Prefetch | None = None

    def __post_init__(self) -> None:
        self.group = self.panels.kernel.lanes * self.panels.kernel.kr
        self.part = self.group // self.wide.parts
        size = (self.steps * self.vectors * self.group,)
        self.buffer = I.sblock_alloc_buffer(size, self.wide.dtype, align=64)

    def stage(self, panel: Index, width: int, piece: Piece, before: Index = 0) -> LoadPanel:
        """Widens a block of a panel; `before` counts the elements before the matrix."""
        first, count = piece
        parts = self.wide.parts
        with emission.opaque_block("widen"), I.serial(extents.as_expr(count)) as step:
            for j in range(width):
                start = before + self.panels.start(panel, width, first + step, j)
                value = self.weight[ex.ramp(start, self.group)]
                for part, wide in enumerate(self._widened(value)):
                    place = ((step * parts + part) * width + j) * self.part
                    I.buffer_store(self.buffer, wide, [ex.ramp(place, self.part)])

        return staged_panel(self.buffer, first * parts, width, self.part)

    def _widened(self, value: Expr) -> list[Expr]:
        """A vector of the weight as the tile multiplies it, part by part."""
        if self.wide.dtype == "int16":  # of four bytes of a column, two in each part
            fours = ex.bind(ex.reinterpret_group("int32", value, self.group // 4))
            halves = [ex.cast("int16", half) for half in (fours, fours >> ex.like(16, fours))]
            parts = (ex.reinterpret_group("int8", half, self.part) for half in halves)
            return [ex.cast("int16", part) for part in parts]
        # Two bfloat16 in a word; each is the upper half of a f32.
        pairs = I.reinterpret(ex.vector_type("int32", self.part), bfloat16.bits_of(value))
        words = ex.bind(pairs)
        low, high = words << ex.like(16, words), words & ex.like(-0x10000, words)
        return [ex.reinterpret("float32", low), ex.reinterpret("float32", high)]


# Scaled weight: every row of a constant weight has a scale that is known only at run time.
#
#     C = (A * s) W = A (diag(s) W)        A [M, K], s [K], W [K, N]
#
# This occurs after squeeze and excite of one sample (Hu et al., "Squeeze-and-Excitation Networks",
# arXiv 1709.01507, section 3). To scale W takes N * K multiplications in cache for every block of
# rows of A. To scale A instead would take M * K multiplications, a pass over memory and another
# kernel.
#
# Such a region has the attribute "weight_scale", whose value is "input": s is the input after W.


SCALE = "weight_scale"


def has_scale(region: Region) -> bool:
    """Whether the rows of a region's weight have scales."""
    return SCALE in region.attrs


class ScaledPanels(OperandB):
    """Blocks of a packed f32 weight, scaled before the tiles read them.

    Parameters
    ----------
    weight : PackedWeight
        The packed weight.
    scale : Buffer
        s; all extents but the last are 1.
    vectors : int
        Most vectors of columns of a block; its buffer is allocated in the PrimFunc under
        construction.
    """

    staged = True

    def __init__(self, weight: PackedWeight, scale: Expr, vectors: int) -> None:
        self.weight, self.scale, self.prefetch = weight, scale, weight.prefetch
        size = weight.plan.longest_piece * vectors * weight.kernel.lanes
        self.buffer = I.sblock_alloc_buffer((size,), "float32", align=64)

    def stage(self, panel: Index, width: int, piece: Piece) -> LoadPanel:
        """See `OperandB.stage`."""
        (first, count), lanes = piece, self.weight.kernel.lanes
        zeros = [tirx.const(0, "int32")] * (len(self.scale.shape) - 1)
        with emission.opaque_block("scale"), I.serial(extents.as_expr(count)) as step:
            factor = ex.bind(ex.splat(self.scale[(*zeros, first + step)], lanes))
            for j in range(width):
                start = (panel * self.weight.plan.k + (first + step) * width + j) * lanes
                value = self.weight.buffer[ex.ramp(start, lanes)] * factor
                position = ex.ramp((step * width + j) * lanes, lanes)
                I.buffer_store(self.buffer, value, [position])

        return staged_panel(self.buffer, first, width, lanes)
