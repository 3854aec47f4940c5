"""The loops of an elementwise region whose sizes are known at run time only.

As `Loops`, but what threads share is decided when the kernel runs: the rows or, where all of it is
one row, its vectors. A row of unknown length is whole vectors some at a time, single ones, then one
that overlaps the one before it or, of a row shorter than a vector, is cut.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I

from microkernels.vector.expressions import Expr, materialise
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.core.open_loops import open_tasks, share_of
from tir_schedules.core.size import is_open
from tir_schedules.epilogue.epilogue import Columns

from .elementwise_loops import Loops


class OpenLoops(Loops):
    """The loops over a matrix whose rows, columns or both are known at run time only."""

    def share_open(self, rows: int, threads: int, alone: int) -> None:
        """Shares the rows among threads, or the vectors of a single row.

        Parameters
        ----------
        alone : int
            Up to so many numbers, one thread runs all.
        """
        count, n = as_expr(extent(rows)), as_expr(extent(self.n))
        single = not is_open((rows,)) and rows == 1
        first_row = as_expr(0)
        total = materialise(I.floordiv(n, self.lanes)) if single else count
        with open_tasks(threads, count * n <= alone) as (task, tasks):
            first, share = share_of(total, task, tasks)
            if single:
                self.vectors(first_row, first, share)
            else:
                self.for_rows(first, share, self.row)
        if single:
            with opaque_block("rest"):
                self.rest(first_row)

    def row(self, row: Expr) -> None:
        if not is_open((self.n,)):
            super().row(row)
            return
        self.vectors(row, 0, I.floordiv(as_expr(extent(self.n)), self.lanes))
        self.rest(row)

    def vectors(self, row: Expr, start: Expr | int, count: Expr | int) -> None:
        if isinstance(count, int):
            super().vectors(row, start, count)
            return
        lanes, unroll = self.lanes, self.unroll
        several = materialise(I.floordiv(count, unroll))
        with I.serial(several) as step, opaque_block("vectors"):
            self.side_by_side(row, (start + step * unroll) * lanes, unroll)
        if unroll > 1:
            with I.serial(count - several * unroll) as slot, opaque_block("vector"):
                self.side_by_side(row, (start + several * unroll + slot) * lanes, 1)

    def rest(self, row: Expr) -> None:
        if not is_open((self.n,)):
            super().rest(row)
            return
        n, lanes = as_expr(extent(self.n)), self.lanes
        if lanes == 1:
            return
        left = materialise(I.floormod(n, lanes))
        with I.If(left > 0), I.Then(), I.If(n > lanes):
            with I.Then(), opaque_block("overlapping"):
                self.one(row, Columns(n - lanes, lanes, lanes))
            with I.Else(), opaque_block("cut"):
                self.one(row, Columns(0, lanes, left))
