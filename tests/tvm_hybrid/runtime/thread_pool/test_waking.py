"""A worker may not wake on the CPU of the thread that wakes it; afterwards it may run anywhere.

Tests check its allowed CPUs when it is woken and inside its tasks; Linux chooses among them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tvm_hybrid.runtime.thread_pool.regions import (
    PATIENCE,
    asleep,
    launch,
    pool,
    use,
    wait_until,
)
from tests.tvm_hybrid.runtime.thread_pool.watched import Asked, Watch, watched_pool
from tests.tvm_hybrid.small_models import run_python

CPUS = sorted(os.sched_getaffinity(0))
OTHERS = CPUS[1:]  # callers run on the first
TIMES = 3


class Waking:
    """Wakes the worker of a watched pool repeatedly."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def meet(self) -> tuple[int, list[int]]:
        """Runs a region of two tasks; returns the second task's thread and its allowed CPUs."""
        found: list[tuple[int, list[int]]] = []
        begun = threading.Event()

        def work(task: int, _: int) -> None:
            if task == 0:
                begun.wait(1)  # after that it runs the other one itself
            else:
                found.append((threading.get_native_id(), sorted(os.sched_getaffinity(0))))
                begun.set()

        assert launch(work, 2) == 0
        return found[0]

    def wake(self, times: int = TIMES) -> dict[str, Any]:
        """Affinity requests while the worker is woken `times` times, and what its tasks found."""
        me = threading.get_native_id()
        asked, looked = len(self.watch.asked), len(self.watch.looked)
        tasks: list[tuple[int, list[int]]] = []

        def woken() -> bool:
            tasks.append(self.meet())
            wakes = [by for by, _ in self.watch.looked[looked:]].count(me)
            return wakes >= times and tasks[-1][0] != me

        assert wait_until(woken)
        return {
            "by the caller": [cpus for by, _, cpus in self.watch.asked[asked:] if by == me],
            "for itself": [cpus for by, _, cpus in self.watch.asked[asked:] if by != me],
            "in tasks": [cpus for thread, cpus in tasks if thread != me],
            "workers": sorted({thread for thread, _ in tasks} - {me}),
            "for": sorted({thread for _, thread, _ in self.watch.asked[asked:]}),
        }


