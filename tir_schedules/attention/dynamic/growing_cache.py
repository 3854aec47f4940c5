"""Keys or values that grow: the new ones behind those of the past, in a tensor of their own.

    present[h, j] = past[h, j] if j < P else new[h, j - P]        heads h, of all batches

The heads of past and present may lie apart, in tensors that have room for more rows. If both are
the same tensor, only new rows are written. Else, where there is one query, the past is read once:
its scores and products are computed of what has just been copied, which is in L1. What is more than
caches hold is copied by streaming stores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, materialise, ramp
from microkernels.vector.memory import address_of, stream
from tir_schedules.attention.problem import AttentionProblem, Layout
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.core.size import quotient

STREAMED_BYTES = 1 << 19
"""Of a tensor of keys: more are not read soon enough to be found in cache."""


@dataclass
class GrowingCache:
    """One tensor of keys or values, all its heads, and what it is made of.

    Attributes
    ----------
    past, new, present : buffer
        Flat, f32.
    past_rows, new_rows : int
        Of a head; either may be symbolic.
    heads : int
        Of all batches.
    columns : int
        Of a row: whole vectors.
    past_apart, present_apart : int
        Elements from one head to the next; may be symbolic.
    lanes : int
        Of a vector register.
    in_place : Expr
        Whether past and present are the same tensor.
    aligned : Expr
        Whether the result begins where a vector can.
    """

    past: Expr
    new: Expr
    present: Expr
    past_rows: int
    new_rows: int
    heads: int
    columns: int
    past_apart: int
    present_apart: int
    lanes: int

    def __post_init__(self) -> None:
        begin, past = (materialise(address_of(each[0])) for each in (self.present, self.past))
        apart, past_apart = map(as_expr, map(extent, (self.present_apart, self.past_apart)))
        # A single head lies where it lies.
        distances = tirx.EQ(apart, past_apart) if self.heads != 1 else tirx.const(True, "bool")
        vector = tirx.const(4 * self.lanes, "int64")
        self.in_place = _flag(tirx.And(tirx.EQ(begin, past), distances))
        self.aligned = _flag(tirx.EQ(I.floormod(begin, vector), tirx.const(0, "int64")))

    @property
    def rows(self) -> Expr:
        """Of a head of the result."""
        return as_expr(extent(self.past_rows + self.new_rows))

    def head(self, base: Expr) -> Expr:
        """Which head begins at an element of the result."""
        apart = as_expr(extent(self.present_apart))
        return materialise(I.floordiv(base, tirx.Max(apart, tirx.const(1, "int32"))))

    def past_at(self, head: Expr, row: Expr | int) -> Expr:
        """Where a row of the past begins."""
        return head * as_expr(extent(self.past_apart)) + row * self.columns

    def copy(self, head: Expr, first: Expr | int = 0) -> None:
        """Copies a head's rows from the row `first` of the past on, and the new ones."""
        past, new = as_expr(extent(self.past_rows)), as_expr(extent(self.new_rows))
        with self._unless_in_place():
            goal = self._at(head, first)
            self._copy(self.past, self.past_at(head, first), goal, past - first)
        self._copy(self.new, head * new * self.columns, self._at(head, past), new)

    def copy_past(self, head: Expr, first: Expr, rows: int) -> None:
        """Copies some rows of the past, which are read at once."""
        with self._unless_in_place():
            self._copy_past(head, first, rows)

    @contextmanager
    def _unless_in_place(self) -> Iterator[None]:
        with I.If(tirx.Not(self.in_place)), I.Then(), opaque_block("apart"):
            yield

    def _at(self, head: Expr, row: Expr | int) -> Expr:
        """Where a row of the result begins."""
        return head * as_expr(extent(self.present_apart)) + row * self.columns

    def _copy_past(self, head: Expr, first: Expr, rows: int) -> None:
        source = materialise(self.past_at(head, first))
        goal = materialise(self._at(head, first))
        vectors = rows * self.columns // self.lanes
        much = self.rows * (4 * self.columns) * as_expr(extent(self.heads)) >= STREAMED_BYTES

        def both(store: Callable[[Expr, Expr], None]) -> None:
            with I.serial(vectors) as at:
                index = at * self.lanes
                store(goal + index, self.past[ramp(source + index, self.lanes)])

        if self.lanes == 1:
            both(self._store)
            return
        with I.If(tirx.And(much, self.aligned)):
            with I.Then(), opaque_block("streamed"):
                both(lambda place, value: stream(self.present[place], value))
            with I.Else(), opaque_block("stored"):
                both(self._store)

    def _store(self, place: Expr, value: Expr) -> None:
        I.buffer_store(self.present, value, [ramp(place, self.lanes)])

    def _copy(self, buffer: Expr, source: Expr, goal: Expr, rows: Expr) -> None:
        """Copies rows that lie behind each other."""
        source, goal = materialise(source), materialise(goal)
        with I.serial(rows * (self.columns // self.lanes)) as at, opaque_block("copied"):
            index = at * self.lanes
            self._store(goal + index, buffer[ramp(source + index, self.lanes)])


def _flag(condition: Expr) -> Expr:
    """A condition, evaluated once."""
    one, zero = tirx.const(1, "int32"), tirx.const(0, "int32")
    return materialise(tirx.Select(condition, one, zero)) > 0


def with_room(problem: AttentionProblem, name: str, distance: int) -> None:
    """Has an attention find its "k" or "v" where heads are so many elements apart."""
    layout, tensor = problem.layouts[name], problem.tensors[name]
    close = math.prod(tensor.shape[-2:])
    steps = [quotient(step, close) for step in layout.batch]
    batch = tuple(distance * step for step in steps if step is not None)
    assert len(batch) == len(steps)
    problem.layouts[name] = Layout(batch, layout.row, layout.column)
