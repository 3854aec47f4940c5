"""Stable sorts inside a kernel: merge sort of runs of 1, 2, 4, ... elements, a heap that finds the
first few of many (Williams, "Algorithm 232: Heapsort", 1964), and radix sort of integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from microkernels.vector.expressions import ramp, reinterpret

from ...expressions import Expr, is_nan
from ..graph.kernels import cell, emit_kernel, put, reshaped_to, table
from ..graph.requests import requested_sizes
from ..graph.sizes import INDEX, dims_of, holds, index, is_number, product
from ..operators import operator

# Whether the first of two indices must come before the second; it may write statements.
Before: TypeAlias = Callable[[Expr, Expr], Expr]


def sort_places(order: Expr, count: Expr, before: Before) -> None:
    """Sorts the first `count` indices in `order`; equal ones keep their order."""
    other = table(order.shape[0])
    width, left, right, later = cell(), cell(), cell(), cell("bool")
    put(width, index(1))
    with I.While(width[0] < count):
        with I.serial(tirx.floordiv(count + 2 * width[0] - 1, 2 * width[0])) as run:
            start = run * 2 * width[0]
            middle = te.min(start + width[0], count)
            end = te.min(start + 2 * width[0], count)
            put(left, start)
            put(right, middle)
            with I.serial(end - start) as step:
                put(later, left[0] >= middle)
                with I.If(tirx.all(left[0] < middle, right[0] < end)), I.Then():
                    put(later, before(order[right[0]], order[left[0]]))
                with I.If(later[0]):
                    with I.Then():
                        put(other, order[right[0]], start + step)
                        put(right, right[0] + 1)
                    with I.Else():
                        put(other, order[left[0]], start + step)
                        put(left, left[0] + 1)
        with I.serial(count) as place:
            put(order, other[place], place)
        put(width, width[0] * 2)


class Heap:
    """A binary heap in the first numbers of a table; `above` tells which of two is on top."""

    def __init__(self, order: Expr, above: Before) -> None:
        self._order, self._above = order, above
        self._hole, self._child, self._moved = cell(), cell(), cell(str(order.dtype))

    def build(self, count: Expr) -> None:
        """Makes a heap of the first `count` numbers."""
        with I.serial(tirx.floordiv(count, 2)) as number:
            self.sink(tirx.floordiv(count, 2) - 1 - number, count)

    def sink(self, start: Expr, count: Expr) -> None:
        """Moves a number down until no number below it belongs above it."""
        order, hole, child, moved = self._order, self._hole, self._child, self._moved
        put(hole, start)
        put(moved, order[start])
        put(child, start * 2 + 1)
        with I.While(child[0] < count):
            # Without a branch, which would be mispredicted for half of all pairs.
            other = self._above(order[te.min(child[0] + 1, count - 1)], order[child[0]])
            put(child, child[0] + other.astype(INDEX))
            with I.If(self._above(order[child[0]], moved[0])):
                with I.Then():
                    put(order, order[child[0]], hole[0])
                    put(hole, child[0])
                    put(child, child[0] * 2 + 1)
                with I.Else():
                    put(child, count)
        put(order, moved[0], hole[0])

    def sort(self, count: Expr) -> None:
        """Turns the heap into a sorted table, with the top of the heap last."""
        with I.serial(count - 1) as number:
            last, kept = count - 1 - number, cell()
            put(kept, self._order[0])
            put(self._order, self._order[last])
            put(self._order, kept[0], last)
            self.sink(index(0), last)


class Order:
    """Indices ordered by rank, then by index, as entries of a table.

    An entry is an index; or a key, if a rank has 32 bits, so that one comparison is enough.
    """

    def __init__(self, entries: Expr, rank: Callable[[Expr], Expr]) -> None:
        self.entries, self.rank = entries, rank
        self.has_keys = str(rank(index(0)).ty.dtype) == "int32"

    def entry(self, place: Expr) -> Expr:
        """The entry of an index in a heap."""
        return key_of(self.rank(place), place) if self.has_keys else place

    def rank_of(self, entry: Expr) -> Expr:
        """The rank of an entry."""
        return (entry >> 32).astype("int32") if self.has_keys else self.rank(entry)

    def later(self, one: Expr, other: Expr) -> Expr:
        """Whether an entry comes after another one."""
        if self.has_keys:
            return one > other
        left, right = self.rank(one), self.rank(other)
        return tirx.any(left > right, tirx.all(tirx.EQ(left, right), one > other))


def sort_by_digits(order: Order, count: Expr) -> None:
    """Radix sort: makes the first entries the indices of the first `count` ranks, in order.

    It sorts by eight bits at a time, lowest first, and skips digits that are equal in all ranks.
    """
    places, other, total, kept = order.entries, table(order.entries.shape[0]), cell(), cell()
    bits = int(order.rank(index(0)).ty.dtype.bits)
    counts = I.sblock_alloc_buffer([bits * 32], INDEX)

    def digit(place: Expr, step: Expr) -> Expr:
        """The counter for a digit of a rank; the sign bit is flipped."""
        rank = order.rank(place)
        rank = rank ^ tirx.min_value(str(rank.ty.dtype))
        eight = tirx.shift_right(rank, tirx.Cast(rank.ty.dtype, step * 8)) & 255
        return step * 256 + eight.astype(INDEX)

    with I.serial(bits * 32) as at:
        put(counts, index(0), at)
    with I.serial(count) as place:
        put(places, place, place)
        for lowest in range(bits // 8):
            counted = digit(place, index(lowest))
            put(counts, counts[counted] + 1, counted)
    with I.serial(index(bits // 8)) as step, I.If(counts[digit(index(0), step)] < count), I.Then():
        put(total, index(0))
        with I.serial(256) as number:
            put(kept, counts[step * 256 + number])
            put(counts, total[0], step * 256 + number)
            put(total, total[0] + kept[0])
        with I.serial(count) as number:
            put(kept, digit(places[number], step))
            put(other, places[number], counts[kept[0]])
            put(counts, counts[kept[0]] + 1, kept[0])
        with I.serial(count) as number:
            put(places, other[number], number)


def rising(value: Expr, nan_is_most: bool = True) -> Expr:
    """Maps a number to an int32 or int64 that orders as the numbers do; both zeros are equal.

    The bits of negative floats are inverted. NaN is the greatest or the least.
    """
    dtype, bits = str(value.ty.dtype), int(value.ty.dtype.bits)
    signed, wide = f"int{bits}", "int64" if bits == 64 else "int32"
    if "float" not in dtype:
        if dtype in ("uint32", "uint64"):  # flipping the highest bit gives the order of int
            return reinterpret(signed, value) ^ tirx.min_value(signed)
        return value.astype(wide)
    most, zero = tirx.max_value(signed), tirx.const(0, signed)
    code = reinterpret(signed, value)
    found = tirx.Select(code < zero, code ^ most, code)
    found = tirx.Select(tirx.EQ(code & most, zero), zero, found)
    nan = most if nan_is_most else tirx.min_value(signed)
    return tirx.Select(is_nan(value), nan, found).astype(wide)


def key_of(rank: Expr, place: Expr) -> Expr:
    """An int64 key that orders by int32 rank, then by index.

    Indices must be less than 2**32.
    """
    return (rank.astype(INDEX) << 32) | place


def place_in(key: Expr) -> Expr:
    """The index in a key."""
    return key & index(2**32 - 1)


# TopK: always sorted, also if sorting is not asked for; of equal elements the first is chosen.
#
#     ranks = integers in the order of x[row, :, column]    the least rank is chosen first
#     some of many:  a limit, such that as many blocks as wanted have a least rank up to it; each
#                    element up to the limit is stored at the number of elements before them
#     a few of many: a heap of the best so far, with the worst of them on top; a block of elements
#                    is skipped if none of its ranks is less than the top
#     else: a radix sort of all
#     values, places = x[row, place, column], place    for each place in the heap, or of the first k
#
# NaN is greater than all numbers, as in ONNX Runtime; zeros of both signs are equal. TVM's operator
# compares floats in a way that leaves a row with a NaN unsorted.


COLUMNS = 16  # their elements are read together: one cache line
BLOCK = 32  # elements that are skipped together
FEW = 16
ONE_OF = 24  # ratio at which a heap takes as long as a radix sort, of 768 to 4,000 elements
UNIT = 16  # elements of the smallest block for a limit
MOST_BLOCKS, MOST_LEFT = 256, 512  # each entry is compared with all others
MOST_CHOSEN = 100  # four fifths of the fewest blocks that large rows have


@operator("TopK")
def _top_k(x: Expr, k: Expr, *, axis: int = -1, largest: int = 1) -> Expr:
    dims = dims_of(x)
    axis %= len(dims)
    (count,) = requested_sizes(k, dims[axis])
    outer, inner = product(dims[:axis]), product(dims[axis + 1 :])
    x3, shape = reshaped_to(x, [outer, dims[axis], inner]), [outer, count, inner]
    results = [(shape, x.ty.dtype), (shape, INDEX)]
    found = emit_kernel("top_k", [x3], results, lambda *given: _Rows(largest, *given).emit())
    chosen = [*dims[:axis], count, *dims[axis + 1 :]]
    return relax.Tuple([reshaped_to(each, chosen) for each in found])


class _Rows:
    """The kernel of TopK on `x[row, place, column]`."""

    def __init__(self, largest: int, x: Expr, values: Expr, places: Expr) -> None:
        self._x, self._values, self._places, self._largest = x, values, places, largest
        self._extent, self._count = x.shape[1], places.shape[1]
        self._columns = 1 if is_number(x.shape[2], 1) else COLUMNS
        self._dtype = str(self._rank(index(0), index(0), index(0)).ty.dtype)
        # After the ranks of a column come some that are never chosen.
        self._apart = self._extent + BLOCK
        self._ranks = I.sblock_alloc_buffer([self._columns * self._apart], self._dtype)
        self._last = cell(self._dtype)

    def emit(self) -> None:
        """Writes all rows and columns, with a limit if that is possible."""
        # Enough blocks, so that randomly placed elements exceed the wanted number up to the limit
        # only by a few.
        enough = self._count * (5 * UNIT) <= self._extent * 4
        fits = tirx.all(self._count > FEW, self._count <= MOST_CHOSEN, enough)
        is_limited = fits if self._dtype == "int32" else tirx.const(False)
        _either(is_limited, lambda: self._each_row(True), lambda: self._each_row(False))

    def _each_row(self, limited: bool) -> None:
        """Writes all rows, some columns at a time."""
        self._order = table(self._count if limited else self._extent)
        if limited:  # allocated here, not again in each row
            self._least = table(index(MOST_BLOCKS + UNIT), self._dtype)
            self._keys = table(index(MOST_LEFT + 2 * UNIT))
        outer, _, inner = self._x.shape
        blocks = tirx.floordiv(inner + (self._columns - 1), self._columns)
        with I.serial(outer) as row, I.serial(blocks) as block:
            first = block * self._columns
            width = te.min(self._columns, inner - first) if self._columns > 1 else index(1)
            with I.serial(self._extent) as place, I.serial(width) as column:
                rank = self._rank(row, place, first + column)
                put(self._ranks, rank, column * self._apart + place)
            with I.serial(width) as column:
                base = column * self._apart
                with I.serial(BLOCK) as place:
                    never = tirx.max_value(self._dtype)
                    put(self._ranks, never, base + self._extent + place)
                self._choose(row, first + column, base, limited)

    def _rank(self, row: Expr, place: Expr, column: Expr) -> Expr:
        rank = rising(self._x[row, place, column])
        return rank ^ tirx.const(-1, rank.ty.dtype) if self._largest else rank

    def _choose(self, row: Expr, column: Expr, base: Expr, limited: bool) -> None:
        """Stores the results of one column, whose ranks begin at `base`."""
        order = Order(self._order, lambda place: self._ranks[base + place])

        def store(place_of: Callable[[Expr], Expr]) -> None:
            with I.serial(self._count) as number:
                place = place_of(self._order[number])
                put(self._places, place, row, number, column)
                put(self._values, self._x[row, place, column], row, number, column)

        def by_heap() -> None:
            (self._by_limit if limited else self._fill_heap)(order, base)
            store(lambda entry: place_in(entry) if order.has_keys else entry)

        def by_digits() -> None:
            sort_by_digits(order, self._extent)
            store(lambda place: place)

        few = tirx.any(self._count * ONE_OF <= self._extent, self._count <= FEW)
        _either(tirx.const(True) if limited else few, by_heap, by_digits)

    def _by_limit(self, order: Order, base: Expr) -> None:
        """Fills `self._order` with the first elements, sorted, by a limit on ranks."""
        ranks, least, keys, left = self._ranks, self._least, self._keys, cell()
        most = tirx.max_value(self._dtype)
        units = tirx.floordiv(self._extent + (UNIT - 1), UNIT)
        each = tirx.floordiv(units + (MOST_BLOCKS - 1), MOST_BLOCKS)
        blocks = tirx.floordiv(units + each - 1, each)
        limit, so_far = cell(self._dtype), cell(self._dtype)
        with I.serial(blocks) as block:
            put(so_far, most)
            with I.serial(te.min(each, units - block * each)) as unit:
                found = _least(ranks, base + (block * each + unit) * UNIT, UNIT)
                put(so_far, te.min(so_far[0], found))
            put(least, so_far[0], block)
        with I.serial(UNIT) as place:
            put(least, most, blocks + place)
        put(limit, most)
        with I.serial(blocks) as block:
            put(so_far, least[block])
            enough = _counted(least, blocks, so_far[0], tirx.LE) >= self._count
            put(limit, te.min(limit[0], tirx.Select(enough, so_far[0], most)))
        put(left, index(0))
        with I.serial(units) as unit:
            some = _least(ranks, base + unit * UNIT, UNIT) <= limit[0]
            with I.If(tirx.all(left[0] <= MOST_LEFT, some)), I.Then(), I.serial(UNIT) as number:
                # Without a branch, which would be mispredicted.
                put(keys, order.entry(unit * UNIT + number), left[0])
                below = ranks[base + unit * UNIT + number] <= limit[0]
                put(left, left[0] + below.astype(INDEX))
        with I.If(left[0] <= MOST_LEFT), I.Then():
            with I.serial(UNIT) as place:
                put(keys, tirx.max_value(INDEX), left[0] + place)
            with I.serial(left[0]) as number:
                place = cell()
                put(place, _counted(keys, left[0], keys[number], tirx.LT))
                with I.If(place[0] < self._count), I.Then():
                    put(self._order, keys[number], place[0])
        # Falls back to a heap if too many elements are up to the limit, as in sorted rows.
        with I.If(tirx.Not(left[0] <= MOST_LEFT)), I.Then():
            self._fill_heap(order, base)

    def _fill_heap(self, order: Order, base: Expr) -> None:
        """Fills `self._order` with the first elements, sorted, by a heap."""
        count, last, heap = self._count, self._last, Heap(self._order, order.later)
        with I.serial(count) as place:
            put(self._order, order.entry(place), place)
        heap.build(count)
        put(last, order.rank_of(self._order[0]))
        blocks = tirx.floordiv(self._extent - count + (BLOCK - 1), BLOCK)
        with I.If(count > 0), I.Then(), I.serial(blocks) as block:
            start = count + block * BLOCK
            # Of equal elements the first is kept: a later one must have a smaller rank.
            some = _least(self._ranks, base + start) < last[0]
            with I.If(some), I.Then(), I.serial(BLOCK) as number:
                rank = self._ranks[base + start + number]
                with I.If(rank < last[0]), I.Then():
                    put(self._order, order.entry(start + number))
                    heap.sink(index(0), count)
                    put(last, order.rank_of(self._order[0]))
        heap.sort(count)


def _either(condition: Expr, yes: Callable[[], None], no: Callable[[], None]) -> None:
    """Writes one of two parts of a kernel; or both, if dynamic sizes decide at run time."""
    if holds(condition):
        yes()
    elif holds(tirx.Not(condition)):
        no()
    else:
        with I.If(condition):
            with I.Then():
                yes()
            with I.Else():
                no()


def _least(ranks: Expr, start: Expr, count: int = BLOCK) -> Expr:
    """The least rank of a block, by vectors."""
    lanes = 256 // int(ranks.dtype.bits)
    vectors = [ranks[ramp(start + first, lanes)] for first in range(0, count, lanes)]
    while len(vectors) > 1:
        vectors = [te.min(*pair) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    name = f"llvm.vector.reduce.smin.v{lanes}i{ranks.dtype.bits}"
    return I.call_llvm_pure_intrin(str(ranks.dtype), name, vectors[0])


def _counted(numbers: Expr, count: Expr, other: Expr, holds: Callable[..., Expr]) -> Expr:
    """Counts the first numbers for which `holds`; the table must have `UNIT` more numbers."""
    lanes, every, dtype = UNIT, ramp(0, UNIT), str(numbers.dtype)
    total = I.sblock_alloc_buffer([UNIT], dtype)
    I.buffer_store(total, tirx.Broadcast(tirx.const(0, dtype), lanes), [every])
    with I.serial(tirx.floordiv(count + (lanes - 1), lanes)) as step:
        found = holds(numbers[ramp(step * lanes, lanes)], tirx.Broadcast(other, lanes))
        I.buffer_store(total, total[every] + found.astype(f"{dtype}x{lanes}"), [every])
    name = f"llvm.vector.reduce.add.v{lanes}i{dtype.removeprefix('int')}"
    return I.call_llvm_pure_intrin(dtype, name, total[every])
