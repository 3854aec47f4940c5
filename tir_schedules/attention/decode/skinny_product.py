"""Multiplies a few rows by a matrix that is read in place, once; the time is that of reading it.

    C[r, c] = sum over k of A[r, k] * B[k, c]        few rows r

Nothing is packed. `dots` is for a matrix in which the elements of a column are contiguous: every
vector of B is multiplied by the elements of a row at its steps, and the partial sums of `lanes`
columns are added up in a tree (`sum_each`). `ColumnSums` is for a matrix in which the elements of a
row are contiguous.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.arrays import RANGES, SHIFT
from microkernels.isa import Isa
from microkernels.registry import kernels_for
from microkernels.vector import bfloat16
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import blocking, emission
from tir_schedules.core.loop_nest import LaneTotals, add
from tir_schedules.product.tile_config import KERNEL_TYPES

_KEPT_VECTORS = 16  # of a row, in registers; a longer row is read again for every group
_CHUNK_BYTES = 16 << 10  # of the matrix, which several passes find in L1
_CHAINS = 8  # independent sums that hide the latency of an addition
T = TypeVar("T")
_Sums = tuple[Expr, Expr]  # a buffer, and which slot of it
_Steps = tuple[Index, Index, int]  # first step of k, steps, further terms
_Read = tuple[Callable[[Index, Index], Expr], Callable[[Index, int, int], Expr]]


@dataclass
class Operands:
    """How elements in memory become what a kernel multiplies.

    Parameters
    ----------
    isa : Isa
        What the target has.
    matrix_dtype : str
        Type of B in memory; it selects the kernel.
    rounded : bool
        Whether f32 elements are rounded to bfloat16.
    rows_unsigned : bool
        Of 8-bit integers: whether the rows are the unsigned operand, and B the signed one.
    narrow : callable
        f32 -> bfloat16 (uint16 lanes).

    Attributes
    ----------
    kernel : Microkernel
        The kernel whose `multiply_add` is used.
    row_element, matrix_element : str
        Types of the lanes that are multiplied.
    """

    isa: Isa
    matrix_dtype: str
    rounded: bool
    rows_unsigned: bool
    narrow: Callable[[Expr], Expr]

    def __post_init__(self) -> None:
        self.kernel = kernels_for(self.isa, *KERNEL_TYPES[self.matrix_dtype])[0]
        self.lanes, self.kr = self.kernel.lanes, self.kernel.kr
        self.group = self.lanes * self.kr
        self.row_element = self.matrix_element = self.kernel.operand_dtype
        if self.matrix_dtype in RANGES:
            names = ("uint8", "int8") if self.rows_unsigned else ("int8", "uint8")
            self.row_element, self.matrix_element = names

    def convert(self, value: Expr, dtype: str, element: str) -> Expr:
        """Converts lanes of type `dtype` to what is multiplied; shifts integers to `element`."""
        if element not in RANGES and dtype not in ("float32", "bfloat16"):
            value, dtype = ex.cast("float32", value), "float32"
        if dtype in RANGES:
            if dtype == element:
                return value
            bits = ex.reinterpret("uint8", value)
            shifted = bits ^ ex.like(SHIFT, bits)
            return shifted if element == "uint8" else ex.reinterpret(element, shifted)
        if dtype == "float32" and element == "float32":
            return bfloat16.widen(self.narrow(value)) if self.rounded else value
        if dtype == "float32":
            return self.narrow(value)
        bits = bfloat16.bits_of(value)
        return bfloat16.widen(bits) if element == "float32" else bits

    def load(self, buffer: Expr, start: Expr, valid: int, lanes: int, rows: bool = False) -> Expr:
        """Loads and converts `valid` consecutive elements; further lanes are 0."""
        dtype = str(buffer.dtype)
        element = self.row_element if rows else self.matrix_element
        value = self.convert(buffer[ex.ramp(start, valid)], dtype, element)
        return ex.bind(widened(value, lanes))

    def spread(self, group: Expr) -> Expr:
        """kr elements of a row in every lane."""
        if self.kr == 1:
            return ex.splat(group, self.lanes)
        word = I.reinterpret(f"int{self.kr * int(group.ty.dtype.bits)}", group)
        return I.reinterpret(f"{self.row_element}x{self.group}", ex.splat(word, self.lanes))

    def multiply_add(self, accumulator: Expr, row: Expr, matrix: Expr) -> Expr:
        """accumulator + row * matrix; the kernel takes the unsigned operand first."""
        factors = (row, matrix) if self.rows_unsigned else (matrix, row)
        return self.kernel.multiply_add(accumulator, *factors)

    def row_sum(self, buffer: Expr, start: Expr, groups: Index) -> Expr:
        """The sum of a padded row of 8-bit integers; an int32 scalar."""
        total = LaneTotals(self.lanes, 0, dtype="int32")
        one = ex.constant(1, self.matrix_element, self.group)
        with I.serial(groups) as group:
            elements = buffer[ex.ramp(start + group * self.group, self.group)]
            total.store(self.multiply_add(total[0], elements, one))
        return total.total(add)


def widened(value: Expr, lanes: int) -> Expr:
    """A vector extended to `lanes` lanes with zeros."""
    valid = ex.lanes_of(value)
    if valid == lanes:
        return value
    if valid == 1:
        first = tirx.LT(ex.ramp(0, lanes), ex.constant(1, "int32", lanes))
        zero = ex.constant(0, ex.element_of(value), lanes)
        return tirx.Select(first, ex.splat(value, lanes), zero)
    zeros = [ex.like(0, value)] * math.ceil((lanes - valid) / valid)
    return ex.shuffle([value, *zeros], range(lanes))


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
        vectors = [
            ex.materialise(ex.shuffle(pair, kept) + ex.shuffle(pair, added)) for pair in pairs
        ]
        half //= 2
    return vectors[0]


def dots(
    operands: Operands,
    k: int,
    count: int,
    row: Callable[[Index], Expr],
    matrix: Callable[[int, Index, int], Expr],
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
        (column, number of a group of k, elements that exist) -> these elements of B, widened.
    """
    lanes, acc_dtype = operands.lanes, operands.kernel.acc_dtype
    sums = [LaneTotals(lanes, 0, dtype=acc_dtype) for _ in range(count)]

    def add(column: int, elements: Expr, number: Index, valid: int) -> None:
        total = sums[column]
        total.store(operands.multiply_add(total[0], elements, matrix(column, number, valid)))

    whole, rest = divmod(k, operands.group)
    pieces = [(number, operands.group) for number in range(whole)] + [(whole, rest)] * (rest > 0)
    if len(pieces) <= _KEPT_VECTORS:
        # The row stays in registers, and memory is read from one end to the other.
        kept = [ex.bind(row(number)) for number, _valid in pieces]
        for column in range(count):
            for elements, (number, valid) in zip(kept, pieces, strict=True):
                add(column, elements, number, valid)
    else:
        with I.serial(whole) as step:
            elements = ex.bind(row(step))
            for column in range(count):
                add(column, elements, step, operands.group)
        if rest:
            elements = ex.bind(row(whole))
            for column in range(count):
                add(column, elements, whole, rest)
    values = [ex.bind(total[0]) for total in sums]
    return sum_each(values + [ex.constant(0, acc_dtype, lanes)] * (lanes - count))


