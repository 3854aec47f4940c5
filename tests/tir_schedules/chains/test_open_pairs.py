"""Depthwise and pointwise convolutions of any number of images: one kernel, exactly the parts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir_schedules.chain_regions import small_integers, values
from tests.tir_schedules.open_regions import BATCH, LENGTH, OpenKernel, at_sizes
from tests.tir_schedules.pair_regions import pair
from tests.tir_schedules.run_region import BF16_ISAS, INTEGER_ISAS, ISAS, machine_for
from tir_schedules.chains.depthwise_pointwise import DEPTHWISE_POINTWISE
from tir_schedules.chains.depthwise_pointwise_cost import in_bands
from tir_schedules.core.region import Region, Tensor

ALL = (1, 1, 1, 1)
CASES = [
    *(("float32", isa) for isa in ISAS),
    *((dtype, isa) for dtype in ("uint8", "int8") for isa in INTEGER_ISAS),
    *(("bfloat16", isa) for isa in BF16_ISAS),
]


def check(region: Region, isa: str, lines: int, threads: int = 1) -> None:
    """Of no, one and several images."""
    machine = machine_for(isa, threads)
    config = in_bands(region.with_sizes({"batch": 1}), machine, lines, threads)
    kernel = OpenKernel(region, isa, threads, config)
    integer = region.inputs[0].dtype in ("uint8", "int8")
    for images in (0, 1, 2, 5):
        known = at_sizes(region, {"batch": images})
        arrays = (values if integer else small_integers)(known)
        result = kernel.run({"batch": images}, arrays, at_end=bool(images % 2))
        np.testing.assert_array_equal(result, DEPTHWISE_POINTWISE.reference(known, arrays))


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "isa"), CASES)
def test_every_isa(dtype: str, isa: str) -> None:
    """Bands that leave a lower one, channels and columns that are cut."""
    check(pair((7, 5), 33, 17, padding=ALL, dtype=dtype, batch=BATCH), isa, 3)


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize(("dtype", "isa"), [("float32", ISAS[-1]), ("uint8", INTEGER_ISAS[-1])])
def test_threads_share_bands_of_all_images(dtype: str, isa: str, threads: int) -> None:
    check(pair((9, 6), 17, 33, padding=ALL, dtype=dtype, batch=BATCH), isa, 2, threads)


def test_a_residual() -> None:
    check(pair((5, 4), 18, 18, padding=ALL, residual=True, batch=BATCH), ISAS[-1], 2)


def test_images_of_any_extent_are_refused() -> None:
    region = pair((6, 6), 16, 16, padding=ALL)
    first, second = region.parts
    x, *weights = first.inputs
    shape = (1, LENGTH, 6, 16)
    first = first.replace(
        inputs=(Tensor(shape, x.dtype), *weights), output=Tensor(shape, first.output.dtype)
    )
    second = second.replace(
        inputs=(Tensor(shape, x.dtype), *second.inputs[1:]),
        output=Tensor(shape, second.output.dtype),
    )
    region = region.replace(parts=(first, second), output=second.output)
    region = region.replace(inputs=(first.inputs[0], *region.inputs[1:]))
    reason = DEPTHWISE_POINTWISE.rejection(region, machine_for("avx2").isa)
    assert reason == "bands of lines of images whose extents are not known"
