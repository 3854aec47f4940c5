"""Attention of one query over any number of keys: K and V are read once, where they are stored.

The program of `decode`, whose numbers of keys and of attentions are expressions here. Threads share
attentions, not the keys of one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.vector.expressions import Expr, materialise
from tir_schedules.attention.decode.plan import DecodePlan, as_expr
from tir_schedules.attention.decode.products import DecodeProducts
from tir_schedules.attention.decode.program import MOST_QUERIES, MOST_ROWS
from tir_schedules.attention.decode.scores import DecodeScores
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import allocated, extent
from tir_schedules.core.open_loops import ceil_div
from tir_schedules.core.size import SymbolicSize
from tir_schedules.epilogue.epilogue import Epilogue


def few_queries(problem: AttentionProblem, group: int) -> AttentionProblem | None:
    """The attention where its queries are few: one, if their number is not known.

    None if they are not, or too many rows share k and v. `group` attentions share them.
    """
    few = copy.copy(problem)
    few.m, few.group = (1 if isinstance(problem.m, SymbolicSize) else problem.m), group
    return few if few.m <= MOST_QUERIES and few.m * group <= MOST_ROWS else None


class OpenDecodePlan(DecodePlan):
    """As `DecodePlan`, each task one k and v, and all of its keys.

    Parameters
    ----------
    problem : AttentionProblem
        As of `few_queries`.
    isa : Isa
        What the target has.
    """

    def __init__(self, problem: AttentionProblem, isa: Isa) -> None:
        self.problem, self.isa, self.lanes = problem, isa, isa.f32_lanes
        self.parallel, self.threads = False, 1
        self.rows = problem.group * problem.m
        self.shares = self.side = 1
        self.most = allocated(problem.n)
        n = as_expr(extent(problem.n))
        if problem.causal is not None:
            n = tirx.Min(n, tirx.const(max(1, problem.m + problem.causal), "int32"))
        self.n = materialise(n)
        self.per_share = self.vectors = materialise(ceil_div(self.n, self.lanes))
        self.whole = materialise(I.floordiv(self.n, self.lanes))
        self.pitch = materialise(_odd(self.vectors) * self.lanes)

    @property
    def room(self) -> Expr:
        """`pitch`, as it is allocated."""
        return _odd(ceil_div(self.most, self.lanes)) * self.lanes

    def row_pitch(self, group: int) -> tuple[Expr, Expr]:
        """Elements from one row of probabilities to the next, in whole groups; and to allocate."""
        used, room = (ceil_div(size, self.lanes) * self.lanes for size in (self.n, self.most))
        pitch = materialise(_odd(ceil_div(used, group)) * group)
        return pitch, _odd(ceil_div(room, group)) * group

    def share(self, share: Expr) -> tuple[Expr, Expr]:
        """First vector of keys, and how many vectors are whole."""
        return share, self.whole

    def for_vectors(self, share: Expr, body: Callable[[Expr, Any], None]) -> None:
        """Runs `body(vector, keys in it)` for the vectors of keys."""
        with I.serial(self.whole) as vector, opaque_block("keys"):
            body(vector, self.lanes)
        if self.lanes > 1:
            left = materialise(I.floormod(self.n, self.lanes))
            with I.If(left > 0), I.Then(), opaque_block("keys"):
                body(self.whole, left)


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
    """

    def __init__(
        self,
        problem: AttentionProblem,
        isa: Isa,
        buffers: dict[str, Expr],
        epilogues: tuple[Epilogue, Epilogue, Epilogue],
    ) -> None:
        plan = self.plan = OpenDecodePlan(problem, isa)
        scores, rounding, product = epilogues
        self.scores = DecodeScores(plan, buffers["q"], buffers["k"], scores)
        self.products = DecodeProducts(plan, buffers["v"], buffers["out"], rounding, product)

    def emit(self, number: Expr) -> None:
        """The attentions that share one k and v."""
        share = tirx.const(0, "int32")
        self.products.allocate()
        self.scores.emit(number, share)
        self.products.emit(number, share)
        self.plan.for_sets(number, self.products.merge)


def _odd(count: Expr) -> Expr:
    """The next odd number from a number on."""
    return I.floordiv(count, 2) * 2 + 1
