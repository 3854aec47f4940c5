"""Says that a kernel uses fewer threads than there are, and what a fork costs; for `explain`."""

from __future__ import annotations

from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config


def why_fewer_threads(config: Config, machine: Machine) -> str:
    """Why a configuration leaves threads idle; "" if it does not, or has no number of them.

    >>> from microkernels.isa import isa_named
    >>> from tir_schedules.rows.normalize import NormalizeConfig
    >>> machine = Machine("znver4", isa_named("avx512"), 8)
    >>> why_fewer_threads(NormalizeConfig(rows=1, threads=6), machine)
    '6 of 8 threads: all are no faster, as a fork takes 1.2 us instead of 1.1'
    """
    used, threads = getattr(config, "threads", None), machine.threads
    if used == 0:  # all, if any
        used = threads if getattr(config, "parallel", True) else 1
    if not isinstance(used, int) or used >= threads:
        return ""
    fork, own = machine.fork_us(threads), machine.fork_us(used)
    instead = f" instead of {own:.1f}" if used > 1 else ""
    return f"{used} of {threads} threads: all are no faster, as a fork takes {fork:.1f} us{instead}"
