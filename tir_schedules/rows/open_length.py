"""Normalises contiguous rows whose length is known at run time only.

As `Rows`, but for the sweeps: whole vectors some at a time, single ones, then the one that is cut.
Rows beyond cache are read again, as others are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, materialise
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import allocated, as_expr, extent
from tir_schedules.core.reduce_lanes import Combine
from tir_schedules.epilogue.epilogue import Columns

from .normalize_rows import Rows, Term, f32


@dataclass
class RowsOfAnyLength(Rows):
    """The loops over one block of rows; `keep` and `chunk` say nothing."""

    def _chunks(self) -> int:
        return 1

    def _inverse(self) -> Expr:
        return materialise(f32(1) / tirx.Cast("float32", as_expr(extent(self.view.n))))

    def _room(self, rows: int) -> Expr:
        return I.sblock_alloc_buffer((rows, allocated(self.view.n)), "float32")

    def _sweep(
        self,
        body: Callable[[Columns, int], None],
        start: Expr | int = 0,
        vectors: int | None = None,
        cut: int | None = None,
    ) -> None:
        """Runs `body(columns, accumulator)` along the row."""
        lanes, unroll, n = self.lanes, self.unroll, extent(self.view.n)
        whole = materialise(I.floordiv(n, lanes))
        several = materialise(I.floordiv(whole, unroll))
        with I.serial(several) as i, opaque_block("vectors"):
            for slot in range(unroll):
                body(Columns((i * unroll + slot) * lanes, lanes, lanes), slot)
        if unroll > 1:
            with I.serial(whole - several * unroll) as i, opaque_block("vector"):
                body(Columns((several * unroll + i) * lanes, lanes, lanes), 0)
        if lanes > 1:
            left = materialise(n - whole * lanes)
            with I.If(left > 0), I.Then(), opaque_block("cut"):
                body(Columns(whole * lanes, lanes, left), 0)

    def _reduce(
        self,
        term: Term,
        combine: Combine,
        identity: float,
        start: Expr | int = 0,
        vectors: int | None = None,
        cut: int | None = None,
    ) -> list[Expr]:
        """Combines the terms of every row to a scalar; `unroll` independent chains each."""
        return self._combine_terms(term, combine, identity, self.unroll, self._sweep)
