"""Attention of few queries, as in decoding with a KV cache: the time is that of reading K and V.

    scores[r, n] = epilogue(sum over d of q[r, d] * k[n, d])     rows r: queries of a group of heads
    p            = epilogue(softmax(scores))
    out[r, e]    = epilogue(sum over n of p[r, n] * v[n, e])

K and V are read in place, once, and nothing is packed (`skinny_product`). The rows of scores stay
in cache. If there are fewer pairs of K and V than threads, and many keys, threads divide the keys
of a pair: every chunk has its own largest score and its own sums, which are merged at the end (Dao
et al., "Flash-Decoding for long-context inference", 2023). The sum of the whole row is known before
probabilities are rounded, so dividing keys changes the rounding of sums only.

Prefetching keys or values 16 to 64 keys ahead gains nothing measurable (Zen 5, f32 caches that come
from memory at 20 of 49 GB/s).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.registry import kernels_for
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index, bind
from microkernels.vector.memory import end_streams
from tir_schedules.attention.config import AttentionConfig
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.core import emission, extents
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector

from .plan import DecodePlan, corrected, operands_of
from .scores import DecodeScores
from .skinny_product import ColumnSums

_CHUNK = 32  # keys of a cache whose values are multiplied at once


# (number, body, name): runs body(task) for `number` tasks on all threads.
ForTasks = Callable[[Index, Callable[[Expr], None], str], None]


class Decode:
    """Emits attentions of few queries: the scores, then the phases that read V and store.

    Parameters
    ----------
    plan : DecodePlan
        Tasks and buffers.
    epilogues : tuple of Epilogue
        Epilogues of the scores, of the softmax and of the product.
    """

    def __init__(self, plan: DecodePlan, epilogues: tuple[Epilogue, Epilogue, Epilogue]) -> None:
        scores, self.rounding, self.epilogue = epilogues
        self.scores = DecodeScores(plan, scores)
        self.plan, self.problem, self.out = plan, plan.problem, plan.buffers["out"]
        self.p_dtype = self.problem.softmax.output.dtype
        types = self.p_dtype, self.problem.product.inputs[1].dtype
        given = self.problem.product, types, plan.isa, self.epilogue.narrow
        operands, self.points = operands_of(*given)
        self.operands = operands
        # A row of ones adds up the columns of V.
        self.sums = ColumnSums(operands, plan.rows + self.points.needs_column_sums, self.problem.e)
        # Without rounding before, V is multiplied by the exponentials, and the result is divided.
        floats = self.p_dtype == operands.row_element == "float32"
        self.deferred = floats and not self.problem.softmax.epilogue and not operands.rounded
        self.pitch, self.room = plan.row_pitch(operands.group)

    def allocate(self) -> None:
        """Allocates the buffers between the phases."""
        size = self.sums.rows * self.sums.width
        self.plan.allocate(size, self.operands.kernel.acc_dtype)

    def emit(self, task: Expr) -> None:
        """Emits the sets of a task, with all of their keys."""
        share = tirx.const(0, "int32")
        self.allocate()
        self.scores.emit(task, share)
        self.multiply(task, share)
        self.plan.for_sets(task, self.merge)
        if self.plan.caches and self.plan.lanes > 1:
            end_streams()

    def emit_shares(self, for_tasks: ForTasks) -> None:
        """Emits all sets, each by several threads: one parallel region for each phase."""
        shares = self.plan.shares
        self.allocate()
        for phase in (self.scores.emit, self.multiply):

            def part(task: Expr, phase: Callable[[Expr, Expr], None] = phase) -> None:
                phase(bind(I.floordiv(task, shares)), bind(I.floormod(task, shares)))

            for_tasks(self.plan.tasks * shares, part, "share")
        rows = 1 if self.points.needs_column_sums else self.plan.rows
        for_tasks(self.plan.sets * rows, self.merge_task, "merge")

    # --- products with V -------------------------------------------------------------------------

    def multiply(self, task: Expr, share: Expr) -> None:
        """Emits the products with V of one chunk of a task."""
        plan, operands, lanes = self.plan, self.operands, self.plan.lanes
        self.task, self.share = task, share
        if not self.deferred:
            size = plan.side * self.sums.rows * self.room
            self.p = I.sblock_alloc_buffer((size,), operands.row_element, align=64)
            plan.for_sets(task, self._probabilities)
        place, shares = plan.partial, plan.shares
        plan.for_sets(task, lambda _, slot: self.sums.clear(place, slot * shares + share))
        self.start, count = plan.share(share)
        if plan.side > 1:

            def add_vector(vector: Expr, valid: int) -> None:
                steps = valid // operands.kr
                plan.for_sets(task, lambda n, slot: self._add(n, slot, vector, steps, valid))

            plan.for_vectors(share, add_vector)
            return

        if not isinstance(plan.n, int):
            plan.for_sets(task, self._add_all)
            return

        cut = plan.n % lanes

        def add(number: Expr, slot: Expr, rest: int) -> None:
            steps = count * (lanes // operands.kr) + rest // operands.kr
            self._add(number, slot, self.start, steps, rest)

        def both(number: Expr, slot: Expr) -> None:
            if plan.shares == 1 or not cut:
                add(number, slot, cut)
                return
            last = share == plan.shares - 1
            emission.branch(last, lambda: add(number, slot, cut), lambda: add(number, slot, 0))

        plan.for_sets(task, both)

    def _add_all(self, number: Expr, slot: Expr) -> None:
        """Adds the products with all keys of a chunk; the number of keys is dynamic."""
        plan, kr, vectors = self.plan, self.operands.kr, _CHUNK // self.plan.lanes
        start = self.start
        if "v" in plan.caches:
            base, n = self.problem.base("v", number * self.problem.group), plan.n

            def past(chunk: Expr) -> None:
                # These products read rows that `read_past` has just copied.
                self._add(number, slot, chunk * vectors, _CHUNK, 0)

            whole = plan.caches["v"].read_past(base, extents.as_expr(n), _CHUNK, past)
            rest_of_keys = ex.materialise(plan.n - whole * _CHUNK)
            self._add(number, slot, whole * vectors, rest_of_keys, 0)
            return
        n = plan.keys_of(self.share)
        whole = ex.materialise(I.floordiv(n, kr))
        self._add(number, slot, start, whole, 0)
        if kr > 1:
            left = ex.materialise(I.floormod(n, kr))

            def rest(terms: int) -> None:
                self._add(number, slot, start, 0, terms, whole)

            with I.If(left > 0), I.Then():
                emission.choose(left, range(1, kr), rest)

    def _p_row(self, number: Expr, row: Index) -> Expr:
        """The index of the first element of a row of probabilities."""
        return ((number - self.task * self.plan.side) * self.sums.rows + row) * self.pitch

    def _add(
        self, number: Expr, slot: Expr, vector: Expr, steps: Index, terms: int, before: Index = 0
    ) -> None:
        """Adds `steps` groups of keys and `terms` more keys, after `before` groups of a vector."""
        plan, operands, layout = self.plan, self.operands, self.problem.layouts["v"]
        kr, lanes = operands.kr, plan.lanes
        v, first = plan.place("v", number, vector)
        base = ex.bind(first)

        def row(r: Index, step: Index) -> Expr:
            step = step + before
            if self.deferred:
                place = plan.score(slot, r, vector) + step
                return operands.spread(plan.scores[place])
            place = self._p_row(number, r) + (vector - self.start) * lanes + step * kr
            return operands.spread(self.p[ex.ramp(place, kr)])

        def columns(key: Index, column: int, exist: int) -> Expr:
            start = base + (key + before * kr) * layout.row + column
            return operands.load(v, start, exist, operands.group)

        at = plan.partial, slot * plan.shares + self.share
        self.sums.add(at, steps, terms % kr, (row, columns))

    def _probabilities(self, number: Expr, slot: Expr) -> None:
        """Computes a chunk's probabilities, padded with zeros, and the sums of their integers."""
        plan, operands, lanes, share = self.plan, self.operands, self.plan.lanes, self.share
        start, _count = plan.share(share)
        zeros = ex.constant(0, operands.row_element, lanes)
        with I.serial(plan.rows) as r:
            _high, total = high_total = plan.whole_row(slot, r)
            at = ex.bind(plan.number(slot, share, r))
            factor = tirx.const(1, "float32") / total
            if plan.shares > 1:
                factor = plan.power(plan.largest[at] - high_total[0]) * factor
            factor = ex.materialise(factor)
            goal = ex.bind(self._p_row(number, r))
            known = isinstance(self.pitch, int)
            if not known or self.pitch > plan.per_share * lanes or plan.shares > 1:
                with I.serial(self.pitch // lanes) as i:
                    I.buffer_store(self.p, zeros, [ex.ramp(goal + i * lanes, lanes)])

            def step(vector: Expr, valid: Index) -> None:
                columns = Columns(vector * lanes, lanes, valid)
                value = plan.scores[ex.ramp(plan.score(slot, r, vector), lanes)]
                value = ex.bind(value * ex.splat(factor, lanes))
                value = self.rounding(value, number * plan.rows + r, columns)
                value = operands.convert(value, self.p_dtype, operands.row_element)
                if columns.mask is not None:
                    value = tirx.Select(columns.mask, value, zeros)
                I.buffer_store(self.p, value, [ex.ramp(goal + (vector - start) * lanes, lanes)])

            plan.for_vectors(share, step)
            if self.points.needs_row_sums:
                total = operands.row_sum(self.p, goal, self.pitch // operands.group)
                I.buffer_store(plan.row_sums, total, [at])
        if self.points.needs_column_sums:
            goal = ex.bind(self._p_row(number, plan.rows))
            ones = ex.constant(1, operands.row_element, lanes)
            with I.serial(self.pitch // lanes) as i:
                I.buffer_store(self.p, ones, [ex.ramp(goal + i * lanes, lanes)])

    # --- the result ------------------------------------------------------------------------------

    def merge_task(self, task: Expr) -> None:
        """A task that merges chunks: of one row, or of a whole set if rows need the column sums."""
        if self.points.needs_column_sums:
            self.merge(task, task)
            return
        number = ex.bind(I.floordiv(task, self.plan.rows))
        self.merge(number, number, ex.bind(I.floormod(task, self.plan.rows)))

    def merge(self, number: Expr, slot: Expr, row: Expr | None = None) -> None:
        """Adds up the chunks' products and stores the result of one set, or of one of its rows."""
        plan, problem, lanes = self.plan, self.problem, self.plan.lanes
        layout = problem.layouts["out"]
        first = slot * plan.shares
        if plan.shares > 1:
            self._add_shares(slot, row)
        with _rows(plan.rows, row) as r:
            batch = number * problem.group + I.floordiv(r, problem.m)
            base = ex.bind(problem.base("out", batch) + I.floormod(r, problem.m) * layout.row)
            row_sum = plan.row_sums[plan.number(slot, 0, r)] if self.points.needs_row_sums else None
            scale = None
            if self.deferred:
                scale = ex.materialise(tirx.const(1, "float32") / plan.whole_row(slot, r)[1])
            for j in range(math.ceil(problem.e / lanes)):
                columns = Columns(j * lanes, lanes, min(lanes, problem.e - j * lanes))
                value = self.sums.vector(plan.partial, first, r, j)
                of_ones = None
                if self.points.needs_column_sums:
                    of_ones = self.sums.vector(plan.partial, first, plan.rows, j)
                value = corrected(value, self.points, plan.n, of_ones, row_sum)
                if scale is not None:
                    value = value * ex.splat(scale, lanes)
                value = self.epilogue(ex.bind(value), number * plan.rows + r, columns)
                store_vector(self.out, value, (), Columns(base + j * lanes, lanes, columns.valid))

    def _add_shares(self, slot: Expr, row: Expr | None) -> None:
        """Adds the products of all chunks to those of the first chunk."""
        plan, lanes, width = self.plan, self.plan.lanes, self.sums.width
        first = slot * plan.shares
        with _rows(self.sums.rows, row) as r:
            highest = plan.whole_row(slot, r)[0] if self.deferred else None
            with I.serial(plan.shares) as share:
                weight = None
                # Exponentials are relative to the chunk's largest score: weight them for the row's.
                if highest is not None:
                    own = plan.largest[plan.number(slot, share, r)]
                    weight = ex.materialise(plan.power(own - highest))
                with I.serial(width // lanes) as j:
                    source = ((first + share) * self.sums.rows + r) * width + j * lanes
                    goal = ex.ramp((first * self.sums.rows + r) * width + j * lanes, lanes)
                    value = plan.partial[ex.ramp(source, lanes)]
                    if weight is not None:
                        value = value * ex.splat(weight, lanes)
                    before = tirx.Select(share > 0, plan.partial[goal], ex.like(0, value))
                    I.buffer_store(plan.partial, before + value, [goal])
        if self.points.needs_row_sums:
            with I.serial(plan.shares - 1) as share, _rows(plan.rows, row) as r:
                at = plan.number(slot, 0, r)
                total = plan.row_sums[at] + plan.row_sums[plan.number(slot, share + 1, r)]
                I.buffer_store(plan.row_sums, total, [at])


@contextmanager
def _rows(rows: int, row: Expr | None) -> Iterator[Expr]:
    """A loop over all rows, or only `row` if it is given."""
    if row is not None:
        yield row
        return
    with I.serial(rows) as r:
        yield r


def build_decode(region: Region, config: AttentionConfig, isa: Isa) -> tirx.PrimFunc:
    """The kernel: inputs, output."""
    problem = AttentionProblem(region)

    def for_tasks(tasks: Index, body: Callable[[Expr], None], name: str) -> None:
        with emission.task_loop(tasks, config.parallel, name, config.threads) as task:
            body(task)

    with emission.kernel_function("attention_decode") as builder:
        inputs = emission.input_parameters(region)
        output = emission.tensor_parameter("C", region.output)
        of_scores, of_product, sink = problem.split(inputs[3:])
        buffers = problem.views((*inputs[:3], output, *sink))
        # The kernel for bfloat16 brings the instruction that narrows f32.
        half = kernels_for(isa, "bfloat16", "bfloat16")[0]
        with llvm_functions(half.llvm_ir):
            parts = zip(region.parts, (of_scores, (), of_product), strict=True)
            scores, rounding, product = (Epilogue(*each, half.narrow) for each in parts)
            decode = Decode(DecodePlan(problem, isa, config, buffers), (scores, rounding, product))
            if decode.plan.shares == 1:
                for_tasks(decode.plan.tasks, decode.emit, "task")
            else:
                with emission.opaque_block("decode"):
                    decode.emit_shares(for_tasks)
    return builder.get()