def in_a_child(work: Callable[[], bool]) -> int:
    """Exit code of a child: 0 if `work` returns True."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def look() -> None:
    """Prints the content of `facts`."""
    watch = watched_pool(Path(sys.argv[1]))
    waking = Waking(watch)
    os.sched_setaffinity(0, CPUS[:1])
    use(2)
    waking.wake(1)  # starts it
    found: dict[str, Any] = {"woken": waking.wake()}
    (worker,) = found["woken"]["workers"]

    assert wait_until(lambda: asleep(worker))  # an awake worker is not woken again
    use(2, spin="always")
    pool().add_always(1)
    waking.wake(1)
    before = len(watch.asked), len(watch.looked)
    for _ in range(20):
        waking.meet()
    found["awake"] = [len(watch.asked) - before[0], len(watch.looked) - before[1]]
    pool().add_always(-1)
    use(2)

    watch.allow = lambda by: by == worker
    found["refused"] = waking.wake()
    watch.allow = lambda by: True

    def bind(asked: Asked) -> None:
        """Runs after a worker was kept off a CPU and before it takes its CPUs back."""
        if asked.by != worker:
            os.sched_setaffinity(worker, CPUS[:1])

    watch.afterwards = bind
    found["meanwhile"] = waking.wake(1)
    watch.afterwards = lambda asked: None
    found["bound"] = waking.wake()
    os.sched_setaffinity(worker, CPUS)
    found["free again"] = waking.wake()

    def child() -> bool:
        told = waking.wake()
        (own,) = told["workers"]
        return own != worker and told["for"] == [own] and OTHERS in told["by the caller"]

    def forbidden() -> bool:
        me = threading.get_native_id()
        watch.allow = lambda by: by == me  # not the new worker
        told = waking.wake()
        return not told["by the caller"] and all(cpus == CPUS for cpus in told["in tasks"])

    found["child"] = in_a_child(child)
    found["forbidden"] = in_a_child(forbidden)

    use(2, CPUS[:2])
    found["place"] = waking.wake()
    print(json.dumps(found))


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of `look`."""
    if len(CPUS) < 2:
        pytest.skip("a worker and its caller on two CPUs")
    code = f"from {__name__} import look; look()"
    done = run_python(code, tmp_path_factory.mktemp("watched"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("when", ["woken", "free again"])
def test_a_worker_is_kept_off_its_waker_s_cpu_until_it_runs(
    facts: dict[str, Any], when: str
) -> None:
    told = facts[when]
    assert len(told["by the caller"]) >= TIMES
    assert all(cpus == OTHERS for cpus in told["by the caller"])
    assert len(told["for itself"]) == len(told["by the caller"])
    assert all(cpus == CPUS for cpus in told["for itself"] + told["in tasks"])
    assert told["for"] == told["workers"]


def test_a_worker_that_is_awake_costs_no_call(facts: dict[str, Any]) -> None:
    assert facts["awake"] == [0, 0]


def test_a_worker_is_woken_where_it_was_where_the_system_refuses(facts: dict[str, Any]) -> None:
    told = facts["refused"]
    assert not told["for itself"]
    assert all(cpus == CPUS for cpus in told["by the caller"] + told["in tasks"])


def test_a_worker_that_is_bound_by_others_stays_there(facts: dict[str, Any]) -> None:
    assert facts["meanwhile"]["by the caller"] == [OTHERS]
    assert facts["meanwhile"]["in tasks"][-1] == CPUS[:1]
    assert not facts["meanwhile"]["for itself"]
    told = facts["bound"]
    assert not told["by the caller"] + told["for itself"]
    assert all(cpus == CPUS[:1] for cpus in told["in tasks"])


def test_a_worker_of_a_place_stays_there(facts: dict[str, Any]) -> None:
    told = facts["place"]
    assert not told["by the caller"] + told["for itself"]
    assert all(cpus == CPUS[1:2] for cpus in told["in tasks"])


def test_the_child_of_a_fork_moves_its_own_worker(facts: dict[str, Any]) -> None:
    assert facts["child"] == 0


def test_who_may_not_take_cpus_back_never_loses_any(facts: dict[str, Any]) -> None:
    assert facts["forbidden"] == 0


def wake_a_second() -> None:
    """Prints where a second worker may wake while the first is awake, and where the second woke."""
    watch = watched_pool(Path(sys.argv[1]))
    waking = Waking(watch)
    os.sched_setaffinity(0, CPUS[:1])
    use(3)
    launch(lambda *_: None, 3)  # starts both
    held, free = threading.Event(), threading.Event()

    def hold(task: int, _: int) -> None:
        if task == 1:
            held.set()
        (free if task else held).wait(PATIENCE)

    use(2)
    waking.wake()
    first = threading.Thread(target=lambda: (use(2), launch(hold, 2)))
    first.start()
    assert held.wait(PATIENCE)
    try:
        told = waking.wake()
    finally:
        free.set()
        first.join(PATIENCE)
    (second,) = told["workers"]
    awake = [cpu for by, cpu in watch.looked if by not in (second, threading.get_native_id())]
    print(json.dumps([told["by the caller"], awake]))


@pytest.mark.skipif(len(CPUS) < 2, reason="a worker and its caller on two CPUs")
def test_a_worker_is_kept_off_the_cpus_of_others_that_are_awake(tmp_path: Path) -> None:
    done = run_python(f"from {__name__} import wake_a_second; wake_a_second()", tmp_path)
    assert done.returncode == 0, done.stderr
    asked, awake = json.loads(done.stdout)
    left = sorted(set(OTHERS) - {awake[-1]})
    assert all(cpus == left for cpus in asked)
    assert bool(asked) == bool(left)


def wake_on_one_cpu() -> None:
    """Prints the affinity requests on a single CPU."""
    waking = Waking(watched_pool(Path(sys.argv[1])))
    use(2)
    waking.wake(1)
    print(json.dumps(waking.wake()))


def test_on_one_cpu_nothing_is_asked_for(tmp_path: Path) -> None:
    one = f"import os; os.sched_setaffinity(0, {CPUS[:1]}); "
    done = run_python(one + f"from {__name__} import wake_on_one_cpu; wake_on_one_cpu()", tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert not told["by the caller"] + told["for itself"]
    assert all(cpus == CPUS[:1] for cpus in told["in tasks"])
