"""When a parallel region is worth it: if one thread takes long enough beside a fork and a join.

Below that, forking and joining costs more than other threads save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from microkernels.machines.machine import Machine

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
