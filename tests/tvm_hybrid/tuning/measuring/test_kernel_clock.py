"""Kernels of a lowered module are counted and timed; one that fails is infinitely slow."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator

import pytest
from tvm import IRModule, relax

from relay_passes.lower_module import lower_module
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import constant, module
from tvm_hybrid.targets.resolve import resolve_target
from tvm_hybrid.tuning.measuring.kernel_clock import (
    CALL_US,
    KernelClock,
    KernelJob,
    time_kernel,
    total_us,
)
from tvm_hybrid.tuning.measuring.model_race import ProgramKernel, program_kernels

op = relax.op


@pytest.fixture(scope="module")
def options() -> PipelineOptions:
    return PipelineOptions(target=resolve_target(None))


@pytest.fixture(scope="module")
def clock(options: PipelineOptions) -> Iterator[KernelClock]:
    with KernelClock(options, footprint_bytes=1 << 16) as clock:
        yield clock


def products() -> IRModule:
    """Two equal products with different weights, and one with other sizes."""

    def body(x: relax.Expr) -> relax.Expr:
        y = op.matmul(op.matmul(x, constant(32, 32)), constant(32, 32, seed=1))
        return op.matmul(y, constant(32, 16))

    return module(body, ((4, 32), "float32"))


@pytest.fixture(scope="module")
def kernels(options: PipelineOptions) -> list[ProgramKernel]:
    fine = PipelineOptions(target=options.target, fusion="fine")
    return program_kernels(lower_module(products(), fine))


def test_equal_kernels_are_one(kernels: list[ProgramKernel]) -> None:
    assert [kernel.calls for kernel in kernels] == [2, 1]
    assert [kernel.constants for kernel in kernels] == [(1,), (1,)]
    assert len({kernel.key for kernel in kernels}) == 2


def test_each_is_timed_once_and_all_are_added(
    clock: KernelClock, kernels: list[ProgramKernel]
) -> None:
    times = [clock.microseconds(kernel) for kernel in kernels]
    assert all(CALL_US < time < 1e6 for time in times)
    assert [clock.microseconds(kernel) for kernel in kernels] == times
    assert total_us(clock, kernels) == 2 * times[0] + times[1]


def test_what_cannot_be_compiled_takes_forever(
    clock: KernelClock, kernels: list[ProgramKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernels[0]._replace(key=1)
    monkeypatch.setattr("tvm.ir.save_json", lambda function: '"no function"')
    assert math.isinf(clock.microseconds(kernel))
    monkeypatch.undo()
    assert clock.microseconds(kernels[1]) > 0  # the timing process lives


def test_a_dead_process_is_replaced(clock: KernelClock, kernels: list[ProgramKernel]) -> None:
    # A stopped worker accepts a kernel and does not answer: it dies at work, not before.
    clock._child._process.send_signal(signal.SIGSTOP)
    threading.Timer(1.0, clock._child._process.kill).start()
    assert math.isinf(clock.microseconds(kernels[0]._replace(key=2)))
    assert math.isfinite(clock.microseconds(kernels[0]._replace(key=3)))


def test_errors_are_told() -> None:
    job = KernelJob(function="{}", constants=(), target="{}", threads=1, footprint_bytes=0)
    answer = time_kernel(job)
    assert answer.microseconds is None
    assert answer.error
