"""Whatever a candidate does is a result, and the next candidate is measured.

One worker is a program of its own; the others are forked, which is a hundred times as fast.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from microkernels.base import cpu_quota
from microkernels.base.cpu_quota import Quota
from microkernels.base.errors import CompileError, ConfigError
from microkernels.machines.machine import Machine
from tvm_hybrid.tuning.measuring import local_measurer
from tvm_hybrid.tuning.measuring import worker as worker_module
from tvm_hybrid.tuning.measuring.local_measurer import LocalMeasurer, with_best
from tvm_hybrid.tuning.measuring.measure import Candidates, Effort, Measurement
from tvm_hybrid.tuning.measuring.measure import measured as outcome_of
from tvm_hybrid.tuning.measuring.worker import WorkerProcess

from ..forked_worker import fork_workers

pytestmark = pytest.mark.turns

QUICK = Effort(samples=4, seconds=0.1)
LONG = Effort(samples=1 << 20, seconds=0.3)

FAILURES = [
    ("wrong", "wrong_result", "64 of 64 elements are wrong; the first at (0,)"),
    ("raise", "compile_error", "RuntimeError: this candidate cannot be built"),
    ("abort", "compile_error", "died of SIGABRT in stage 'compile'"),
    ("segfault", "runtime_error", "died of SIGSEGV in stage 'check'"),
]


@pytest.fixture(scope="module")
def processes() -> Iterator[list[LocalMeasurer]]:
    """The measurer that the tests of this file share, once it exists."""
    made: list[LocalMeasurer] = []
    yield made
    for measurer in made:
        measurer.close()


@pytest.fixture
def measurer(
    host: tuple[Machine, str], processes: list[LocalMeasurer], monkeypatch: pytest.MonkeyPatch
) -> LocalMeasurer:
    fork_workers(monkeypatch)
    if not processes:
        processes.append(LocalMeasurer(*host, timeout=60, footprint_bytes=1 << 16, builders=()))
    return processes[0]


@pytest.fixture
def workers(
    host: tuple[Machine, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LocalMeasurer, list[WorkerProcess]]]:
    """Two processes, even on a single CPU."""
    fork_workers(monkeypatch)
    monkeypatch.setattr(local_measurer, "MANY", 1)
    allowed = sorted(os.sched_getaffinity(0))
    with LocalMeasurer(*host, timeout=60, cpu=allowed[-1], builders=allowed[:1]) as made:
        yield made, made._workers


@pytest.mark.parametrize(("cpus", "builders"), [(0.5, 0), (2.0, 1), (4.0, 3), (16.0, 7)])
def test_a_quota_bounds_the_cpus_that_build(
    cpus: float, builders: int, host: tuple[Machine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measuring process uses one of the CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(local_measurer, "same_core", lambda cpu, other: cpu == other)
    monkeypatch.setattr(cpu_quota, "host_quota", lambda: Quota(cpus, Path("cpu.max")))
    arguments: list[list[str]] = []

    def child(name: str, given: list[str], environment: dict[str, str]) -> None:
        arguments.append(given)

    monkeypatch.setattr(local_measurer, "ChildProcess", SimpleNamespace(of_module=child))
    monkeypatch.setattr(local_measurer, "WorkerProcess", lambda child: child)
    LocalMeasurer(*host)
    building = ",".join(map(str, range(builders))) or "7"  # otherwise on the measuring CPU
    assert arguments == [["7", building]] * (2 if builders else 1)


def measure(
    measurer: LocalMeasurer, toy: ModuleType, mode: str, effort: Effort = QUICK
) -> Measurement:
    config = toy.ToyConfig(block=16, mode=mode)
    default = toy.ToyConfig(block=8)
    [(measured, result)] = measurer.measure(
        Candidates(toy.region(), toy.TOY, [config], default, effort)
    )
    assert measured == config
    return result


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@contextmanager
def killer(worker: WorkerProcess, stage: str, times: int) -> Iterator[list[int]]:
    """Kills a worker when it is seen in a stage, each worker once; returns the killed ids."""
    killed: list[int] = []
    done = threading.Event()

    def kill() -> None:
        while len(killed) < times and not done.wait(0.01):
            pid = worker.child.pid
            if pid is not None and pid not in killed and worker.job and worker.stage == stage:
                killed.append(pid)
                os.kill(pid, 9)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


def test_a_right_candidate(measurer: LocalMeasurer, toy: ModuleType) -> None:
    measured = measure(measurer, toy, "right")
    assert (measured.status, measured.error) == ("ok", "")
    assert 3 <= len(measured.times_us) <= QUICK.samples and min(measured.times_us) > 0
    assert len(measured.baseline_times_us) == len(measured.times_us)
    assert measured.baseline_us is not None and measured.baseline_us > 0
    config = toy.ToyConfig(block=16)
    [(_, alone)] = measurer.measure(Candidates(toy.region(), toy.TOY, [config], None, QUICK))
    assert alone.status == "ok" and alone.baseline_us is None and alone.ratio is None


def test_samples_are_shared_among_fresh_processes(
    measurer: LocalMeasurer, toy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process's memory placement must not decide alone."""
    measure(measurer, toy, "right")
    pids, close = [measurer.pid], measurer.close

    def closed() -> None:
        pids.append(measurer.pid)
        close()

    monkeypatch.setattr(measurer, "close", closed)
    effort = Effort(samples=7, seconds=60.0, processes=2)
    found = measure(measurer, toy, "right", effort)
    assert found.status == "ok" and len(found.times_us) == len(found.baseline_times_us) == 8
    assert len({*pids[1:], measurer.pid}) == 3, "the one before, and two of its own"
    assert measure(measurer, toy, "raise", effort).status == "compile_error"


