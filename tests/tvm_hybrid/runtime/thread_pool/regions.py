"""Calls the pool as compiled kernels do, with tasks in Python, and inspects threads."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tvm_hybrid.runtime.places import PoolSetting
from tvm_hybrid.runtime.thread_pool.native import NativePool, installed
from tvm_hybrid.runtime.threads import use_setting

_TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, _TASK, ctypes.c_void_p, ctypes.c_int)
_BARRIER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
PATIENCE = 60  # seconds until a test that hangs fails


class _Group(ctypes.Structure):
    _fields_ = [("sync", ctypes.c_void_p), ("count", ctypes.c_int32)]


def pool() -> NativePool:
    """The pool of this process."""
    found = installed()
    assert found is not None
    return found


def launch(work: Callable[[int, int], None], tasks: int = 0) -> int:
    """Runs a region of tasks, `work(task, tasks)`; 0 means one for each of the caller's threads."""

    def run(task: int, group: int, _data: int) -> int:
        work(task, _Group.from_address(group).count)
        return 0

    return _LAUNCH(pool().launch)(_TASK(run), None, tasks)


def launch_meeting(
    before: Callable[[int], object], after: Callable[[int], object], tasks: int
) -> int:
    """Runs tasks with a barrier between two parts; a task fails if its first part returns False."""
    wait = _BARRIER(pool().barrier)

    def run(task: int, group: int, _data: int) -> int:
        if before(task) is False:
            return -1
        code = wait(task, group)
        if code == 0:
            after(task)
        return code

    return _LAUNCH(pool().launch)(_TASK(run), None, tasks)


def use(count: int, cpus: Iterable[int] = (), spin: str = "never") -> None:
    """Sets the calling thread's options."""
    use_setting(PoolSetting.of(count, tuple(cpus), spin))


def native_threads() -> set[int]:
    """Threads of this process that Python did not start."""
    mine = {each.native_id for each in threading.enumerate()}
    mine.add(threading.get_native_id())  # a forked child's thread has a new id
    return set(map(int, os.listdir("/proc/self/task"))) - mine


def told_of(thread: int, file: str) -> str:
    """Content of a /proc file of a thread of this process; empty once the thread has ended."""
    try:
        return Path(f"/proc/self/task/{thread}/{file}").read_text(encoding="utf-8").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def asleep(thread: int) -> bool:
    """Whether a thread of this process sleeps."""
    return told_of(thread, "stat").rpartition(")")[2].split()[:1] == ["S"]


def wait_until(condition: Callable[[], bool]) -> bool:
    """Waits for a condition; returns whether it became true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def in_threads(work: Callable[[], None], count: int) -> None:
    """Runs `work` in `count` threads at once, and raises an error that one of them raised."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
