"""Convolutions with a dynamic batch: one kernel, integers to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir_schedules.conv_regions import conv_region, values
from tests.tir_schedules.depthwise_regions import depthwise
from tests.tir_schedules.dynamic_regions import BATCH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import (
    BF16_ISAS,
    INTEGER_ISAS,
    ISAS,
    expected,
    highest_native,
    machine_for,
    product_bound,
)
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from .dynamic_images import bias_and_residual

ONE = (1, 1, 1, 1)


def check(region: Region, kernel: DynamicKernel) -> None:
    for batch in (1, 2, 5):
        known = at_sizes(region, {"batch": batch})
        arrays = values(known)
        wanted = expected(known, arrays)
        bound = np.zeros(())
        if region.output.dtype != "int32":
            taps = known.inputs[1].size // known.output.shape[-1]
            bound = product_bound(known, arrays) * taps + 1e-6
        for at_end in (True, False):
            result = kernel.run({"batch": batch}, arrays, at_end)
            assert (np.abs(result - wanted) <= bound).all()


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "region",
    [
        conv_region((9, 8), 16, 40, (3, 3), batch=BATCH, padding=ONE),
        conv_region((9, 8), 16, 40, (1, 1), batch=BATCH, strides=(2, 2)),
        conv_region((7, 9), 8, 12, (3, 3), batch=BATCH, groups=2),
        conv_region((20,), 8, 40, (3,), batch=BATCH, padding=(1, 1)),
        depthwise((9, 8), 40, (3, 3), batch=BATCH, padding=ONE),
        depthwise((15,), 20, (5,), batch=BATCH, padding=(2, 2)),
    ],
    ids=["3x3", "1x1", "groups", "1d", "depthwise", "depthwise 1d"],
)
def test_any_number_of_images(isa: str, region: Region) -> None:
    check(region, DynamicKernel(region, isa))
    check(bias_and_residual(region), DynamicKernel(bias_and_residual(region), isa))


@pytest.mark.sampled
@pytest.mark.parametrize("isa", INTEGER_ISAS)
def test_integers_are_exact(isa: str) -> None:
    for region in (
        conv_region((7, 6), 20, 24, (3, 3), batch=BATCH, padding=ONE, dtype="uint8"),
        depthwise((7, 6), 20, (3, 3), batch=BATCH, padding=ONE, dtype="uint8"),
    ):
        check(region, DynamicKernel(region, isa))


@pytest.mark.parametrize("isa", BF16_ISAS)
def test_bfloat16_has_the_bits_of_known_sizes(isa: str) -> None:
    region = conv_region((6, 7), 16, 24, (3, 3), batch=BATCH, padding=ONE, dtype="bfloat16")
    kernel = DynamicKernel(region, isa)
    for batch in (1, 3):
        known = at_sizes(region, {"batch": batch})
        arrays = values(known)
        # Products of bfloat16 are exact; sums of 144 of them are rounded to 24 bits.
        magnitudes = expected(known, [np.abs(x) for x in arrays])
        error = np.abs(kernel.run({"batch": batch}, arrays) - expected(known, arrays))
        assert (error <= 200 * 2.0**-23 * magnitudes + 1e-30).all()


@pytest.mark.parametrize("threads", [2, 7])
def test_threads_share_an_image(threads: int) -> None:
    isa = highest_native(ISAS)
    machine = machine_for(isa, threads).with_numbers(fork_us=0)
    for region in (
        conv_region((14, 14), 32, 64, (3, 3), batch=BATCH, padding=ONE),
        depthwise((14, 14), 64, (3, 3), batch=BATCH, padding=ONE),
    ):
        config = template_for(region.op).default_config(region, machine)
        assert config == template_for(region.op).default_config(
            at_sizes(region, {"batch": 1}), machine
        )
        check(region, DynamicKernel(region, isa, threads, config))


def test_no_image() -> None:
    region = conv_region((9, 8), 16, 40, (3, 3), batch=BATCH)
    kernel = DynamicKernel(region, highest_native(ISAS))
    arrays = values(at_sizes(region, {"batch": 0}))
    assert kernel.run({"batch": 0}, arrays).shape == (0, 7, 6, 40)
