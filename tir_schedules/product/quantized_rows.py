"""Integer products by a narrow weight: each block of K of a row is quantised to int8.

    A[m, k] = X[m, k] * unit[m, b]       unit = (largest |A| of the block b) / 127, X an int8
    sum over b of unit[m, b] * scale[b, n] * (D[m, n] - (half + z) * sum of X[m, k])
    D = sum of X[m, k] * W[k, n]         W = Wq + half, an unsigned byte of at most 15

A block is one of the weight. D is exact. ONNX Runtime and llama.cpp quantise alike. A region allows
it by the attribute "quantized".

A block of 32 steps takes, for each vector of accumulators, 8 vpdpbusd, a conversion and two
multiplications by scales: 11 instructions of the vector ports, where f32 takes 32 and a part of
what scales the weight. So at most 8/11 of the peak of vpdpbusd are reached. A weight's byte takes a
mask and half a shift, once for a block of rows.

Few rows make these bytes in registers, next to the products: 24 instructions for a block of 32
steps of a row and a vector of columns, where f32 takes 94. Memory limits them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.sym import Analyzer

from microkernels.base.errors import IsaError
from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.tile import Tile
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.loop_nest import add, combine_all, reduce_lanes
from tir_schedules.core.product_plan import Piece, ProductPlan
from tir_schedules.core.size import is_dynamic
from tir_schedules.epilogue.epilogue import Columns
from tir_schedules.epilogue.tile_results import Results

from .few_rows import FewRows
from .narrow_weight import NarrowWeight
from .staged_panels import staged_panel
from .tile_loops import TileLoops
from .tile_products import LoadPanel, OperandA, OperandB, RegisterTiles, TileContext
from .weight_only_tiles import MOST_ROWS, WeightOnlyTiles, serial

TYPES = ("int8", "uint8")  # of what the kernels multiply
BLOCKS = (16, 256)  # steps of the shortest and of the longest block, as in ONNX Runtime
LEVELS = 127.0
MOST_WORDS = 8  # of a column that are unrolled; longer blocks are a loop
# A block whose largest number is smaller is 0: the inverse of its unit would not be finite.
_SMALLEST = 2.0**-100


def kernels(isa: Isa) -> tuple[Microkernel, ...]:
    """The kernels of signed activations by unsigned weights; none without VNNI."""
    try:
        return kernels_for(isa, *TYPES)
    except IsaError:
        return ()


def suits(weight: NarrowWeight, k: int) -> bool:
    """Whether the weight can be multiplied so: few bits, and whole blocks."""
    least, most = BLOCKS
    whole = k == weight.rows and k % weight.block == 0 and weight.block % least == 0
    return weight.bits < 8 and whole and weight.block <= most


def loops(
    tiles: WeightOnlyTiles,
    kernel: Microkernel,
    plan: ProductPlan,
    results: Results,
    rows: int,
    staged: bool = True,
) -> TileLoops:
    """The loops of a product with blocks of at most `rows` rows.

    If `staged`, panels are expanded to unsigned bytes in cache; few rows of a dynamic number read
    the packed weight even then.
    """
    few = most_few(plan) if staged else MOST_ROWS
    a = QuantizedRows(tiles, kernel, max(rows, plan.rows), few)
    if not staged:
        return TileLoops(plan, a, OperandB(), results, tiles=FewQuantizedTiles(a))
    b, many = UnsignedPanels(tiles.weight, tiles.packed, plan), QuantizedTiles(a)
    return TileLoops(plan, a, b, results, tiles=many, few_rows=FewQuantizedRows(rows=a))


def most_few(plan: ProductPlan) -> int:
    """Rows that are few: fewer than a tile has, if their number is dynamic, else none."""
    return max(0, min(MOST_ROWS, plan.rows - 1)) if is_dynamic((plan.m,)) else 0


@dataclass
class QuantizedRows(OperandA):
    """A block of rows, quantised: [blocks of K][rows][elements of a block].

    Few rows are [rows][blocks of K][elements of a block]: their blocks would share one set of L1 if
    room for other rows lay between them.

    Room for it is in the block of the PrimFunc under construction.

    Parameters
    ----------
    tiles : WeightOnlyTiles
        The rows, and the weight with its scales and zero points.
    kernel : Microkernel
        What multiplies.
    most_rows : int
        Rows of the largest block.
    few : int
        How many rows are few.
    """

    tiles: WeightOnlyTiles
    kernel: Microkernel
    most_rows: int
    few: int = 0
    begins = True

    def __post_init__(self) -> None:
        weight, self.block = self.tiles.weight, tirx.const(0, "int32")
        zero = float(weight.zero)
        self.whole = weight.half + (int(zero) if zero.is_integer() else 0)
        self.fraction = 0.0 if zero.is_integer() else zero
        size = self.most_rows * weight.blocks

        def room(size: int, element: str) -> Expr:
            return I.sblock_alloc_buffer((size,), element, align=64)

        self.elements = room(size * weight.block, "int8")
        self.units, self.starts = room(size, "float32"), room(size, "int32")
        # The sums of blocks, by which zero points are multiplied that are no whole number.
        fractions = self.tiles.zeros is not None or self.fraction
        self.sums = room(size, "float32") if fractions else None

    def begin(self, row: Expr, rows: Index) -> None:
        """See `OperandA.begin`."""
        self.block, blocks = row, self.tiles.weight.blocks
        # How far blocks and rows are apart.
        apart: tuple[Index, Index] = (self.most_rows, 1)
        if isinstance(rows, int):
            apart = (1, blocks) if rows <= self.few else apart
        elif self.few:
            few, one = ex.materialise(rows <= self.few), tirx.const(1, "int32")
            between = tirx.Select(few, one, tirx.const(self.most_rows, "int32"))
            rows_between = tirx.Select(few, tirx.const(blocks, "int32"), one)
            apart = ex.materialise(between), ex.materialise(rows_between)
        with I.serial(rows) as i, I.serial(blocks) as number, opaque_block("quantize"):
            self._block(row + i, number, number * apart[0] + i * apart[1])

    def _block(self, row: Expr, number: Expr, place: Expr) -> None:
        size, lanes = self.tiles.weight.block, self.kernel.lanes
        starts = range(0, size, lanes)
        values = []
        for start in starts:
            columns = Columns(number * size + start, lanes, lanes)
            values.append(ex.bind(ex.cast("float32", self.tiles.a.vector(row, columns))))
        # The largest as an integer: then a NaN is larger than all numbers, and its block is NaN.
        bits = [ex.reinterpret("int32", value) for value in values]
        magnitudes = [each & ex.like(0x7FFFFFFF, each) for each in bits]
        most = reduce_lanes(combine_all(magnitudes, tirx.Max), tirx.Max)
        largest = ex.materialise(I.reinterpret("float32", most))
        is_usual = largest >= ex.scalar(_SMALLEST, "float32")
        inverse = tirx.Select(is_usual, LEVELS / largest, ex.scalar(0.0, "float32"))
        factor = ex.splat(ex.materialise(inverse), lanes)
        integers = []
        for start, value in zip(starts, values, strict=True):
            x = ex.bind(ex.cast("int32", tirx.nearbyint(value * factor)))
            integers.append(x)
            at = ex.ramp(place * size + start, lanes)
            I.buffer_store(self.elements, ex.cast("int8", x), [at])
        total = ex.materialise(reduce_lanes(combine_all(integers, add), add))
        unit = ex.materialise(largest * ex.scalar(1 / LEVELS, "float32"))
        I.buffer_store(self.units, unit, [place])
        I.buffer_store(self.starts, total * -self.whole, [place])
        if self.sums is not None:
            I.buffer_store(self.sums, ex.cast("float32", -total) * unit, [place])

    def within(self, row: Index, number: Expr, few: bool = False) -> Expr:
        """The place of a block of K of a row; of one of few if so."""
        row = Analyzer().simplify(row - self.block)
        return row * self.tiles.weight.blocks + number if few else number * self.most_rows + row

    def step(self, place: Expr, step: Index) -> Any:
        """A step of K of the block at a place, as the kernel's `emit` takes it."""
        start = place * self.tiles.weight.block + step * self.kernel.kr
        return self.kernel.a_operand(self.elements, [start], 0)


