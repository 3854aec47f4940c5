"""How attention of few queries is divided into tasks, and what is kept between its phases.

A "set" is one K and V with the rows of q that share it. A task takes one set. If several sets are
stored interleaved ([B, N, H, D]), a task takes all of them, a few keys at a time, so that memory is
read in order. The keys of a task may be divided into shares for several threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.vector.expressions import Expr, bind, lanes_of, like
from microkernels.vector.ieee import LOWEST
from microkernels.vector.vector_math import LOG2_E, exp2
from tir_schedules.attention.problem import AttentionProblem, columns_are_contiguous
from tir_schedules.core.emission import task_loop
from tir_schedules.core.extents import as_expr
from tir_schedules.product.zero_points import ZeroPoints, correction

SIDE_BYTES = 512 << 10  # of K and V: less is in cache, whichever way it is read


def sets_side_by_side(problem: AttentionProblem) -> int:
    """Consecutive sets whose rows of K, and of V, lie next to each other; 1: they do not."""
    innermost = [
        number
        for number, extent in enumerate(problem.factors)
        if extent > 1 and (problem.layouts["k"].batch[number] or problem.layouts["v"].batch[number])
    ]
    if not innermost or not columns_are_contiguous(problem.layouts["k"], problem.d):
        return 1
    count = problem.factors[innermost[-1]]
    for name, width in (("k", problem.d), ("v", problem.e)):
        layout = problem.layouts[name]
        if not 0 < layout.batch[innermost[-1]] * count <= layout.row + width:
            return 1
    stored = problem.tensors["k"], problem.tensors["v"]
    bits = sum(bits_of_element(tensor.dtype) for tensor in stored) // 2
    read = count * problem.n * (problem.d + problem.e) * bits // 8
    return count if read > SIDE_BYTES else 1


def bits_of_element(dtype: str) -> int:
    """Bits of an element of q, k or v."""
    return {"float32": 32, "bfloat16": 16}.get(dtype, 8)


class DecodeConfig(Protocol):
    """The numbers that say how few queries are divided."""

    @property
    def parallel(self) -> bool:
        """Whether tasks run on several threads."""

    @property
    def threads(self) -> int:
        """On how many; 0: on all."""

    @property
    def key_shares(self) -> int:
        """Tasks that the keys of one K are cut into."""

    @property
    def key_sets(self) -> int:
        """Sets that lie side by side of which a task takes so many at most; 0: all."""


class DecodePlan:
    """Tasks, shares of keys, and the buffers between the phases.

    A slot is where one set leaves its results. Without shares the slots are on the stack of their
    task, else each set has one.

    Parameters
    ----------
    problem : AttentionProblem
        Extents and layouts.
    isa : Isa
        What the target has.
    config : DecodeConfig
        Threads, and most shares of the keys.

    Attributes
    ----------
    n, vectors : int or Expr
        Keys that any query sees, and vectors of them.
    rows : int
        Queries of one set.
    pitch, per_share : int or Expr
        Elements from one row of scores to the next; vectors of keys of a share.
    """

    n: int | Expr
    vectors: int | Expr
    pitch: int | Expr
    per_share: int | Expr
    sets: int | Expr

    def __init__(self, problem: AttentionProblem, isa: Isa, config: DecodeConfig) -> None:
        self.problem, self.isa, self.lanes = problem, isa, isa.f32_lanes
        self.parallel, self.threads = config.parallel, config.threads
        self.rows = problem.group * problem.m
        hidden_from = problem.m + problem.causal if problem.causal is not None else problem.n
        self.n = min(problem.n, max(1, hidden_from))
        vectors = self.vectors = math.ceil(self.n / self.lanes)
        # An odd number of lines, so that the rows do not share a few sets of a cache.
        self.pitch = (vectors | 1) * self.lanes
        per_share = self.per_share = math.ceil(vectors / max(1, min(config.key_shares, vectors)))
        self.shares = math.ceil(vectors / per_share)
        # On all threads, sets that are read together leave too few tasks without shares.
        side = sets_side_by_side(problem) if self.shares > 1 or not self.parallel else 1
        most = config.key_sets or side
        self.side = next(count for count in range(min(most, side), 0, -1) if side % count == 0)
        self.sets = problem.batches // problem.group
        self.tasks = self.sets // self.side

    # --- loops -----------------------------------------------------------------------------------

    def task_loop(self, tasks: int | Expr, name: str) -> AbstractContextManager[Expr]:
        """A loop over tasks on the threads."""
        return task_loop(tasks, self.parallel, name, self.threads)

    def for_sets(self, task: Expr, body: Callable[[Expr, Expr], None]) -> None:
        """Runs `body(set, slot)` for the sets of a task."""
        if self.side == 1:
            body(task, tirx.const(0, "int32") if self.shares == 1 else task)
            return
        with I.serial(self.side) as i:
            number = bind(task * self.side + i)
            body(number, i if self.shares == 1 else number)

    def share(self, share: Expr) -> tuple[Expr, Expr | int]:
        """First vector of keys of a share, and how many of its vectors are whole."""
        assert isinstance(self.n, int)
        whole = self.n // self.lanes
        if self.shares == 1:
            return share, whole
        start = bind(share * self.per_share)
        return start, bind(tirx.Min(as_expr(self.per_share), whole - start))

    def keys_of(self, share: Expr) -> int | Expr:
        """How many keys a share has, if it has all of them."""
        assert self.shares == 1
        return self.n

    def for_vectors(self, share: Expr, body: Callable[[Expr, Any], None]) -> None:
        """Runs `body(vector, keys in it)` for the vectors of keys of a share.

        How many keys are in it is a number, where that of all keys is known.
        """
        assert isinstance(self.n, int)
        start, count = self.share(share)
        if not (isinstance(count, int) and count == 0):
            with I.serial(count) as vector:
                body(start + vector, self.lanes)
        cut = self.n % self.lanes
        if cut and self.shares == 1:
            body(tirx.const(self.n // self.lanes, "int32"), cut)
        elif cut:
            with I.If(share == self.shares - 1), I.Then():
                body(tirx.const(self.n // self.lanes, "int32"), cut)

    # --- what is kept ----------------------------------------------------------------------------

    def row_pitch(self, group: int) -> tuple[int | Expr, int | Expr]:
        """Elements from one row of probabilities to the next, in whole groups; and to allocate."""
        assert isinstance(self.per_share, int)
        pitch = (math.ceil(self.per_share * self.lanes / group) | 1) * group
        return pitch, pitch

    @property
    def room(self) -> int | Expr:
        """`pitch`, as it is allocated."""
        return self.pitch

    def allocate(self, partial: int, acc_dtype: str) -> int | Expr:
        """The buffers; `partial` elements for the products of a set and a share."""
        slots = self.side if self.shares == 1 else self.sets
        rows = slots * self.shares * self.rows
        self.scores = I.sblock_alloc_buffer((slots * self.rows * self.room,), "float32", align=64)
        self.largest = I.sblock_alloc_buffer((rows,), "float32")
        self.totals = I.sblock_alloc_buffer((rows,), "float32")
        self.row_sums = I.sblock_alloc_buffer((rows,), "int32")
        size = slots * self.shares * partial
        self.partial = I.sblock_alloc_buffer((size,), acc_dtype, align=64)
        return slots

    def number(self, slot: Expr, share: Expr | int, row: Expr | int) -> Expr:
        """Where a number for each row of a share lies."""
        return (slot * self.shares + share) * self.rows + row

    def score(self, slot: Expr, row: Expr | int, vector: Expr) -> Expr:
        """Where a vector of scores begins."""
        return (slot * self.rows + row) * self.pitch + vector * self.lanes

    def whole_row(self, slot: Expr, r: Expr) -> tuple[Expr, Expr]:
        """Largest score and sum of exponentials of a row, over all shares."""
        if self.shares == 1:
            at = self.number(slot, 0, r)
            return self.largest[at], self.totals[at]
        found = I.sblock_alloc_buffer((2,), "float32")
        I.buffer_store(found, tirx.const(LOWEST, "float32"), [0])
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
        return exp2(x * like(LOG2_E, x), self.isa)


def corrected(
    value: Expr, points: ZeroPoints, k: int | Expr, of_ones: Expr | None, row_sum: Expr | None
) -> Expr:
    """The product of rows and matrix less their zero points.

    Parameters
    ----------
    value : Expr
        The product as it is multiplied.
    points : ZeroPoints
        Those of the rows and of the matrix.
    k : int or Expr
        Terms of each sum.
    of_ones, row_sum : Expr or None
        The columns' sums and the row's, a scalar; None where not needed.
    """
    if not points.needed:
        return bind(value)
    return bind(value + correction(points.a, points.b, k, of_ones, row_sum, lanes_of(value)))
