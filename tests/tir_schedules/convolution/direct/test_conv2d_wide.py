"""Without VNNI, convolutions of 8-bit integers widen each line of x and each panel once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microkernels.registry import microkernel_named
from tests.tir_schedules.assembly_loops import assembly_of, innermost_loops
from tests.tir_schedules.conv_regions import check, conv_region
from tests.tir_schedules.run_region import compiled, expected, machine_for, packed, run
from tir_schedules.convolution.direct.config import ConvConfig, wide_of
from tir_schedules.convolution.direct.cost import WIDE_PIXELS
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tvm_hybrid.runtime.feeds import tensor_of

WITHOUT_VNNI = pytest.mark.parametrize("isa", ["avx2", "avx512"])
WIDENING = "vpmovsxbw", "vpmovzxbw"
DIGITS = "vpsrlw"
PRODUCT = "vpmaddwd"


def default(region: Region, isa: str) -> ConvConfig:
    config = template_for(region.op).default_config(region, machine_for(isa))
    assert isinstance(config, ConvConfig)
    return config


def loops_of(region: Region, isa: str) -> list[str]:
    """The innermost loops that multiply."""
    machine = machine_for(isa)
    function = template_for(region.op).build(region, default(region, isa), machine.isa)
    loops = ["\n".join(loop) for loop in innermost_loops(assembly_of(function, machine.isa))]
    return [loop for loop in loops if loop.count(PRODUCT) >= 4]


@WITHOUT_VNNI
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_nothing_is_widened_next_to_the_products(isa: str, dtype: str) -> None:
    loops = loops_of(conv_region((14, 14), 64, 64, (3, 3), padding=(1,) * 4, dtype=dtype), isa)
    assert not any(word in loop for loop in loops for word in (*WIDENING, DIGITS))
    assert {"vpmaddubsw" in loop for loop in loops} == {True, False}


@WITHOUT_VNNI
def test_a_few_pixels_are_cut_into_digits_next_to_the_products(isa: str) -> None:
    loops = loops_of(conv_region((2, 2), 64, 64, (3, 3), padding=(1,) * 4, dtype="uint8"), isa)
    assert loops and all(DIGITS in loop for loop in loops)


@pytest.mark.sampled
@WITHOUT_VNNI
@pytest.mark.parametrize("kind", ["small x", "small weight", "neither"])
@pytest.mark.parametrize("groups", [1, 2])
def test_bands_are_exact_whether_bytes_fit_or_not(isa: str, kind: str, groups: int) -> None:
    """The flag stored after the weight decides, even if it is wrong; then sums saturate."""
    region = conv_region((9, 11), 12, 20, (3, 3), padding=(1,) * 4, groups=groups, dtype="uint8")
    rng = np.random.default_rng(0)
    most = 127 if kind == "small x" else 255
    low, high = (-64, 64) if kind == "small weight" else (-128, 127)
    x, weight = (each.shape for each in region.inputs)
    arrays = [
        rng.choice([0, most], x, p=[0.1, 0.9]).astype(np.uint8),
        rng.choice([low, high], weight).astype(np.int8),
    ]
    machine, config = machine_for(isa), default(region, isa)
    template = template_for(region.op)
    exact = expected(region, arrays)
    np.testing.assert_array_equal(run(region, arrays, isa), exact)
    kernel = compiled(template.build(region, config, machine.isa), isa)
    x, w = packed(region, config, machine.isa, arrays)
    assert w[-4:].view(np.int32)[0] == (kind == "small weight")
    for answer in (0, 1):
        w[-4:].view(np.int32)[0] = answer
        result = tensor_of(np.zeros(region.output.shape, np.int32))
        kernel(tensor_of(x), tensor_of(w), result)
        assert (result.numpy() == exact).all() == (kind != "neither" or not answer)


@pytest.mark.parametrize("isa", ["scalar", "avx2_vnni", "avx512_vnni"])
def test_others_are_not_widened(isa: str) -> None:
    region = conv_region((14, 14), 64, 64, (3, 3), dtype="uint8")
    config = default(region, isa)
    assert wide_of(region, microkernel_named(config.kernel)) is None and not config.staged


def test_a_band_has_pixels_enough_for_a_widened_panel() -> None:
    """Even if one line exceeds half of L2, a block has enough lines for WIDE_PIXELS pixels."""
    region = conv_region((40, 9), 4096, 16, (3, 3), dtype="uint8")
    config = default(region, "avx2")
    assert config.band * 7 >= WIDE_PIXELS


CASES: dict[str, dict[str, Any]] = {
    "odd channels": {"channels": 3, "kernel": (3, 3), "padding": (1, 3, 0, 2)},
    "stride 2": {"channels": 8, "kernel": (1, 1), "strides": (2, 2)},
    "dilated": {"channels": 5, "kernel": (2, 3), "dilation": (2, 2), "padding": (1,) * 4},
    "groups": {"channels": 12, "groups": 2, "kernel": (3, 3), "padding": (1,) * 4},
    "a zero point": {"channels": 6, "kernel": (3, 3), "padding": (1,) * 4, "a_zero_point": 9},
}


@pytest.mark.sampled
@WITHOUT_VNNI
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("case", CASES)
def test_results_are_exact(isa: str, dtype: str, case: str) -> None:
    options = dict(CASES[case])
    channels, kernel = options.pop("channels"), options.pop("kernel")
    region = conv_region((9, 13), channels, 38, kernel, dtype=dtype, batch=2, **options)
    check(region, isa)
    bands = ConvConfig.from_dict({**default(region, isa).to_dict(), "band": 2, "threads_m": 2})
    check(region, isa, bands)


@WITHOUT_VNNI
def test_a_zero_point_that_is_an_input(isa: str) -> None:
    zero = Tensor((), "uint8")
    region = conv_region(
        (7, 9), 8, 24, (3, 3), padding=(1,) * 4, dtype="uint8", inputs=(zero,), a_zero_point="input"
    )
    check(region, isa)
