"""A pool that requests CPUs through Python: tests see, refuse or intercept the requests."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.tvm_hybrid.runtime.thread_pool.regions import pool
from tvm_hybrid.runtime.thread_pool import native

_SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p)
_GET = ctypes.CFUNCTYPE(ctypes.c_int)
_HERE = ctypes.CDLL(None).sched_getcpu


class Asked(NamedTuple):
    """A call of `sched_setaffinity`: the calling thread, the affected thread and its new CPUs."""

    by: int
    thread: int
    cpus: list[int]


class Watch:
    """Requests of this process's pool.

    Attributes
    ----------
    asked : list of Asked
        Calls of `sched_setaffinity`.
    looked : list of (int, int)
        Calls of `sched_getcpu`: a thread and its CPU. Callers look before they wake a worker,
        workers after they have woken.
    allow : callable
        Whether a call is made, given the calling thread; otherwise it fails.
    afterwards : callable
        Called after each call with its `Asked`.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.looked: list[tuple[int, int]] = []
        self.allow: Callable[[int], bool] = lambda by: True
        self.afterwards: Callable[[Asked], None] = lambda asked: None
        self._set = _SET(self._set_cpus)
        self._get = _GET(self._get_cpu)

    def _set_cpus(self, thread: int, size: int, cpus: int) -> int:
        by = threading.get_native_id()
        bits = int.from_bytes(ctypes.string_at(cpus, size), "little")
        done = self.allow(by)
        try:
            if done:
                os.sched_setaffinity(thread, [i for i in range(8 * size) if bits >> i & 1])
        except OSError:
            done = False
        self.asked.append(Asked(by, thread or by, sorted(os.sched_getaffinity(thread))))
        self.afterwards(self.asked[-1])
        return 0 if done else -1

    def _get_cpu(self) -> int:
        self.looked.append((threading.get_native_id(), _HERE()))
        return self.looked[-1][1]

    def code(self) -> str:
        """The pool's code with these functions instead of the C library's."""
        text = native.CODE.read_text(encoding="utf-8")
        for declared, function in (
            ("i32 @sched_setaffinity(i32 %0, i64 %1, ptr %2)", self._set),
            ("i32 @sched_getcpu()", self._get),
        ):
            name = declared[: declared.index("(")]
            address = ctypes.cast(function, ctypes.c_void_p).value
            called = declared.replace(name, f"i32 inttoptr (i64 {address} to ptr)")
            body = f"define internal {declared} {{\n  %r = call {called}\n  ret i32 %r\n}}\n"
            text, count = re.subn(rf"^declare {re.escape(name)}\(.*\n", body, text, flags=re.M)
            assert count == 1, name
        return text


def watched_pool(folder: Path) -> Watch:
    """Installs a watched pool in this process, which must have none yet."""
    watch = Watch()
    code = folder / "pool.ll"
    code.write_text(watch.code(), encoding="utf-8")
    native.CODE = code
    pool()
    return watch
