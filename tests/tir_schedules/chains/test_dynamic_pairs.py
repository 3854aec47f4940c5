"""Depthwise and pointwise convolutions of any images: one kernel equals the parts exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from microkernels.base.errors import ConfigError
from tests.tir_schedules.chain_regions import small_integers, values
from tests.tir_schedules.dynamic_regions import BATCH, DynamicKernel, at_sizes
from tests.tir_schedules.pair_regions import dynamic_region, pair, symbols
from tests.tir_schedules.run_region import BF16_ISAS, INTEGER_ISAS, ISAS, machine_for
from tir_schedules.chains.depthwise_pointwise import DEPTHWISE_POINTWISE
from tir_schedules.chains.depthwise_pointwise_cost import cut_lines, in_bands, in_dynamic_bands
from tir_schedules.core.region import Region

ALL = (1, 1, 1, 1)
CASES = [
    *(("float32", isa) for isa in ISAS),
    *((dtype, isa) for dtype in ("uint8", "int8") for isa in INTEGER_ISAS),
    *(("bfloat16", isa) for isa in BF16_ISAS),
]


def check(region: Region, isa: str, lines: int, threads: int = 1) -> None:
    """Checks one kernel for no, one and several images."""
    machine = machine_for(isa, threads)
    config = in_bands(region.with_sizes({"batch": 1}), machine, lines, threads)
    kernel = DynamicKernel(region, isa, threads, config)
    integer = region.inputs[0].dtype in ("uint8", "int8")
    for images in (0, 1, 2, 5):
        known = at_sizes(region, {"batch": images})
        arrays = (values if integer else small_integers)(known)
        result = kernel.run({"batch": images}, arrays, at_end=bool(images % 2))
        np.testing.assert_array_equal(result, DEPTHWISE_POINTWISE.reference(known, arrays))


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "isa"), CASES)
def test_every_isa(dtype: str, isa: str) -> None:
    """A lower last block of lines, tails of channels and columns."""
    check(pair((7, 5), 33, 17, padding=ALL, dtype=dtype, batch=BATCH), isa, 3)


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize(("dtype", "isa"), [("float32", ISAS[-1]), ("uint8", INTEGER_ISAS[-1])])
def test_threads_share_bands_of_all_images(dtype: str, isa: str, threads: int) -> None:
    check(pair((9, 6), 17, 33, padding=ALL, dtype=dtype, batch=BATCH), isa, 2, threads)


def test_a_residual() -> None:
    check(pair((5, 4), 18, 18, padding=ALL, residual=True, batch=BATCH), ISAS[-1], 2)


def check_images(
    axes: tuple[int, ...],
    sizes: Sequence[tuple[int, int, int]],
    isa: str,
    dtype: str = "float32",
    pixels: int = 14,
    threads: int = 1,
    lines: int | None = None,
    **fields: Any,
) -> None:
    """Checks one kernel for (images, lines, columns); static axes have one size in all of them."""

    def of(size: tuple[int, int, int]) -> Region:
        return pair(size[1:], 33, 17, padding=ALL, dtype=dtype, batch=size[0], **fields)

    region = dynamic_region(of((3, 7, 5)), axes)
    machine = machine_for(isa, threads)
    config = replace(in_dynamic_bands(region, machine, threads), pixels=pixels)
    if lines is not None:
        tile = replace(config.depthwise, rows=lines)
        config = replace(config, lines=lines, depthwise=tile)
    kernel = DynamicKernel(region, isa, threads, config)
    integer = dtype in ("uint8", "int8")
    for number, size in enumerate(sizes):
        known = of(size)
        assert at_sizes(region, symbols(known)).key == known.key
        arrays = (values if integer else small_integers)(known)
        result = kernel.run(symbols(known), arrays, at_end=bool(number % 2))
        np.testing.assert_array_equal(result, DEPTHWISE_POINTWISE.reference(known, arrays))


# One line and column, a lower last block of lines, lines longer than a block, no image.
SIZES = ((1, 1, 1), (2, 7, 5), (1, 3, 19), (1, 12, 2), (0, 7, 5))


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "isa"), CASES)
def test_images_of_any_size_on_every_isa(dtype: str, isa: str) -> None:
    check_images((0, 1, 2), SIZES, isa, dtype)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_images_of_any_size(dtype: str) -> None:
    isa = ISAS[-1] if dtype == "float32" else INTEGER_ISAS[-1]
    check_images((0, 1, 2), SIZES, isa, dtype, lines=2)


def test_lines_or_columns_alone() -> None:
    check_images((1,), ((3, 1, 5), (3, 8, 5), (3, 11, 5)), ISAS[-1], pixels=11)
    check_images((2,), ((3, 7, 1), (3, 7, 6), (3, 7, 31)), ISAS[-1])
    check_images((2,), ((3, 7, 1), (3, 7, 6), (3, 7, 31)), INTEGER_ISAS[-1], "uint8", pixels=1)


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize(("dtype", "isa"), [("float32", ISAS[-1]), ("uint8", INTEGER_ISAS[-1])])
def test_threads_share_bands_of_any_size(dtype: str, isa: str, threads: int) -> None:
    check_images((0, 1, 2), SIZES, isa, dtype, threads=threads)


def test_strides_and_a_residual_of_any_size() -> None:
    sizes = ((1, 1, 1), (2, 8, 5), (1, 5, 17))
    check_images((0, 1, 2), sizes, ISAS[-1], strides=(2, 1), residual=True)
    check_images((0, 1, 2), sizes, BF16_ISAS[-1], "bfloat16", strides=(2, 2))


def test_bands_are_as_the_estimate_cuts_them() -> None:
    """Threads get equal numbers of blocks unless lines are few; blocks are whole tiles high."""
    region = pair((23, 10), 16, 16, padding=ALL, batch=3)
    config = replace(
        in_dynamic_bands(dynamic_region(region, (1,)), machine_for(ISAS[-1]), 1), lines=2
    )
    for pixels, threads, lines in ((1, 1, 2), (60, 1, 6), (1000, 1, 23), (1000, 2, 12), (1, 50, 2)):
        cut = cut_lines(region, replace(config, pixels=pixels, threads=threads))
        assert (cut.lines, cut.pixels) == (lines, 0)


def test_what_it_says_of_images_of_any_size() -> None:
    region = dynamic_region(pair((6, 6), 16, 16, padding=ALL), (0, 1, 2))
    machine = machine_for(ISAS[-1])
    config = DEPTHWISE_POINTWISE.default_config(region, machine)
    text = DEPTHWISE_POINTWISE.at_run_time(region, config)
    assert text.startswith(
        f"bands of 2 lines, or of more with up to {config.pixels} pixels; 1 to 2 rows: "
    )
    first, second = DEPTHWISE_POINTWISE.nests(region, config)
    assert first.operations == 64 * 64 * 16 * 9 and second.operations == 64 * 64 * 16 * 16
    (product,) = DEPTHWISE_POINTWISE.products(region, config, machine)
    assert product.plan.m * product.copies == 64 * 64
    with pytest.raises(ConfigError):
        DEPTHWISE_POINTWISE.check(region, replace(config, pixels=0), machine.isa)
