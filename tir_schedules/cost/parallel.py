"""When a parallel region is worth it: if one thread takes long enough beside a fork and a join.

Below that, forking and joining costs more than other threads save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from microkernels.machines.machine import Machine

from .cost import Cost

# What one thread has to take, in times of a fork and a join, before others share it. Of products
# and rows: on two threads of a Zen 4, 400,000 multiplications and additions.
LEAST = 3.38
# Of operators that mostly move data, whose estimates are rough: two threads gain from about twice a
# fork on.
LEAST_MOVED = 10.0
# Where each of all threads has work for so many times of a fork and a join, the largest share is to
# be at most so many times the mean.
ENOUGH, MOST_UNEVEN = 8.0, 1.25
HARDLY_SLOWER = 1.15  # an estimate's error
MEASURED_THREADS = 2  # up to so many, estimates were measured, and decide alone

W = TypeVar("W")


def halves(threads: int) -> Iterator[int]:
    """So many threads, half as many, and so on, down to two.

    >>> list(halves(13))
    [13, 6, 3]
    """
    while threads > 1:
        yield threads
        threads //= 2


def threads_worth(machine: Machine, us: float, least: float = LEAST) -> int:
    """How many threads, of `halves`, end soonest with what takes one thread so many microseconds.

    One where even two are not worth it.
    """
    if machine.threads == 1 or us < least * machine.fork_us(2):
        return 1
    return min(halves(machine.threads), key=lambda n: us / n + machine.fork_us(n))


def alone_below(machine: Machine, us: float, least: float = LEAST) -> int:
    """Up to how many items one thread is enough, if it takes so many microseconds for each.

    0 where there is one thread anyhow.
    """
    return 0 if machine.threads == 1 else int(least * machine.fork_us(2) / us)


def even_enough(machine: Machine, us: float, largest: float) -> bool:
    """Whether a largest share is near the mean of all threads, or there is too little to share.

    Parameters
    ----------
    us : float
        What all of the work takes one thread.
    largest : float
        The part of it that the busiest thread has.
    """
    threads = machine.threads
    much = threads > MEASURED_THREADS and us >= ENOUGH * threads * machine.fork_us(threads)
    return not much or largest * threads <= MOST_UNEVEN


def fewest_unless_uneven(
    ways: Sequence[W], cost: Callable[[W], float], is_even: Callable[[W], bool]
) -> W:
    """The way with the least cost, or one of even shares that is estimated hardly slower.

    What an estimate finds better in uneven shares is often no more than a weight that just fits L2.
    """
    best = min(ways, key=cost)
    even = min(filter(is_even, ways), key=cost, default=best)
    return even if cost(even) <= HARDLY_SLOWER * cost(best) else best


def worth_parallel(machine: Machine, us: float, least: float = LEAST) -> bool:
    """Whether all threads share work that takes one thread so many microseconds."""
    return machine.threads > 1 and us >= least * machine.fork_us(machine.threads)


# MergeEstimate: whether one kernel in place of several is worth it; the same rule for all merges.
#
# An estimate cannot tell ways that are nearly alike. So a merge has to save a share of the time of
# what it merges, or a number of microseconds.


@dataclass(frozen=True)
class Least:
    """What a merge has to save: more than `share` of the time before and than `us` microseconds."""

    share: float = 0.0
    us: float = 0.0

    def reached(self, saved: float, before: float) -> bool:
        """Whether so many microseconds of so many are enough."""
        return saved > max(self.share * before, self.us)


CHAIN = Least(share=0.0005)
# Where the weights of a whole model come from memory, the estimate knows too little about what
# hides that (BERT, 32 rows, two threads, is 5% slower with merges that should save 1% to 4%).
CHAIN_FROM_MEMORY = Least(share=0.05)
DEPTHWISE_POINTWISE = Least(share=0.02)
SIDE_BY_SIDE = Least(us=1.0)
# Where several threads share each kernel, the estimates of both ways err apart: Llama's three
# products of an input on 28 threads should save 13%, and are predicted 16% slower.
SIDE_BY_SIDE_SHARED = Least(share=0.15, us=1.0)


@dataclass(frozen=True, kw_only=True)
class MergeEstimate:
    """Both ways, in microseconds.

    Attributes
    ----------
    separate, merged : Cost
        Of a kernel for each part, and of one kernel.
    how : str
        How the one kernel computes, for `explain`.
    least : Least
        What merging has to save.
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
