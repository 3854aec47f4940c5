"""The number of threads: what None means, and that TVM's pool gets exactly that many."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from tests.tvm_hybrid.small_models import run_python
from tvm_hybrid import threads
from tvm_hybrid.errors import TargetError


def test_none_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    assert threads.resolve_threads(None) == 3
    monkeypatch.delenv("TVM_NUM_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads.resolve_threads(None) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert threads.resolve_threads(None) == threads.physical_cores()
    assert 1 <= threads.physical_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True])
def test_what_is_no_number_of_threads_is_refused(number: Any) -> None:
    with pytest.raises(TargetError, match="num_threads"):
        threads.resolve_threads(number)


POOL = """
import os, sys, threading
from tvm_hybrid.threads import use_threads
import tvm
number = tvm.get_global_func("runtime.NumThreads")
cpus = os.sched_getaffinity(0)
for count in (2, 1, 3, 2):
    use_threads(count)
    print(number(), end=" ")
print(os.sched_getaffinity(0) == cpus, end=" ")
seen = []
def other():
    use_threads(2)
    seen.append(number())
use_threads(1)
thread = threading.Thread(target=other)
thread.start()
thread.join()
print(seen[0], number())
"""


def test_the_pool_has_as_many_workers_as_asked_and_is_not_pinned() -> None:
    done = run_python(POOL, TVM_NUM_THREADS="3", TVM_THREAD_POOL_SPIN_COUNT="0")
    assert done.stdout.split() == ["2", "1", "3", "2", "True", "2", "1"], done.stderr


GROWN = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
import tvm
number = tvm.get_global_func("runtime.NumThreads")
print(number())
from tvm_hybrid.threads import use_threads
use_threads(4)
print(number())
"""


def test_a_pool_that_is_too_small_already_is_reported() -> None:
    done = run_python(GROWN, TVM_NUM_THREADS="1", TVM_THREAD_POOL_SPIN_COUNT="0")
    first, warning, last = done.stdout.strip().splitlines()
    assert (first, last) == ("1", "1")
    assert "TVM_NUM_THREADS=4" in warning


def test_each_thread_has_its_own_number() -> None:
    mine = threads.current.count
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(threads.current.count))
    thread.start()
    thread.join()
    assert found == [0]
    assert threads.current.count == mine
