"""Copies of constants lie as separate tensors would, and the first copy is always right."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from microkernels.machines.machine import Machine
from tvm_hybrid.runtime.feeds import BFLOAT16, array_of
from tvm_hybrid.tuning.measuring.case import Case, Rotation, Sampled
from tvm_hybrid.tuning.measuring.measure import Bench, Effort
from tvm_hybrid.tuning.measuring.sampling import FEWEST


def address(tensor: object) -> int:
    return int(array_of(tensor).view(np.uint8).ctypes.data)


@pytest.mark.parametrize("dtype", [np.dtype("float32"), np.dtype("int8"), BFLOAT16])
def test_copies(dtype: np.dtype) -> None:
    arrays = [np.arange(48).reshape(6, 8).astype(dtype), np.ones(5, np.float32)]
    size = sum(array.nbytes for array in arrays)
    rows = Rotation(10 * size - 1).copies(arrays)
    assert len(rows) == 10
    for row in rows:
        for tensor, array in zip(row, arrays, strict=True):
            assert str(tensor.dtype) == array.dtype.name
            np.testing.assert_array_equal(array_of(tensor), array)
    places = sorted(
        (address(tensor), array.nbytes)
        for row in rows
        for tensor, array in zip(row, arrays, strict=True)
    )
    assert all(place % 64 == 0 for place, _ in places)
    for (place, length), (following, _) in itertools.pairwise(places):
        assert place + length <= following


def test_large_copies_have_pages_of_their_own() -> None:
    array = np.zeros(33 << 10, np.float32)
    rows = Rotation(3 * array.nbytes).copies([array])
    assert {address(tensor) % 4096 for (tensor,) in rows} == {64}


def test_memory_is_used_again_and_the_first_copy_is_new() -> None:
    rotation = Rotation(4096)
    first = rotation.copies([np.full(256, 1, np.int8)])
    place = address(first[0][0])
    second = rotation.copies([np.full(256, 2, np.int8)])
    assert address(second[0][0]) == place and len(second) == 16
    assert (array_of(second[0][0]) == 2).all() and (array_of(second[15][0]) == 1).all()
    # Another type or another size: old content would be meaningless.
    for other in (np.full(64, 3, np.float32), np.full(128, 4, np.int8), np.full(999, 5, np.int8)):
        rows = rotation.copies([other])
        assert all((array_of(tensor) == other).all() for (tensor,) in rows)


def test_few_bytes_and_none() -> None:
    assert len(Rotation(0).copies([np.zeros(3)])) == 1
    assert len(Rotation(1 << 20).copies([np.zeros(1, np.int8)])) == 256
    assert Rotation(1 << 20).copies([]) == [[]]


class Spiky(Sampled):
    """Calls of 50 microseconds; every third request is interrupted for half a millisecond."""

    def __init__(self) -> None:
        self.requests = 0

    def seconds(self, calls: int, clock: Callable[[], float]) -> float:
        del clock
        self.requests += 1
        return calls * 50e-6 + (5e-4 if self.requests % 3 == 0 else 0.0)


def test_an_interrupted_slice_does_not_count() -> None:
    kernel = Spiky()
    kernel.calls = 20
    assert [kernel.sample(time.perf_counter) for _ in range(6)] == pytest.approx([50e-6] * 6)


@pytest.mark.parametrize(("call", "calls", "short"), [(5e-3, 1, False), (3e-4, 3, True)])
def test_how_many_calls_a_sample_needs(call: float, calls: int, short: bool) -> None:
    class Steady(Sampled):
        def seconds(self, calls: int, clock: Callable[[], float]) -> float:
            return calls * call

    kernel = Steady()
    kernel.warm_up(time.perf_counter)
    assert (kernel.calls, kernel.short) == (calls, short)
    assert kernel.sample(time.perf_counter) == pytest.approx(call)


def test_a_bench_measures_one_candidate_after_the_other(
    toy: ModuleType, host: tuple[Machine, str]
) -> None:
    machine, target = host
    bench = Bench(Case.of(toy.region(), toy.TOY, machine, target, 1 << 12), toy.TOY)
    stages: list[str] = []
    default, effort = toy.ToyConfig(block=8), Effort(samples=5, seconds=0.05)
    for block in (16, 32):
        measured = bench.measure(toy.ToyConfig(block=block), default, effort, stages.append)
        assert measured.status == "ok", measured.error
        assert FEWEST <= len(measured.times_us) == len(measured.baseline_times_us) <= 5
        assert measured.ratio is not None and measured.ratio > 0
        quotients = np.divide(measured.times_us, measured.baseline_times_us)
        # Each of the four numbers that are added is rounded to 1e-4 microseconds.
        shortest = min(*measured.times_us, *measured.baseline_times_us)
        assert measured.ratio == pytest.approx(np.median(quotients), rel=4 * 0.5e-4 / shortest)
    assert stages == ["compile", "check", "baseline", "measure"] * 2
    assert bench.baseline is not None
    kernel = bench.baseline[1]
    assert len(kernel.arguments) == 16
    shown = {address(row[1]) for row in kernel.arguments}
    assert len(shown) == 16  # every call reads another copy
    assert kernel.seconds(3, time.thread_time) > 0
    # The next kernel continues where this one stopped.
    reached = bench.rotation.next
    assert reached > 3
    bench.measure(toy.ToyConfig(block=4), default, effort, stages.append)
    assert bench.rotation.next > reached
