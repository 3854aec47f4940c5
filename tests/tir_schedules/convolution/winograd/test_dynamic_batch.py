"""Winograd's tiles with a dynamic batch: one kernel computes one image after another."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir_schedules.dynamic_regions import BATCH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import ISAS, expected, highest_native, machine_for
from tests.tir_schedules.winograd_regions import bias, bound, region_of, scaled_inputs
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for


def region_with_residual() -> Region:
    """A convolution with a bias, a residual and a relu."""
    region = region_of((9, 6), 17, 40, batch=BATCH)
    steps = (EpilogueOp("add", (0, 1)), EpilogueOp("add", (3, 2)), EpilogueOp("relu", (4,)))
    return region.replace(
        operands=(bias(40), Tensor(region.output.shape, "float32")), epilogue=steps
    )


def check(region: Region, kernel: DynamicKernel) -> None:
    for batch in (1, 3):
        known = at_sizes(region, {"batch": batch})
        arrays = scaled_inputs(known)
        wanted = expected(known, arrays)
        limit = bound(known, arrays) + 4 * np.finfo(np.float32).eps * np.abs(wanted)
        for at_end in (True, False):
            result = kernel.run({"batch": batch}, arrays, at_end)
            assert (np.abs(result - wanted) <= limit).all()
    none = scaled_inputs(at_sizes(region, {"batch": 0}))
    assert kernel.run({"batch": 0}, none).shape == (0, *region.output.shape[1:])


@pytest.mark.parametrize("isa", ISAS)
def test_any_number_of_images(isa: str) -> None:
    check(region_with_residual(), DynamicKernel(region_with_residual(), isa))


@pytest.mark.parametrize("threads", [2, 7])
def test_threads_share_an_image(threads: int) -> None:
    isa = highest_native(ISAS)
    machine = machine_for(isa, threads).with_numbers(fork_us=0)
    region = region_of((20, 20), 32, 64, batch=BATCH)
    template = template_for(region.op)
    config = template.default_config(region, machine)
    assert config == template.default_config(at_sizes(region, {"batch": 1}), machine)
    check(region, DynamicKernel(region, isa, threads, config))
