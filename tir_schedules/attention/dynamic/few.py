"""Attention of one query over any number of keys: K and V are read once, where they are stored.

The program of `decode`, whose numbers of keys and of attentions are expressions here. Where threads
are more than attentions, and keys are many, threads share the keys of each.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.vector.expressions import Expr, bind, materialise
from tir_schedules.attention.decode.plan import DecodePlan
from tir_schedules.attention.decode.products import DecodeProducts
from tir_schedules.attention.decode.program import LEAST_KEYS, MOST_QUERIES, MOST_ROWS
from tir_schedules.attention.decode.scores import DecodeScores
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.core.emission import ceil_div, opaque_block
from tir_schedules.core.extents import allocated, as_expr, extent
from tir_schedules.core.size import SymbolicSize
from tir_schedules.epilogue.epilogue import Epilogue


def few_queries(problem: AttentionProblem, group: int) -> AttentionProblem | None:
    """The attention where its queries are few: one, if their number is not known.

    None if they are not, or too many rows share k and v, or there are as many keys as queries: a
    single query has a single key then. `group` attentions share k and v.
    """
    if isinstance(problem.m, SymbolicSize) and problem.m == problem.n:
        return None
    few = copy.copy(problem)
    few.m, few.group = (1 if isinstance(problem.m, SymbolicSize) else problem.m), group
    return few if few.m <= MOST_QUERIES and few.m * group <= MOST_ROWS else None


def shared_heads(problem: AttentionProblem) -> int:
    """How many consecutive attentions share k and v, of a number that is known."""
    group = 1
    for number in reversed(range(len(problem.factors))):
        size = problem.factors[number]
        moving = any(problem.layouts[name].batch[number] for name in "kv")
        if isinstance(size, SymbolicSize) or (size > 1 and moving):
            break
        group *= size
    return group


class OpenDecodePlan(DecodePlan):
    """As `DecodePlan`, each task one k and v, and all of its keys or a share of them.

    The first shares have `LEAST_KEYS` or more, so that the last ones may have none.

    Parameters
    ----------
    problem : AttentionProblem
        As of `few_queries`.
    isa : Isa
        What the target has.
    shares : int
        Of the keys.
    """

    def __init__(self, problem: AttentionProblem, isa: Isa, shares: int = 1) -> None:
        self.problem, self.isa, self.lanes = problem, isa, isa.f32_lanes
        self.parallel, self.threads = False, 1
        self.rows = problem.group * problem.m
        self.shares, self.side = shares, 1
        self.sets = I.floordiv(as_expr(allocated(problem.batches)), problem.group)
        self.most = allocated(problem.n)
        n = problem.keys
        if problem.causal is not None:
            seen = as_expr(extent(problem.m + problem.causal))
            n = tirx.Min(n, tirx.Max(seen, tirx.const(1, "int32")))
        self.n = materialise(n)
        self.per_share = self.vectors = materialise(ceil_div(self.n, self.lanes))
        if shares > 1:
            least = tirx.const(max(1, LEAST_KEYS // self.lanes), "int32")
            self.per_share = materialise(tirx.Max(least, ceil_div(self.vectors, shares)))
        self.left = materialise(I.floormod(self.n, self.lanes))
        self.whole = materialise(I.floordiv(self.n, self.lanes))
        self.pitch = materialise(_odd(self.vectors) * self.lanes)

    @property
    def room(self) -> Expr:
        """`pitch`, as it is allocated."""
        return _odd(ceil_div(self.most, self.lanes)) * self.lanes

    def row_pitch(self, group: int) -> tuple[Expr, Expr]:
        """Elements from one row of probabilities to the next, in whole groups; and to allocate."""
        pitch = materialise(_odd(ceil_div(self.per_share * self.lanes, group)) * group)
        most = tirx.Max(ceil_div(self.most, self.lanes) * self.lanes, LEAST_KEYS)
        return pitch, _odd(ceil_div(most, group)) * group

    def share(self, share: Expr) -> tuple[Expr, Expr]:
        """First vector of keys of a share, and how many of its vectors are whole."""
        if self.shares == 1:
            return share, self.whole
        start = bind(share * self.per_share)
        count = tirx.Min(self.per_share, self.whole - start)
        return start, materialise(tirx.Max(count, tirx.const(0, "int32")))

    def _has_last(self, share: Expr) -> Expr:
        """Whether a share has the vector that is not whole, if there is one."""
        some = self.left > 0
        if self.shares == 1:
            return some
        return tirx.And(some, I.floordiv(self.whole, self.per_share) == share)

    def keys_of(self, share: Expr) -> int | Expr:
        """How many keys a share has."""
        if self.shares == 1:
            return self.n
        whole = self.share(share)[1] * self.lanes
        return materialise(whole + tirx.Select(self._has_last(share), self.left, 0))

    def for_vectors(
        self, share: Expr, body: Callable[[Expr, Any], None], first: Expr | None = None
    ) -> None:
        """Runs `body(vector, keys in it)` for the vectors of keys of a share.

        Where there is one share, it may be those from `first` on.
        """
        start, count = self.share(share)
        if first is not None:
            start, count = first, count - first
        from_zero = self.shares == 1 and first is None
        with I.serial(count) as vector, opaque_block("keys"):
            body(vector if from_zero else start + vector, self.lanes)
        if self.lanes > 1:
            with I.If(self._has_last(share)), I.Then(), opaque_block("keys"):
                body(self.whole, self.left)


class OpenFew:
    """Emits single attentions.

    Parameters
    ----------
    problem : AttentionProblem
        As of `few_queries`.
    isa : Isa
        What the target has.
    buffers : dict
        "q", "k", "v", "out": flat views of the parameters.
    epilogues : tuple of Epilogue
        Of the scores, of the softmax and of the product.
    shares : int
        Of the keys.
    """

    def __init__(
        self,
        problem: AttentionProblem,
        isa: Isa,
        buffers: dict[str, Expr],
        epilogues: tuple[Epilogue, Epilogue, Epilogue],
        shares: int = 1,
    ) -> None:
        self.plan = OpenDecodePlan(problem, isa, shares)
        self.scores, self.products = self.phases(self.plan, buffers, epilogues)

    def phases(
        self,
        plan: OpenDecodePlan,
        buffers: dict[str, Expr],
        epilogues: tuple[Epilogue, Epilogue, Epilogue],
    ) -> tuple[DecodeScores, DecodeProducts]:
        """What reads K, and what reads V."""
        scores, rounding, product = epilogues
        return (
            DecodeScores(plan, buffers["q"], buffers["k"], scores),
            DecodeProducts(plan, buffers["v"], buffers["out"], rounding, product),
        )

    def emit(self, number: Expr) -> None:
        """The attentions that share one k and v."""
        share = tirx.const(0, "int32")
        self.products.allocate()
        self.scores.emit(number, share)
        self.products.emit(number, share)
        self.plan.for_sets(number, self.products.merge)

    def emit_shares(self, for_tasks: Callable[[Expr, Callable[[Expr], None]], None]) -> None:
        """All attentions, each k and v by several threads.

        Parameters
        ----------
        for_tasks : callable
            (number, body) -> None: runs `body(task)` for so many tasks on all threads.
        """
        plan, shares = self.plan, self.plan.shares
        self.products.allocate()
        for phase in (self.scores.emit, self.products.emit):

            def part(task: Expr, phase: Callable[[Expr, Expr], None] = phase) -> None:
                phase(bind(I.floordiv(task, shares)), bind(I.floormod(task, shares)))

            for_tasks(as_expr(plan.sets * shares), part)
        for_tasks(as_expr(self.products.merge_tasks), self.products.merge_task)


def _odd(count: Expr) -> Expr:
    """The next odd number from a number on."""
    return I.floordiv(count, 2) * 2 + 1
