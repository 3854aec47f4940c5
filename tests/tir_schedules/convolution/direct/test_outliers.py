"""Convolutions of bytes with outliers listed apart: exact for every x, and when they are chosen."""

from __future__ import annotations

import numpy as np
import pytest

from microkernels.registry import microkernel_named
from tests.tir_schedules.assembly_loops import assembly_of
from tests.tir_schedules.conv_regions import conv_region
from tests.tir_schedules.run_region import expected, machine_for, run
from tir_schedules.convolution.direct.config import ConvConfig
from tir_schedules.convolution.direct.weight import WeightLayout
from tir_schedules.convolution.direct.windows import lists_outliers
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

every_isa = pytest.mark.parametrize("isa", ["avx2", "avx512"])
SHAPES = {
    "3x3": ((9, 11), 12, 40, (3, 3), {"padding": (1,) * 4}),
    "strides": ((9, 12), 8, 36, (3, 3), {"padding": (1, 0, 1, 2), "strides": (2, 2)}),
    "1x1 strides": ((8, 9), 32, 130, (1, 1), {"strides": (2, 2)}),
    "dilated lines": ((11, 8), 4, 50, (2, 5), {"dilation": (3, 1)}),
    "batch": ((5, 7), 36, 48, (3, 3), {"padding": (1,) * 4, "batch": 3}),
    "line": ((40,), 16, 50, (5,), {"padding": (2, 2)}),
    "volume": ((4, 5, 6), 8, 20, (2, 3, 3), {"padding": (1, 1, 1, 0, 1, 1)}),
}


def default(region: Region, isa: str, **fields: int) -> ConvConfig:
    config = template_for(region.op).default_config(region, machine_for(isa))
    return ConvConfig(**{**config.to_dict(), **fields})


def lists(region: Region, isa: str) -> bool:
    config = default(region, isa)
    return lists_outliers(WeightLayout.of(region, config, microkernel_named(config.kernel)))


def inputs(region: Region, share: float) -> list[np.ndarray]:
    """x with a share of outliers, one of them in the last pixel; a weight of extremes."""
    rng = np.random.default_rng(0)
    x, weight = (each.shape for each in region.inputs)
    few = rng.integers(0, 128, x)
    mixed = np.where(rng.random(x) < share, rng.integers(128, 256, x), few).astype(np.uint8)
    mixed.reshape(-1)[-1] = 255
    return [mixed, rng.choice([-128, -127, 127], weight).astype(np.int8)]


@pytest.mark.sampled
@every_isa
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("zero", [0, 5])
def test_every_share_of_outliers_is_exact(isa: str, shape: str, zero: int) -> None:
    extents, channels, out_channels, kernel, options = SHAPES[shape]
    region = conv_region(
        extents, channels, out_channels, kernel, dtype="uint8", a_zero_point=zero, **options
    )
    assert lists(region, isa)
    config = default(region, isa)
    if config.lines == 1:  # several blocks of lines; tiles of several lines need whole images
        config = default(region, isa, band=2)
    for share in (0.0, 0.01, 0.05, 1.0):
        arrays = inputs(region, share)
        np.testing.assert_array_equal(run(region, arrays, isa, config), expected(region, arrays))


@every_isa
def test_some_convolutions_list_nothing(isa: str) -> None:
    same: dict[str, object] = {"padding": (1,) * 4, "dtype": "uint8"}
    assert lists(conv_region((9, 9), 16, 16, (3, 3), **same), isa)  # type: ignore[arg-type]
    assert not lists(conv_region((9, 9), 3, 16, (3, 3), **same), isa)  # type: ignore[arg-type]
    assert not lists(conv_region((9, 9), 16, 8, (3, 3), **same), isa)  # type: ignore[arg-type]
    assert not lists(conv_region((9, 9), 16, 32, (3, 3), groups=2, **same), isa)  # type: ignore[arg-type]


def test_columns_that_lie_apart_list_nothing() -> None:
    """The sums of a list belong to neighbouring columns."""
    for isa in ("avx2", "avx512"):
        for dilation, listed in [((2, 1), True), ((1, 2), False)]:
            region = conv_region((9, 20), 16, 64, (3, 3), dilation=dilation, dtype="uint8")
            assert lists(region, isa) == listed
    arrays = inputs(region, 0.1)
    np.testing.assert_array_equal(run(region, arrays, "avx2"), expected(region, arrays))


@every_isa
def test_the_code_has_a_list_and_explain_says_it(isa: str) -> None:
    region = conv_region((14, 14), 16, 32, (3, 3), padding=(1,) * 4, dtype="uint8")
    template, machine, config = template_for(region.op), machine_for(isa), default(region, isa)
    assembly = assembly_of(template.build(region, config, machine.isa), machine.isa)
    assert "vpsubusb" in assembly and "tzcnt" in assembly
    assert "whose products are added apart" in template.by_values(region, config)
