"""All tiles of a panel together prefetch the next panel of a convolution's weight."""

from __future__ import annotations

import msgspec
import pytest

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tests.tir_schedules.conv_regions import check, conv_region
from tir_schedules.convolution.direct.cost import default_config
from tir_schedules.convolution.direct.weight import PanelFetch
from tir_schedules.core.blocking import Panels
from tir_schedules.core.template import template_for

EMERALD, ZEN4 = (Machine(name, isa_named("avx512")) for name in ("emeraldrapids", "znver4"))
CONV = template_for("conv2d")
# From ResNet-50: weights of 9.4 and 2.4 MB, and one that stays in L2.
FAR = conv_region((7, 7), 512, 512, (3, 3), padding=(1, 1, 1, 1))
STRIDED = conv_region((28, 28), 256, 256, (3, 3), padding=(0, 0, 1, 1), strides=(2, 2))
NEAR = conv_region((28, 28), 32, 32, (3, 3), padding=(1, 1, 1, 1))


@pytest.mark.parametrize("region", [FAR, STRIDED])
def test_a_weight_is_fetched_where_l3_is_slow(region: object) -> None:
    assert default_config(region, EMERALD).fetches
    assert not default_config(region, ZEN4).fetches
    assert not default_config(region, EMERALD.with_numbers(l3_rate=1e6)).fetches
    assert not default_config(region, EMERALD.with_numbers(l2_bytes=1 << 30)).fetches


def test_a_small_weight_is_not_fetched() -> None:
    assert not default_config(NEAR, EMERALD).fetches


@pytest.mark.parametrize("fetches", [False, True])
def test_code_has_the_prefetches(fetches: bool) -> None:
    config = msgspec.structs.replace(default_config(FAR, EMERALD), fetches=fetches)
    kernel = CONV.build(FAR, config, EMERALD.isa)
    assert ("tvm_hybrid_prefetch" in str(kernel.body)) == fetches


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("staged", [False, True])
def test_results_are_the_same(isa: str, staged: bool) -> None:
    """Panels of two widths, tiles of two heights and at edges, two blocks; threads on both axes."""
    region = conv_region((9, 13), 8, 70, (3, 3), padding=(1, 1, 1, 1))
    config = default_config(region, Machine("x86-64", isa_named(isa)))
    fetching = msgspec.structs.replace(
        config, lines=1, rows=3, vectors=2, band=5, staged=staged, threads_x=1, fetches=True
    )
    for threads in (1, 2):
        check(region, isa, msgspec.structs.replace(fetching, threads_m=threads, threads_n=threads))


@pytest.mark.parametrize("fields", [{"threads_x": 2}, {"lines": 2, "staged": True, "band": 7}])
def test_tiles_that_are_shared_cannot_fetch(fields: dict[str, int]) -> None:
    config = msgspec.structs.replace(default_config(FAR, EMERALD), rows=4, fetches=True, **fields)
    with pytest.raises(ConfigError, match="fetches needs a vector kernel"):
        CONV.check(FAR, config, EMERALD.isa)


@pytest.mark.parametrize("kernel", ["avx2_f32_6x16", "avx512_f32_8x48"])
@pytest.mark.parametrize("tiles", [1, 2, 7, 30])
def test_tiles_ask_for_every_line_of_the_next_panel_in_order(kernel: str, tiles: int) -> None:
    tile = microkernel_named(kernel)
    steps, width = 96, tile.vectors
    packed = Panels(tile, steps, 2 * tile.nr, (width, width))
    fetch = PanelFetch(packed, None, tiles)
    asked = [
        int(place)
        for number in range(tiles)
        for step in range(steps)
        for place in fetch.places(width, number, step)
    ]
    assert asked == sorted(asked) and asked[-1] < steps * width
    line = 16 // tile.lanes
    assert {place // line for place in asked} == set(range(steps * width // line))
