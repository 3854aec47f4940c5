"""How many threads a run uses, and making TVM's thread pool use exactly that many.

TVM keeps one pool for every thread that calls it. A pool gets its workers on first use and never
more; the number that a parallel loop is split over can then be lowered and raised within that.
By default TVM makes a pool of half the logical CPUs, pins the calling thread to the first of
them, and counts the CPUs anew in every parallel loop (6 us). So `use_threads` configures the
calling thread's pool before its first run, with every CPU that the process may use and no pinning.

The setting belongs to the calling thread. Every run sets its own number again if another one is in
force, so two executables with different numbers do not disturb each other; other TVM code in the
same thread sees the number of whoever ran last. Pools of several threads do not share workers: a
server that runs in T threads with n workers each has T * n of them.
"""

from __future__ import annotations

import functools
import os
import threading
from itertools import cycle, islice
from pathlib import Path
from typing import NoReturn

from microkernels.errors import TargetError

from .logs import logger
from .tvm_compat.runtime import configure_threads

# Taken at import: TVM may narrow the calling thread's affinity later.
_ALLOWED_CPUS = sorted(os.sched_getaffinity(0))
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
VARIABLE = "TVM_NUM_THREADS"
_OPENMP_VARIABLE = "OMP_NUM_THREADS"
_ARGUMENT = "num_threads"
MOST_PER_CPU = 4
MOST_ANYWHERE = 8192


class _Current(threading.local):
    """The number of threads in force in the calling thread; 0: whatever TVM has."""

    count = 0


current = _Current()


def default_threads() -> int:
    """What `num_threads=None` means: TVM_NUM_THREADS, else OMP_NUM_THREADS, else all cores.

    Cores are the physical ones among the CPUs that this process may use.

    Raises
    ------
    TargetError
        If TVM_NUM_THREADS is no number of threads. OMP_NUM_THREADS, which is not ours, may hold
        other things.
    """
    return _default()[0]


def _default() -> tuple[int, str]:
    """The number, and who says so."""
    text = os.environ.get(VARIABLE, "")
    if text:
        number = _number(text) or _refuse(f"{VARIABLE} must be a whole number from 1 up", text)
        return number, VARIABLE
    number = _number(os.environ.get(_OPENMP_VARIABLE, ""))
    return (number, _OPENMP_VARIABLE) if number else (physical_cores(), _ARGUMENT)


def _number(text: str) -> int:
    """The number from 1 up that a text says; 0 if it says none."""
    return int(text) if text.isascii() and text.isdigit() else 0


def _refuse(rule: str, value: object) -> NoReturn:
    raise TargetError(f"{rule}, not {value!r}")


@functools.cache
def physical_cores() -> int:
    """Number of cores behind the CPUs that this process may use."""
    return len({_siblings(cpu) for cpu in _ALLOWED_CPUS})


def resolve_threads(num_threads: int | None, here: bool = False) -> int:
    """The number of threads to build for.

    Parameters
    ----------
    num_threads : int or None
        None for `default_threads()`.
    here : bool
        Whether the code runs on this machine; code for another may name more threads.

    Raises
    ------
    TargetError
        If it is not a whole number from 1 up, or more than make sense; or if TVM_NUM_THREADS is no
        number, whether it is asked for or not: TVM reads it too.
    """
    count, named = _default()
    if num_threads is not None:
        count, named = num_threads, _ARGUMENT
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        _refuse("num_threads must be a whole number from 1 up", count)
    if here:
        _require_few(count, named)
    elif count > MOST_ANYWHERE:
        _refuse(f"num_threads must be at most {MOST_ANYWHERE}, the most CPUs of Linux", count)
    return count


def require_runnable(count: int, what: str) -> None:
    """Refuses a program of more threads than make sense on this machine.

    Raises
    ------
    TargetError
        Saying of `what` how many there may be; or if TVM_NUM_THREADS is no number.
    """
    default_threads()
    _require_few(count, f"the number of threads of {what}")


def _require_few(count: int, named: str) -> None:
    cpus = len(_ALLOWED_CPUS)
    if count > MOST_PER_CPU * cpus:
        _refuse(
            f"{named} must be at most {MOST_PER_CPU * cpus} here: this process may use {cpus} "
            f"CPU{'s' * (cpus > 1)}, and more than {MOST_PER_CPU} threads for each only wait for "
            "each other",
            count,
        )


def use_threads(count: int) -> None:
    """Makes parallel loops that the calling thread starts use `count` threads, itself included."""
    if current.count == count:
        return
    from tvm_ffi import get_global_func

    workers = max(count, len(_ALLOWED_CPUS), default_threads())
    cpus = list(islice(cycle(_ALLOWED_CPUS), workers))
    available = configure_threads(get_global_func, count, cpus)
    current.count = count
    if available < count:
        logger.warning(
            "%d threads were asked for, but this thread's TVM pool has started with %d; set "
            "TVM_NUM_THREADS=%d, or run a tvm_hybrid session before other TVM code",
            count,
            available,
            count,
        )


def same_core(cpu: int, other: int) -> bool:
    """Whether two logical CPUs share a physical core."""
    return _siblings(cpu) == _siblings(other)


def _siblings(cpu: int) -> str:
    try:
        return Path(_TOPOLOGY.format(cpu)).read_text().strip()
    except OSError:
        return str(cpu)
