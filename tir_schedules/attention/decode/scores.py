"""The scores of few queries: their maxima, exponentials, and sums of exponentials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from microkernels.vector.ieee import LOWEST
from tir_schedules.attention.problem import columns_are_contiguous
from tir_schedules.core import emission, extents, loop_nest
from tir_schedules.core.size import may_be_negative
from tir_schedules.epilogue.epilogue import Columns, Epilogue

from .plan import DecodePlan, corrected, operands_of
from .skinny_product import ColumnSums, dots

_Keys = Sequence[Index]
_BLOCK_KEYS = 64  # least keys of a block, if the elements of a key are not contiguous


class Slot(NamedTuple):
    """A set, and the slot for its results."""

    number: Expr
    slot: Expr


class DecodeScores:
    """The phase that reads K.

    Parameters
    ----------
    plan : DecodePlan
        Tasks and buffers.
    epilogue : Epilogue
        Epilogue of the scores.
    """

    def __init__(self, plan: DecodePlan, epilogue: Epilogue) -> None:
        self.plan, self.problem = plan, plan.problem
        self.q, self.k = (plan.buffers[name] for name in "qk")
        self.epilogue = epilogue
        q, k = self.problem.scores.inputs
        types = q.dtype, k.dtype
        given = self.problem.scores, types, plan.isa, epilogue.narrow
        self.operands, self.points = operands_of(*given)
        group = self.operands.group
        self.width = math.ceil(self.problem.d / group) * group
        # A row of ones adds up the elements of every key.
        self.all_rows = plan.rows + self.points.needs_column_sums

    def emit(self, task: Expr, share: Expr) -> None:
        """Emits the phase for one chunk of a task."""
        plan, lanes, rows = self.plan, self.plan.lanes, self.plan.rows
        self.task = task
        size = plan.side * self.all_rows * self.width
        self.rows = I.sblock_alloc_buffer((size,), self.operands.row_element, align=64)
        self.sums = I.sblock_alloc_buffer((plan.side * rows,), "int32")
        self.largest = I.sblock_alloc_buffer((plan.side * rows * lanes,), "float32", align=64)
        with I.serial(plan.side * rows) as r:
            lowest = ex.constant(-math.inf, "float32", lanes)
            I.buffer_store(self.largest, lowest, [ex.ramp(r * lanes, lanes)])
        plan.for_sets(task, self._load_queries)
        if columns_are_contiguous(self.problem.layouts["k"], self.problem.d):
            # The elements of a key are contiguous. Scores of the past of a cache are computed from
            # rows that have just been copied.
            first, zero = None, tirx.const(0, "int32")
            if "k" in plan.caches:
                base = self.problem.base("k", task * self.problem.group)
                keys, n = range(lanes), extents.as_expr(plan.n)

                def past(vector: Expr) -> None:
                    self._multiply(Slot(task, zero), vector, lanes, keys)

                first = plan.caches["k"].read_past(base, n, lanes, past)

            def dots_of(vector: Expr, valid: Index) -> None:
                plan.for_sets(task, lambda *at: self._by_dots(Slot(*at), vector, valid))

            plan.for_vectors(share, dots_of, first)
        else:
            plan.for_sets(task, lambda number, slot: self._by_columns(number, slot, share))
        plan.for_sets(task, lambda number, slot: self._exponentials(number, slot, share))

    def _local(self, number: Expr, row: Index) -> Expr:
        """Number of a row among those of the task; the row of ones is not counted."""
        return (number - self.task * self.plan.side) * self.plan.rows + row

    def _row(self, number: Expr, row: Index) -> Expr:
        """The index of the first element of a converted row of q."""
        return ((number - self.task * self.plan.side) * self.all_rows + row) * self.width

    def _sink(self, number: Expr, row: Expr) -> Expr | None:
        """The score of the sink of a row of a set; None if there are no sinks."""
        problem = self.problem
        batch = number * problem.group + I.floordiv(row, problem.m)
        return problem.sink(self.plan.buffers, batch, I.floormod(row, problem.m))

    def _load_queries(self, number: Expr, _slot: Expr) -> None:
        """Converts the rows of q to what is multiplied, pads them with zeros, and adds them up."""
        problem, operands, group = self.problem, self.operands, self.operands.group
        layout, element = problem.layouts["q"], self.operands.row_element
        with I.serial(self.plan.rows) as r:
            batch = number * problem.group + I.floordiv(r, problem.m)
            base = ex.bind(problem.base("q", batch) + I.floormod(r, problem.m) * layout.row)
            goal = ex.bind(self._row(number, r))
            for start in range(0, self.width, group):
                valid = min(group, problem.d - start)
                place = ex.ramp(goal + start, group)
                if columns_are_contiguous(layout, problem.d):
                    value = operands.load(self.q, base + start, valid, group, rows=True)
                    I.buffer_store(self.rows, value, [place])
                    continue
                I.buffer_store(self.rows, ex.constant(0, element, group), [place])
                with I.serial(valid) as i:
                    value = self.q[base + (start + i) * layout.column]
                    value = operands.convert(value, problem.tensors["q"].dtype, element)
                    I.buffer_store(self.rows, value, [goal + start + i])
            if self.points.needs_row_sums:
                total = operands.row_sum(self.rows, goal, self.width // group)
                I.buffer_store(self.sums, total, [self._local(number, r)])
            sink = self._sink(number, r)
            if sink is not None:
                lanes = self.plan.lanes
                place = ex.ramp(self._local(number, r) * lanes, lanes)
                I.buffer_store(self.largest, ex.splat(sink, lanes), [place])
        if self.points.needs_column_sums:
            goal = ex.bind(self._row(number, self.plan.rows))
            with I.serial(self.width) as i:
                one = tirx.Select(i < problem.d, tirx.const(1, element), tirx.const(0, element))
                I.buffer_store(self.rows, one, [goal + i])

    def _by_dots(self, at: Slot, vector: Expr, valid: Index) -> None:
        """Multiplies a vector of keys whose elements are contiguous."""
        if isinstance(valid, int):
            self._multiply(at, vector, valid, range(valid))
            return
        # One key has code of its own. The code for any number of keys multiplies all lanes, and
        # repeats the last key.
        lanes, last = self.plan.lanes, ex.bind(valid - 1)
        with I.If(last < 1):
            with I.Then(), emission.opaque_block("key"):
                self._multiply(at, vector, valid, range(1))
            with I.Else(), emission.opaque_block("keys"):
                keys = [tirx.Min(tirx.const(key, "int32"), last) for key in range(lanes)]
                self._multiply(at, vector, valid, keys)

    def _multiply(self, at: Slot, vector: Expr, valid: Index, keys: _Keys) -> None:
        """Multiplies some keys of a vector; `keys` are their numbers in the vector."""
        problem, operands = self.problem, self.operands
        stride, group = problem.layouts["k"].row, operands.group
        k, first = self.plan.place("k", at.number, vector)
        base = ex.bind(first)

        def product(r: Index) -> Expr:
            row = ex.bind(self._row(at.number, r))

            def query(g: Index) -> Expr:
                return self.rows[ex.ramp(row + g * group, group)]

            def key_of(key: int, g: Index, exist: int) -> Expr:
                start = base + (g * group + keys[key] * stride)
                return operands.load(k, start, exist, group)

            return dots(operands, problem.d, len(keys), query, key_of)

        of_ones = ex.materialise(product(self.plan.rows)) if self.points.needs_column_sums else None
        with I.serial(self.plan.rows) as r:
            self._finish(at, r, product(r), of_ones, vector, valid)

    def _by_columns(self, number: Expr, slot: Expr, share: Expr) -> None:
        """Multiplies K stored as [d, n]: blocks of contiguous keys are columns of a product."""
        problem, operands, lanes = self.problem, self.operands, self.plan.lanes
        stride, kr, rows = problem.layouts["k"].column, operands.kr, self.all_rows
        widest = math.ceil(_BLOCK_KEYS / operands.group) * operands.kr
        k_base = ex.bind(problem.base("k", number * problem.group))

        def block(vector: Expr, vectors: int, keys: int) -> None:
            sums = ColumnSums(operands, rows, keys)
            buffer = I.sblock_alloc_buffer((rows * sums.width,), operands.kernel.acc_dtype)
            zero = tirx.const(0, "int32")
            sums.clear(buffer, zero)

            def row(r: Index, step: Index) -> Expr:
                group = self.rows[ex.ramp(self._row(number, r) + step * kr, kr)]
                return operands.spread(group)

            def keys_of(d: Index, column: int, exist: int) -> Expr:
                start = k_base + (vector * lanes + column) + d * stride
                return operands.load(self.k, start, exist, operands.group)

            sums.add((buffer, zero), problem.d // kr, problem.d % kr, (row, keys_of))
            for j in range(vectors):
                of_ones = None
                if self.points.needs_column_sums:
                    of_ones = sums.vector(buffer, zero, self.plan.rows, j)
                valid = min(lanes, keys - j * lanes)
                with I.serial(self.plan.rows) as r:
                    product = sums.vector(buffer, zero, r, j)
                    self._finish(Slot(number, slot), r, product, of_ones, vector + j, valid)

        start, count = self.plan.share(share)
        if not isinstance(count, int) or not isinstance(self.plan.n, int):
            self.plan.for_vectors(share, lambda vector, valid: block(vector, 1, valid))
            return
        blocks, left = divmod(count, widest)
        if blocks:
            with I.serial(blocks) as i:
                block(start + i * widest, widest, widest * lanes)
        tail = left * lanes + self.plan.n % lanes
        if tail:
            block(start + blocks * widest, math.ceil(tail / lanes), tail)

    def _finish(
        self, at: Slot, r: Expr, value: Expr, of_ones: Expr | None, vector: Expr, valid: Index
    ) -> None:
        """Finishes one vector of scores from its products: epilogue, masks, largest scores."""
        problem, lanes = self.problem, self.plan.lanes
        row_sum = self.sums[self._local(at.number, r)] if self.points.needs_row_sums else None
        value = corrected(value, self.points, problem.d, of_ones, row_sum)
        start = vector * lanes
        if problem.unseen is not None:
            start = ex.bind(self.plan.first + start)
        columns = Columns(start, lanes, valid)
        score = self.epilogue(value, at.number * self.plan.rows + r, columns)
        hidden = ex.like(-math.inf, score)
        if problem.causal is not None and (problem.m > 1 or may_be_negative(problem.causal)):
            last = ex.splat(I.floormod(r, problem.m) + extents.extent(problem.causal), lanes)
            visible = tirx.LE(ex.ramp(start, lanes), last)
            score = tirx.Select(visible, score, hidden)
        if columns.mask is not None:
            score = tirx.Select(columns.mask, score, hidden)
        score = ex.materialise(score)
        first = self.plan.score(at.slot, r, vector)
        I.buffer_store(self.plan.scores, score, [ex.ramp(first, lanes)])
        place = ex.ramp(self._local(at.number, r) * lanes, lanes)
        I.buffer_store(self.largest, tirx.Max(self.largest[place], score), [place])

    def _exponentials(self, number: Expr, slot: Expr, share: Expr) -> None:
        """Computes exp(score - largest) of a chunk, in place, and the sums of the exponentials."""
        plan, lanes = self.plan, self.plan.lanes
        with I.serial(plan.rows) as r:
            largest = self.largest[ex.ramp(self._local(number, r) * lanes, lanes)]
            high = loop_nest.reduce_lanes(largest, tirx.Max)
            # Finite, so that scores of -inf add 0; a row with only such scores gives 0 / 0.
            base = ex.materialise(tirx.Max(high, tirx.const(LOWEST, "float32")))
            at = ex.bind(plan.number(slot, share, r))
            I.buffer_store(plan.largest, base, [at])
            total = loop_nest.LaneTotals(lanes, 0)

            def step(vector: Expr, _valid: Index) -> None:
                index = ex.ramp(plan.score(slot, r, vector), lanes)
                value = ex.materialise(plan.power(plan.scores[index] - ex.splat(base, lanes)))
                I.buffer_store(plan.scores, value, [index])
                total.store(total[0] + value)

            plan.for_vectors(share, step)
            value, sink = total.total(loop_nest.add), self._sink(number, r)
            if sink is not None:  # a key of the first chunk only
                first = tirx.EQ(share, tirx.const(0, "int32"))
                value = value + tirx.Select(first, plan.power(sink - base), ex.like(0, sink))
            I.buffer_store(plan.totals, value, [at])
