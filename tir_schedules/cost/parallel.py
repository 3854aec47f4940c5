"""When a parallel region pays: if one thread takes long enough compared with a fork and a join.

Below that, forking and joining costs more than other threads save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from microkernels.machines.machine import Machine
from tir_schedules.core import loop_nest
from tir_schedules.core.product_plan import ProductPlan

from .cost import Cost

# Least time of one thread, in forks and joins, before others share the work. For products and
# rows: on two threads of a Zen 4, 400,000 multiplications and additions.
LEAST = 3.38
# For operators that mostly move data, whose estimates are rough: two threads gain from about twice
# a fork on.
LEAST_MOVED = 10.0
# If each of all threads has work for ENOUGH forks and joins, the largest share may be at most
# MOST_UNEVEN times the mean.
ENOUGH, MOST_UNEVEN = 8.0, 1.25
HARDLY_SLOWER = 1.15  # an estimate's error
MEASURED_THREADS = 2  # up to this number, estimates were measured, and decide alone

W = TypeVar("W")


def halves(threads: int) -> Iterator[int]:
    """`threads`, half as many, and so on, down to two.

    >>> list(halves(13))
    [13, 6, 3]
    """
    while threads > 1:
        yield threads
        threads //= 2


def threads_worth(machine: Machine, us: float, least: float = LEAST) -> int:
    """The number of threads, of `halves`, that finish work of `us` microseconds soonest.

    Returns 1 if even two threads do not pay.
    """
    if machine.threads == 1 or us < least * machine.fork_us(2):
        return 1
    return min(halves(machine.threads), key=lambda n: us / n + machine.fork_us(n))


def alone_below(machine: Machine, us: float, least: float = LEAST) -> int:
    """The most items for which one thread is enough, if it takes `us` microseconds for each.

    Returns 0 if the machine has only one thread.
    """
    return 0 if machine.threads == 1 else int(least * machine.fork_us(2) / us)


def even_enough(machine: Machine, us: float, largest: float) -> bool:
    """Whether the largest share is near the mean of all threads, or the work is too little.

    Parameters
    ----------
    us : float
        Microseconds that all of the work takes one thread.
    largest : float
        Fraction of the work that the busiest thread has.
    """
    threads = machine.threads
    much = threads > MEASURED_THREADS and us >= ENOUGH * threads * machine.fork_us(threads)
    return not much or largest * threads <= MOST_UNEVEN


def fewest_unless_uneven(
    ways: Sequence[W], cost: Callable[[W], float], is_even: Callable[[W], bool]
) -> W:
    """The way with the least cost, or a way with even shares that is estimated hardly slower.

    An estimated gain of uneven shares is often no more than a weight that just fits L2.
    """
    best = min(ways, key=cost)
    even = min(filter(is_even, ways), key=cost, default=best)
    return even if cost(even) <= HARDLY_SLOWER * cost(best) else best


# MergeEstimate: whether one kernel in place of several pays; one rule for all merges.
#
# An estimate cannot tell nearly equal ways apart. So a merge has to save a fraction of the time of
# the separate kernels, or a number of microseconds.


@dataclass(frozen=True)
class Least:
    """What a merge has to save: more than `share` of the time before and than `us` microseconds."""

    share: float = 0.0
    us: float = 0.0

    def reached(self, saved: float, before: float) -> bool:
        """Whether saving `saved` of `before` microseconds is enough."""
        return saved > max(self.share * before, self.us)


CHAIN = Least(share=0.0005)
# If the weights of a whole model come from memory, the estimate knows too little about what hides
# their reads (BERT, 32 rows, two threads, is 5% slower with merges that should save 1% to 4%).
CHAIN_FROM_MEMORY = Least(share=0.05)
DEPTHWISE_POINTWISE = Least(share=0.02)
SIDE_BY_SIDE = Least(us=1.0)
# If several threads share each kernel, the estimates of both ways have different errors: Llama's
# three products of an input on 28 threads should save 13%, and are predicted 16% slower.
SIDE_BY_SIDE_SHARED = Least(share=0.15, us=1.0)


@dataclass(frozen=True, kw_only=True)
class MergeEstimate:
    """The estimated time of separate kernels and of a merged one, in microseconds.

    Attributes
    ----------
    separate, merged : Cost
        Cost of a kernel for each part, and of one kernel.
    how : str
        How the one kernel computes, for `explain`.
    least : Least
        What the merge has to save.
    """

    separate: Cost
    merged: Cost
    how: str
    least: Least

    @property
    def saved(self) -> float:
        """Microseconds that merging saves; negative if it costs time."""
        return self.separate.total - self.merged.total

    @property
    def pays(self) -> bool:
        """Whether merging saves more than the estimate's noise."""
        return self.least.reached(self.saved, self.separate.total)

    def __str__(self) -> str:
        before, after = self.separate.total, self.merged.total
        changes = self.merged.changes(self.separate)
        return f"{self.how} an estimated {after:.1f} us instead of {before:.1f} ({changes})"


