"""Winograd's tiles with dynamic image sizes: one kernel is right for every width and height."""

from __future__ import annotations

import numpy as np
import pytest

from microkernels.base.errors import ConfigError
from tests.tir_schedules.convolution.dynamic_images import (
    OfSizes,
    Sizes,
    bias_and_residual,
    dynamic_region,
    symbols,
)
from tests.tir_schedules.dynamic_regions import DynamicKernel
from tests.tir_schedules.run_region import ISAS, expected, highest_native, machine_for
from tests.tir_schedules.winograd_regions import ONES, bound, region_of, scaled_inputs
from tir_schedules.convolution.winograd.config import WinogradConfig
from tir_schedules.core.config import Config
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for

IMAGE = (0, 1, 2)
# All tails of a register tile: 1 to 70 tiles.
SIZES: list[Sizes] = [
    *((1, n, 1 + 5 * n % 19) for n in range(1, 14)),
    *((1, 4, 4 * tiles) for tiles in (13, 14, 15, 28)),
    *((3, 5, 30), (2, 40, 27), (0, 9, 9), (1, 0, 9)),
]


def winograd(padding: tuple[int, int, int, int] = ONES, results: int = 40) -> OfSizes:
    def of(sizes: Sizes) -> Region:
        batch, *extents = sizes
        region = region_of((extents[0], extents[1]), 17, results, padding, batch=batch)
        return bias_and_residual(region)

    return of


def check(
    of_sizes: OfSizes,
    isa: str,
    axes: tuple[int, ...] = IMAGE,
    sizes: list[Sizes] = SIZES,
    threads: int = 1,
    config: Config | None = None,
) -> None:
    kernel = DynamicKernel(dynamic_region(of_sizes, axes), isa, threads, config)
    for size in sizes:
        known = of_sizes(size)
        arrays = scaled_inputs(known)
        if known.output.size == 0:
            assert kernel.run(symbols(known), arrays).size == 0
            continue
        wanted = expected(known, arrays)
        # The epilogue passes errors on unchanged, and rounds three times.
        limit = bound(known, arrays) + 4 * np.finfo(np.float32).eps * np.abs(wanted)
        for at_end in (True, False):
            error = np.abs(kernel.run(symbols(known), arrays, at_end) - wanted)
            assert (error <= limit).all(), size


def changed(config: Config, **changes: int) -> WinogradConfig:
    assert isinstance(config, WinogradConfig)
    return WinogradConfig(**{**config.to_dict(), **changes})


@pytest.mark.parametrize("isa", ISAS)
def test_images_of_any_size(isa: str) -> None:
    check(winograd(), isa)


def test_paddings_and_axes() -> None:
    isa = highest_native(ISAS)
    check(winograd((0, 2, 1, 0)), isa, (0, 1), [(1, n, 13) for n in (2, 3, 9, 30)])
    check(winograd(), isa, (2,), [(1, 9, n) for n in (1, 2, 13, 70)])


def test_operands_of_an_image_and_of_a_pixel() -> None:
    def gated(sizes: Sizes) -> Region:
        region = winograd()(sizes)
        operands = tuple(
            Tensor(shape, "float32")
            for shape in ((sizes[0], 1, 1, 40), (*region.output.shape[:-1], 1))
        )
        steps = (EpilogueOp("add", (0, 1)), EpilogueOp("add", (3, 2)), EpilogueOp("relu", (4,)))
        return region.replace(operands=operands, epilogue=steps)

    of_image, _ = gated((2, 3, 4)).operands
    region = dynamic_region(gated, IMAGE)
    batch, height, width, _ = region.output.shape
    operands = (
        Tensor((batch, *of_image.shape[1:]), "float32"),
        Tensor((batch, height, width, 1), "float32"),
    )
    kernel = DynamicKernel(region.replace(operands=operands), highest_native(ISAS))
    for size in ((1, 9, 6), (3, 2, 31)):
        known = gated(size)
        arrays = scaled_inputs(known)
        wanted = expected(known, arrays)
        limit = bound(known, arrays) + 4 * np.finfo(np.float32).eps * np.abs(wanted)
        assert (np.abs(kernel.run(symbols(known), arrays) - wanted) <= limit).all()


@pytest.mark.parametrize("grid", [(1, 2), (3, 2)])
def test_threads_share_tiles_and_channels(grid: tuple[int, int]) -> None:
    isa = highest_native(ISAS)
    region = dynamic_region(winograd(results=72), IMAGE)
    default = template_for(region.op).default_config(region, machine_for(isa))
    config = changed(
        default, rows=3, vectors=1, m_block=9, threads_tiles=grid[0], threads_panels=grid[1]
    )
    sizes: list[Sizes] = [(1, 1, 3), (1, 9, 13), (3, 5, 70), (0, 4, 4)]
    check(winograd(results=72), isa, sizes=sizes, threads=grid[0] * grid[1], config=config)


def test_many_threads_have_a_grid() -> None:
    region = dynamic_region(winograd(), IMAGE)
    for threads in (2, 7):
        machine = machine_for(highest_native(ISAS), threads).with_numbers(fork_us=0)
        config = template_for(region.op).default_config(region, machine)
        assert isinstance(config, WinogradConfig)
        assert config.threads_tiles * config.threads_panels > 1
        for each in template_for(region.op).space(region, machine):
            assert isinstance(each, WinogradConfig)
            assert each.m_block % each.rows == 0


def test_what_is_refused() -> None:
    template = template_for("conv2d_winograd")
    machine = machine_for(highest_native(ISAS))
    region = dynamic_region(winograd((2, 1, 1, 1)), IMAGE)
    assert "extent that may be 0" in str(template.rejection(region, machine.isa))
    region = dynamic_region(winograd(), IMAGE)
    config = template.default_config(region, machine)
    for changes in ({"rows": 3, "m_block": 8}, {"k_block": 8}):
        with pytest.raises(ConfigError):
            template.check(region, changed(config, **changes), machine.isa)
