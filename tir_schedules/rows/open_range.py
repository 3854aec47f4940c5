"""Smallest and largest of numbers of which it is known at run time only how many there are.

    vectors, several at a time; then one at a time; then the last one, which overlaps others

Numbers fewer than a vector are taken one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, bind, materialise, splat
from tir_schedules.core.emission import opaque_block, task_loop
from tir_schedules.core.open_loops import share_of
from tir_schedules.core.reduce_lanes import LaneTotals
from tir_schedules.epilogue.epilogue import Columns

Load = Callable[[Columns], Expr]


def emit_open_extremes(lanes: int, size: Expr, unroll: int, load: Load) -> tuple[Expr, Expr]:
    """The loop: (smallest, largest) of 0 and `size` numbers, as scalar expressions.

    Parameters
    ----------
    lanes : int
        Of a vector register.
    size : Expr
        How many numbers.
    unroll : int
        Independent minima and maxima.
    load : callable
        Columns, all of which exist -> f32 vector, or f32 for a single column.
    """
    found = _Extremes(lanes, unroll, load)
    vectors = materialise(I.floordiv(size, lanes))
    found.vectors(tirx.const(0, "int32"), vectors)
    found.last(size)
    return found.total()


def emit_shared_extremes(
    lanes: int, size: Expr, unroll: int, load: Load, tasks: int
) -> tuple[Expr, Expr]:
    """The same, in one parallel region over so many tasks."""
    parts = I.sblock_alloc_buffer((tasks, 2), "float32")
    vectors = materialise(I.floordiv(size, lanes))
    with task_loop(tasks) as task:
        first, count = share_of(vectors, task, tasks)
        found = _Extremes(lanes, unroll, load)
        found.vectors(first, count)
        for index, value in enumerate(found.total()):
            I.buffer_store(parts, value, [task, index])
    with opaque_block("all"):
        rest = _Extremes(lanes, 1, load)
        rest.last(size)
        totals = I.sblock_alloc_buffer((2,), "float32")
        for index, value in enumerate(rest.total()):
            I.buffer_store(totals, value, [index])
        with I.serial(tasks) as task:
            for index, combine in enumerate((tirx.Min, tirx.Max)):
                I.buffer_store(totals, combine(totals[index], parts[task, index]), [index])
    return bind(totals[0]), bind(totals[1])


class _Extremes:
    """Minima and maxima in vectors, and the loops that find them."""

    def __init__(self, lanes: int, unroll: int, load: Load) -> None:
        self.lanes, self.unroll, self.load = lanes, unroll, load
        self.totals = [(LaneTotals(lanes, 0.0, unroll), each) for each in (tirx.Min, tirx.Max)]

    def vectors(self, first: Expr, count: Expr) -> None:
        """Takes in so many vectors from the vector `first` on."""
        steps = materialise(I.floordiv(count, self.unroll))
        with I.serial(steps) as step:
            for slot in range(self.unroll):
                self._take((first + (step * self.unroll + slot)) * self.lanes, slot)
        with I.serial(count - steps * self.unroll) as left:
            self._take((first + (steps * self.unroll + left)) * self.lanes, 0)

    def last(self, size: Expr) -> None:
        """Takes in the last vector of all numbers; all of them, if they are fewer."""
        with I.If(size >= self.lanes):
            with I.Then(), opaque_block("last"):
                self._take(size - self.lanes, 0)
            with I.Else(), I.serial(size) as number, opaque_block("single"):
                self._store(splat(self.load(Columns(number, 1, 1)), self.lanes), 0)

    def total(self) -> tuple[Expr, Expr]:
        """(smallest, largest) as scalars."""
        low, high = (found.total(combine) for found, combine in self.totals)
        return low, high

    def _take(self, start: Expr, slot: int) -> None:
        self._store(self.load(Columns(start, self.lanes, self.lanes)), slot)

    def _store(self, value: Expr, slot: int) -> None:
        value = bind(value)
        # In this order an x86 minimum drops a NaN in `value`.
        for found, combine in self.totals:
            found.store(combine(value, found[slot]), slot)
