"""ThreadGrid: one product cut among threads, by rows, by columns and, if these are few, by K.

Every thread along K writes the sums of its share to a buffer and counts that it has. The one that
counts last adds up the shares, always in the same order, and runs the epilogue. So there is one
fork, and nobody waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.vector.arrival import ARRIVAL_LLVM_IR, count_arrival
from microkernels.vector.expressions import Expr, bind, constant, ramp, splat
from tir_schedules.core.blocking import balanced
from tir_schedules.core.emission import opaque_block, task_loop
from tir_schedules.core.group_loops import for_groups, for_share
from tir_schedules.core.product_plan import ProductPlan

from .tile_loops import TileLoops

_LINE = 16  # int32 of a cache line; each counter has its own


class ThreadGrid:
    """Rows, vectors of columns and steps of K of a plan, cut among its threads."""

    def __init__(self, plan: ProductPlan) -> None:
        self.plan = plan
        self.rows, self.columns, self.steps = plan.row_shares, plan.column_shares, plan.k_shares
        self.threads_m = sum(group.count for group in self.rows)
        self.threads_k = sum(group.count for group in self.steps)
        self.blocks = self.threads_m * sum(group.count for group in self.columns)
        self.tasks = self.blocks * self.threads_k

    @property
    def most_rows(self) -> int:
        """Rows of the largest share."""
        return self.rows[0].size

    @contextmanager
    def task(self) -> Iterator[Expr]:
        """The loop over tasks; around it, what the shares of K need."""
        if self.threads_k == 1:
            with task_loop(self.tasks) as task:
                yield task
            return
        kernel = self.plan.kernel
        pitch = self.plan.n_vectors * kernel.lanes
        with opaque_block("shares"):
            size = self.threads_k * self.plan.m * pitch
            self.sums = I.sblock_alloc_buffer((size,), kernel.acc_dtype, align=64)
            self.counters = I.sblock_alloc_buffer((self.blocks * _LINE,), "int32", align=64)
            with I.serial(self.blocks) as block:
                I.buffer_store(self.counters, tirx.const(0, "int32"), [block * _LINE])
            # TVM would give every task its own buffer if nothing outside of the loop used it.
            I.buffer_store(self.sums, tirx.const(0, kernel.acc_dtype), [tirx.const(0, "int32")])
            with task_loop(self.tasks) as task, llvm_functions(ARRIVAL_LLVM_IR):
                yield task

    def emit(self, task: Expr, loops: TileLoops) -> None:
        """The loops over one thread's share."""
        block = task if self.threads_k == 1 else bind(I.floormod(task, self.blocks))
        for_share(
            self.rows,
            I.floormod(block, self.threads_m),
            lambda row, rows: for_share(
                self.columns,
                I.floordiv(block, self.threads_m),
                lambda vector, vectors: self._block(task, block, loops, row, rows, vector, vectors),
            ),
        )

    def _block(
        self,
        task: Expr,
        block: Expr,
        loops: TileLoops,
        row: Expr,
        rows: int,
        vector: Expr,
        vectors: int,
    ) -> None:
        """A block of results, or a share of its sums."""
        if self.threads_k == 1:
            loops.emit(row, rows, vector, vectors)
            return
        number = bind(I.floordiv(task, self.blocks))
        partial = self._partial(loops, number)
        for_share(
            self.steps,
            number,
            lambda first, steps: replace(partial, share=(first, steps)).emit(
                row, rows, vector, vectors
            ),
        )
        with opaque_block("arrive"):
            before = I.sblock_alloc_buffer((1,), "int32")
            zero = tirx.const(0, "int32")
            I.buffer_store(before, count_arrival(self.counters[block * _LINE]), [zero])
            with I.If(before[zero] == self.threads_k - 1), I.Then():
                self._add(loops, row, rows, vector, vectors)

    def _partial(self, loops: TileLoops, number: Expr) -> TileLoops:
        """The loops that store sums of the share `number`; the first one has the start."""
        plan, start = self.plan, loops.start
        lanes, dtype = plan.kernel.lanes, plan.kernel.acc_dtype

        def start_first(row: Expr, vector: Expr) -> Expr:
            assert start is not None
            first = tirx.EQ(splat(number, lanes), constant(0, "int32", lanes))
            return tirx.Select(first, start(row, vector), constant(0, dtype, lanes))

        def all_start_first(vector: Expr) -> Expr:
            return start_first(tirx.const(0, "int32"), vector)

        def store(row: Expr, vector: Expr, value: Expr, _last: bool) -> None:
            I.buffer_store(self.sums, value, [self._place(number, row, vector)])

        return replace(
            loops,
            store=store,
            epilogue_cost=0,
            start=None if start is None else start_first,
            start_columns=None if loops.start_columns is None else all_start_first,
            direct=None,
            fetch=None,
        )

    def _add(self, loops: TileLoops, row: Expr, rows: int, vector: Expr, vectors: int) -> None:
        """Adds the shares of a block of results and stores them."""
        lanes, dtype = self.plan.kernel.lanes, self.plan.kernel.acc_dtype
        lane = ramp(0, lanes)

        def total(at: Expr, column: Expr) -> Expr:
            result = I.sblock_alloc_buffer((lanes,), dtype)
            first = self.sums[self._place(tirx.const(0, "int32"), at, column)]
            I.buffer_store(result, first, [lane])
            with I.serial(self.threads_k - 1) as other:
                term = self.sums[self._place(other + 1, at, column)]
                I.buffer_store(result, result[lane] + term, [lane])
            return bind(result[lane])

        def panel(start: Expr | int, size: int) -> None:
            with I.serial(rows) as i, opaque_block("add"):
                for j in range(size):
                    column = vector + start + j
                    loops.store(row + i, column, total(row + i, column), j == size - 1)

        for_groups(balanced(vectors, self.plan.vectors), panel)

    def _place(self, number: Expr, row: Expr, vector: Expr) -> Expr:
        """Where the sums of a share lie."""
        lanes = self.plan.kernel.lanes
        return ramp(((number * self.plan.m + row) * self.plan.n_vectors + vector) * lanes, lanes)
