"""Decides how many threads a run uses and where, and configures the thread pool accordingly.

The process has its own pool (`thread_pool`). Calling threads share its workers, which run on every
CPU that the process may use; each place has a separate pool, whose workers are bound to its CPUs.
The setting belongs to the calling thread. Every run applies its setting again if another one is in
force, so two executables with different numbers do not disturb each other. Other TVM code in the
same thread sees the number of the last run, and shares the pool if it was loaded after ours.

A process with TVM's runtime alone uses TVM's pools, one for every calling thread. Such a pool gets
its workers on first use and never more; the number of threads for a parallel loop can then vary
within that. By default TVM makes a pool of half the logical CPUs, pins the calling thread to the
first of them, and counts the CPUs again in every parallel loop (6 us). So the calling thread's pool
is configured before its first run. TVM also changes the affinity of the calling thread; that is
undone.
"""

from __future__ import annotations

import os
import threading
from itertools import cycle, islice
from typing import NoReturn

from microkernels.base.errors import Argument, TargetError
from microkernels.base.logs import logger
from microkernels.base.tvm_compat.runtime import configure_threads

from .places import PlaceLike, PoolSetting, cpus_of
from .thread_pool.native import installed
from .topology import ALLOWED_CPUS, Topology, cores_of, format_cpus, host_topology

ThreadsLike = int | PlaceLike | None

VARIABLE = "TVM_NUM_THREADS"
_OPENMP_VARIABLE = "OMP_NUM_THREADS"
_BIND_VARIABLE = "TVM_BIND_THREADS"
_ARGUMENT = Argument("num_threads")
MOST_PER_CPU = 4
MOST_ANYWHERE = 8192


class _Current(threading.local):
    """The setting in force in the calling thread; 0 threads: TVM's pool as it is."""

    setting = PoolSetting(0)


current = _Current()


def default_threads() -> int:
    """The meaning of `num_threads=None`: TVM_NUM_THREADS, else OMP_NUM_THREADS, else all cores.

    Cores are the physical ones among the CPUs that this process may use; a quota of CPU time, as
    containers have, limits their number.

    Raises
    ------
    TargetError
        If TVM_NUM_THREADS is not a number of threads. Other contents of OMP_NUM_THREADS are
        ignored.
    """
    return _default()[0]


def _default() -> tuple[int, str | Argument]:
    """Returns the default number, and the variable or argument that decides it."""
    text = os.environ.get(VARIABLE, "")
    if text:
        number = _number(text) or _refuse(text, VARIABLE, " must be a whole number from 1 up")
        return number, VARIABLE
    number = _number(os.environ.get(_OPENMP_VARIABLE, ""))
    return (number, _OPENMP_VARIABLE) if number else (cores_in_quota(), _ARGUMENT)


def why_default_threads() -> str:
    """Says what decides `default_threads`: a variable, the quota of CPU time, or the cores.

    Raises
    ------
    TargetError
        See `default_threads`.
    """
    number, named = _default()
    if named != _ARGUMENT:
        return f"as {named} says"
    quota = host_topology().quota
    if quota is not None and number < physical_cores():
        return f"the quota of {quota.file} is {quota.cpus:.4g} CPUs"
    return "one for each core that this process may use"


def _number(text: str) -> int:
    """Parses a number from 1 up; returns 0 for other texts."""
    return int(text) if text.isascii() and text.isdigit() else 0


def _refuse(value: object, *rule: str | Argument) -> NoReturn:
    raise TargetError(*rule, f", not {value!r}")


def physical_cores() -> int:
    """Number of cores among the CPUs that this process may use."""
    return cores_of(host_topology().usable)


def cores_in_quota() -> int:
    """`physical_cores`, limited by a quota of CPU time, rounded; at least 1."""
    cores, quota = physical_cores(), host_topology().quota
    return cores if quota is None else min(cores, quota.nearest)


def resolve_setting(
    threads: ThreadsLike,
    num_threads: int | None,
    here: bool = False,
    topology: Topology | None = None,
    spin: str | None = None,
) -> PoolSetting:
    """Resolves how many threads a run has, and where.

    Parameters
    ----------
    threads : int, str, sequence of int or None
        A number, like `num_threads`; or a place that workers are bound to, see `runtime.places`.
    num_threads : int or None
        Number of threads. None: one for each core of the place, or see `resolve_threads`.
    here : bool
        See `resolve_threads`.
    topology : Topology or None
        The machine of the place; None for this one.
    spin : {"run", "always", "never"} or None
        How long threads wait awake; see `resolve_spin`.

    Returns
    -------
    PoolSetting
        A result of `PoolSetting.of`.

    Raises
    ------
    TargetError
        If there is no such place, or it has fewer CPUs than threads; if both arguments give
        different numbers; if there is no such `spin`; or see `resolve_threads`.
    """
    if threads is None or isinstance(threads, int):
        if None not in (threads, num_threads) and threads != num_threads:
            _refuse(threads, "a number in threads must be ", _ARGUMENT, f", {num_threads}")
        count = resolve_threads(num_threads if threads is None else threads, here)
        return PoolSetting.of(count, spin=spin)
    cpus = cpus_of(threads, topology or host_topology())
    count = resolve_threads(cores_of(cpus) if num_threads is None else num_threads)
    if count > len(cpus):
        raise TargetError(
            Argument("threads", value=threads),
            f" has too few CPUs for {count} threads: this process may use "
            f"{format_cpus(cpu.number for cpu in cpus)}",
        )
    return PoolSetting.of(count, tuple(cpu.number for cpu in cpus[:count]), spin)


