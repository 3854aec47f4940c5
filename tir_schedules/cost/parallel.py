"""When a parallel region is worth it: from so much work on, in the unit that an estimate counts in.

Below that, forking and joining costs more than other threads save.
"""

from __future__ import annotations

from tir_schedules.core.machine import Machine

VM_CALL_US = 0.35  # one more kernel called by the virtual machine
FORK_JOIN_US = 1.0  # a parallel region on two threads
FORK_CYCLES = 8000.0  # the same as a convolution counts it, with what threads wait for each other
BARRIER_CYCLES = 4000.0  # of a stage of Winograd's program

LEAST = {
    "flops": 400_000,  # of f32; kr times as many where a step multiplies kr elements
    "elements": 2048 * 16,  # of rows that are normalised
    "bytes": 96 << 10,  # of keys and values that a few queries read
}
"""Work from which on all threads share it."""
EACH = {
    "elements": 4096 * 16,  # whose range is searched for
    "nanoseconds": 5000,
}
"""Work that every further thread has to get."""


def worth_parallel(machine: Machine, **work: float) -> bool:
    """Whether all threads share so much work of a unit of LEAST."""
    return machine.threads > 1 and all(amount >= LEAST[unit] for unit, amount in work.items())


def threads_worth(machine: Machine, **work: float) -> int:
    """How many threads share so much work of a unit of EACH."""
    most = min(int(amount / EACH[unit]) for unit, amount in work.items())
    return max(1, min(machine.threads, most))
