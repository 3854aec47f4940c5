"""Where a worker wakes: not behind the thread that wakes it; afterwards it may run anywhere."""

from __future__ import annotations

import json
import os
import time

import pytest

from tests.tvm_hybrid.small_models import run_python
from tests.tvm_hybrid.thread_pool.regions import native_threads, told_of, wait_until
from tests.tvm_hybrid.thread_pool.wide_model import check, wide_session

CPUS = sorted(os.sched_getaffinity(0))
ROUNDS = 15
PAUSE = 0.02  # seconds; Linux forgets by then where a worker ran

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="a worker and its caller on two CPUs")


def _told(thread: int) -> list[str]:
    """What the system says of a thread, from its state on."""
    return told_of(thread, "stat").rpartition(")")[2].split()


def wake_often() -> None:
    """Prints CPUs on which a worker woke, and whether its own choice of CPUs was left alone."""
    before = native_threads()
    opened = wide_session()
    check(opened)
    (worker,) = native_threads() - before
    os.sched_setaffinity(0, CPUS[:1])

    def woken() -> int:
        time.sleep(PAUSE)
        check(opened)
        assert wait_until(lambda: _told(worker)[0] == "S")
        return int(_told(worker)[36])

    found = [woken() for _ in range(ROUNDS)]
    free = sorted(os.sched_getaffinity(worker)) == CPUS
    os.sched_setaffinity(worker, CPUS[:1])
    bound = woken() == CPUS[0] and sorted(os.sched_getaffinity(worker)) == CPUS[:1]
    print(json.dumps([found, free, bound]))


def test_a_worker_wakes_on_another_cpu_than_its_caller() -> None:
    done = run_python(f"from {__name__} import wake_often; wake_often()")
    assert done.returncode == 0, done.stderr
    found, free, bound = json.loads(done.stdout)
    # The system may move it back where the other CPU is busy.
    assert found.count(CPUS[0]) < ROUNDS / 2, found
    assert free, "the worker is kept off a CPU"
    assert bound, "a worker that others have bound was moved"
