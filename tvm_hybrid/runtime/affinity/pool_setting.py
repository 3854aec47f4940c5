"""PoolSetting: how many threads a run has, the CPUs of its workers, and how they wait."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..thread_pool.spin import RUN, resolve_spin


@dataclass(frozen=True)
class PoolSetting:
    """What the pool of threads does for a calling thread.

    Attributes
    ----------
    count : int
        Threads of a run, the calling thread included.
    cpus : tuple of int
        A CPU for each, the first for the calling thread, which is not bound to it; empty if
        workers may run wherever the process may.
    spin : {"run", "always", "never"}
        For how long threads wait awake.
    """

    count: int
    cpus: tuple[int, ...] = ()
    spin: str = RUN

    @staticmethod
    def of(count: int, cpus: tuple[int, ...] = (), spin: str | None = None) -> PoolSetting:
        """The same object for the same setting: every run asks whether its own is in force.

        Raises
        ------
        TargetError
            If there is no such `spin`; None is the default of `resolve_spin`.
        """
        return _of(count, cpus, resolve_spin(spin))


@functools.cache
def _of(count: int, cpus: tuple[int, ...], spin: str) -> PoolSetting:
    return PoolSetting(count, cpus, spin)
