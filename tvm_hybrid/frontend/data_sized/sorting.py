"""Sorts inside a kernel, all stable: by merges of runs of 1, 2, 4, ... elements, by a heap, which
finds the first few of many (Williams, "Algorithm 232: Heapsort", 1964), and by digits of integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tvm.tirx.script.builder.ir as I
from tvm import te, tirx

from microkernels.vector.expressions import reinterpret

from ..expressions import Expr, is_nan
from .kernels import INDEX, cell, index, put, table

# Whether the first of two places has to come before the second; it may write statements.
Before: TypeAlias = Callable[[Expr, Expr], Expr]


def sort_places(order: Expr, count: Expr, before: Before) -> None:
    """Puts the first `count` places in `order` in order; equal ones stay as they are."""
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
    """A binary heap in the first numbers of a table; `above` says which of two lies above."""

    def __init__(self, order: Expr, above: Before) -> None:
        self._order, self._above = order, above
        self._hole, self._child = cell(), cell()
        self._moved = cell(str(order.dtype))

    def build(self, count: Expr) -> None:
        """Makes a heap of the first `count` numbers."""
        with I.serial(tirx.floordiv(count, 2)) as number:
            self.sink(tirx.floordiv(count, 2) - 1 - number, count)

    def sink(self, start: Expr, count: Expr) -> None:
        """Moves a number down until none below it has to lie above it."""
        order, hole, child, moved = self._order, self._hole, self._child, self._moved
        put(hole, start)
        put(moved, order[start])
        put(child, start * 2 + 1)
        with I.While(child[0] < count):
            # Without a branch, which half of all pairs would mispredict.
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
        """Puts what lies above all others last, and so on; it is no heap then."""
        with I.serial(count - 1) as number:
            last = count - 1 - number
            _swap(self._order, index(0), last)
            self.sink(index(0), last)


def _swap(order: Expr, one: Expr, other: Expr) -> None:
    kept = cell()
    put(kept, order[one])
    put(order, order[other], one)
    put(order, kept[0], other)


class Order:
    """Places in the order of their ranks, equal ones by their numbers, as entries of a table.

    An entry is a place, or if a rank has 32 bits a key: one comparison is enough then.
    """

    def __init__(self, entries: Expr, rank: Callable[[Expr], Expr]) -> None:
        self.entries, self.rank = entries, rank
        self.has_keys = str(rank(index(0)).ty.dtype) == "int32"

    def entry(self, place: Expr) -> Expr:
        """What a heap has for a place."""
        return key_of(self.rank(place), place) if self.has_keys else place

    def rank_of(self, entry: Expr) -> Expr:
        """The rank of an entry."""
        return (entry >> 32).astype("int32") if self.has_keys else self.rank(entry)

    def later(self, one: Expr, other: Expr) -> Expr:
        """Whether an entry comes behind another one."""
        if self.has_keys:
            return one > other
        left, right = self.rank(one), self.rank(other)
        return tirx.any(left > right, tirx.all(tirx.EQ(left, right), one > other))


def sort_by_digits(order: Order, count: Expr) -> None:
    """Makes the first entries the places of the first `count` ranks, in order.

    Eight bits at a time, the lowest first. Digits that are the same in all ranks take no time.
    """
    places, other, total, kept = order.entries, table(order.entries.shape[0]), cell(), cell()
    bits = int(order.rank(index(0)).ty.dtype.bits)
    counts = I.sblock_alloc_buffer([bits * 32], INDEX)

    def digit(place: Expr, step: Expr) -> Expr:
        """Where a digit of a rank is counted; the highest bit is that of signs."""
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
    with (
        I.serial(index(bits // 8)) as step,
        I.If(counts[digit(index(0), step)] < count),
        I.Then(),
    ):
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
    """An int32, of 64 bits an int64, in the order of numbers; both zeros are one.

    Integers of negative floats count backwards. NaN is the greatest or the least.
    """
    dtype, bits = str(value.ty.dtype), int(value.ty.dtype.bits)
    signed, wide = f"int{bits}", "int64" if bits == 64 else "int32"
    if "float" not in dtype:
        if dtype in ("uint32", "uint64"):  # with the highest bit flipped, the order is that of int
            return reinterpret(signed, value) ^ tirx.min_value(signed)
        return value.astype(wide)
    most, zero = tirx.max_value(signed), tirx.const(0, signed)
    code = reinterpret(signed, value)
    found = tirx.Select(code < zero, code ^ most, code)
    found = tirx.Select(tirx.EQ(code & most, zero), zero, found)
    nan = most if nan_is_most else tirx.min_value(signed)
    return tirx.Select(is_nan(value), nan, found).astype(wide)


def key_of(rank: Expr, place: Expr) -> Expr:
    """An int64 number in the order of int32 ranks, equal ones by their places.

    There are fewer than 2**32 places.
    """
    return (rank.astype(INDEX) << 32) | place


def place_in(key: Expr) -> Expr:
    """The place in a key."""
    return key & index(2**32 - 1)


def lesser(left: Expr, right: Expr) -> Expr:
    """Whether a number comes before another; NaN comes behind all others, and is equal to NaN."""
    dtype = str(left.ty.dtype)
    if dtype == "bool":
        left, right = tirx.Cast("int8", left), tirx.Cast("int8", right)
    if "float" not in dtype:
        return left < right
    return tirx.any(left < right, tirx.all(is_nan(right), tirx.Not(is_nan(left))))
