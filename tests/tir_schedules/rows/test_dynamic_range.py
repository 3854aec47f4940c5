"""The range of dynamic quantisation over dynamically many elements: one kernel, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.onnx_reference.arithmetic import dynamic_quantize
from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel
from tests.tir_schedules.run_region import ISAS, highest_native, machine_for
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.rows.quantization_range import RangeConfig

SIZES = [(0, 4), (1, 1), (1, 3), (3, 5), (1, 16), (1, 17), (2, 31), (5, 67)]


def region(last: int) -> Region:
    return Region(
        op="quantization_range",
        inputs=(Tensor((BATCH, LENGTH, last), "float32"),),
        output=Tensor((2,), "float32"),
    )


def check(kernel: DynamicKernel, x: np.ndarray, at_end: bool = True) -> None:
    _, scale, zero_point = dynamic_quantize(x) if x.size else (None, 1.0, 0)
    values = dict(zip(("batch", "length"), x.shape, strict=False))
    assert kernel.run(values, [x], at_end).tolist() == [float(scale), float(zero_point)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("last", [1, 7, 64])
def test_any_number_of_elements(isa: str, last: int) -> None:
    kernel = DynamicKernel(region(last), isa)
    rng = np.random.default_rng(last)
    for sizes in SIZES:
        for at_end in (False, True):
            check(kernel, rng.standard_normal((*sizes, last)).astype(np.float32), at_end)


def test_every_position_counts() -> None:
    kernel = DynamicKernel(region(3), highest_native(ISAS), config=RangeConfig(unroll=2))
    for length in (1, 4, 5, 6, 11, 22):
        for position in range(3 * length):
            x = np.zeros((1, length, 3), np.float32)
            x.flat[position] = -1.5
            x.flat[position - 1] = 0.25 + position
            check(kernel, x)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_on_threads(threads: int) -> None:
    config = RangeConfig(unroll=3, threads=threads)
    kernel = DynamicKernel(region(5), highest_native(ISAS), threads, config)
    rng = np.random.default_rng(threads)
    for sizes in SIZES:
        check(kernel, rng.standard_normal((*sizes, 5)).astype(np.float32))


def test_special_values() -> None:
    kernel = DynamicKernel(region(2), highest_native(ISAS))
    for pair in ([np.nan, 1.0], [-0.0, -0.0], [1e-45, 0.0], [3e38, 0.0], [-2.0, -3.0]):
        for length in (1, 5, 40):
            x = np.tile(np.asarray(pair, np.float32), (1, length, 1))
            found = kernel.run({"batch": 1, "length": length}, [x])
            wanted = template_for("quantization_range").reference(kernel.region, [x])
            assert found.tolist() == wanted.tolist()


def test_threads_follow_a_usual_size() -> None:
    template, machine = template_for("quantization_range"), machine_for("avx512", threads=4)
    assert template.rejection(region(64), machine.isa) is None
    assert template.default_config(region(64), machine).threads > 1