@pytest.mark.slow
def test_a_program_of_its_own(host: tuple[Machine, str], toy: ModuleType) -> None:
    with LocalMeasurer(*host, timeout=60, builders=()) as measurer:
        assert measure(measurer, toy, "right").status == "ok"
        first = measurer.pid
        assert first is not None
        assert worker_module.__name__ in Path(f"/proc/{first}/cmdline").read_text()
        measured = measure(measurer, toy, "segfault")
        assert measured.status == "runtime_error" and "SIGSEGV" in measured.error
        assert measure(measurer, toy, "right").status == "ok" and measurer.pid != first
    assert not alive(first)


def test_what_fails_is_a_result_and_the_next_one_is_measured(
    measurer: LocalMeasurer, toy: ModuleType
) -> None:
    modes = ["right", *(mode for mode, _, _ in FAILURES), "right"]
    blocks = [4, 16, 16, 16, 16, 32]
    configs = [toy.ToyConfig(block=b, mode=m) for b, m in zip(blocks, modes, strict=True)]
    found, pids = {}, []
    for config, result in measurer.measure(
        Candidates(toy.region(), toy.TOY, configs, toy.ToyConfig(block=8), QUICK)
    ):
        found[config] = result
        pids.append(measurer.pid)
    assert list(found) == configs
    # After a wrong result, memory elsewhere may be overwritten, too; an exception writes nothing.
    assert pids[0] is not None and pids[1] is None and pids[2] is not None
    assert found[configs[0]].status == found[configs[-1]].status == "ok"
    for config, (_, status, error) in zip(configs[1:-1], FAILURES, strict=True):
        measured = found[config]
        assert measured.status == status and error in measured.error
        assert measured.times_us == measured.baseline_times_us == []
        assert measured.baseline_us is None


def test_one_that_hangs(measurer: LocalMeasurer, toy: ModuleType) -> None:
    assert measure(measurer, toy, "right").status == "ok"
    hung, measurer.timeout = measurer.pid, 1.0
    try:
        measured = measure(measurer, toy, "hang")
    finally:
        measurer.timeout = 60.0
    assert (measured.status, measurer.pid) == ("timeout", None)
    assert "in stage 'check'" in measured.error
    assert hung is not None and not alive(hung)


