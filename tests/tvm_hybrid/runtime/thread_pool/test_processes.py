"""How many threads a process has, who owns them, and when they end; in fresh processes."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import pytest
import tvm

from microkernels.base.tvm_compat.runtime import available_threads
from tests.tvm_hybrid.runtime.thread_pool.regions import (
    in_threads,
    launch,
    launch_meeting,
    native_threads,
    pool,
    told_of,
    use,
    wait_until,
)
from tests.tvm_hybrid.runtime.thread_pool.wide_model import (
    EXPECTED,
    X,
    check,
    wide_module,
    wide_session,
)
from tests.tvm_hybrid.small_models import run_python

pytestmark = pytest.mark.turns

CALLERS = 30
CPUS = sorted(os.sched_getaffinity(0))


def count_threads() -> None:
    """Prints the content of `facts`."""
    found: dict[str, Any] = {}
    number = tvm.get_global_func("runtime.NumThreads")
    numbers: list[int] = []

    def ask() -> None:
        numbers.append(number())

    in_threads(ask, 1)
    pool()  # LLVM has compiled
    number = tvm.get_global_func("runtime.NumThreads")
    before = native_threads()

    def made(most: int = 0) -> int:
        """New threads that stay; Python's end a moment after they are joined."""
        wait_until(lambda: len(native_threads() - before) <= most)
        return len(native_threads() - before)

    opened = wide_session()
    found["made"] = made()
    check(opened)
    found["run"] = made(1)
    found["asked"] = available_threads(tvm.get_global_func)

    def call() -> None:
        for _ in range(5):
            check(opened)

    in_threads(call, 8)
    found["eight callers"] = made(1)
    for _ in range(CALLERS):
        in_threads(lambda: check(opened), 1)
    found["callers gone"] = made(1)
    in_threads(lambda: use(4), 1)
    found["more that never ran"] = made(1)
    check(wide_session(num_threads=3))
    found["three"] = made(2)
    check(wide_session(num_threads=1))
    found["one"] = made(2)
    in_threads(ask, 1)
    in_threads(lambda: (use(5), ask()), 1)
    found["numbers"] = numbers
    child = os.fork()
    if child == 0:
        code = 1
        try:
            forked = len(native_threads())
            check(opened)
            in_threads(call, 2)
            workers = wait_until(lambda: len(native_threads()) == 1)
            code = 0 if workers and forked == 0 else 2
        finally:
            os._exit(code)
    found["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    check(opened)
    print(json.dumps(found))


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """The output of `count_threads`."""
    code = f"from {__name__} import count_threads; count_threads()"
    done = run_python(code)
    assert done.returncode == 0, done.stderr  # also at its end, when workers still sleep
    return json.loads(done.stdout)


def test_a_session_has_the_workers_it_asks_for_from_its_first_run_on(facts: dict[str, Any]) -> None:
    assert (facts["made"], facts["run"], facts["asked"]) == (0, 1, 2)


def test_callers_share_the_workers_and_leave_no_threads(facts: dict[str, Any]) -> None:
    assert (facts["eight callers"], facts["callers gone"]) == (1, 1)


def test_the_pool_grows_by_what_runs_and_not_by_what_is_asked(facts: dict[str, Any]) -> None:
    assert facts["more that never ran"] == 1
    assert (facts["three"], facts["one"]) == (2, 2)


def test_a_thread_that_is_not_ours_has_tvm_s_pool(facts: dict[str, Any]) -> None:
    before, foreign, ours = facts["numbers"]
    assert (before, ours) == (foreign, 5)


def test_a_forked_child_starts_workers_of_its_own(facts: dict[str, Any]) -> None:
    assert facts["child"] == 0


def bind() -> None:
    """Prints the CPUs of the workers of two places, and of other workers."""
    pool()
    before = native_threads()
    low, high = json.loads(sys.argv[1])
    os.sched_setaffinity(0, [low])  # a worker does not take over its caller's CPU
    found = []

    def places(threads: set[int]) -> list[list[int]]:
        return [sorted(os.sched_getaffinity(each)) for each in threads]

    for options in ({"threads": [low, high]}, {"threads": [high, low]}, {}):
        opened = wide_session(**options)
        for _ in range(2):
            check(opened)
        made = native_threads() - before
        before |= made
        if not options:  # a woken worker avoids its caller's CPU until it runs
            wait_until(lambda made=made: places(made) == [CPUS])
        found.append(places(made))
    print(json.dumps([*found, sorted(os.sched_getaffinity(0))]))


@pytest.mark.skipif(len(CPUS) < 2, reason="a place of two CPUs")
def test_each_place_has_workers_of_its_own() -> None:
    low, high = CPUS[:2]
    done = run_python(f"from {__name__} import bind; bind()", json.dumps([low, high]))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[[high]], [[low]], [CPUS], [low]]


def foreign_code() -> None:
    """Prints the threads that TVM's code makes when run in our thread and in another."""
    opened = wide_session()
    check(opened)
    before = native_threads()
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    library = tvm.compile(wide_module(), target, relax_pipeline="tvm_hybrid")
    found = []

    def run() -> None:
        main = tvm.relax.VirtualMachine(library, tvm.cpu())["main"]
        np.testing.assert_array_equal(main(tvm.runtime.tensor(X)).numpy(), EXPECTED)
        found.append(len(native_threads() - before))  # TVM's pool ends with its thread

    run()
    in_threads(run, 1)
    print(json.dumps(found))


def test_code_of_others_stays_on_tvm_s_pool_in_threads_of_others() -> None:
    done = run_python(f"from {__name__} import foreign_code; foreign_code()", TVM_NUM_THREADS="3")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, 2]  # TVM's pool has one worker less than threads


def test_extra_threads_of_barriers_end() -> None:
    before = native_threads()

    def call() -> None:
        use(2)
        assert launch_meeting(lambda _: None, lambda _: None, 6) == 0

    in_threads(call, 3)
    # The worker stays; it may have existed before.
    assert wait_until(lambda: len(native_threads() - before) <= 1)


def test_workers_have_a_name() -> None:
    def run() -> None:
        use(2)
        launch(lambda *_: None)

    in_threads(run, 1)

    def named() -> bool:
        return any(told_of(each, "comm") == "tvm_hybrid" for each in native_threads())

    assert wait_until(named)
