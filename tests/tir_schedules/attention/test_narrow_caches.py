"""Keys and values stored in a narrower type than the type of the products."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir_schedules.attention.test_dynamic_attention import attention
from tests.tir_schedules.attention_regions import case, values
from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import (
    BF16_ISAS,
    ISAS,
    dtype_named,
    expected,
    machine_for,
    random_inputs,
    run,
)
from tir_schedules.attention.problem import AttentionProblem, bits_of_element
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tvm_hybrid.tuning.verification.chain_bounds import known_case

pytestmark = pytest.mark.turns

TYPES = ("float16", "bfloat16", "int8", "uint8")


def narrow(region: Region, dtype: str) -> Region:
    """The region with k and v stored in another type."""
    q, *stored = region.inputs[:3]
    inputs = (q, *(Tensor(each.shape, dtype) for each in stored), *region.inputs[3:])
    return region.replace(inputs=inputs)


def stored(arrays: list[np.ndarray], dtype: str) -> list[np.ndarray]:
    """Inputs with k and v in another type, scaled so that 8-bit numbers differ."""
    factor = 40 if dtype in ("int8", "uint8") else 1
    size = dtype_named(dtype)
    kept = [np.abs(x) if dtype == "uint8" else x for x in arrays[1:3]]
    # q shrinks by that factor, so scores stay within the range of the softmax.
    return [arrays[0] / np.float32(factor), *((factor * x).astype(size) for x in kept), *arrays[3:]]


def near(result: np.ndarray, region: Region, arrays: list[np.ndarray]) -> None:
    """Sums of n products with probabilities; an exponential is off by a few roundings."""
    terms = region.parts[0].output.shape[-1] + region.parts[0].inputs[0].shape[-1]
    most = np.abs(arrays[2].astype(np.float64)).max()
    bound = 4 * (terms + 8) * np.finfo(np.float32).eps * most
    assert np.abs(result - expected(region, arrays)).max() <= bound


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("m", [1, 2, 21])
def test_static_sizes(m: int, dtype: str, isa: str) -> None:
    """Few queries read k and v in place, more pack them; vectors' tails end at an unmapped page."""
    for layout in ("bhsd", "bshd"):
        attention = case(batch=1, heads=4, group=2, m=m, n=37, d=20, layout=layout, causal=36 - m)
        region = narrow(attention.region, dtype)
        arrays = stored(values(attention), dtype)
        near(run(region, arrays, isa), region, arrays)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
def test_any_sizes(dtype: str, isa: str) -> None:
    region = narrow(attention(6, 16, 16, mask=(BATCH, 1, 1, LENGTH), group=3), dtype)
    kernel = DynamicKernel(region, isa)
    for batch, length in ((1, 1), (2, 7), (1, 33)):
        sizes = {"batch": batch, "length": length}
        known = at_sizes(region, sizes)
        wide = region.replace(inputs=tuple(Tensor(x.shape, "float32") for x in region.inputs))
        arrays = stored(random_inputs(at_sizes(wide, sizes)), dtype)
        for at_end in (True, False):
            near(kernel.run(sizes, arrays, at_end), known, arrays)


def test_threads_share_the_bytes() -> None:
    """Halving the bytes of k and v asks for no more threads."""
    region = case(batch=1, heads=1, m=1, n=4096, d=64, layout="bhsd").region
    machine = machine_for("avx512", 8).with_numbers(fork_us=0)
    template = template_for("attention")
    wide, half = (template.default_config(x, machine) for x in (region, narrow(region, "int8")))
    assert wide.to_dict()["parallel"]
    assert half.to_dict()["key_shares"] <= wide.to_dict()["key_shares"]
    assert [bits_of_element(each) for each in ("float32", *TYPES)] == [32, 16, 16, 8, 8]


@pytest.mark.parametrize("isa", BF16_ISAS)
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_products_of_bfloat16(dtype: str, isa: str) -> None:
    """Stored numbers are rounded to bfloat16 after they are read."""
    for m in (1, 21):
        attention = case(kind="rounded", batch=1, heads=2, m=m, n=40, d=32, layout="bhsd")
        region = narrow(attention.region, dtype)
        arrays, wanted = known_case(region, template_for("attention"), 1)
        result = run(region, arrays, isa)
        assert (np.abs(result - wanted.value) <= wanted.tolerance).all()


@pytest.mark.parametrize("dtype", ["float32", *TYPES])
def test_verification_knows_them(dtype: str) -> None:
    region = narrow(case(m=2, n=33, heads=2).region, dtype)
    arrays, wanted = known_case(region, template_for("attention"), 0)
    assert [str(each.dtype) for each in arrays[1:3]] == [dtype] * 2
    result = run(region, arrays, "avx2")
    assert (np.abs(result - wanted.value) <= wanted.tolerance).all()


def test_what_is_not_widened() -> None:
    template, isa = template_for("attention"), machine_for("avx2").isa
    region = attention()
    q, k, v = region.inputs
    half = Tensor(q.shape, "float16")
    assert "types other than floats" in str(
        template.reject_dynamic(region.replace(inputs=(half, k, v)), isa)
    )
    problem = AttentionProblem(narrow(region, "float16"))
    assert [problem.widens(name) for name in "qkv"] == [False, True, True]