class UnsignedPanels(OperandB):
    """Blocks of a narrow weight as unsigned bytes, four steps of a column in a word.

    Parameters
    ----------
    weight : NarrowWeight
        The format.
    packed : Buffer
        The packed weight.
    plan : ProductPlan
        How the product is cut; room for a block of a panel is in the block of the PrimFunc under
        construction.
    """

    staged = True

    def __init__(self, weight: NarrowWeight, packed: Expr, plan: ProductPlan) -> None:
        self.weight, self.packed, self.vector = weight, packed, plan.kernel.lanes * plan.kernel.kr
        size = plan.longest_piece * min(plan.vectors, weight.n_vectors) * self.vector
        self.buffer = I.sblock_alloc_buffer((size,), "uint8", align=64)

    def stage(self, vector: Expr, vectors: int, piece: Piece) -> LoadPanel:
        """As of `OperandB`."""
        weight, (first, count) = self.weight, piece
        fours = 8 // weight.bits  # steps of the kernel in a word
        with opaque_block("unsigned"), I.serial(count // fours) as number:
            for j in range(vectors):
                word = weight.emit_words(self.packed, vector, vectors, j, first // fours + number)
                word = ex.bind(weight.unsigned(word))
                for position in range(fours):
                    place = ((number * fours + position) * vectors + j) * self.vector
                    elements = weight.bytes_at(word, position)
                    I.buffer_store(self.buffer, elements, [ex.ramp(place, self.vector)])
        return staged_panel(self.buffer, first, vectors, self.vector)


@dataclass(frozen=True)
class QuantizedTiles(RegisterTiles):
    """Tiles whose sums of a block of K are integers, which are scaled and added in f32.

    Attributes
    ----------
    rows : QuantizedRows
        What is multiplied.
    """

    rows: QuantizedRows
    few: ClassVar[bool] = False

    def emit(self, tile: TileContext) -> Tile:
        """As of `RegisterTiles`."""
        kernel, rows, weights = self.rows.kernel, self.rows, self.rows.tiles
        totals, (first, count) = weights.begin(tile), tile.piece
        steps = weights.weight.block // kernel.kr
        with I.serial(count // steps) as number, opaque_block("products"):
            block = ex.materialise(first // steps + number)
            found = (rows.within(tile.row + i, block, self.few) for i in range(tile.rows))
            places = [ex.materialise(place) for place in found]

            def start(i: Index, _: int) -> Expr:
                return ex.splat(rows.starts[places[i]], kernel.lanes)

            sums = kernel.begin(tile.rows, tile.vectors, start)
            self._add_products(tile, sums, block, places)
            for j in range(tile.vectors):
                self._scale(tile, sums, totals, j, block, places)
        return totals

    def _add_products(self, tile: TileContext, sums: Tile, block: Expr, places: list[Expr]) -> None:
        """Adds the products of a block of K to the sums."""
        kernel = self.rows.kernel
        steps = self.rows.tiles.weight.block // kernel.kr

        def read_a(i: int, ks: Sequence[Index]) -> Any:
            return self.rows.step(places[i], ks[0])

        def read_b(j: int, ks: Sequence[Index]) -> Any:
            return tile.load_b(tile.vector, tile.vectors, block * steps + ks[0], j)

        kernel.accumulate(sums, range(tile.rows), (steps,), read_a, read_b)

    def _scale(
        self, tile: TileContext, sums: Tile, totals: Tile, j: int, block: Expr, places: list[Expr]
    ) -> None:
        """Adds the sums of a block of K of one vector of columns to the totals."""
        rows, weights, lanes = self.rows, self.rows.tiles, totals.lanes
        multiply_add = weights.kernel.multiply_add
        own = tile.vector, tile.vectors, block, j
        scale = ex.bind(weights.per_block(weights.scales, *own))
        for i, place in enumerate(places):
            total = totals.value(i, j)
            if rows.sums is not None:
                zero = ex.constant(rows.fraction, "float32", lanes)
                if weights.zeros is not None:
                    zero = weights.per_block(weights.zeros, *own)
                rest = ex.splat(rows.sums[place], lanes)
                total = ex.bind(multiply_add(total, ex.bind(zero * scale), rest))
            value = ex.bind(ex.cast("float32", sums.value(i, j)) * scale)
            total = multiply_add(total, value, ex.splat(rows.units[place], lanes))
            I.buffer_store(totals.buffers[i], total, [ex.ramp(j * lanes, lanes)])


class FewQuantizedTiles(QuantizedTiles):
    """Tiles of few rows, which read the packed weight: they make its bytes in registers."""

    few = True

    def _add_products(self, tile: TileContext, sums: Tile, block: Expr, places: list[Expr]) -> None:
        """See `QuantizedTiles`; up to `MOST_WORDS` words of a column are unrolled."""
        weight = self.rows.tiles.weight
        words = weight.block // weight.unit
        together = math.gcd(words, MOST_WORDS)
        with serial(words // together) as group:
            for number in range(together):
                self._add_words(tile, sums, block, group * together + number, places)

    def _add_words(
        self, tile: TileContext, sums: Tile, block: Expr, number: Index, places: list[Expr]
    ) -> None:
        """Adds the products of one word of a block of K of each column."""
        rows, weight, packed = self.rows, self.rows.tiles.weight, self.rows.tiles.packed
        unit, steps = block * (weight.block // weight.unit) + number, range(8 // weight.bits)
        first = number * len(steps)
        a = [[ex.bind(rows.step(place, first + step)) for place in places] for step in steps]
        for j in range(tile.vectors):
            word = weight.emit_words(packed, tile.vector, tile.vectors, j, unit)
            word = ex.bind(weight.unsigned(word))
            for step in steps:
                elements = weight.bytes_at(word, step)
                for i, row in enumerate(a[step]):
                    rows.kernel.update(sums, i, j, row, elements)


@dataclass(frozen=True)
class FewQuantizedRows(FewRows):
    """A few rows of a dynamic number, quantised as more are.

    Attributes
    ----------
    rows : QuantizedRows
        What is multiplied.
    """

    rows: QuantizedRows = field(kw_only=True)

    def most(self, plan: ProductPlan) -> int:
        """See `FewRows.most`."""
        return self.rows.few

    def side(self, plan: ProductPlan, rows: int, group: Group) -> tuple[int, Microkernel]:
        """One panel after the other: several at once, each a stream of memory, took up to 1.25 of
        the time (Zen 5)."""
        return 1, self.rows.kernel

    def multiply(self, tile: TileContext, kernel: Microkernel) -> Tile:
        """See `FewRows.multiply`."""
        return FewQuantizedTiles(self.rows).emit(tile)
