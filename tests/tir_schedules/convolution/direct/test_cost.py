"""The estimated time of a convolution: by the machine's ports, and by the number of lines."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.tir_schedules.conv_regions import conv_region
from tir_schedules.convolution.direct import cost
from tir_schedules.convolution.direct.config import MOST_EDGE_TAPS, ConvConfig, has_small_edges
from tir_schedules.convolution.direct.cost import default_config, estimated_cycles, space
from tir_schedules.convolution.geometry import ConvGeometry

ZEN4 = Machine("znver4", isa_named("avx512"))
# From ResNet-50: half of L2 holds the input of four of 14 lines.
REGION = conv_region((28, 28), 512, 1024, (1, 1), strides=(2, 2))
TILE = ConvConfig(kernel="avx512_f32_8x48", rows=7, vectors=3, band=14, staged=False)


def test_lines_beyond_the_last_one_are_not_counted() -> None:
    band = default_config(REGION, ZEN4).band
    assert band == 4
    machine = ZEN4.with_numbers(l2_bytes=1 << 30)
    lower = msgspec.structs.replace(TILE, band=band)
    assert estimated_cycles(REGION, lower, machine) == estimated_cycles(REGION, TILE, machine)


def test_twice_the_ports_take_half_the_time() -> None:
    near = ZEN4.with_numbers(l3_rate=1e9)
    narrow = near.with_numbers(fma_rate_512=1, load_rate_512=1, broadcast_rate=2, fma_latency=8)
    wide = near.with_numbers(fma_rate_512=2, load_rate_512=2, broadcast_rate=4, fma_latency=4)
    ratio = estimated_cycles(REGION, TILE, narrow) / estimated_cycles(REGION, TILE, wide)
    assert ratio == pytest.approx(2, rel=0.05)


# Long lines, tall images, wide windows, all taps at edges, and heights with many divisors.
LARGE = {
    "a signal": conv_region((44098,), 1, 1, (256,), strides=(2,)),
    "a tall image": conv_region((44098, 1), 8, 8, (256, 1), padding=(127, 0, 127, 0)),
    "many divisors": conv_region((40320, 4), 8, 8, (3, 3), padding=(1,) * 4, dtype="bfloat16"),
    "large windows": conv_region((1024, 1024), 8, 8, (63, 63), padding=(31,) * 4),
    "a spectrum": conv_region((160000,), 1, 1026, (1024,), strides=(256,), padding=(512, 512)),
    "a volume": conv_region((64, 64, 64), 8, 8, (5, 5, 5), padding=(2,) * 6),
    "28x28": conv_region((28, 28), 128, 128, (3, 3), padding=(1,) * 4),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("threads", [1, 192])
def test_a_choice_takes_a_bounded_number_of_evaluations(
    name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number grows with kernels, tiles and thread grids, not with pixels or lines."""
    counts = {"_cycles": 0, "_most_lines": 0, "_step_cycles": 0, "reached": 0}
    places = {"_cycles": cost._Estimate, "reached": ConvGeometry}

    def count(called: str) -> None:
        place = places.get(called, cost)
        function = getattr(place, called)

        def counted(*args: object) -> object:
            counts[called] += 1
            return function(*args)

        monkeypatch.setattr(place, called, counted)

    for called in counts:
        count(called)
    machine = Machine("sapphirerapids", isa_named("amx"))
    default_config(LARGE[name], dataclasses.replace(machine, threads=threads))
    assert counts["_cycles"] <= (8000 if threads > 1 else 400)
    assert counts["_most_lines"] <= (20000 if threads > 1 else 1000)
    assert counts["_step_cycles"] <= 2000
    assert counts["reached"] <= 4000


def test_wide_windows_have_no_code_for_each_tap_at_the_edges() -> None:
    region = conv_region((172, 264), 8, 8, (3, 39), padding=(1, 19, 1, 19))
    geometry = ConvGeometry.of(region)
    assert not has_small_edges(geometry, 14)  # two tiles at each end
    assert default_config(region, ZEN4).staged
    assert all(config.staged for config in space(region, ZEN4))
    whole = conv_region((172, 264), 8, 8, (3, 39))
    assert has_small_edges(ConvGeometry.of(whole), 14) and not default_config(whole, ZEN4).staged


@pytest.mark.parametrize("taps", [3, 5, 7])
def test_usual_windows_are_read_in_place(taps: int) -> None:
    region = conv_region((56, 56), 64, 64, (taps, taps), padding=(taps // 2,) * 4)
    assert 2 * taps <= MOST_EDGE_TAPS
    assert not default_config(region, ZEN4).staged
