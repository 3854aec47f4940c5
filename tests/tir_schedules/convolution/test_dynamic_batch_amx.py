"""Convolutions with a dynamic batch on AMX tiles: every image exact, integers to the bit."""

from __future__ import annotations

import pytest

from tests.amx_emulator import emulator
from tests.tir_schedules.conv_regions import conv_region, values
from tests.tir_schedules.dynamic_regions import BATCH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import machine_for
from tir_schedules.convolution.direct.config import ConvConfig
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tir_schedules.cost.amx_cost import why_vectors

from .direct.test_conv2d_amx import COUNTED, kernel_is_by_tiles, on_tiles
from .test_dynamic_batch import bias_and_residual, check

pytestmark = pytest.mark.isa("amx")
ONE = (1, 1, 1, 1)


def check_on_tiles(region: Region, config: ConvConfig, threads: int = 1) -> None:
    """Checks one kernel for several batches; tiles must compute its products."""
    kernel = DynamicKernel(region, "amx", threads, config)
    emulator.reset()
    check(region, kernel)
    executed = emulator.counts()
    assert executed is None or executed[COUNTED[region.inputs[0].dtype]] > 0


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_images(dtype: str, threads: int) -> None:
    """Padding, tails of channels; sizes are stored in memory before the check for tiles."""
    region = conv_region((6, 19), 20, 37, (3, 3), batch=BATCH, padding=ONE, dtype=dtype)
    config = on_tiles(region, "32x32", band=4, threads_m=threads)
    check_on_tiles(region, config, threads)


def test_what_follows_reads_every_image() -> None:
    region = conv_region((7, 9), 32, 40, (1, 1), batch=BATCH, groups=2, dtype="bfloat16")
    region = bias_and_residual(region)
    check_on_tiles(region, on_tiles(region, "16x64"))


def test_no_image() -> None:
    region = conv_region((5, 6), 16, 24, (1, 1), batch=BATCH, dtype="bfloat16")
    kernel = DynamicKernel(region, "amx", config=on_tiles(region, "16x64"))
    arrays = values(at_sizes(region, {"batch": 0}))
    assert kernel.run({"batch": 0}, arrays).shape == (0, 5, 6, 24)


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_tiles_are_chosen_as_for_one_image(dtype: str) -> None:
    machine, template = machine_for("amx"), template_for("conv2d")
    region = conv_region((28, 28), 128, 128, (3, 3), batch=BATCH, padding=ONE, dtype=dtype)
    config = template.default_config(region, machine)
    assert kernel_is_by_tiles(config) and why_vectors(region, config, machine) == ""
