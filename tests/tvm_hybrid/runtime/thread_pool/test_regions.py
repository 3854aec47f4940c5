"""Regions: every task runs once, with any callers of the pool; barriers, errors and nesting."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.relay_passes.graphs import TARGET
from tests.tvm_hybrid.runtime.thread_pool.regions import (
    PATIENCE,
    in_threads,
    launch,
    launch_meeting,
    use,
    wait_until,
)
from tests.tvm_hybrid.small_models import run_python
from tvm_hybrid.runtime import threads


@pytest.fixture(autouse=True)
def own_setting() -> Iterator[None]:
    """Restores the calling thread's setting."""
    before = threads.current.setting
    yield
    if before.count:
        threads.use_setting(before)


@pytest.mark.parametrize("tasks", [1, 2, 3, 64, 65, 128, 129, 500])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_task_runs_once(count: int, tasks: int) -> None:
    use(count)
    ran: list[int] = []
    assert launch(lambda task, _: ran.append(task), tasks) == 0
    assert sorted(ran) == list(range(tasks))


def test_a_region_that_names_no_number_has_as_many_tasks_as_threads() -> None:
    for count in (1, 2, 3):
        use(count)
        ran: list[tuple[int, int]] = []
        launch(lambda *task, into=ran: into.append(task))
        assert sorted(ran) == [(task, count) for task in range(count)]


def test_the_caller_runs_the_first_task_and_workers_the_others() -> None:
    use(3)
    ran: dict[int, int] = {}
    met = threading.Barrier(3, timeout=PATIENCE)

    def work(task: int, _: int) -> None:
        ran[task] = threading.get_ident()
        met.wait()  # all at once

    assert launch(work) == 0
    assert ran[0] == threading.get_ident()
    assert len(set(ran.values())) == 3


def test_a_caller_does_all_where_workers_are_busy() -> None:
    done = run_python(f"from {__name__} import call_beside_another; call_beside_another()")
    assert done.returncode == 0, done.stderr


def call_beside_another() -> None:
    """Calls while the only worker is in another caller's region."""
    held, free = threading.Event(), threading.Event()

    def hold(task: int, _: int) -> None:
        if task == 1:
            held.set()
        if not (free if task else held).wait(PATIENCE):
            raise TimeoutError

    def other() -> None:
        use(2)
        ran: list[tuple[int, int]] = []
        for tasks in (2, 7):
            assert launch(lambda task, _: ran.append((task, threading.get_ident())), tasks) == 0
        assert {ident for _, ident in ran} == {threading.get_ident()}
        assert Counter(task for task, _ in ran) == Counter([*range(2), *range(7)])

    first = threading.Thread(target=lambda: (use(2), launch(hold)))
    first.start()
    assert held.wait(PATIENCE)
    try:
        in_threads(other, 1)
    finally:
        free.set()
        first.join(PATIENCE)
    assert not first.is_alive()


@pytest.mark.parametrize("callers", [1, 16])
def test_tasks_meet_at_a_barrier_however_many_callers_share_the_workers(callers: int) -> None:
    def call() -> None:
        use(2)
        for tasks in (2, 3, 2, 5):
            began: list[int] = []
            seen: list[int] = []
            code = launch_meeting(began.append, lambda _, b=began, s=seen: s.append(len(b)), tasks)
            assert (code, seen) == (0, [tasks] * tasks)

    in_threads(call, callers)


def test_a_region_inside_a_task_runs_in_its_thread() -> None:
    use(2)
    ran: list[tuple[int, int]] = []

    def outer(task: int, _: int) -> None:
        me = threading.get_ident()
        launch(lambda inner, __: ran.append((task, inner)) or _same(me), 5)

    def _same(me: int) -> None:
        assert threading.get_ident() == me

    assert launch(outer, 4) == 0
    assert sorted(ran) == [(task, inner) for task in range(4) for inner in range(5)]


def test_tasks_of_a_region_inside_a_task_meet_too() -> None:
    use(2)
    met: list[int] = []

    def outer(task: int, _: int) -> None:
        began: list[int] = []
        launch_meeting(began.append, lambda __: met.append(len(began)), 3)

    assert launch(outer, 2) == 0
    assert met == [3] * 6


@T.prim_func(s_tir=True)
def refusing(limit: T.int32, y: T.Buffer((8,), "int32")) -> None:
    """Writes 8 numbers in parallel; numbers from a limit on raise an error."""
    for i in T.parallel(8):
        with T.sblock("pass"):
            assert i < limit, "too far"
            y[i] = i + 1


@pytest.mark.parametrize("count", [1, 2, 4])
def test_an_error_of_a_task_is_the_caller_s(count: int) -> None:
    use(count)
    code = tvm.compile(refusing.with_attr("global_symbol", "kernel"), target=TARGET)["kernel"]
    for limit in (0, 7, 8):  # the caller's own task, a worker's, none
        y = np.zeros(8, np.int32)
        if limit < 8:
            with pytest.raises(Exception, match="too far"):
                code(limit, y)
        else:
            code(limit, y)
            assert y.tolist() == list(range(1, 9))


def test_a_task_that_fails_lets_others_go_on_from_a_barrier() -> None:
    use(3)
    began: list[int] = []
    passed: list[int] = []

    def begin(task: int) -> bool:
        began.append(task)
        return task != 1

    assert launch_meeting(begin, passed.append, 3) == -1
    assert (sorted(began), passed) == ([0, 1, 2], [])
    assert launch(lambda task, _: passed.append(task)) == 0  # the pool still works
    assert sorted(passed) == [0, 1, 2]


def test_callers_of_different_numbers_share_the_workers() -> None:
    results: list[int] = []

    def call() -> None:
        for count in (2, 4, 3, 1, 2):
            use(count)
            ran: list[int] = []
            launch(lambda task, _, r=ran: (r.append(task), time.sleep(0.0002)))
            assert sorted(ran) == list(range(count))
            results.append(count)

    in_threads(call, 6)
    assert wait_until(lambda: len(results) == 30)
