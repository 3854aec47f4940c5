"""A counting pool: which pool ran the parallel loops of programs, and who owns the threads.

Enter `counted` before anything installs the pool. Programs that get the pool's address then call it
through Python, which counts; the pool itself does so when it hands a loop to TVM's pool. A program
that got the address of TVM's pool is not counted. `Counts.forget` resets the process to one without
an installed pool, so that each way to a program can be its first.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from microkernels.base.tvm_compat import context_functions
from tests.tvm_hybrid.runtime.thread_pool.regions import asleep, in_threads, native_threads, told_of
from tests.tvm_hybrid.small_models import run_python
from tvm_hybrid.runtime.thread_pool import native

ENVIRONMENTS = {
    "TVM_NUM_THREADS": {"TVM_NUM_THREADS": "2"},
    "OMP_NUM_THREADS": {"OMP_NUM_THREADS": "2"},
    "nothing": {},
}
ONE_AFTER_THE_OTHER, AT_ONCE = 12, 4
CALLS = 2 * (ONE_AFTER_THE_OTHER + AT_ONCE)  # each twice: the second may take a short way
_BOTH = ("Launch", "Barrier")
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_REPLACED = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "TVM_HYBRID_SPIN", "TVM_THREAD_POOL_SPIN_COUNT")
_WORKER = "tvm_hybrid"
_SECONDS = 2  # for an ended thread to disappear, and a waiting one to sleep


class Found(NamedTuple):
    """Counts after several callers of a program.

    Attributes
    ----------
    threads : int
        Number of threads that the program reports for a run.
    launched : int
        Number of loops that the pool was asked to run, in all calls.
    handed_over : int
        Number of loops that it handed to TVM's pool.
    workers : int
        Number of threads of the pool.
    others : int
        Number of new threads that neither Python nor the pool made.
    awake : int
        Number of all these threads that do not sleep in the end.
    """

    threads: int
    launched: int
    handed_over: int
    workers: int
    others: int
    awake: int


class Counts:
    """The counters of `counted`."""

    def __init__(self) -> None:
        self.launched: list[int] = []
        self.handed_over: list[int] = []
        self._kept: list[Any] = []
        self._known = native_threads()
        self._of_tvm = context_functions.functions_of_tvm()
        self._pool: native.NativePool | None = None
        self._of_pool: tuple[int, int, int] | None = None
        self._replace = context_functions.replace_parallel

    def load(self) -> native.NativePool:
        """Installs the pool; its code is compiled once."""
        if self._pool is None:
            self._pool = native.NativePool()
        assert self._of_pool is not None
        self._replace(*self._of_pool)
        return self._pool

    def note(self, launch: int, barrier: int, number: int) -> None:
        """Replaces `replace_parallel`: gives TVM counting functions for programs to call."""
        self._of_pool = self.through(launch, self.launched), barrier, number

    def forget(self) -> None:
        """Gives programs TVM's own pool again until somebody requests ours."""
        native._tried, native._pool = False, None
        if self._of_pool is not None:
            launch, barrier = (getattr(self._of_tvm, f"TVMBackendParallel{each}") for each in _BOTH)
            self._replace(launch, barrier, self._of_pool[-1])

    def through(self, address: int | None, into: list[int]) -> int:
        """Address of a function that counts a call and forwards it."""
        assert address is not None
        launch = _LAUNCH(address)

        def noting(task: int, data: int, count: int) -> int:
            into.append(count)
            return launch(task, data, count)

        self._kept.append(_LAUNCH(noting))
        found = ctypes.cast(self._kept[-1], ctypes.c_void_p).value
        assert found is not None
        return found

    def of_callers(self, threads: int, call: Callable[[], object]) -> Found:
        """Counts after several threads called the program twice each."""

        def twice() -> None:
            call()
            call()

        launched, handed_over = len(self.launched), len(self.handed_over)
        for _ in range(ONE_AFTER_THE_OTHER):
            in_threads(twice, 1)
        in_threads(twice, AT_ONCE)
        end = time.monotonic() + _SECONDS
        while True:
            found = Found(
                threads,
                len(self.launched) - launched,
                len(self.handed_over) - handed_over,
                *self._threads(),
            )
            if (found.others, found.awake) == (0, 0) or time.monotonic() > end:
                self._known |= native_threads()
                return found
            time.sleep(0.001)

    def _threads(self) -> tuple[int, int, int]:
        names = {each: told_of(each, "comm") for each in native_threads()}
        workers = [each for each, name in names.items() if name == _WORKER]
        others = [each for each in names.keys() - self._known if names[each] not in ("", _WORKER)]
        return len(workers), len(others), sum(not asleep(each) for each in workers + others)


@contextmanager
def counted() -> Iterator[Counts]:
    """Makes the pool count once it is installed."""
    counts, functions = Counts(), context_functions.functions_of_tvm

    def handing_over() -> Any:
        found = functions()
        launch = found.TVMBackendParallelLaunch
        found.TVMBackendParallelLaunch = counts.through(launch, counts.handed_over)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context_functions, "functions_of_tvm", handing_over)
        patch.setattr(context_functions, "replace_parallel", counts.note)
        patch.setattr(native, "_load", counts.load)
        yield counts


def run_with(environment: str, code: str, *arguments: object) -> Any:
    """JSON output of code in a fresh process whose environment may set the thread count."""
    without = f"import os\nfor each in {_REPLACED}: os.environ.pop(each, None)\n"
    given = f"os.environ.update({ENVIRONMENTS[environment]})\n"
    done = run_python(without + given + code, *arguments, TVM_HYBRID_CACHE="1")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_found(found: Found) -> None:
    """Checks that the pool ran all parallel loops and that nobody else has threads."""
    several = found.threads > 1
    assert found.launched >= CALLS if several else found.launched == 0, found
    assert (found.handed_over, found.others, found.awake) == (0, 0, 0), found
    assert found.workers < max(2, found.threads + 1), found
