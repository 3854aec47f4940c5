"""Sorts inside a kernel: a stable one, by merges of runs of 1, 2, 4, ... elements; and the first
few of many, by a heap."""

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


def first_places(order: Expr, count: Expr, extent: Expr, before: Before) -> None:
    """Puts the first `count` of `extent` places in `order`, in order; equal ones by their numbers.

    A heap holds the best so far, the last of them on top (Williams, "Algorithm 232: Heapsort",
    1964): where few are asked for, most places cost one comparison.
    """

    def earlier(one: Expr, other: Expr) -> Expr:
        same_or_later = tirx.Not(before(other, one))
        return tirx.any(before(one, other), tirx.all(same_or_later, one < other))

    heap = Heap(order, lambda one, other: earlier(other, one))
    with I.serial(count) as place:
        put(order, place, place)
    heap.build(count)
    with I.If(count > 0), I.Then(), I.serial(extent - count) as number:
        place = count + number
        with I.If(before(place, order[0])), I.Then():
            put(order, place, 0)
            heap.sink(index(0), count)
    sort_places(order, count, earlier)


class Heap:
    """A binary heap in the first numbers of a table; `above` says which of two lies above."""

    def __init__(self, order: Expr, above: Before) -> None:
        self._order, self._above = order, above
        self._hole, self._child, self._goes = cell(), cell(), cell("bool")

    def build(self, count: Expr) -> None:
        """Makes a heap of the first `count` numbers."""
        with I.serial(tirx.floordiv(count, 2)) as number:
            self.sink(tirx.floordiv(count, 2) - 1 - number, count)

    def sink(self, start: Expr, count: Expr) -> None:
        """Moves a number down until none below it has to lie above it."""
        order, hole, child, goes = self._order, self._hole, self._child, self._goes
        put(hole, start)
        put(goes, tirx.const(True, "bool"))
        with I.While(goes[0]):
            put(child, hole[0] * 2 + 1)
            put(goes, child[0] < count)
            with I.If(goes[0]), I.Then():
                other = self._above(order[child[0] + 1], order[child[0]])
                with I.If(child[0] + 1 < count), I.Then(), I.If(other), I.Then():
                    put(child, child[0] + 1)
                put(goes, self._above(order[child[0]], order[hole[0]]))
                with I.If(goes[0]), I.Then():
                    _swap(order, hole[0], child[0])
                    put(hole, child[0])


def _swap(order: Expr, one: Expr, other: Expr) -> None:
    kept = cell()
    put(kept, order[one])
    put(order, order[other], one)
    put(order, kept[0], other)


def descending_key(score: Expr, place: Expr) -> Expr:
    """An int64 number that is less for a higher float32, and of equal ones for a lower place.

    NaN is the lowest; there are fewer than 2**32 places.
    """
    bits = reinterpret("int32", score)
    rising = tirx.Select(bits < 0, bits ^ tirx.const(2**31 - 1, "int32"), bits)
    rising = tirx.Select(tirx.EQ(score, tirx.const(0, "float32")), tirx.const(0, "int32"), rising)
    rising = tirx.Select(is_nan(score), tirx.min_value("int32"), rising)
    # All bits the other way round turn the order round.
    return ((rising ^ tirx.const(-1, "int32")).astype(INDEX) << 32) | place


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