def test_one_killed_while_it_is_measured_is_measured_again(
    measurer: LocalMeasurer, toy: ModuleType
) -> None:
    with killer(measurer._workers[0], "measure", 1) as killed:
        measured = measure(measurer, toy, "right", LONG)
    assert measured.status == "ok" and len(killed) == 1
    assert measurer.pid not in killed
    # An idle worker, too.
    assert measurer.pid is not None
    os.kill(measurer.pid, 9)
    time.sleep(0.1)
    assert measure(measurer, toy, "right").status == "ok"


def test_one_killed_twice_is_to_blame(measurer: LocalMeasurer, toy: ModuleType) -> None:
    with killer(measurer._workers[0], "check", 2) as killed:
        measured = measure(measurer, toy, "hang")
    assert len(killed) == 2
    assert measured.status == "runtime_error"
    assert "died of SIGKILL in stage 'check'" in measured.error


def test_whoever_had_enough_leaves_nothing_running(
    measurer: LocalMeasurer, toy: ModuleType
) -> None:
    configs = [toy.ToyConfig(block=block) for block in (1, 2, 4)]
    running = measurer.measure(Candidates(toy.region(), toy.TOY, configs, None, QUICK))
    assert next(running)[0] == configs[0]
    pid = measurer.pid
    running.close()
    assert measurer._workers[0].job is None
    assert measure(measurer, toy, "right").status == "ok" and measurer.pid == pid


def test_a_template_that_the_worker_cannot_import(measurer: LocalMeasurer, toy: ModuleType) -> None:
    strange = type("Strange", (toy.Toy,), {"name": "strange", "__module__": "no.such.module"})()
    region = toy.region().replace(op="strange")
    with pytest.raises(CompileError, match="No module named 'no'"):
        list(measurer.measure(Candidates(region, strange, [toy.ToyConfig(block=8)], None, QUICK)))
    assert measure(measurer, toy, "right").status == "ok"


def test_one_builds_while_another_measures(
    workers: tuple[LocalMeasurer, list[WorkerProcess]], toy: ModuleType
) -> None:
    measurer, (first, second) = workers
    modes = ["right"] * 6 + ["segfault"]
    configs = [
        toy.ToyConfig(block=block, mode=mode)
        for block, mode in zip((1, 2, 4, 8, 16, 32, 64), modes, strict=True)
    ]
    measuring: list[int] = []
    found = {}

    def work() -> None:
        for config, measured in measurer.measure(
            Candidates(toy.region(), toy.TOY, configs, configs[3], QUICK)
        ):
            found[config] = measured.status
            measuring.append(
                sum(
                    worker.job is not None and worker.stage == "measure"
                    for worker in (first, second)
                )
            )

    # The end of a thread must not end a process.
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == {config: "ok" for config in configs[:6]} | {configs[6]: "runtime_error"}
    assert max(measuring) <= 1
    left = [worker.child.pid for worker in (first, second) if worker.child.pid is not None]
    assert left and all(alive(pid) for pid in left)
    running = measurer.measure(Candidates(toy.region(), toy.TOY, configs[:6], None, LONG))
    next(running)
    busy = [worker.child.pid for worker in (first, second) if worker.job is not None]
    assert len(busy) == 2
    running.close()
    assert not any(pid is not None and alive(pid) for pid in busy)


def test_a_cpu_that_there_is_not(host: tuple[Machine, str]) -> None:
    with pytest.raises(ConfigError, match="no CPU 100000 here"):
        LocalMeasurer(*host, cpu=100000)
    with pytest.raises(ConfigError, match="no CPU -1 here"):
        LocalMeasurer(*host, builders=[-1])


def test_the_best_so_far_gets_better_only() -> None:
    def found(time_us: float) -> Measurement:
        return outcome_of([time_us], [10.0])

    effort = Effort(best_ratio=0.9)
    assert with_best(effort, found(8.0)).best_ratio == pytest.approx(0.8)
    assert with_best(effort, found(9.5)) == effort
    assert with_best(effort, Measurement(status="timeout")) == effort
    assert with_best(QUICK, found(8.0)) == QUICK  # no request to compare with the best
