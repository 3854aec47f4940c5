"""The estimates that choose Winograd's configurations, and when Winograd is used."""

from __future__ import annotations

import dataclasses

import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.tir_schedules.winograd_regions import region_of
from tir_schedules.convolution.winograd.config import (
    WinogradConfig,
    default_config,
    direct_cycles,
    winograd_cost,
)
from tir_schedules.core.region import Region
from tir_schedules.cost.cost import Cost

MACHINE = Machine("znver4", isa_named("avx512"))


def total(region: Region, threads: int = 1, cold: bool = False) -> float:
    machine = dataclasses.replace(MACHINE, threads=threads)
    return winograd_cost(region, default_config(region, machine), machine, cold).total


@pytest.mark.parametrize(
    ("size", "channels", "measured"),
    [(56, 64, 558), (28, 128, 534), (14, 256, 671), (80, 64, 1171), (40, 96, 621)],
)
def test_estimates_are_near_what_was_measured(size: int, channels: int, measured: float) -> None:
    """Microseconds on the machine from which the constants are."""
    found = total(region_of((size, size), channels, channels)) / 3700
    assert found == pytest.approx(measured, rel=0.05)


def test_threads_and_memory() -> None:
    region = region_of((14, 14), 256, 256)
    assert 0.45 < total(region, threads=2) / total(region) < 0.6
    assert total(region, cold=True) > total(region)


def test_the_named_terms() -> None:
    region = region_of((28, 28), 128, 128)
    base = default_config(region, MACHINE)

    def cost(**changes: int) -> Cost:
        return winograd_cost(region, WinogradConfig(**{**base.to_dict(), **changes}), MACHINE)

    whole, small = cost(m_block=49), cost(m_block=7)
    assert small.weights > whole.weights > 0
    assert whole.between > small.between == 0
    assert whole.barriers == 0 and whole.transforms > 0


def test_many_products_pay_and_weights_from_memory_may_not() -> None:
    layer = region_of((56, 56), 64, 64)
    assert total(layer) < 0.4 * direct_cycles(layer.replace(op="conv2d"), MACHINE)
    late = region_of((7, 7), 512, 512)
    assert total(late, cold=True) > 0.9 * direct_cycles(late.replace(op="conv2d"), MACHINE, True)