def on_threads(threads: int) -> str:
    """The number of threads in words."""
    return "on 1 thread" if threads == 1 else f"on {threads} threads"


# The loop nest of one matrix product, as `ThreadGrid` emits it.
#
# threads > row block > column panel > K block > row tile > tile


def product_nest(plan: ProductPlan) -> loop_nest.LoopNest:
    """The loops of a product on a grid of threads."""
    kernel, m, n, k = plan.kernel, plan.m, plan.n, plan.k
    n_vectors, steps = plan.n_vectors, plan.steps
    threads_m, threads_n = min(plan.threads_m, m), min(plan.threads_n, n_vectors)
    units = math.ceil(steps / plan.k_unit)
    threads_k = min(plan.threads_k, units)
    share = m / threads_m, n_vectors / threads_n, steps / threads_k
    tiling = loop_nest.Tiling(plan.rows, plan.vectors, plan.m_block, plan.k_block)
    loops = loop_nest.product_loops(share, tiling, kernel.lanes)
    threads = threads_m * threads_n * threads_k
    a, b, c = 4.0 * m * steps, 4.0 * kernel.lanes * n_vectors * steps, 4.0 * kernel.lanes * m * n
    balance = loop_nest.balance_of(m, threads_m) * loop_nest.balance_of(n_vectors, threads_n)
    outer = loop_nest.Loop("thread", threads, "parallel", (a, b, c))
    nest = loop_nest.nested([outer, *loops])
    useful = n / (n_vectors * kernel.lanes) * k / (steps * kernel.kr)
    balance *= loop_nest.balance_of(units, threads_k)
    return loop_nest.LoopNest(nest, float(m) * n * k, useful, balance)


def kind_of(parallel: bool) -> loop_nest.Kind:
    """The kind of a loop that runs on all threads, or on one."""
    return "parallel" if parallel else "serial"


# Division of the rows of products among threads, if second operands are packed at run time.
#
#     packed by every task     packing is repeated for every share of the rows
#     packed first             all threads pack, then fork again; each reads what others have packed
#
# In both cases threads read an operand that other cores have just written.


# Cycles to pack a vector of an operand: 4 (Zen 4), 4 to 12 (Granite Rapids), measured.
PACK_CYCLES = 4.0
MOST_TASKS = 4  # shares of one product for each thread; more would not be more even


@dataclass(frozen=True, kw_only=True)
class PackedWork:
    """Products that share second operands.

    Attributes
    ----------
    operands : int
        Number of second operands.
    members : int
        Products that share each of them.
    rows : int
        Rows of each product.
    unit : int
        Rows of a tile, which takes its time however few of them are used.
    row_us : float
        Microseconds for a row.
        Microseconds of a row.
    stored, packed : int
        Bytes of one operand before and after packing.
    """

    operands: int
    members: int
    rows: int
    unit: int
    row_us: float
    stored: int
    packed: int


