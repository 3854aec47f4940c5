"""When a parallel region is worth it: if one thread takes long enough beside a fork and a join.

Below that, forking and joining costs more than other threads save.
"""

from __future__ import annotations

from collections.abc import Iterator

from microkernels.machines.machine import Machine

# What one thread has to take, in times of a fork and a join, before others share it. Of products
# and rows: on two threads of a Zen 4, 400,000 multiplications and additions.
LEAST = 3.38
# Of operators that mostly move data, whose estimates are rough: two threads gain from about twice a
# fork on.
LEAST_MOVED = 10.0


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


def worth_parallel(machine: Machine, us: float, least: float = LEAST) -> bool:
    """Whether all threads share work that takes one thread so many microseconds."""
    return machine.threads > 1 and us >= least * machine.fork_us(machine.threads)
