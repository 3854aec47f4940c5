"""Multiplies a few rows by a matrix that is read in place, once; the time is that of reading it.

    C[r, c] = sum over k of A[r, k] * B[k, c]        few rows r

Nothing is packed. `dots` is for a matrix in which the elements of one column are neighbours: every
vector of B is multiplied by as many elements of a row, and the partial sums of `lanes` columns are
added together in a tree (`sum_each`). `column_sums` is for a matrix in which the elements of one
row are neighbours.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.arrays import RANGES
from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.vector import bfloat16
from microkernels.vector.expressions import (
    Expr,
    bind,
    constant,
    element_of,
    lanes_of,
    like,
    materialise,
    ramp,
    reinterpret,
    splat,
)
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import choose, opaque_block, share_of
from tir_schedules.core.loop_nest import LaneTotals, add

from .byte_digits import MOST_DIGIT_ROWS, ByteDigits
from .streams import FEW_ROWS, streams
from .tile_config import KERNEL_TYPES
from .tile_loops import TileLoops
from .tile_stores import rest
from .weight_only_tiles import WeightOnlyTiles

_SIGN = 0x80
_KEPT_VECTORS = 16  # of a row; beyond, it is read again for every group


class Operands:
    """How elements in memory become what a kernel multiplies.

    Parameters
    ----------
    isa : Isa
        What the target has.
    matrix_dtype : str
        Of B in memory; it decides which kernel multiplies.
    rounded : bool
        Whether f32 elements are rounded to bfloat16.
    rows_unsigned : bool
        8-bit integers: whether the rows are the unsigned factor, and B the signed one.
    narrow : callable
        f32 -> bfloat16 (uint16 lanes).

    Attributes
    ----------
    kernel : Microkernel
        Whose `multiply_add` is used.
    row_element, matrix_element : str
        Types of the lanes that are multiplied.
    """

    def __init__(
        self,
        isa: Isa,
        matrix_dtype: str,
        rounded: bool,
        rows_unsigned: bool,
        narrow: Callable[[Expr], Expr],
    ) -> None:
        self.kernel: Microkernel = kernels_for(isa, *KERNEL_TYPES[matrix_dtype])[0]
        self.matrix_dtype, self.rounded, self.narrow = matrix_dtype, rounded, narrow
        self.rows_unsigned = rows_unsigned
        self.lanes, self.kr = self.kernel.lanes, self.kernel.kr
        self.group = self.lanes * self.kr
        self.row_element = self.matrix_element = self.kernel.operand_dtype
        if matrix_dtype in RANGES:
            names = ("uint8", "int8") if rows_unsigned else ("int8", "uint8")
            self.row_element, self.matrix_element = names

    def convert(self, value: Expr, dtype: str, element: str) -> Expr:
        """Lanes of type `dtype` as lanes that are multiplied; integers shifted into `element`."""
        if dtype in RANGES:
            if dtype == element:
                return value
            bits = reinterpret("uint8", value)
            shifted = bits ^ like(_SIGN, bits)
            return shifted if element == "uint8" else reinterpret(element, shifted)
        if dtype == "float32" and element == "float32":
            return bfloat16.widen(self.narrow(value)) if self.rounded else value
        if dtype == "float32":
            return self.narrow(value)
        bits = bfloat16.bits_of(value)
        return bfloat16.widen(bits) if element == "float32" else bits

    def load(self, buffer: Expr, start: Expr, valid: int, lanes: int, rows: bool = False) -> Expr:
        """`valid` consecutive elements as they are multiplied; further lanes are 0."""
        dtype = str(buffer.dtype)
        element = self.row_element if rows else self.matrix_element
        value = self.convert(buffer[ramp(start, valid)], dtype, element)
        return bind(widened(value, lanes))

    def spread(self, group: Expr) -> Expr:
        """kr elements of a row in every lane."""
        if self.kr == 1:
            return splat(group, self.lanes)
        word = I.reinterpret(f"int{self.kr * int(group.ty.dtype.bits)}", group)
        return I.reinterpret(f"{self.row_element}x{self.group}", splat(word, self.lanes))

    def multiply_add(self, accumulator: Expr, row: Expr, matrix: Expr) -> Expr:
        """accumulator + row * matrix; the unsigned factor comes first."""
        factors = (row, matrix) if self.rows_unsigned else (matrix, row)
        return self.kernel.multiply_add(accumulator, *factors)

    def row_sum(self, buffer: Expr, start: Expr, groups: Expr | int) -> Expr:
        """The sum of a padded row of 8-bit integers; an int32 scalar."""
        total = LaneTotals(self.lanes, 0, dtype="int32")
        one = constant(1, self.matrix_element, self.group)
        with I.serial(groups) as group:
            elements = buffer[ramp(start + group * self.group, self.group)]
            total.store(self.multiply_add(total[0], elements, one))
        return total.total(add)


def widened(value: Expr, lanes: int) -> Expr:
    """A vector with zeros behind it."""
    valid = lanes_of(value)
    if valid == lanes:
        return value
    if valid == 1:
        first = tirx.LT(ramp(0, lanes), constant(1, "int32", lanes))
        return tirx.Select(first, splat(value, lanes), constant(0, element_of(value), lanes))
    zeros = [like(0, value)] * math.ceil((lanes - valid) / valid)
    return shuffled([value, *zeros], range(lanes))


def shuffled(vectors: Sequence[Expr], lanes: Sequence[int]) -> Expr:
    """Lanes of the concatenated vectors."""
    return tirx.Shuffle(list(vectors), [tirx.const(lane, "int32") for lane in lanes])


def sum_each(vectors: Sequence[Expr]) -> Expr:
    """The sum of the lanes of each of `lanes` vectors; lane i is that of vector i.

    The rounds of `microkernels.vector.memory.transpose_block`, with the two halves of every
    exchange added, so that each round leaves half as many vectors.
    """
    size = len(vectors)
    half = size // 2
    while half:
        kept = [lane if not lane & half else size + lane - half for lane in range(size)]
        added = [lane + half if not lane & half else size + lane for lane in range(size)]
        pairs = list(zip(vectors[:half], vectors[half:], strict=True))
        vectors = [materialise(shuffled(pair, kept) + shuffled(pair, added)) for pair in pairs]
        half //= 2
    return vectors[0]


def dots(
    operands: Operands,
    k: int,
    count: int,
    row: Callable[[Expr | int], Expr],
    matrix: Callable[[int, Expr | int, int], Expr],
) -> Expr:
    """Products of one row with `count` <= lanes columns, whose steps of k are contiguous.

    Parameters
    ----------
    operands : Operands
        What is multiplied.
    k, count : int
        Terms of each sum; columns. The lanes of further columns are 0.
    row : callable
        Number of a group of k -> the row's elements, zeros behind them.
    matrix : callable
        (column, number of a group of k, elements that exist) -> as many elements of B, widened.
    """
    lanes, acc_dtype = operands.lanes, operands.kernel.acc_dtype
    index = ramp(0, lanes)
    sums = [I.sblock_alloc_buffer((lanes,), acc_dtype) for _ in range(count)]
    zero = constant(0, acc_dtype, lanes)
    for total in sums:
        I.buffer_store(total, zero, [index])

    def add(column: int, elements: Expr, number: Expr | int, valid: int) -> None:
        total = sums[column]
        value = operands.multiply_add(total[index], elements, matrix(column, number, valid))
        I.buffer_store(total, value, [index])

    whole, rest = divmod(k, operands.group)
    pieces = [(number, operands.group) for number in range(whole)] + [(whole, rest)] * (rest > 0)
    if len(pieces) <= _KEPT_VECTORS:
        # The row stays in registers, and memory is read from one end to the other.
        kept = [bind(row(number)) for number, _valid in pieces]
        for column in range(count):
            for elements, (number, valid) in zip(kept, pieces, strict=True):
                add(column, elements, number, valid)
    else:
        with I.serial(whole) as step:
            elements = bind(row(step))
            for column in range(count):
                add(column, elements, step, operands.group)
        if rest:
            elements = bind(row(whole))
            for column in range(count):
                add(column, elements, whole, rest)
    values = [bind(total[index]) for total in sums]
    return sum_each(values + [zero] * (lanes - count))


PanelShare = tuple[Expr, Expr]  # which share of the panels, of how many


@dataclass(frozen=True)
class FewRows:
    """One or two rows of a product whose number is known at run time: panels side by side.

    As many as `streams` says. There is code for each number of rows and of panels, chosen by
    branches, and one epilogue for all.

    The loops over one or two rows.

    Attributes
    ----------
    loops : TileLoops
        What they do with a tile.
    groups : sequence of Group
        The panels.
    fewest : int
        How many rows are few.
    """

    loops: TileLoops
    groups: Sequence[Group]
    fewest: int = FEW_ROWS

    @property
    def most(self) -> int:
        """Up to so many rows; none if a tile has no more."""
        return self.fewest if self.loops.plan.rows > self.fewest else 0

    @property
    def widest(self) -> int:
        """Vectors of all panels that are side by side, at most."""
        rows = range(1, self.most + 1)
        return max((self._side(r, g)[0] * g.size for r in rows for g in self.groups), default=0)

    def _side(self, rows: int, group: Group) -> tuple[int, Microkernel]:
        """How many panels of a group are multiplied at once, and by which kernel.

        Threads along rows share the panels: each gets as many.
        """
        plan = self.loops.plan
        side, kernel = streams(plan.kernel, rows, group.size, group.count)
        if plan.threads_m == 1:
            return side, kernel
        pieces = math.ceil(group.count / side)
        pieces += -pieces % plan.threads_m
        return math.ceil(group.count / pieces), kernel

    def emit(
        self, row: Expr, rows: Expr, vector: Expr, scratch: Expr, share: PanelShare | None = None
    ) -> None:
        """All panels, or a share, for a number of rows that is one of those from 1 to `most`."""
        for group in self.groups:
            sides = [self._side(known, group) for known in range(1, self.most + 1)]
            side = _of(rows, [count for count, _ in sides])
            pieces = _of(rows, [math.ceil(group.count / count) for count, _ in sides])
            before, own = (0, pieces) if share is None else share_of(pieces, *share)
            with I.serial(own) as at, opaque_block("few"):
                piece = before + at
                first = materialise(vector + group.start + piece * (side * group.size))
                panels = materialise(tirx.Min(side, group.count - piece * side))
                tile = functools.partial(self._tile, row, first, scratch, group.size)
                _each_row(rows, panels, group.count, sides, tile)
                with I.serial(rows) as i, I.serial(panels) as panel:
                    for j in range(group.size):
                        self._store(row, i, first, panel * group.size + j, scratch, j, group.size)

    def _store(
        self, row: Expr, i: Expr, first: Expr, column: Expr, scratch: Expr, j: int, width: int
    ) -> None:
        """The epilogue of a vector, the number `j` of its panel."""
        lanes = self.loops.plan.kernel.lanes
        value = scratch[i, ramp(column * lanes, lanes)]
        self.loops.store(row + i, first + column, value, j == width - 1)

    def _tile(
        self,
        row: Expr,
        vector: Expr,
        scratch: Expr,
        width: int,
        rows: int,
        panels: int,
        kernel: Microkernel,
    ) -> None:
        """Accumulators of rows of panels that have `width` vectors each, from `vector` on."""
        loops, begins = self.loops, self.loops.start

        def start(i: Expr | int, j: int) -> Expr:
            assert begins is not None
            return begins(row + i, vector + j)

        tile = kernel.begin(rows, panels * width, None if begins is None else start)
        kernel.accumulate(
            tile,
            range(rows),
            (loops.plan.steps,),
            lambda i, ks: loops.load_a(row + i, ks[0]),
            lambda j, ks: loops.load_b(vector + j // width * width, width, ks[0], j % width),
        )
        rest(tile, scratch, 0)


def _of(rows: Expr, numbers: Sequence[int]) -> Expr:
    """The number of so many rows, of those for 1, 2 and so on."""
    found = tirx.const(numbers[0], "int32")
    for known, number in enumerate(numbers[1:], 2):
        found = tirx.Select(rows < known, found, tirx.const(number, "int32"))
    return materialise(found)


def _each_row(
    rows: Expr,
    panels: Expr,
    count: int,
    sides: Sequence[tuple[int, Microkernel]],
    tile: Callable[[int, int, Microkernel], None],
) -> None:
    """Runs `tile(rows, panels, kernel)` for the numbers that two expressions are.

    `sides` are the panels side by side for one row, two rows and so on, of `count`.
    """

    def chosen(known: int) -> None:
        side, kernel = sides[known - 1]
        left = count % side
        widths = [side] if not left else [left, side] if count > side else [left]
        choose(panels, widths, lambda width: tile(known, width, kernel))

    choose(rows, range(1, len(sides) + 1), chosen)


MOST_ROWS = 4  # more have the weight expanded in cache first


@dataclass(frozen=True)
class FewDecodedRows(FewRows):
    """The loops over a few rows.

    Attributes
    ----------
    tiles : WeightOnlyTiles or None
        What decodes and multiplies.
    """

    tiles: WeightOnlyTiles | None = None

    @staticmethod
    def of(
        loops: TileLoops,
        groups: Sequence[Group],
        tiles: WeightOnlyTiles,
        digits: Callable[[], ByteDigits] | None,
    ) -> FewDecodedRows:
        """The loops over at most `MOST_ROWS`; `digits` makes room for those of the task at hand."""
        if digits is not None:
            tiles = replace(tiles, digits=digits())
        return FewDecodedRows(loops, groups, MOST_ROWS, tiles)

    def emit(
        self, row: Expr, rows: Expr, vector: Expr, scratch: Expr, share: PanelShare | None = None
    ) -> None:
        """As of FewRows; the digits of the rows are made first."""
        assert self.tiles is not None
        digits = self.tiles.digits
        if digits is not None:
            with I.If(rows <= MOST_DIGIT_ROWS), I.Then():
                digits.begin(row, rows)
        super().emit(row, rows, vector, scratch, share)

    def _side(self, rows: int, group: Group) -> tuple[int, Microkernel]:
        """How many panels of a group are decoded at once: two sets of accumulators have room.

        Digits multiply one panel after the other, which is one stream of memory: several streams
        take longer (measured on Zen 3).
        """
        kernel = self.loops.plan.kernel
        vectors = max(1, (6 if kernel.lanes < 16 else 12) // rows)
        if self.tiles is not None and self.tiles.digits is not None and rows <= MOST_DIGIT_ROWS:
            vectors = 1
        return max(1, min(group.count, vectors // group.size)), kernel

    def _tile(
        self,
        row: Expr,
        vector: Expr,
        scratch: Expr,
        width: int,
        rows: int,
        panels: int,
        kernel: Microkernel,
    ) -> None:
        """Accumulators of rows of panels that have `width` vectors each, from `vector` on."""
        assert self.tiles is not None
        tiles, whole = replace(self.tiles, side=width), (0, self.loops.plan.steps)
        rest(tiles.multiply(row, rows, vector, panels * width, whole, None), scratch, 0)
