"""When a depthwise convolution and its matmul are one kernel: both answers, with reasons."""

from __future__ import annotations

import dataclasses

import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.tir_schedules.pair_regions import dynamic_region, pair
from tir_schedules.chains.depthwise_pointwise import DEPTHWISE_POINTWISE
from tir_schedules.chains.depthwise_pointwise_cost import PairEstimate, estimate_pair
from tir_schedules.core.region import Region

F, U = "float32", "uint8"
ONE = Machine("znver4", isa_named("avx512_vnni"))
TWO = dataclasses.replace(ONE, threads=2)


def square(size: int, channels: int, n: int, dtype: str = F, taps: int = 3) -> Region:
    """A convolution of stride 1 that keeps the image's size, and its matmul."""
    return pair((size,) * 2, channels, n, (taps,) * 2, dtype, padding=(taps // 2,) * 4)


def of(region: Region, machine: Machine) -> PairEstimate:
    return estimate_pair(region, machine)


@pytest.mark.parametrize(
    ("region", "one", "two"),
    [
        (square(112, 32, 16), False, True),
        (square(56, 144, 24), False, True),
        (square(28, 240, 40, taps=5), False, True),
        (square(14, 480, 80), False, True),
        (square(14, 512, 512), False, False),
        (square(7, 1152, 192, taps=5), False, False),
        (square(112, 32, 16, U), True, True),
        (square(56, 144, 24, U), True, True),
        (square(28, 240, 40, U, taps=5), False, True),
        (square(14, 512, 512, U), False, False),
        (square(7, 1152, 320, U), False, False),
    ],
)
def test_what_was_measured_to_pay(region: Region, one: bool, two: bool) -> None:
    """On one thread only integer pairs pay; on two all pairs with enough lines for both threads."""
    assert (of(region, ONE).pays, of(region, TWO).pays) == (one, two)


def test_terms_and_words() -> None:
    found = of(square(56, 144, 24), TWO)
    assert found.saved == pytest.approx(found.separate.total - found.merged.total)
    assert found.merged.between == 0 < found.separate.between
    assert found.merged.barriers < found.separate.barriers
    text = str(found)
    assert f"in bands of {found.config.lines} lines on 2 threads" in text
    assert f"estimated {found.merged.total:.1f} us instead of {found.separate.total:.1f}" in text
    assert f"between -{found.separate.between:.1f}" in text


def test_bands_fit_the_cache_and_give_every_thread_as_many() -> None:
    for region in (square(112, 32, 16), square(56, 144, 24), square(28, 256, 256)):
        config = of(region, TWO).config
        first = region.parts[0].output
        lines = first.shape[1]
        assert config.lines * first.size // lines * 4 <= TWO.l2_bytes // 2
        assert config.threads == 2 and -(-lines // config.lines) % 2 == 0
        assert DEPTHWISE_POINTWISE.default_config(region, TWO) == config


def test_lines_of_many_bytes_come_one_tile_at_a_time() -> None:
    """Two lines, one tile of the first part, are 161 KB; bytes beyond L2 count."""
    small = TWO.with_numbers(l2_bytes=64 << 10)
    found = of(square(28, 720, 40), small)
    assert found.config.lines == found.config.depthwise.rows == 2
    assert 0 < found.merged.between < found.separate.between


def test_threads_that_wait_cost_time() -> None:
    """Seven lines on two threads: one thread has four of them."""
    found = of(square(7, 1152, 320), TWO)
    assert found.saved < 0 and found.merged.compute > 1.1 * found.separate.compute


def test_less_cache_makes_merging_better() -> None:
    """Results that do not fit L2 go through L3 between two kernels."""
    region = square(56, 144, 24)
    small = TWO.with_numbers(l2_bytes=256 << 10)
    assert of(region, small).separate.between > of(region, TWO).separate.between


SKYLAKE = Machine("skylake-avx512", isa_named("avx512"))


def test_images_of_any_size_pay_where_large_ones_do_and_small_ones_lose_nothing() -> None:
    """With 64 x 64 pixels all fits L2; with 256 x 256 the result between the parts does not."""
    small, large = square(64, 16, 24), square(256, 16, 24)
    assert not of(small, SKYLAKE).pays and of(large, SKYLAKE).pays
    found = of(dynamic_region(large, (1, 2)), SKYLAKE)
    assert found.pays and found.config.pixels * 16 * 4 == SKYLAKE.l2_bytes // 2
    assert not of(dynamic_region(large, (1, 2)), ONE).pays


def test_one_size_that_loses_is_the_answer() -> None:
    """Six lines on eight threads, with a dynamic width."""
    eight = dataclasses.replace(SKYLAKE, threads=8)
    found = of(dynamic_region(pair((6, 64), 128, 128, padding=(1,) * 4), (0, 2)), eight)
    assert found.saved < 0 and found.merged.compute > 1.1 * found.separate.compute
