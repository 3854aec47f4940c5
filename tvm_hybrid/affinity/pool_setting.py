"""PoolSetting: how many threads a run has, and the CPUs that its workers are bound to."""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class PoolSetting:
    """What TVM's pool of a calling thread is set to.

    Attributes
    ----------
    count : int
        Threads of a run, the calling thread included.
    cpus : tuple of int
        A CPU for each, the first for the calling thread, which is not bound to it; empty if
        workers may run wherever the process may.
    """

    count: int
    cpus: tuple[int, ...] = ()

    @staticmethod
    @functools.cache
    def of(count: int, cpus: tuple[int, ...] = ()) -> PoolSetting:
        """The same object for the same setting: every run asks whether its own is in force."""
        return PoolSetting(count, cpus)
