"""Every template is right on more threads than CPUs, also with more threads than work."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from microkernels.machines.machine import Machine
from tests.tir_schedules import winograd_regions
from tests.tir_schedules.conv_regions import conv_region
from tests.tir_schedules.pair_regions import pair
from tests.tir_schedules.recurrent_regions import recurrent
from tests.tir_schedules.run_region import expected, highest_native, machine_for, random_inputs, run
from tests.tir_schedules.shared_work import (
    AROUND,
    activated,
    attention,
    batched,
    f32_mlp,
    four_bits,
    rows,
    spread,
    square,
    weighted,
)
from tir_schedules.core.region import Region
from tir_schedules.core.template import all_templates, template_for

ISA = highest_native(["scalar", "avx2", "avx512"])
REGIONS = {
    "matmul": weighted(37, 70, 130),
    "matmul of one row": weighted(1, 70, 1000),
    "weight_only_matmul": four_bits(5, 64, 200),
    "batch_matmul": batched(3, 20, 24, 40),
    "conv2d": square(9, 16, 80, 2),
    "conv2d of groups": conv_region((9, 9), 32, 64, (3, 3), padding=AROUND, groups=4),
    "conv2d of bytes": square(9, 16, 40, 2, "uint8"),
    "conv1d": conv_region((200,), 16, 40, (3,), padding=(1, 1)),
    "conv3d": conv_region((3, 5, 7), 8, 40, (3, 3, 3), padding=(1,) * 6),
    "conv2d_winograd": square(9, 16, 80, 2).replace(op="conv2d_winograd"),
    "depthwise_conv2d": spread(9, 40, 3, 2),
    "depthwise_conv2d of bytes": spread(9, 40, 3, 2, "uint8"),
    "depthwise_pointwise": pair((9, 9), 40, 24, batch=2),
    "mlp_chain": f32_mlp(60),
    "mlp_chain of few rows": f32_mlp(4, sizes=(64, 256, 100)),
    "attention": attention(2, 3, 40, 40, 32),
    "attention of one query": attention(1, 4, 1, 300, 32),
    "softmax": rows("softmax", 60, 33),
    "log_softmax": rows("log_softmax", 60, 33),
    "layer_norm": rows("layer_norm", 60, 33),
    "rms_norm": rows("rms_norm", 60, 33),
    "elementwise": activated(7, 333),
    "quantization_range": rows("quantization_range", 7, 333),
    "recurrent": recurrent("lstm", 4, 9, 40, "bidirectional"),
}
EXACT = ("matmul", "weight_only_matmul", "batch_matmul", "conv", "depthwise", "mlp_chain")


def eager(threads: int) -> Machine:
    """A machine whose forks cost nothing, so that any work takes all threads."""
    return machine_for(ISA, threads).with_numbers(fork_us=0)


def inputs_of(region: Region) -> list[np.ndarray]:
    """Small integers if they make the result exact in any order of additions."""
    arrays = random_inputs(region)
    if not region.op.startswith(EXACT) or region.op == "conv2d_winograd":
        return arrays
    rng = np.random.default_rng(0)
    return [rng.integers(0, 4, array.shape).astype(array.dtype) for array in arrays]


def check(region: Region, threads: int, pool: int = 1) -> None:
    """Results equal one thread's to the bit, or the exact result for small integers."""
    template, arrays = template_for(region.op), inputs_of(region)
    one, many = (eager(count) for count in (1, threads))
    config = template.default_config(region, many)
    result = run(region, arrays, ISA, config, threads, pool=pool)
    if region.op == "conv2d_winograd":
        error = np.abs(result - expected(region, arrays))
        assert (error <= winograd_regions.bound(region, arrays)).all()
        return
    if region.op.startswith(EXACT):
        np.testing.assert_array_equal(result, expected(region, arrays))
        return
    wanted = run(region, arrays, ISA, template.default_config(region, one))
    if region.op == "attention":
        # Sums of products with probabilities, in another order.
        keys = arrays[1].size // arrays[1].shape[-1]
        bound = 4 * keys * np.finfo(np.float32).eps * np.abs(arrays[2]).max()
        assert np.abs(result - wanted).max() <= bound
    else:
        np.testing.assert_array_equal(result, wanted)


def test_every_template_is_here() -> None:
    assert {each.op for each in REGIONS.values()} == {each.name for each in all_templates()}


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [3, 53, 128])
@pytest.mark.parametrize("name", REGIONS)
def test_results_are_those_of_one_thread(name: str, threads: int) -> None:
    check(REGIONS[name], threads)


@pytest.mark.slow
def test_they_are_so_on_128_threads_of_this_machine() -> None:
    environment = {**os.environ, "TVM_NUM_THREADS": "128"}
    code = f"from {__name__} import REGIONS, check\nfor each in REGIONS.values(): check(each, 128)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_they_are_so_where_few_threads_of_a_pool_are_woken() -> None:
    code = (
        f"from {__name__} import REGIONS, check\n"
        "from tvm_hybrid.runtime.threads import use_threads\n"
        "use_threads(8)\nfor each in REGIONS.values(): check(each, 3, pool=8)"
    )
    environment = {**os.environ, "TVM_NUM_THREADS": "8"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_all_threads_are_taken_where_forks_cost_nothing() -> None:
    config = template_for("softmax").default_config(REGIONS["softmax"], eager(53))
    assert config.to_dict()["threads"] == 53
    assert replace(eager(53), threads=1).fork_us(53) == 0
