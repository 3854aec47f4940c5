"""Keys or values that grow: the new ones behind those of the past, in a tensor of their own.

    present[h, j] = past[h, j] if j < P else new[h, j - P]        heads h, of all batches

Where there is one query, the past is read once: its scores and products are computed of what has
just been copied, which is in L1. What is more than caches hold is copied by streaming stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I

from microkernels.vector.expressions import Expr, materialise, ramp
from microkernels.vector.streaming import stream
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import as_expr, extent

STREAMED_BYTES = 1 << 19
"""Of a tensor of keys: more are not read soon enough to be found in cache."""


@dataclass(frozen=True)
class GrowingCache:
    """One tensor of keys or values, all its heads, and what it is made of.

    Attributes
    ----------
    past, new, present : buffer
        Flat, f32: the heads' rows behind each other.
    past_rows, new_rows : int
        Of a head; either may be symbolic.
    heads : int
        Of all batches.
    columns : int
        Of a row: whole vectors.
    lanes : int
        Of a vector register.
    """

    past: Expr
    new: Expr
    present: Expr
    past_rows: int
    new_rows: int
    heads: int
    columns: int
    lanes: int

    @property
    def rows(self) -> Expr:
        """Of a head of the result."""
        return as_expr(extent(self.past_rows + self.new_rows))

    def head(self, base: Expr) -> Expr:
        """Which head begins at an element of the result."""
        return materialise(I.floordiv(base, self.rows * self.columns))

    def past_at(self, head: Expr, row: Expr | int) -> Expr:
        """Where a row of the past begins."""
        return (head * as_expr(extent(self.past_rows)) + row) * self.columns

    def copy(self, head: Expr, first: Expr | int = 0) -> None:
        """Copies a head's rows from the row `first` of the past on, and the new ones."""
        past, new = as_expr(extent(self.past_rows)), as_expr(extent(self.new_rows))
        goal = materialise(head * self.rows)
        self._copy(
            self.past, self.past_at(head, first), (goal + first) * self.columns, past - first
        )
        self._copy(self.new, head * new * self.columns, (goal + past) * self.columns, new)

    def copy_past(self, head: Expr, first: Expr, rows: int) -> None:
        """Copies some rows of the past, which are read at once."""
        source = materialise(self.past_at(head, first))
        goal = materialise((head * self.rows + first) * self.columns)
        vectors = rows * self.columns // self.lanes
        streamed = self.rows * (4 * self.columns) * as_expr(extent(self.heads)) >= STREAMED_BYTES

        def both(store: Callable[[Expr, Expr], None]) -> None:
            with I.serial(vectors) as at:
                index = at * self.lanes
                store(goal + index, self.past[ramp(source + index, self.lanes)])

        if self.lanes == 1:
            both(self._store)
            return
        with I.If(streamed):
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
