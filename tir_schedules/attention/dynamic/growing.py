"""Attention whose keys and values grow, and which writes them as well: results k, v and out.

    k = concat(past_k, new_k), v = concat(past_v, new_v), out = attention(q, k, v)

for each attention of one query
    for each vector of keys of the past: copies them, and computes their scores of the past itself
    the scores of the other keys, of the result; the same with values and products
of more queries, and in bfloat16: copies all first
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.vector.expressions import Expr, materialise
from microkernels.vector.memory import end_streams
from tir_schedules.attention.decode.products import DecodeProducts
from tir_schedules.attention.decode.scores import DecodeScores
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.core.region import Region, Tensor
from tir_schedules.epilogue.epilogue import Epilogue

from .few import OpenDecodePlan, OpenFew, few_queries, shared_heads
from .growing_cache import GrowingCache
from .scores import reject_room

_CHUNK = 32  # keys whose values are multiplied at once


@dataclass(frozen=True)
class Growth:
    """What the keys, or the values, of a region are made of: tensors [..., rows, columns]."""

    past: Tensor
    new: Tensor


def reject_growth(region: Region, growths: Mapping[str, Growth], isa: Isa) -> str | None:
    """Why a region's k and v ("k", "v") cannot be written by its own kernel, or None."""
    problem = AttentionProblem(region)
    group = shared_heads(problem)
    if not region.is_open or few_queries(problem, group) is None:
        return "many queries, or sizes that are known"
    for name, growth in growths.items():
        whole = problem.tensors[name]
        columns = problem.d if name == "k" else problem.e
        if whole.dtype != "float32" or columns % isa.f32_lanes:
            return f"{name} is of type {whole.dtype}, {columns} columns"
        if {growth.past.dtype, growth.new.dtype} != {"float32"}:
            return f"{name} is converted"
        reason = reject_room(problem, name)
        if reason is not None:
            return reason
    return None


def reads_past_once(problem: AttentionProblem) -> bool:
    """Whether a query can multiply the past while it copies it; else it copies all before.

    Products of bfloat16 multiply pairs of keys.
    """
    return not any("rounded" in part.attrs for part in (problem.scores, problem.product))


class _Scores(DecodeScores):
    """The phase that reads K, which grows."""

    def __init__(
        self, cache: GrowingCache, plan: OpenDecodePlan, q: Expr, k: Expr, epilogue: Epilogue
    ) -> None:
        super().__init__(plan, q, k, epilogue)
        self.cache, self.open_plan = cache, plan
        self.head: Expr | None = None  # whose past is read

    def _read_keys(self, task: Expr, share: Expr) -> None:
        cache, lanes, slot = self.cache, self.plan.lanes, tirx.const(0, "int32")
        head = cache.head(self.problem.base("k", task * self.problem.group))
        whole = _whole(self.open_plan, cache, lanes)
        cache.copy(head, whole * lanes)
        self.head = head
        with I.serial(whole) as vector, opaque_block("past"):
            cache.copy_past(head, vector * lanes, lanes)
            self._multiply(task, slot, vector, lanes, range(lanes))
        self.head = None
        self.open_plan.for_vectors(
            share, lambda vector, valid: self._by_dots(task, slot, vector, valid), whole
        )

    def _place(self, number: Expr, vector: Expr) -> tuple[Expr, Expr]:
        if self.head is None:
            return super()._place(number, vector)
        return self.cache.past, self.cache.past_at(self.head, vector * self.plan.lanes)


class _Products(DecodeProducts):
    """The phases that read V, which grows, and store the result."""

    def __init__(
        self,
        cache: GrowingCache,
        plan: OpenDecodePlan,
        v: Expr,
        out: Expr,
        rounding: Epilogue,
        epilogue: Epilogue,
    ) -> None:
        super().__init__(plan, v, out, rounding, epilogue)
        self.cache, self.open_plan = cache, plan
        self.head: Expr | None = None  # whose past is read

    def _add_all(self, number: Expr, slot: Expr, share: Expr, start: Expr) -> None:
        cache, vectors = self.cache, _CHUNK // self.plan.lanes
        assert self.operands.kr == 1
        head = cache.head(self.problem.base("v", number * self.problem.group))
        whole = _whole(self.open_plan, cache, _CHUNK)
        cache.copy(head, whole * _CHUNK)
        self.head = head
        with I.serial(whole) as chunk, opaque_block("past"):
            cache.copy_past(head, chunk * _CHUNK, _CHUNK)
            self._add(number, slot, share, start, chunk * vectors, _CHUNK, 0)
        self.head = None
        rest = materialise(self.open_plan.n - whole * _CHUNK)
        self._add(number, slot, share, start, whole * vectors, rest, 0)

    def _place(self, number: Expr, vector: Expr) -> tuple[Expr, Expr]:
        if self.head is None:
            return super()._place(number, vector)
        return self.cache.past, self.cache.past_at(self.head, vector * self.plan.lanes)


def _whole(plan: OpenDecodePlan, cache: GrowingCache, keys: int) -> Expr:
    """How many times so many keys of the past are seen."""
    past = as_expr(extent(cache.past_rows))
    return materialise(I.floordiv(tirx.Min(past, as_expr(plan.n)), keys))


class GrowingFew(OpenFew):
    """Emits single attentions, with their copies.

    Parameters
    ----------
    caches : mapping
        "k" and "v".
    problem, isa, buffers, epilogues
        As of `OpenFew`.
    """

    def __init__(
        self,
        caches: Mapping[str, GrowingCache],
        problem: AttentionProblem,
        isa: Isa,
        buffers: dict[str, Expr],
        epilogues: tuple[Epilogue, Epilogue, Epilogue],
    ) -> None:
        self.caches = caches
        super().__init__(problem, isa, buffers, epilogues)

    def phases(
        self,
        plan: OpenDecodePlan,
        buffers: dict[str, Expr],
        epilogues: tuple[Epilogue, Epilogue, Epilogue],
    ) -> tuple[DecodeScores, DecodeProducts]:
        scores, *others = epilogues
        return (
            _Scores(self.caches["k"], plan, buffers["q"], buffers["k"], scores),
            _Products(self.caches["v"], plan, buffers["v"], buffers["out"], *others),
        )

    def emit(self, number: Expr) -> None:
        super().emit(number)
        if self.plan.lanes > 1:
            end_streams()
