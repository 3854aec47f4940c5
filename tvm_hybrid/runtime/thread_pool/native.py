"""Loads the pool into the process, and sets how it runs parallel loops of the calling thread.

TVM gives every module that it loads the addresses of the functions that start a parallel loop and
wait at a barrier. `installed` replaces them by the pool's for all modules that are loaded later. In
a thread without a setting of ours, the pool calls TVM's own functions, so other programs stay on
TVM's pool. The pool is LLVM code, compiled by TVM: a process with TVM's runtime alone uses TVM's
pool.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from microkernels.base.errors import Argument, TargetError
from microkernels.base.logs import logger
from microkernels.base.tvm_compat import context_functions as tvm_side
from microkernels.base.tvm_compat.runtime import only_runtime

CODE = Path(__file__).with_name("pool.ll")

_lock = threading.Lock()
_tried = False
_pool: NativePool | None = None


class NativePool:
    """The functions of the pool; `installed` makes one in a process.

    Attributes
    ----------
    add_always : callable
        Changes the number of users that want workers awake between runs; at 0, workers sleep.
    launch, barrier : int
        Addresses of the functions that TVM's modules call.
    """

    def __init__(self) -> None:
        start, use, always, self.launch, self.barrier, number = tvm_side.load_addresses(
            CODE, "addresses", 6
        )
        whole = ctypes.c_int
        self._use = ctypes.PYFUNCTYPE(whole, whole, whole, whole, ctypes.POINTER(whole), whole)(use)
        self.add_always = ctypes.PYFUNCTYPE(None, whole)(always)
        functions = tvm_side.functions_of_tvm()
        code = ctypes.PYFUNCTYPE(whole, ctypes.c_void_p)(start)(ctypes.byref(functions))
        if code:
            raise OSError(code, "the thread pool cannot start")
        tvm_side.replace_parallel(self.launch, self.barrier, number)

    def use(self, count: int, spin: str, bound: bool, cpus: Sequence[int]) -> None:
        """Sets how the pool runs parallel loops that the calling thread starts.

        Parameters
        ----------
        count : int
            Threads, itself included; 0: uses TVM's pool.
        spin : {"run", "always", "never"}
            How threads wait.
        bound : bool
            Whether worker i is bound to CPU i + 1 of the list; else all workers may run on all of
            them.
        cpus : sequence of int
            CPUs for the workers.

        Raises
        ------
        MemoryError
            If there is no memory for a new pool.
        """
        numbers = (ctypes.c_int * len(cpus))(*cpus)
        if self._use(count, SPINS.index(spin), bound, numbers, len(cpus)):
            raise MemoryError("no memory for a pool of threads")


def installed() -> NativePool | None:
    """Loads the pool once; returns None, with a log line, if TVM's pool must be used."""
    global _tried, _pool
    if _tried:
        return _pool
    with _lock:
        if not _tried:
            _pool = _load()
            _tried = True
    return _pool


def _load() -> NativePool | None:
    if only_runtime():
        logger.info("TVM's compiler is not there: parallel loops run on TVM's thread pool")
        return None
    begin = time.perf_counter()
    try:
        pool = NativePool()
    except Exception as error:  # TVM raises several kinds
        logger.warning("parallel loops run on TVM's thread pool; ours cannot be loaded: %s", error)
        return None
    logger.debug("the thread pool took %.0f ms to load", 1e3 * (time.perf_counter() - begin))
    return pool


RUN = "run"
ALWAYS = "always"
NEVER = "never"
SPINS = (RUN, ALWAYS, NEVER)  # in the order of the numbers in pool.c
VARIABLE = "TVM_HYBRID_SPIN"
_OF_TVM = "TVM_THREAD_POOL_SPIN_COUNT"


def resolve_spin(spin: str | None) -> str:
    """Resolves how threads wait.

    Parameters
    ----------
    spin : {"run", "always", "never"} or None
        None: the value of TVM_HYBRID_SPIN; else "never" if TVM_THREAD_POOL_SPIN_COUNT is 0, as
        TVM's own pool does not spin then; else "run".

    Raises
    ------
    TargetError
        If there is no such value.
    """
    named: str | Argument = Argument("spin")
    value = spin
    if value is None:
        named, value = VARIABLE, os.environ.get(VARIABLE, "")
    if not value and spin is None:
        return NEVER if os.environ.get(_OF_TVM) == "0" else RUN
    if value not in SPINS:
        known = ", ".join(map(repr, SPINS))
        raise TargetError(named, f" must be one of {known}, not {value!r}")
    return value


def note_user(program: object, spin: str) -> None:
    """Lets workers stay awake between runs while a program with spin "always" lives."""
    pool = installed() if spin == ALWAYS else None
    if pool is not None:
        pool.add_always(1)
        weakref.finalize(program, pool.add_always, -1).atexit = False
