"""The products of Winograd's tiles before they are built: their loops, and what `explain` tells.

blocks of tiles > panels > products > row block > K block > tile
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tir_schedules.core.loop_nest import (
    Bytes,
    Loop,
    LoopNest,
    Tiling,
    balance_of,
    nested,
    pieces,
    product_loops,
)
from tir_schedules.core.product import Product
from tir_schedules.core.region import Region

from .config import WinogradConfig
from .cost import winograd_cost
from .problem import WinogradProblem


def nests(region: Region, config: WinogradConfig) -> Iterator[LoopNest]:
    """The products, between the transforms."""
    problem, kernel = WinogradProblem.of(region), microkernel_named(config.kernel)
    geometry, tiles = problem.geometry, problem.tiles
    count = sum(group.count for group in config.blocks(problem)[0])
    teams, members = config.teams(problem), config.threads_panels
    block = tiles / count
    k, n_vectors = geometry.channels, math.ceil(geometry.out_channels / kernel.lanes)
    share = n_vectors / members
    panels = pieces(share, config.vectors)
    tiling = Tiling(config.rows, config.vectors, config.m_block, config.k_block)
    # The products are between the panels and a product's own loops, whose panel is one.
    inner = product_loops((block, share / panels, k), tiling, kernel.lanes, ("tiles", "panel", "C"))
    count_of, item = problem.algorithm.products, float(problem.algorithm.bytes)
    weight = item * count_of * k * kernel.lanes

    def touched(tiles: float, vectors: float) -> Bytes:
        results = 4.0 * count_of * tiles * vectors * kernel.lanes
        return item * count_of * tiles * k, weight * vectors, results

    loops = [
        Loop("thread", teams * members, "parallel", touched(tiles, n_vectors)),
        Loop("block", count / teams, "serial", touched(tiles / teams, share)),
        Loop("panel", panels, "serial", touched(block, share)),
        Loop("matrix", count_of, "serial", touched(block, share / panels)),
        *inner,
    ]
    useful = geometry.out_channels / (n_vectors * kernel.lanes)
    useful *= math.prod(geometry.outputs) * geometry.batch / (problem.algorithm.tile**2 * tiles)
    balance = balance_of(count, teams) * balance_of(n_vectors, members)
    yield LoopNest(nested(loops), geometry.flops / 2, useful, balance)


def estimate(region: Region, config: WinogradConfig, machine: Machine) -> float:
    """Cycles of the busiest thread."""
    return winograd_cost(region, config, machine).total


def products(region: Region, config: WinogradConfig, machine: Machine) -> Iterator[Product]:
    """One of the products, of f32 alone, which tiles do not multiply."""
    plan = config.plan(WinogradProblem.of(region))
    yield Product(
        part=region,
        plan=replace(plan, m=config.m_block),
        copies=0,
        cycles=winograd_cost(region, config, machine).compute,
        others=list,
    )
