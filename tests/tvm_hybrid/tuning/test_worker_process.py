"""A candidate may do anything: it is a result, and the next candidate is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from types import ModuleType

import pytest

from microkernels.errors import CompileError
from tir_schedules.machine import Machine
from tir_schedules.template import Template
from tvm_hybrid.tuning.measure import Effort, Measurement
from tvm_hybrid.tuning.worker_process import WorkerProcess

QUICK = Effort(samples=4, seconds=0.1)


@pytest.fixture(scope="module")
def processes() -> Iterator[list[WorkerProcess]]:
    """The worker that this file's tests share, once one has made it."""
    made: list[WorkerProcess] = []
    yield made
    for worker in made:
        worker.close()


@pytest.fixture
def worker(host: tuple[Machine, str], processes: list[WorkerProcess]) -> WorkerProcess:
    if not processes:
        processes.append(WorkerProcess(*host, timeout=60, footprint_bytes=1 << 16))
    return processes[0]


def measure(worker: WorkerProcess, toy: ModuleType, mode: str) -> Measurement:
    config = toy.ToyConfig(block=16, mode=mode)
    default = toy.ToyConfig(block=8)
    [(measured, result)] = worker.measure(toy.region(), toy.TOY, [config], default, QUICK)
    assert measured == config
    return result


def test_a_right_candidate(worker: WorkerProcess, toy: ModuleType) -> None:
    measured = measure(worker, toy, "right")
    assert (measured.status, measured.error) == ("ok", "")
    assert 3 <= len(measured.times_us) <= QUICK.samples and min(measured.times_us) > 0
    assert measured.baseline_us is not None and measured.baseline_us > 0
    config = toy.ToyConfig(block=16)
    [(_, alone)] = worker.measure(toy.region(), toy.TOY, [config], None, QUICK)
    assert alone.status == "ok" and alone.baseline_us is None


@pytest.mark.parametrize(
    ("mode", "status", "error"),
    [
        ("wrong", "wrong_result", "64 of 64 elements are wrong; the first at (0,)"),
        ("raise", "compile_error", "RuntimeError: this candidate cannot be built"),
        ("abort", "compile_error", "died of SIGABRT in stage 'compile'"),
        ("segfault", "runtime_error", "died of SIGSEGV in stage 'check'"),
    ],
)
def test_what_fails_is_a_result_and_the_next_one_is_measured(
    worker: WorkerProcess, toy: ModuleType, mode: str, status: str, error: str
) -> None:
    measured = measure(worker, toy, mode)
    assert measured.status == status
    assert error in measured.error
    assert measured.times_us == [] and measured.baseline_us is None
    assert measure(worker, toy, "right").status == "ok"


def test_one_that_hangs(worker: WorkerProcess, toy: ModuleType) -> None:
    assert measure(worker, toy, "right").status == "ok"
    hung, worker.timeout = worker.pid, 1.0
    try:
        measured = measure(worker, toy, "hang")
    finally:
        worker.timeout = 60.0
    assert (measured.status, worker.pid) == ("timeout", None)
    assert "in stage 'check'" in measured.error
    assert hung is not None
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)
    assert measure(worker, toy, "right").status == "ok"


def test_a_worker_killed_from_outside(worker: WorkerProcess, toy: ModuleType) -> None:
    assert measure(worker, toy, "right").status == "ok"
    killed = worker.pid
    assert killed is not None
    os.kill(killed, 9)
    time.sleep(0.1)
    assert measure(worker, toy, "right").status == "ok"
    assert worker.pid != killed


def test_a_template_that_the_worker_cannot_import(worker: WorkerProcess, toy: ModuleType) -> None:
    import dataclasses

    def build(*arguments: object) -> None:
        raise AssertionError("never called here")

    build.__module__ = "no.such.module"
    strange: Template = dataclasses.replace(toy.TOY, name="strange", build=build)
    region = toy.region().replace(op="strange")
    with pytest.raises(CompileError, match="No module named 'no'"):
        list(worker.measure(region, strange, [toy.ToyConfig(block=8)], None, QUICK))
    assert measure(worker, toy, "right").status == "ok"
