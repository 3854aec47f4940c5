"""How attention of few queries is divided into tasks, and the buffers between its phases.

A "set" is one K and V with the rows of q that share them. A task takes one set. If several sets are
stored interleaved ([B, N, H, D]), a task takes all of them, a few keys at a time, so that memory is
read in order. The keys of a task may be divided into chunks (`shares`) for several threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.vector import ieee, vector_math
from microkernels.vector.expressions import Expr, Index, bind, lanes_of, like, materialise
from tir_schedules.attention.caches import GrowingCache
from tir_schedules.attention.config import LEAST_KEYS, AttentionConfig
from tir_schedules.attention.problem import AttentionProblem, sets_side_by_side
from tir_schedules.core import emission, extents
from tir_schedules.core.region import Region
from tir_schedules.product.zero_points import ZeroPoints, correction

from .skinny_product import Operands


class DecodePlan:
    """Tasks, chunks of keys, and the buffers between the phases.

    A slot holds the results of one set. If keys are not divided, slots are on the stack of their
    task; else there is one slot for each set.

    Parameters
    ----------
    problem : AttentionProblem
        Extents and layouts; for dynamic sizes, from `few_queries`.
    isa : Isa
        What the target has.
    config : AttentionConfig
        Threads, and the most chunks of the keys.
    buffers : mapping
        "q", "k", "v", "out": flat views of the parameters.
    caches : mapping
        "k" and "v", if they grow and their past is read while it is copied.
    shares : int
        Chunks of the keys, if sizes are dynamic.

    Attributes
    ----------
    first : Expr
        The first key that is multiplied; a multiple of a vector.
    n, vectors, whole : int or Expr
        Keys from `first` on that any query sees, vectors of them, and whole vectors.
    rows : int
        Queries of one set.
    pitch, room : int or Expr
        Elements from one row of scores to the next: used, and allocated.
    per_share : int or Expr
        Vectors of keys of a chunk. With dynamic sizes the first chunks have `LEAST_KEYS` keys or
        more, so that the last chunks may have none.
    """

    def __init__(
        self,
        problem: AttentionProblem,
        isa: Isa,
        config: AttentionConfig,
        buffers: Mapping[str, Expr],
        caches: Mapping[str, GrowingCache] | None = None,
        shares: int = 1,
    ) -> None:
        self.buffers, self.caches = buffers, caches or {}
        self.problem, self.isa, self.lanes = problem, isa, isa.f32_lanes
        self.dynamic, self.shares, lanes = problem.region.is_dynamic, shares, isa.f32_lanes
        self.rows, self.side = problem.group * problem.m, 1
        self.sets = self.tasks = extents.allocated(problem.batches) // problem.group
        n = problem.keys if self.dynamic else problem.n
        if problem.causal is not None:
            seen = extents.extent(problem.m + problem.causal)
            n = emission.smallest(n, emission.largest(seen, 1))
        self.first = tirx.const(0, "int32")
        if problem.unseen is not None:
            self.first = materialise(I.floordiv(problem.unseen, lanes) * lanes)
            n = emission.largest(n - self.first, 1)
        self.n: Index = emission.named(n)
        vectors = self.vectors = emission.named(emission.ceil_div(self.n, lanes))
        self.left, self.whole = emission.named(self.n % lanes), emission.named(self.n // lanes)
        self.pitch = self.room = emission.named(_odd(vectors) * lanes)
        self.per_share = vectors
        if self.dynamic:
            self.most = emission.ceil_div(extents.allocated(problem.n), lanes)
            self.room = _odd(self.most) * lanes
            if shares > 1:
                least = tirx.const(max(1, LEAST_KEYS // lanes), "int32")
                self.per_share = materialise(tirx.Max(least, emission.ceil_div(vectors, shares)))
            return
        assert isinstance(vectors, int)
        self.per_share = math.ceil(vectors / max(1, min(config.key_shares, vectors)))
        self.shares = math.ceil(vectors / self.per_share)
        # With several threads, sets are read together only if keys are divided: too few tasks else.
        side = sets_side_by_side(problem) if self.shares > 1 or not config.parallel else 1
        most = config.key_sets or side
        self.side = next(count for count in range(min(most, side), 0, -1) if side % count == 0)
        self.tasks = self.sets // self.side

    # --- loops -----------------------------------------------------------------------------------

    def for_sets(self, task: Expr, body: Callable[[Expr, Expr], None]) -> None:
        """Runs `body(set, slot)` for the sets of a task."""
        if self.side == 1:
            body(task, tirx.const(0, "int32") if self.shares == 1 else task)
            return
        with I.serial(self.side) as i:
            number = bind(task * self.side + i)
            body(number, i if self.shares == 1 else number)

    def share(self, share: Expr) -> tuple[Expr, Index]:
        """First vector of keys of a chunk, and how many of its vectors are whole."""
        if self.shares == 1:
            return share, self.whole
        start = bind(share * self.per_share)
        count = tirx.Min(extents.as_expr(self.per_share), self.whole - start)
        if not self.dynamic:
            return start, bind(count)
        return start, materialise(tirx.Max(count, tirx.const(0, "int32")))

    def _has_last(self, share: Expr) -> Expr | bool:
        """Whether a chunk has the incomplete last vector; False if there is none."""
        if isinstance(self.left, int):
            return self.left > 0 and (self.shares == 1 or share == self.shares - 1)
        some = self.left > 0
        if self.shares == 1:
            return some
        return tirx.And(some, I.floordiv(self.whole, self.per_share) == share)

    def keys_of(self, share: Expr) -> Expr:
        """How many keys a chunk has, if their number is dynamic."""
        if self.shares == 1:
            return extents.as_expr(self.n)
        whole, last = self.share(share)[1] * self.lanes, self._has_last(share)
        assert not isinstance(last, bool)
        return materialise(extents.as_expr(whole) + tirx.Select(last, self.left, 0))

    def for_vectors(
        self, share: Expr, body: Callable[[Expr, Any], None], first: Expr | None = None
    ) -> None:
        """Runs `body(vector, keys in it)` for the vectors of keys of a chunk.

        With a single chunk, `first` may skip the vectors before it. The number of keys in a vector
        is static, except in the last vector of a dynamic number of keys.
        """
        start, count = self.share(share)
        if first is not None:
            start, count = first, count - first

        def scope() -> AbstractContextManager[None]:
            return emission.opaque_block("keys") if self.dynamic else nullcontext()

        if not (isinstance(count, int) and count == 0):
            with I.serial(count) as vector, scope():
                body(start + vector, self.lanes)
        has_last = self._has_last(share) if self.lanes > 1 else False
        if isinstance(has_last, bool):
            if has_last:
                body(extents.as_expr(self.whole), self.left)
            return
        with I.If(has_last), I.Then(), scope():
            body(extents.as_expr(self.whole), self.left)

    def place(self, name: str, number: Expr, vector: Expr) -> tuple[Expr, Expr]:
        """The place of a vector of keys of "k" or "v": buffer, first element."""
        cache, problem = self.caches.get(name), self.problem
        if cache is not None and cache.reading is not None:
            return cache.past, cache.past_at(cache.reading, vector * self.lanes)
        stride = self.lanes * problem.layouts[name].row
        base = problem.base(name, number * problem.group)
        if problem.unseen is not None:
            base = base + self.first * extents.extent(problem.layouts[name].row)
        return self.buffers[name], base + vector * stride

    # --- buffers ---------------------------------------------------------------------------------

    def row_pitch(self, group: int) -> tuple[Index, Index]:
        """Elements from one row of probabilities to the next, used and allocated; whole groups."""
        if isinstance(self.per_share, int):
            pitch = _odd(math.ceil(self.per_share * self.lanes / group)) * group
            return pitch, pitch
        most = tirx.Max(self.most * self.lanes, LEAST_KEYS)
        pitch = materialise(_odd(emission.ceil_div(self.per_share * self.lanes, group)) * group)
        return pitch, _odd(emission.ceil_div(most, group)) * group

    def allocate(self, partial: int, acc_dtype: str) -> None:
        """Allocates the buffers; `partial` elements for the products of a set and a chunk."""
        slots = self.side if self.shares == 1 else self.sets
        rows = slots * self.shares * self.rows
        self.scores = I.sblock_alloc_buffer((slots * self.rows * self.room,), "float32", align=64)
        self.largest = I.sblock_alloc_buffer((rows,), "float32")
        self.totals = I.sblock_alloc_buffer((rows,), "float32")
        self.row_sums = I.sblock_alloc_buffer((rows,), "int32")
        size = slots * self.shares * partial
        self.partial = I.sblock_alloc_buffer((size,), acc_dtype, align=64)

    def number(self, slot: Expr, share: Index, row: Index) -> Expr:
        """The index of a number that is kept for each row of a chunk."""
        return (slot * self.shares + share) * self.rows + row

    def score(self, slot: Expr, row: Index, vector: Expr) -> Expr:
        """The index of the first element of a vector of scores."""
        return (slot * self.rows + row) * self.pitch + vector * self.lanes

    def whole_row(self, slot: Expr, r: Expr) -> tuple[Expr, Expr]:
        """Largest score and sum of exponentials of a row, over all chunks."""
        if self.shares == 1:
            at = self.number(slot, 0, r)
            return self.largest[at], self.totals[at]
        found = I.sblock_alloc_buffer((2,), "float32")
        I.buffer_store(found, tirx.const(ieee.LOWEST, "float32"), [0])
        I.buffer_store(found, tirx.const(0, "float32"), [1])
        with I.serial(self.shares) as share:
            largest = tirx.Max(found[0], self.largest[self.number(slot, share, r)])
            I.buffer_store(found, largest, [0])
        with I.serial(self.shares) as share:
            at = self.number(slot, share, r)
            weight = self.power(self.largest[at] - found[0])
            I.buffer_store(found, found[1] + weight * self.totals[at], [1])
        return bind(found[0]), bind(found[1])

    def power(self, x: Expr) -> Expr:
        """e^x for x <= 0."""
        return vector_math.exp2(x * like(vector_math.LOG2_E, x), self.isa)


def _odd(count: Any) -> Any:
    """The next odd number: rows an odd number of lines apart do not share a few sets of a cache."""
    return count | 1 if isinstance(count, int) else I.floordiv(count, 2) * 2 + 1


def operands_of(
    part: Region, types: tuple[str, str], isa: Isa, narrow: Callable[[Expr], Expr]
) -> tuple[Operands, ZeroPoints]:
    """How a product of few rows multiplies its operands, of `types` in memory; its zero points."""
    rows_unsigned, points = ZeroPoints.of_either_order(part, *types)
    return Operands(isa, types[1], "rounded" in part.attrs, rows_unsigned, narrow), points


def corrected(
    value: Expr, points: ZeroPoints, k: Index, of_ones: Expr | None, row_sum: Expr | None
) -> Expr:
    """A product of rows and matrix, corrected for their zero points.

    Parameters
    ----------
    value : Expr
        The uncorrected product.
    points : ZeroPoints
        Zero points of the rows and of the matrix.
    k : int or Expr
        Terms of each sum.
    of_ones, row_sum : Expr or None
        The sums of the columns, and the sum of the row as a scalar; None if not needed.
    """
    if not points.needed:
        return bind(value)
    return bind(value + correction(points.a, points.b, k, of_ones, row_sum, lanes_of(value)))
