"""When a parallel region is worth it: if one thread takes long enough beside a fork and a join.

Below that, forking and joining costs more than other threads save.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from microkernels.machines.machine import Machine

# In times of a fork and a join of all threads: from so much work of one thread on, all share it.
LEAST = 3.38
# So much work every further thread has to get, of operators that use as many as are worth it.
EACH = 5.0


def halves(threads: int) -> Iterator[int]:
    """So many threads, half as many, and so on, down to two.

    >>> list(halves(13))
    [13, 6, 3]
    """
    while threads > 1:
        yield threads
        threads //= 2


def fewest_worth(machine: Machine, us: float) -> int:
    """The number of threads, of `halves`, that end soonest; 1 where even two are not worth it."""
    if not worth_parallel(replace(machine, threads=min(2, machine.threads)), us):
        return 1
    return min(halves(machine.threads), key=lambda n: us / n + machine.fork_us(n))


def worth_parallel(machine: Machine, us: float, least: float = LEAST) -> bool:
    """Whether all threads share work that takes one thread so many microseconds."""
    return machine.threads > 1 and us >= least * machine.fork_us(machine.threads)


def threads_worth(machine: Machine, us: float) -> int:
    """How many threads share work that takes one thread so many microseconds."""
    enough = (
        threads
        for threads in range(machine.threads, 1, -1)
        if us >= threads * EACH * machine.fork_us(threads)
    )
    return next(enough, 1)
