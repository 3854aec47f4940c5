"""What a convolution is estimated to take: by the machine's ports, and by lines that there are."""

from __future__ import annotations

import msgspec
import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.tir_schedules.conv_regions import conv_region
from tir_schedules.convolution.direct.config import ConvConfig
from tir_schedules.convolution.direct.cost import default_config, estimated_cycles

ZEN4 = Machine("znver4", isa_named("avx512"))
# Of ResNet-50: half of L2 holds what four of 14 lines read.
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
