"""The configuration of the template "conv2d_winograd", and which values are worth trying."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.core.blocking import (
    Group,
    balanced,
    busy_grid,
    grids_of,
    shares,
    thread_grids,
)
from tir_schedules.core.integer_product import is_integer
from tir_schedules.core.product_plan import ProductPlan, TileConfig
from tir_schedules.core.region import Region
from tir_schedules.cost.parallel import halves, threads_worth
from tir_schedules.cost.work import flops_us
from tir_schedules.product.tile_config import check_tile
from tir_schedules.product.tile_space import register_tiles

from .problem import WinogradProblem

LINE = 16  # f32 values of a cache line
_MOST_TILES = 128  # of a block: V of 16 channels is as large as L2 then
_FEWEST_TILES = 4  # the weights pass through once for every block


class WinogradConfig(TileConfig, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    `m_block` counts the tiles of 4x4 results that are transformed, multiplied and transformed back
    before the next ones; it bounds what lies in L2. A block may have one tile more where blocks of
    that size would be more than there are tiles. Of images of open sizes it is a multiple of
    `rows`, and K is not cut.

    Attributes
    ----------
    threads_tiles : int
        Teams of threads, each with blocks of tiles of its own.
    threads_panels : int
        Threads of a team, which share the transform of a block, then its panels of channels.
    """

    threads_tiles: int = 1
    threads_panels: int = 1

    def teams(self, problem: WinogradProblem) -> int:
        """Teams that have tiles."""
        return min(self.threads_tiles, problem.tiles)

    def blocks(self, problem: WinogradProblem) -> tuple[tuple[Group, ...], int]:
        """The blocks of tiles, larger ones first, and how many a team takes at most."""
        teams = self.teams(problem)
        each = math.ceil(math.ceil(problem.tiles / teams) / self.m_block)
        return shares(problem.tiles, min(problem.tiles, teams * each)), each

    def plan(self, problem: WinogradProblem) -> ProductPlan:
        """How each of the products of all tiles is cut."""
        geometry = problem.geometry
        plan = ProductPlan.of(self, problem.tiles, geometry.out_channels, geometry.channels)
        return replace(plan, kernel=problem.algorithm.kernel(plan.kernel))

    def panels(self, problem: WinogradProblem, kernel: Microkernel) -> tuple[Group, ...]:
        """The panels of output channels, in vectors; wider ones first."""
        return balanced(math.ceil(problem.geometry.out_channels / kernel.lanes), self.vectors)


def panel_count(panels: Sequence[Group]) -> int:
    """How many panels there are."""
    return sum(group.count for group in panels)


def odd_lines(elements: int, item: int = 4) -> int:
    """A distance in memory of at least so many values of so many bytes: an odd number of lines.

    Powers of two would put all matrices, or all rows of a register tile, into one set of L1.
    """
    line = 4 * LINE // item
    lines = math.ceil(elements / line)
    return line * (lines + 1 - lines % 2)


def check(region: Region, config: WinogradConfig, isa: Isa) -> Microkernel:
    """The microkernel of a legal configuration; ConfigError for an illegal one."""
    types = ("uint8", "int8") if is_integer(region) else ("float32", "float32")
    kernel = check_tile(region, config, isa, types, "threads_tiles", "threads_panels")
    if kernel.by_tiles:
        raise ConfigError(f"{kernel.name} multiplies tiles; choose a vector kernel: {region.key}")
    geometry = ConvGeometry.of(region)
    if not geometry.opens_image:
        return kernel
    if config.m_block % config.rows:
        raise ConfigError(f"m_block: no multiple of rows={config.rows}, for {region.key}")
    if config.k_block < geometry.channels:
        raise ConfigError(f"k_block: open sizes take all {geometry.channels}, for {region.key}")
    return kernel


def candidates(region: Region, machine: Machine) -> Iterator[WinogradConfig]:
    """Every kernel with blocks of every size that cuts a team's tiles evenly, on every grid."""
    problem = WinogradProblem.of(region)
    geometry, tiles = problem.geometry, problem.tiles
    opened = ConvGeometry.of(region).opens_image
    for teams, members in _grids(problem, machine):
        if teams > tiles:
            continue
        part = math.ceil(tiles / teams)
        least = min(_FEWEST_TILES, part)
        sizes = {balanced(part, most)[0].size for most in range(least, min(part, _MOST_TILES) + 1)}
        for kernel in problem.algorithm.kernels(machine.isa):
            n_vectors = math.ceil(geometry.out_channels / kernel.lanes)
            if opened:
                sizes = set(range(kernel.mr, _MOST_TILES + 1, kernel.mr))
            for size in sorted(sizes):
                yield WinogradConfig(
                    kernel=kernel.name,
                    rows=min(kernel.mr, size),
                    vectors=min(kernel.vectors, math.ceil(n_vectors / min(members, n_vectors))),
                    m_block=size,
                    k_block=geometry.channels,
                    threads_tiles=teams,
                    threads_panels=members,
                )


def _grids(problem: WinogradProblem, machine: Machine) -> list[tuple[int, int]]:
    """Grids of all threads and of halves of them, also without those that have no panels."""
    geometry = problem.geometry
    if threads_worth(machine, flops_us(geometry.flops, machine)) == 1:
        return [(1, 1)]
    grids = list(grids_of(halves(machine.threads)))
    vectors = math.ceil(geometry.out_channels / machine.isa.f32_lanes)
    busy = (busy_grid(problem.tiles, vectors, *grid) for grid in grids)
    return list(dict.fromkeys([*grids, *busy]))


def other_tiles(region: Region, machine: Machine) -> Iterator[WinogradConfig]:
    """Every register tile in blocks of some of the candidates' sizes."""
    found = sorted({c.m_block for c in candidates(region, machine)})
    sizes = {found[len(found) * part // 6] for part in range(6)}
    problem = WinogradProblem.of(region)
    opened = ConvGeometry.of(region).opens_image
    kernels = problem.algorithm.kernels(machine.isa)
    n_vectors = math.ceil(problem.geometry.out_channels / kernels[0].lanes)
    for teams, members in thread_grids(machine.threads):
        if teams > problem.tiles:
            continue
        for size in sorted(sizes):
            for kernel, rows, vectors in register_tiles(kernels, size, n_vectors):
                if opened and size % rows:
                    continue
                yield WinogradConfig(
                    kernel=kernel.name,
                    rows=rows,
                    vectors=vectors,
                    m_block=size,
                    k_block=problem.geometry.channels,
                    threads_tiles=teams,
                    threads_panels=members,
                )
