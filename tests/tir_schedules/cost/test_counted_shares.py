"""Every template at 1 to 128 threads: all of the work once, in nearly even chunks.

The elements that each thread stores are counted in the loops of the built kernel.
"""

from __future__ import annotations

import itertools
import math

import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.tir_schedules.counted_shares import read_shares, stored_shares
from tests.tir_schedules.shared_work import of_models, rows, square
from tir_schedules.chains.mlp_chain_config import MlpChainConfig
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import all_templates, template_for
from tir_schedules.cost.cost import flops_us
from tir_schedules.cost.parallel import ENOUGH, MOST_UNEVEN
from tir_schedules.product.tile_config import MatmulConfig, plan_of

REGIONS = list(of_models())
SMALL = [rows("softmax", 200, 384), square(10, 32, 32, 1)]
THREADS = (*range(1, 17), 24, 28, 31, 32, 47, 48, 53, 56, 64, 96, 112, 127, 128)
LANES = 64  # of the widest vector
# Exceptions and their reasons. If reading a weight takes as long as multiplying, the time is
# that of its columns, and few threads along the rows are better: for 49 pixels, even grids are
# estimated 5.0 times as long on 15 threads, 3.4 times on 24 and 3.8 times on 53. For Winograd,
# 5 x 2 chunks take 1.14 times as long on 10 and 11 threads as 3 x 3; none is more even on 127.
LESS_EVEN = {"conv2d(float32[1x7x7x512]": 1.5, "conv2d_winograd(float32[16x7x7x512]": 1.45}


def machine_of(threads: int) -> Machine:
    return Machine("graniterapids", isa_named("amx"), threads)


def serial_us(region: Region) -> float:
    """Time of one thread, by the template's own estimate if it has one."""
    template, machine = template_for(region.op), machine_of(1)
    cycles = template.estimate(region, template.default_config(region, machine), machine)
    if cycles is None:
        return flops_us(template.flops(region), machine)
    return cycles / machine.cycles_per_us


def planned(region: Region, config: Config, threads: int) -> float:
    """The largest chunk over the mean for products whose threads split K; 0 for others.

    One of these threads stores for all of them, so its plan says what each thread multiplies. In a
    chain by columns all threads compute one product after another.
    """
    if isinstance(config, MlpChainConfig) and config.mode == "columns":
        parts = list(zip(region.parts, config.of_parts(region), strict=True))
    else:
        parts = [(region, config)]
    products = [(part, found) for part, found in parts if isinstance(found, MatmulConfig)]
    if all(found.threads_k == 1 for _, found in products):
        return 0.0
    busiest, whole = 0.0, 0.0
    for part, found in products:
        plan = plan_of(part, found)
        shares = plan.row_shares, plan.column_shares, plan.k_shares
        flops = template_for(part.op).flops(part)
        sizes = math.prod(sum(g.size * g.count for g in groups) for groups in shares)
        busiest += flops * math.prod(groups[0].size for groups in shares) / sizes
        whole += flops
    return busiest * threads / whole


def most_uneven(region: Region, threads: int) -> float:
    """The largest chunk over the mean that is allowed.

    Threads of a convolution take whole lines and vectors of channels: 47 threads cannot split 14
    times 16 of them into chunks below 6, 26% above the mean.
    """
    exception = (most for name, most in LESS_EVEN.items() if region.key.startswith(name))
    allowed = next(exception, MOST_UNEVEN)
    if not region.op.startswith("conv"):
        return allowed
    geometry = ConvGeometry.of(region).as_volume()
    lines = geometry.batch * math.prod(geometry.outputs[:2])
    vectors = geometry.out_channels // machine_of(1).isa.f32_lanes
    fewest = min(
        math.ceil(lines / high) * math.ceil(vectors / (threads // high))
        for high in range(1, threads + 1)
    )
    return max(allowed, fewest * threads / (lines * vectors))


def test_every_template_has_work_and_there_are_60_shapes() -> None:
    assert {region.op for region in REGIONS} == {template.name for template in all_templates()}
    assert len(REGIONS) >= 60


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(len(REGIONS)))
def test_threads_take_all_of_the_work_once_and_nearly_evenly(number: int) -> None:
    region = REGIONS[number]
    template, alone = template_for(region.op), serial_us(region)
    count = read_shares if region.op == "quantization_range" else stored_shares
    for threads in itertools.islice(THREADS, number % 6, None, 6):
        machine = machine_of(threads)
        config = template.default_config(region, machine)
        shares = count(template.build(region, config, machine.isa), threads)
        assert shares.times.min() >= 1
        # The tail of a tensor is a vector that ends with it and overlaps the vector before.
        assert shares.twice <= (LANES if region.op in ("elementwise", "quantization_range") else 0)
        if alone >= ENOUGH * threads * machine.fork_us(threads):
            uneven = planned(region, config, threads) or shares.unevenness(threads)
            assert uneven <= most_uneven(region, threads), threads


def test_a_grid_that_leaves_threads_idle_is_found() -> None:
    region = next(each for each in REGIONS if each.op == "conv2d")
    template, machine = template_for("conv2d"), machine_of(8)
    config = template.default_config(region, machine)
    config = type(config).from_dict({**config.to_dict(), "threads_m": 3, "threads_n": 1})
    shares = stored_shares(template.build(region, config, machine.isa), 8)
    assert shares.threads == 3 and shares.unevenness(8) > 8 / 3


@pytest.mark.parametrize("region", SMALL, ids=[each.op for each in SMALL])
def test_small_operators_take_few_threads(region: Region) -> None:
    """Neither one nor all: a fork of all 56 threads costs more than it saves."""
    template, machine = template_for(region.op), machine_of(56)
    function = template.build(region, template.default_config(region, machine), machine.isa)
    assert 1 < stored_shares(function, 56).threads <= 28
