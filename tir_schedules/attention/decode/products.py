"""Multiplies the probabilities of few queries by V, and merges the shares of keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, bind, constant, like, materialise, ramp, splat
from tir_schedules.core.emission import choose
from tir_schedules.core.extents import as_expr
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector
from tir_schedules.product.skinny_product import ColumnSums, Operands
from tir_schedules.product.zero_points import ZeroPoints

from .plan import DecodePlan, corrected

_CHUNK = 32  # keys of a cache whose values are multiplied at once


class DecodeProducts:
    """The phases that read V and store the result.

    Parameters
    ----------
    plan : DecodePlan
        Tasks and buffers.
    rounding, epilogue : Epilogue
        Of the softmax and of the product.
    """

    def __init__(self, plan: DecodePlan, rounding: Epilogue, epilogue: Epilogue) -> None:
        self.plan, self.problem, self.out = plan, plan.problem, plan.buffers["out"]
        self.rounding, self.epilogue = rounding, epilogue
        part, dtype = self.problem.product, self.problem.tensors["v"].dtype
        self.p_dtype = self.problem.softmax.output.dtype
        rows_unsigned, self.points = ZeroPoints.of_either_order(part, self.p_dtype, dtype)
        operands = self.operands = Operands(
            plan.isa, dtype, "rounded" in part.attrs, rows_unsigned, epilogue.narrow
        )
        # A row of ones adds up the columns of V.
        self.sums = ColumnSums(operands, plan.rows + self.points.needs_column_sums, self.problem.e)
        # The exponentials themselves are multiplied with V if nothing is rounded before.
        floats = self.p_dtype == operands.row_element == "float32"
        self.deferred = floats and not self.problem.softmax.epilogue and not operands.rounded
        self.pitch, self.room = plan.row_pitch(operands.group)

    def allocate(self) -> None:
        """What lies between the phases."""
        size = self.sums.rows * self.sums.width
        self.plan.allocate(size, self.operands.kernel.acc_dtype)

    # --- products with V -------------------------------------------------------------------------

    def emit(self, task: Expr, share: Expr) -> None:
        """The phase for one share of a task."""
        plan, operands, lanes = self.plan, self.operands, self.plan.lanes
        self.task = task
        if not self.deferred:
            size = plan.side * self.sums.rows * self.room
            self.p = I.sblock_alloc_buffer((size,), operands.row_element, align=64)
            plan.for_sets(task, lambda number, slot: self._probabilities(number, slot, share))
        plan.for_sets(
            task, lambda _number, slot: self.sums.clear(plan.partial, slot * plan.shares + share)
        )
        start, count = plan.share(share)
        if plan.side > 1:
            plan.for_vectors(
                share,
                lambda vector, valid: plan.for_sets(
                    task,
                    lambda number, slot: self._add(
                        number, slot, share, start, vector, valid // operands.kr, valid
                    ),
                ),
            )
            return

        if not isinstance(plan.n, int):
            plan.for_sets(task, lambda number, slot: self._add_all(number, slot, share, start))
            return

        cut = plan.n % lanes

        def add(number: Expr, slot: Expr, rest: int) -> None:
            steps = count * (lanes // operands.kr) + rest // operands.kr
            self._add(number, slot, share, start, start, steps, rest)

        def both(number: Expr, slot: Expr) -> None:
            if plan.shares == 1 or not cut:
                add(number, slot, cut)
                return
            with I.If(share == plan.shares - 1):
                with I.Then():
                    add(number, slot, cut)
                with I.Else():
                    add(number, slot, 0)

        plan.for_sets(task, both)

    def _add_all(self, number: Expr, slot: Expr, share: Expr, start: Expr) -> None:
        """Adds the products with the keys of a share, whose number is known at run time only.

        Those with the past of a cache are computed of what has just been copied.
        """
        plan, kr, vectors = self.plan, self.operands.kr, _CHUNK // self.plan.lanes
        if "v" in plan.caches:
            whole = plan.caches["v"].read_past(
                self.problem.base("v", number * self.problem.group),
                as_expr(plan.n),
                _CHUNK,
                lambda chunk: self._add(number, slot, share, start, chunk * vectors, _CHUNK, 0),
            )
            rest_of_keys = materialise(plan.n - whole * _CHUNK)
            self._add(number, slot, share, start, whole * vectors, rest_of_keys, 0)
            return
        n = plan.keys_of(share)
        whole = materialise(I.floordiv(n, kr))
        self._add(number, slot, share, start, start, whole, 0)
        if kr > 1:
            left = materialise(I.floormod(n, kr))

            def rest(terms: int) -> None:
                self._add(number, slot, share, start, start, 0, terms, whole)

            with I.If(left > 0), I.Then():
                choose(left, range(1, kr), rest)

    def _p_row(self, number: Expr, row: Expr | int) -> Expr:
        """Where a row of probabilities begins."""
        return ((number - self.task * self.plan.side) * self.sums.rows + row) * self.pitch

    def _add(
        self,
        number: Expr,
        slot: Expr,
        share: Expr,
        start: Expr,
        vector: Expr,
        steps: Expr | int,
        terms: int,
        before: Expr | int = 0,
    ) -> None:
        """Adds `steps` groups of keys, and what is left of `terms`, from a vector of keys on.

        `before` groups of it are left out.
        """
        plan, operands, layout = self.plan, self.operands, self.problem.layouts["v"]
        kr, lanes = operands.kr, plan.lanes
        v, first = plan.place("v", number, vector)
        base = bind(first)

        def row(r: Expr | int, step: Expr | int) -> Expr:
            step = step + before
            if self.deferred:
                place = plan.score(slot, r, vector) + step
                return operands.spread(plan.scores[place])
            place = self._p_row(number, r) + (vector - start) * lanes + step * kr
            return operands.spread(self.p[ramp(place, kr)])

        self.sums.add(
            plan.partial,
            slot * plan.shares + share,
            steps,
            terms % kr,
            row,
            lambda key, column, exist: operands.load(
                v, base + (key + before * kr) * layout.row + column, exist, operands.group
            ),
        )

    def _probabilities(self, number: Expr, slot: Expr, share: Expr) -> None:
        """What a share multiplies with V, zeros behind it, and the sums of its integers."""
        plan, operands, lanes = self.plan, self.operands, self.plan.lanes
        start, _count = plan.share(share)
        zeros = constant(0, operands.row_element, lanes)
        with I.serial(plan.rows) as r:
            _high, total = high_total = plan.whole_row(slot, r)
            at = bind(plan.number(slot, share, r))
            factor = tirx.const(1, "float32") / total
            if plan.shares > 1:
                factor = plan.power(plan.largest[at] - high_total[0]) * factor
            factor = materialise(factor)
            goal = bind(self._p_row(number, r))
            known = isinstance(self.pitch, int)
            if not known or self.pitch > plan.per_share * lanes or plan.shares > 1:
                with I.serial(self.pitch // lanes) as i:
                    I.buffer_store(self.p, zeros, [ramp(goal + i * lanes, lanes)])

            def step(vector: Expr, valid: int | Expr) -> None:
                columns = Columns(vector * lanes, lanes, valid)
                value = plan.scores[ramp(plan.score(slot, r, vector), lanes)]
                value = bind(value * splat(factor, lanes))
                value = self.rounding(value, number * plan.rows + r, columns)
                value = operands.convert(value, self.p_dtype, operands.row_element)
                if columns.mask is not None:
                    value = tirx.Select(columns.mask, value, zeros)
                I.buffer_store(self.p, value, [ramp(goal + (vector - start) * lanes, lanes)])

            plan.for_vectors(share, step)
            if self.points.needs_row_sums:
                total = operands.row_sum(self.p, goal, self.pitch // operands.group)
                I.buffer_store(plan.row_sums, total, [at])
        if self.points.needs_column_sums:
            goal = bind(self._p_row(number, plan.rows))
            ones = constant(1, operands.row_element, lanes)
            with I.serial(self.pitch // lanes) as i:
                I.buffer_store(self.p, ones, [ramp(goal + i * lanes, lanes)])

    # --- the result ------------------------------------------------------------------------------

    @property
    def merge_tasks(self) -> int | Expr:
        """Tasks in which shares are merged: one a row, unless rows need a common sum."""
        return self.plan.sets * (1 if self.points.needs_column_sums else self.plan.rows)

    def merge_task(self, task: Expr) -> None:
        """One of `merge_tasks`, where each set has its slot."""
        if self.points.needs_column_sums:
            self.merge(task, task)
            return
        number = bind(I.floordiv(task, self.plan.rows))
        self.merge(number, number, bind(I.floormod(task, self.plan.rows)))

    def merge(self, number: Expr, slot: Expr, row: Expr | None = None) -> None:
        """The shares' products added up, the epilogue, and the result of one set or of its row."""
        plan, problem, lanes, layout = (
            self.plan,
            self.problem,
            self.plan.lanes,
            self.problem.layouts["out"],
        )
        first = slot * plan.shares
        if plan.shares > 1:
            self._add_shares(slot, row)
        with _rows(plan.rows, row) as r:
            batch = number * problem.group + I.floordiv(r, problem.m)
            base = bind(problem.base("out", batch) + I.floormod(r, problem.m) * layout.row)
            row_sum = plan.row_sums[plan.number(slot, 0, r)] if self.points.needs_row_sums else None
            scale = None
            if self.deferred:
                scale = materialise(tirx.const(1, "float32") / plan.whole_row(slot, r)[1])
            for j in range(math.ceil(problem.e / lanes)):
                columns = Columns(j * lanes, lanes, min(lanes, problem.e - j * lanes))
                value = self.sums.vector(plan.partial, first, r, j)
                of_ones = None
                if self.points.needs_column_sums:
                    of_ones = self.sums.vector(plan.partial, first, plan.rows, j)
                value = corrected(value, self.points, plan.n, of_ones, row_sum)
                if scale is not None:
                    value = value * splat(scale, lanes)
                value = self.epilogue(bind(value), number * plan.rows + r, columns)
                store_vector(self.out, value, (), Columns(base + j * lanes, lanes, columns.valid))

    def _add_shares(self, slot: Expr, row: Expr | None) -> None:
        """Adds the products of all shares to those of the first.

        Exponentials of differences to the largest score of a share get their weight here.
        """
        plan, lanes, width = self.plan, self.plan.lanes, self.sums.width
        first = slot * plan.shares
        with _rows(self.sums.rows, row) as r:
            highest = plan.whole_row(slot, r)[0] if self.deferred else None
            with I.serial(plan.shares) as share:
                weight = None
                if highest is not None:
                    own = plan.largest[plan.number(slot, share, r)]
                    weight = materialise(plan.power(own - highest))
                with I.serial(width // lanes) as j:
                    source = ((first + share) * self.sums.rows + r) * width + j * lanes
                    goal = ramp((first * self.sums.rows + r) * width + j * lanes, lanes)
                    value = plan.partial[ramp(source, lanes)]
                    if weight is not None:
                        value = value * splat(weight, lanes)
                    before = tirx.Select(share > 0, plan.partial[goal], like(0, value))
                    I.buffer_store(plan.partial, before + value, [goal])
        if self.points.needs_row_sums:
            with I.serial(plan.shares - 1) as share, _rows(plan.rows, row) as r:
                at = plan.number(slot, 0, r)
                total = plan.row_sums[at] + plan.row_sums[plan.number(slot, share + 1, r)]
                I.buffer_store(plan.row_sums, total, [at])


@contextmanager
def _rows(rows: int, row: Expr | None) -> Iterator[Expr]:
    """A loop over all rows, or the one that is given."""
    if row is not None:
        yield row
        return
    with I.serial(rows) as r:
        yield r