def resolve_threads(num_threads: int | None, here: bool = False) -> int:
    """Resolves the number of threads to build for.

    Parameters
    ----------
    num_threads : int or None
        None for `default_threads()`.
    here : bool
        Whether the code runs on this machine; code for another may have more threads.

    Raises
    ------
    TargetError
        If it is not a whole number from 1 up, or too large; or if TVM_NUM_THREADS is not a number,
        even if it is not used here, because TVM reads it too.
    """
    count, named = _default()
    if num_threads is not None:
        count, named = num_threads, _ARGUMENT
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        _refuse(count, _ARGUMENT, " must be a whole number from 1 up")
    if here:
        _require_few(count, named)
    elif count > MOST_ANYWHERE:
        _refuse(count, _ARGUMENT, f" must be at most {MOST_ANYWHERE}, the most CPUs of Linux")
    return count


def require_runnable(count: int, what: str) -> None:
    """Refuses a program with more threads than make sense on this machine.

    Raises
    ------
    TargetError
        Says how many threads `what` may have; or if TVM_NUM_THREADS is not a number.
    """
    default_threads()
    _require_few(count, f"the number of threads of {what}")


def _require_few(count: int, named: str | Argument) -> None:
    cpus = len(ALLOWED_CPUS)
    if count > MOST_PER_CPU * cpus:
        _refuse(
            count,
            named,
            f" must be at most {MOST_PER_CPU * cpus} here: this process may use {cpus} "
            f"CPU{'s' * (cpus > 1)}, and more than {MOST_PER_CPU} threads for each only wait for "
            "each other",
        )


def use_threads(count: int) -> None:
    """Makes parallel loops of the calling thread use `count` threads, itself included."""
    use_setting(PoolSetting.of(count))


def use_setting(setting: PoolSetting) -> None:
    """Applies a setting to parallel loops that the calling thread starts.

    The affinity of the calling thread does not change.
    """
    if current.setting is setting:
        return
    pool = installed()
    if pool is None:
        _configure_pool_of_tvm(setting)
    else:
        bound = bool(setting.cpus) and _may_bind()
        pool.use(
            setting.count, setting.spin, bound, setting.cpus if bound else sorted(ALLOWED_CPUS)
        )
    current.setting = setting
    if setting.cpus:
        _note_binding(setting)


def _configure_pool_of_tvm(setting: PoolSetting) -> None:
    from tvm_ffi import get_global_func

    workers = max(setting.count, len(ALLOWED_CPUS), default_threads())
    cpus = list(islice(cycle(setting.cpus or sorted(ALLOWED_CPUS)), workers))
    own = os.sched_getaffinity(0)
    try:
        available = configure_threads(get_global_func, setting.count, cpus, bool(setting.cpus))
    finally:
        os.sched_setaffinity(0, own)
    if available < setting.count:
        logger.warning(
            "%d threads were asked for, but this thread's TVM pool has started with %d; set "
            "TVM_NUM_THREADS=%d, or run a tvm_hybrid session before other TVM code",
            setting.count,
            available,
            setting.count,
        )


def _may_bind() -> bool:
    return os.environ.get(_BIND_VARIABLE, "1") == "1"


def _note_binding(setting: PoolSetting) -> None:
    cpus, own = format_cpus(setting.cpus), os.sched_getaffinity(0)
    if not _may_bind():
        logger.warning("%s keeps workers from being bound to CPUs %s", _BIND_VARIABLE, cpus)
        return
    logger.info("workers are bound to CPUs %s", format_cpus(setting.cpus[1:]))
    if not own.issubset(setting.cpus):
        logger.info(
            "the calling thread does a share too, and may run on CPUs %s: bind it to %s, if "
            "that is where its share is to run",
            format_cpus(own),
            cpus,
        )


def same_core(cpu: int, other: int) -> bool:
    """Whether two logical CPUs share a physical core."""
    cores = {each.number: each.core for each in host_topology().cpus}
    return cores.get(cpu, cpu) == cores.get(other, other)
