"""Products of float16 on tiles: odd sizes, f32 rounded on the way, batches, convolutions.

Operands are rounded to float16 exactly as NumPy rounds. Products of two float16 are exact in f32; a
sum of K products in any order is off by at most (K + 1) * eps * |A| |B|.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir_schedules.run_region import machine_for, run
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.product.matmul import weighted_half_pays

EPSILON = float(np.finfo(np.float32).eps)
MACHINE = machine_for("amx_fp16")
CONV = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
BATCH = {"rounded": "float16", "a_axes": (0, 1, 2), "b_axes": (0, 2, 1)}


def weighted(m: int, n: int, k: int, a: str) -> Region:
    inputs = Tensor((m, k), a), Tensor((k, n), "float16", True)
    return Region(op="matmul", inputs=inputs, output=Tensor((m, n), "float32"))


def batched(m: int, n: int, k: int, dtype: str) -> Region:
    """A batched product; B is stored transposed, like the keys of an attention."""
    return Region(
        op="batch_matmul",
        inputs=(Tensor((2, m, k), dtype), Tensor((2, n, k), dtype)),
        output=Tensor((2, m, n), "float32"),
        attrs=BATCH,
    )


def convolved(dtype: str) -> Region:
    return Region(
        op="conv2d",
        inputs=(Tensor((1, 7, 7, 5), dtype), Tensor((3, 3, 5, 20), "float16", True)),
        output=Tensor((1, 7, 7, 20), "float32"),
        attrs=CONV,
    )


REGIONS = [
    weighted(1, 16, 32, "float16"),
    weighted(33, 17, 31, "float16"),
    weighted(17, 50, 95, "float32"),
    batched(19, 33, 31, "float16"),
    batched(33, 17, 64, "float32"),
    convolved("float16"),
    convolved("float32"),
]


@pytest.mark.isa("amx_fp16")
@pytest.mark.parametrize("region", REGIONS, ids=lambda region: region.key[:40])
def test_against_float64(region: Region) -> None:
    template = template_for(region.op)
    config = template.default_config(region, MACHINE)
    assert config.kernel.startswith("amx_fp16_")
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(each.shape).astype(each.dtype) for each in region.inputs]
    rounded = [array.astype(np.float16).astype(np.float64) for array in arrays]
    wanted = template.reference(region, arrays)
    np.testing.assert_array_equal(wanted, template.reference(region, rounded))
    sizes = template.reference(region, [abs(array) for array in rounded])
    k = template.flops(region) / (2 * region.output.size)
    error = abs(run(region, arrays, "amx_fp16", config) - wanted)
    assert (error <= (k + 1) * EPSILON * sizes).all()


@pytest.mark.parametrize(
    "region",
    [weighted(33, 17, 31, "float16"), batched(19, 33, 31, "float16"), convolved("float16")],
    ids=lambda each: each.op,
)
def test_other_cpus_refuse(region: Region) -> None:
    template = template_for(region.op)
    assert template.reject(region, MACHINE.isa) is None
    assert "only AMX tiles" in str(template.reject(region, machine_for("amx").isa))


def test_what_is_too_small_does_not_pay() -> None:
    assert weighted_half_pays(MACHINE, 128, 768, 768)
    assert not weighted_half_pays(MACHINE, 2, 2, 3)
