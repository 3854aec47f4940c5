"""When a parallel region is worth it: if one thread takes long enough beside a fork and a join.

Below that, forking and joining costs more than other threads save.
"""

from __future__ import annotations

from microkernels.machines.machine import Machine

# In times of a fork and a join of all threads: from so much work of one thread on, all share it.
LEAST = 3.38
# So much work every further thread has to get, of operators that use as many as are worth it.
EACH = 5.0


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