@dataclass(frozen=True)
class PackedShares:
    """How packed work is divided.

    Attributes
    ----------
    threads : int
        Threads that take part.
    row_shares : int
        Shares of the rows of each product.
    packs_first : bool
        Whether all operands are packed before the first product.
    """

    threads: int = 1
    row_shares: int = 1
    packs_first: bool = False

    def fields(self, machine: Machine) -> dict[str, Any]:
        """The fields of a configuration that is not serial."""
        return {
            "row_shares": self.row_shares,
            "packs_first": self.packs_first,
            "parallel": True,
            "threads": 0 if self.threads == machine.threads else self.threads,
        }


def share_packed_work(work: PackedWork, machine: Machine, alone_us: float) -> PackedShares:
    """The shares that finish soonest.

    Parameters
    ----------
    work : PackedWork
        The work to divide.
    machine : Machine
        Its threads are the most that are tried.
    alone_us : float
        Microseconds of one thread, without packing; too few are not shared.
    """
    if threads_worth(machine, alone_us) == 1:
        return PackedShares()
    found = [
        PackedShares(threads, row_shares, packs_first)
        for threads in halves(machine.threads)
        for packs_first in ((False, True) if threads > MEASURED_THREADS else (False,))
        for row_shares in _shares_of_each_height(work, MOST_TASKS * threads)
    ]
    rows = work.operands * work.members * work.rows

    def is_even(shares: PackedShares) -> bool:
        return even_enough(machine, rows * work.row_us, _largest_share(work, shares) / rows)

    return fewest_unless_uneven(found, lambda shares: estimated_us(work, shares, machine), is_even)


def _shares_of_each_height(work: PackedWork, most: int) -> Iterator[int]:
    """The fewest shares, up to `most`, for every possible height of the highest, in tiles."""
    tiles = math.ceil(work.rows / work.unit)
    parts = 1
    while parts <= most:
        yield parts
        height = math.ceil(tiles / parts) - 1
        if height == 0:
            return
        parts = math.ceil(tiles / height)


def estimated_us(work: PackedWork, shares: PackedShares, machine: Machine) -> float:
    """Microseconds until the last thread has ended."""
    threads, parts = shares.threads, shares.row_shares
    vectors = work.packed / (4 * machine.isa.f32_lanes)
    packing = vectors * PACK_CYCLES / machine.cycles_per_us
    # Time a byte for the fraction that other threads have written.
    foreign = (1 - 1 / threads) / machine.foreign_rate
    fork, of_one = machine.fork_us(threads), work.members * parts
    products = _largest_share(work, shares) * work.row_us
    if not shares.packs_first:
        tasks = math.ceil(work.operands * parts / threads)
        read = _operands_read(tasks, parts) * work.stored * foreign
        return fork + products + tasks * packing + read
    tasks = math.ceil(work.operands * of_one / threads)
    packing = work.operands / threads * (packing + work.stored * foreign)
    read = _operands_read(tasks, of_one) * work.packed * foreign
    return 2 * fork + packing + products + read


def _largest_share(work: PackedWork, shares: PackedShares) -> int:
    """Rows of the busiest thread, in whole tiles."""
    tiles = math.ceil(work.rows / work.unit)
    height = min(work.rows, math.ceil(tiles / shares.row_shares) * work.unit)
    # A task that packs for itself takes the rows of all products with an operand.
    apart, together = work.operands, work.members
    if shares.packs_first:
        apart, together = apart * together, 1
    return math.ceil(apart * shares.row_shares / shares.threads) * height * together


def _operands_read(tasks: int, of_one: int) -> int:
    """How many operands consecutive tasks read at most, if `of_one` tasks share an operand."""
    return min(tasks, math.ceil(tasks / of_one) + (of_one % tasks != 0 and tasks % of_one != 0))