# `ColumnSums`: the columns are contiguous.
#
#     C[r, c] += sum over k of A[r, k] * B[k, c]        few rows r
#
# An element of A is broadcast to all lanes. Where an instruction multiplies pairs or quadruples,
# two or four rows of B are interleaved by shuffles within 128 bits. The sums are then in another
# order, and are sorted when they are read.


@dataclass(frozen=True)
class Panel:
    """Groups of columns that are summed up together, and the place of their sums.

    Attributes
    ----------
    groups : tuple of (int, int, tuple of int)
        First column, columns that exist, and which of the kr interleaved vectors have any.
    first : int
        Number of the first vector of sums.
    """

    groups: tuple[tuple[int, int, tuple[int, ...]], ...]
    first: int

    @property
    def vectors(self) -> int:
        """Vectors of sums."""
        return sum(len(kept) for _, _, kept in self.groups)


class ColumnSums:
    """Sums over k of a few rows times contiguous columns.

    The sums are in a buffer [slots, rows, width], in the order in which interleaving leaves them.

    Parameters
    ----------
    operands : Operands
        What is multiplied.
    rows, columns : int
        Extents of the product.
    """

    def __init__(self, operands: Operands, rows: int, columns: int) -> None:
        self.operands, self.rows, self.columns = operands, rows, columns
        lanes, kr, group = operands.lanes, operands.kr, operands.group
        labels = _interleave(
            [[(i, column) for column in range(group)] for i in range(kr)],
            lambda a, b, chosen: [(a + b)[lane] for lane in chosen],
            operands.matrix_element,
        )
        order = [[vector[lane * kr][1] for lane in range(lanes)] for vector in labels]
        budget = operands.kernel.mr * operands.kernel.vectors - (2 * kr if kr > 1 else 0)
        per_panel = max(1, budget // kr)
        self.where: dict[int, tuple[int, int]] = {}
        self.panels: list[Panel] = []
        first = 0
        for piece in blocking.balanced(math.ceil(columns / group), per_panel):
            for number in range(piece.count):
                groups = []
                start = piece.start + number * piece.size
                for g in range(start, start + piece.size):
                    valid = min(group, columns - g * group)
                    kept = tuple(i for i in range(kr) if min(order[i]) < valid)
                    groups.append((g * group, valid, kept))
                panel = Panel(tuple(groups), first)
                self.panels.append(panel)
                for column, _, kept in groups:
                    for i in kept:
                        for lane in range(lanes):
                            self.where[column + order[i][lane]] = (first, lane)
                        first += 1
        self.width = first * lanes
        most = max(panel.vectors for panel in self.panels)
        self.row_block = max(1, min(rows, budget // most))
        self.row_block = blocking.balanced(rows, self.row_block)[0].size
        self.chains = max(1, _CHAINS // (self.row_block * most))

    def clear(self, buffer: Expr, slot: Expr) -> None:
        """Sets the sums to 0."""
        lanes = self.operands.lanes
        zero = ex.constant(0, self.operands.kernel.acc_dtype, lanes)
        with I.serial(self.rows * self.width // lanes) as i:
            place = (slot * self.rows * self.width) + i * lanes
            I.buffer_store(buffer, zero, [ex.ramp(place, lanes)])

    def add(self, at: _Sums, steps: Index, rest: int, read: _Read) -> None:
        """Adds the products of some steps of k to the sums.

        Parameters
        ----------
        at : tuple of Expr
            The buffer of the sums, and the slot.
        steps : Expr or int
            Whole steps of kr.
        rest : int
            Further terms, fewer than kr.
        read : tuple of callable
            (row, step) -> kr elements in every lane, by `Operands.spread`; and (k, first column,
            columns that exist) -> a row of B: `group` elements.
        """
        blocks = blocking.balanced(self.rows, self.row_block)
        passes = len(self.panels) * sum(block.count for block in blocks)
        bits = int(tirx.const(0, self.operands.matrix_element).ty.dtype.bits)
        chunk = max(8, _CHUNK_BYTES * 8 // (self.columns * self.operands.kr * bits))

        def over(start: Index, count: Index, terms: int) -> None:
            piece = (start, count, terms)
            for panel in self.panels:
                tile = functools.partial(self._tile, at, panel, piece, read)
                emission.for_groups(blocks, tile)

        if passes == 1 or (isinstance(steps, int) and steps <= chunk):
            over(0, steps, rest)
            return
        total = tirx.const(steps, "int32") if isinstance(steps, int) else steps
        with I.serial(I.floordiv(total + (chunk - 1), chunk)) as part:
            over(part * chunk, tirx.Min(tirx.const(chunk, "int32"), total - part * chunk), 0)
        if rest:
            over(total, 0, rest)

    def vector(self, buffer: Expr, slot: Expr, row: Index, number: int) -> Expr:
        """The sums of one vector of columns, in order."""
        lanes = self.operands.lanes
        places = [self.where.get(number * lanes + lane, (-1, 0)) for lane in range(lanes)]
        places = [place if place[0] >= 0 else places[0] for place in places]
        sources = sorted({source for source, _ in places})
        base = (slot * self.rows + row) * self.width
        values = [ex.bind(buffer[ex.ramp(base + source * lanes, lanes)]) for source in sources]
        chosen = [sources.index(source) * lanes + lane for source, lane in places]
        if chosen == list(range(lanes)):
            return values[0]
        return ex.materialise(ex.shuffle(values, chosen))

    def _tile(
        self, at: _Sums, panel: Panel, piece: _Steps, read: _Read, first: Index, rows: int
    ) -> None:
        """Adds the products of some rows and one panel, in registers; for `read` see `add`."""
        operands, (start, count, terms) = self.operands, piece
        (buffer, slot), (row, matrix) = at, read
        lanes, kr = operands.lanes, operands.kr
        width, dtype = panel.vectors, operands.kernel.acc_dtype
        turns, all_rows = range(self.chains), range(rows)
        sums = [[LaneTotals(lanes, 0, width, dtype) for _ in all_rows] for _ in turns]

        def step(number: Index, chain: int, valid: int) -> None:
            factors = [ex.bind(row(first + i, number)) for i in range(rows)]
            j = 0
            for column, exist, kept in panel.groups:
                loaded = [matrix(number * kr + i, column, exist) for i in range(valid)]
                loaded += [ex.like(0, loaded[0])] * (kr - valid)
                vectors = interleave(loaded, operands.matrix_element)
                for i in kept:
                    for total, factor in zip(sums[chain], factors, strict=True):
                        total.store(operands.multiply_add(total[j], factor, vectors[i]), j)
                    j += 1

        chains = self.chains
        if not (isinstance(count, int) and count < chains):
            with I.serial(count // chains) as turn:
                for number in range(chains):
                    step(start + turn * chains + number, number, kr)
        left = count % chains
        if chains > 1 and not (isinstance(left, int) and left == 0):
            with I.serial(left) as extra:
                step(start + (count - left) + extra, 0, kr)
        if terms:
            step(start + count, 0, terms)
        for i in range(rows):
            base = (slot * self.rows + first + i) * self.width + panel.first * lanes
            for j in range(width):
                value = sums[0][i][j]
                for chain in sums[1:]:
                    value = value + chain[i][j]
                index = ex.ramp(base + j * lanes, lanes)
                I.buffer_store(buffer, buffer[index] + value, [index])


def interleave(rows: Sequence[Expr], element: str) -> list[Expr]:
    """kr rows of B as kr vectors whose lanes hold kr terms of one column each."""
    return _interleave(list(rows), lambda a, b, lanes: ex.bind(ex.shuffle([a, b], lanes)), element)


def _interleave(rows: list[T], choose: Callable[[T, T, list[int]], T], element: str) -> list[T]:
    """Interleaves within parts of 128 bits, which is one instruction for two vectors."""
    if len(rows) == 1:
        return rows
    bits = int(tirx.const(0, element).ty.dtype.bits)
    row: Any = rows[0]  # a vector, or a list of labels
    size = len(row) if isinstance(row, list) else ex.lanes_of(row)
    part = min(128 // bits, size)
    vectors, unit = [[row] for row in rows], 1
    while len(vectors) > 1:
        merged = []
        for left, right in zip(vectors[::2], vectors[1::2], strict=True):
            both = []
            for a, b in zip(left, right, strict=True):
                for high in (0, part // 2):
                    lanes = [
                        side * size + base + high + at + i
                        for base in range(0, size, part)
                        for at in range(0, part // 2, unit)
                        for side in (0, 1)
                        for i in range(unit)
                    ]
                    both.append(choose(a, b, lanes))
            merged.append(both)
        vectors, unit = merged, unit * 2
    return vectors[0]
