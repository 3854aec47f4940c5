"""The loops of an elementwise region: full vectors of each row, and one for what is left of it.

The last vector of a row may overlap the one before it and compute the same results again, so that
no mask is needed unless a row is shorter than a vector.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm.tirx.script.builder.ir as I

from microkernels.vector.expressions import Expr, bind
from tir_schedules.core.blocking import shares
from tir_schedules.core.emission import opaque_block, task_loop
from tir_schedules.core.group_loops import for_share
from tir_schedules.epilogue.epilogue import Columns, Epilogue, as_lanes, load_vector, store_vector
from tir_schedules.epilogue.packed_bytes import wide_bytes


class Loops:
    """The loops over a matrix of `n` columns."""

    def __init__(
        self,
        n: int,
        lanes: int,
        unroll: int,
        x_dtype: str,
        x: Expr,
        y: Expr,
        epilogue: Epilogue,
    ) -> None:
        self.n, self.lanes, self.unroll = n, lanes, unroll
        self.x_dtype, self.x, self.y, self.epilogue = x_dtype, x, y, epilogue
        self.packed = wide_bytes(epilogue.region, lanes, epilogue)

    def share(self, rows: int, threads: int) -> None:
        """Shares the rows among threads, or the vectors of every row if rows are few and long."""
        vectors = self.n // self.lanes
        long = rows < 4 * threads and vectors >= 4 * threads > 4
        extent = vectors if long else rows
        parts = shares(extent, min(threads, extent))
        tasks = sum(group.count for group in parts)

        def part(start: Expr, size: int) -> None:
            if long:
                self.for_rows(0, rows, lambda row: self.vectors(row, start, size))
            else:
                self.for_rows(start, size, self.row)

        with task_loop(tasks) as task:
            for_share(parts, task, part)
        if long and self.n % self.lanes:
            with opaque_block("rest"):
                self.for_rows(0, rows, self.rest)

    def for_rows(self, start: Expr | int, count: Expr | int, body: Callable[[Expr], None]) -> None:
        with I.serial(count) as i:
            body(start + i)

    def row(self, row: Expr) -> None:
        """A whole row."""
        self.vectors(row, 0, self.n // self.lanes)
        if self.n % self.lanes:
            self.rest(row)

    def vectors(self, row: Expr, start: Expr | int, count: int) -> None:
        """`count` full vectors of a row, from vector `start`."""
        lanes = self.lanes
        unroll = min(self.unroll, max(count, 1))
        steps, left = divmod(count, unroll)
        if steps:
            with I.serial(steps) as step:
                self.side_by_side(row, (start + step * unroll) * lanes, unroll)
        if left:
            with I.serial(left) as slot:
                self.side_by_side(row, (start + steps * unroll + slot) * lanes, 1)

    def side_by_side(self, row: Expr, start: Expr, count: int) -> None:
        """Vectors that lie next to each other."""
        vectors = [Columns(start + i * self.lanes, self.lanes, self.lanes) for i in range(count)]
        if self.packed is None:
            for columns in vectors:
                self.one(row, columns)
            return
        wide = [self.epilogue(self._read(row, c), row, c, self.packed) for c in vectors]
        self.packed.store(self.y, wide, (row,), start)

    def rest(self, row: Expr) -> None:
        """The last columns: a vector that overlaps the one before it, or a masked one."""
        if self.n > self.lanes:
            self.one(row, Columns(self.n - self.lanes, self.lanes, self.lanes))
        else:
            self.one(row, Columns(0, self.lanes, self.n))

    def one(self, row: Expr, columns: Columns) -> None:
        """One vector."""
        result = self.epilogue(self._read(row, columns), row, columns)
        store_vector(self.y, result, (row,), columns)

    def _read(self, row: Expr, columns: Columns) -> Expr:
        return bind(as_lanes(load_vector(self.x, self.x_dtype, (row,), columns)))
