"""The numbers of the template "conv2d_winograd", and the estimate of its time that they go by."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from microkernels.errors import ConfigError
from microkernels.isa import Isa
from microkernels.microkernel import Microkernel, kernels_for, microkernel_named

from .blocking import Group, balanced, estimate_cycles, shares, thread_grids
from .conv_geometry import ConvGeometry
from .machine import Machine
from .region import Region
from .speeds import speeds_of
from .tile_config import PARALLEL_FLOPS, TileConfig, check_tile
from .winograd_transforms import PRODUCTS, TILE

LINE = 16  # elements of a cache line
# Cycles to transform a vector of channels of a tile (measured on Zen 4: 110 and 90 from L2).
INPUT_CYCLES, OUTPUT_CYCLES = 110.0, 90.0
BARRIER_CYCLES = 4000.0  # fork and join of a parallel region
# Share of the weights' way from L3 or memory that passes while products are computed.
HIDDEN = 0.7


class WinogradConfig(TileConfig, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    `m_block` counts the tiles of 4x4 results that are transformed, multiplied and transformed back
    before the next ones; it bounds what lies in L2.

    Attributes
    ----------
    threads_tiles : int
        Groups of threads, each with blocks of tiles of its own.
    threads_panels : int
        Threads of a group, which share the tiles of a block when they transform x and its panels of
        output channels then.
    """

    threads_tiles: int = 1
    threads_panels: int = 1


@dataclass(frozen=True)
class WinogradProblem:
    """A region in tiles.

    Attributes
    ----------
    geometry : ConvGeometry
        Its shape.
    rows, columns : int
        Tiles along the height and the width of an image.
    """

    geometry: ConvGeometry
    rows: int
    columns: int

    @staticmethod
    def of(region: Region) -> WinogradProblem:
        """The tiles of a region."""
        geometry = ConvGeometry.of(region)
        rows, columns = (math.ceil(extent / TILE) for extent in geometry.outputs)
        return WinogradProblem(geometry, rows, columns)

    @property
    def tiles(self) -> int:
        """Tiles of all samples."""
        return self.geometry.batch * self.rows * self.columns

    def blocks(self, config: WinogradConfig) -> tuple[tuple[Group, ...], int]:
        """The blocks of tiles, larger ones first, and how many a group of threads takes."""
        groups = min(config.threads_tiles, self.tiles)
        each = math.ceil(math.ceil(self.tiles / groups) / config.m_block)
        return shares(self.tiles, min(self.tiles, groups * each)), each


def odd_lines(elements: int) -> int:
    """A distance in memory of at least so many f32 values: an odd number of cache lines.

    Powers of two would put all 36 matrices, or all rows of a tile, into one set of L1.
    """
    lines = math.ceil(elements / LINE)
    return LINE * (lines + 1 - lines % 2)


def check(region: Region, config: WinogradConfig, isa: Isa) -> Microkernel:
    """The microkernel of a legal configuration; ConfigError for an illegal one."""
    threads = {
        "threads_tiles": config.threads_tiles,
        "threads_panels": config.threads_panels,
    }
    kernel = check_tile(region, config, isa, ("float32", "float32"), **threads)
    if kernel.by_tiles:
        raise ConfigError(f"{kernel.name} is no vector kernel, for {region.key}")
    return kernel


def default_config(region: Region, machine: Machine) -> WinogradConfig:
    """The configuration with the fewest estimated cycles; no tuning is needed."""
    return min(
        candidates(region, machine), key=lambda config: estimated_cycles(region, config, machine)
    )


def space(region: Region, machine: Machine) -> Iterator[WinogradConfig]:
    """Every kernel, grid of threads and size of blocks, the default first."""
    found = set(candidates(region, machine))
    default = default_config(region, machine)
    yield default
    yield from sorted(
        found - {default},
        key=lambda config: (estimated_cycles(region, config, machine), config.to_dict().items()),
    )


def candidates(region: Region, machine: Machine) -> list[WinogradConfig]:
    """What is worth trying: blocks whose transformed tiles fit in L2, and larger ones."""
    problem = WinogradProblem.of(region)
    geometry, tiles = problem.geometry, problem.tiles
    found: dict[WinogradConfig, None] = {}
    for kernel in kernels_for(machine.isa, "float32", "float32"):
        vectors = min(kernel.vectors, math.ceil(geometry.out_channels / kernel.lanes))
        for groups, members in _grids(region, machine):
            part = math.ceil(tiles / min(groups, tiles))
            for block in _blocks(part):
                if block * 4 < kernel.mr and kernel.mr > 8:
                    continue
                config = WinogradConfig(
                    kernel=kernel.name,
                    rows=min(kernel.mr, block),
                    vectors=vectors,
                    m_block=block,
                    k_block=geometry.channels,
                    threads_tiles=min(groups, tiles),
                    threads_panels=members,
                )
                found[config] = None
    return list(found)


def _grids(region: Region, machine: Machine) -> list[tuple[int, int]]:
    geometry = ConvGeometry.of(region)
    if machine.threads == 1 or geometry.flops < PARALLEL_FLOPS:
        return [(1, 1)]
    return list(thread_grids(machine.threads))


def _blocks(tiles: int) -> list[int]:
    """Sizes of blocks that cut so many tiles into equal pieces, as nearly as may be."""
    sizes = {balanced(tiles, most)[0].size for most in range(1, min(tiles, 128) + 1)}
    return sorted(size for size in sizes if size >= min(4, tiles))


def estimated_cycles(
    region: Region, config: WinogradConfig, machine: Machine, cold: bool = False
) -> float:
    """Cycles of the busiest thread.

    The products, by `estimate_cycles`; both transforms; the weights, which pass once for every
    block of tiles, from L2, L3 or memory; and what does not fit in L2 of the transformed tiles.

    Parameters
    ----------
    cold : bool
        Whether the weights lie in memory, because those of the whole model do not fit in L3.
    """
    problem, kernel = WinogradProblem.of(region), microkernel_named(config.kernel)
    geometry = problem.geometry
    channels, lanes = geometry.channels, kernel.lanes
    groups, each = problem.blocks(config)
    n_vectors = math.ceil(geometry.out_channels / lanes)
    block = groups[0].size
    members, teams = config.threads_panels, min(config.threads_tiles, problem.tiles)
    n_part = math.ceil(n_vectors / members)
    per_block = PRODUCTS * estimate_cycles(
        block, n_part, channels, config.rows, config.vectors, config.k_block
    )
    c_vectors = math.ceil(channels / lanes)
    inputs = block * c_vectors * INPUT_CYCLES
    if c_vectors >= members:
        inputs *= math.ceil(c_vectors / members) / c_vectors
    else:
        inputs *= math.ceil(block / members) / block
    outputs = block * n_part * OUTPUT_CYCLES
    speeds = speeds_of(machine)
    panel = config.vectors * lanes
    weight = 4 * PRODUCTS * channels * n_part * lanes
    kept = 4 * PRODUCTS * block * (channels + panel)
    memory_rate = min(speeds.memory_rate, speeds.shared_memory_rate / (members * teams))
    if weight + kept <= machine.l2_bytes:
        rate, passes = math.inf, each
    else:
        rate, passes = speeds.l3_rate, each
    whole = 4 * PRODUCTS * channels * n_vectors * lanes
    first_rate = memory_rate if cold or whole > machine.l3_bytes else rate
    later_rate = memory_rate if whole > machine.l3_bytes else rate
    computing = per_block / speeds.cycles_per_us
    waiting = sum(
        max(0.0, weight / found - HIDDEN * computing) + 0.1 * min(weight / found, computing)
        for found in (first_rate, *[later_rate] * (passes - 1))
    )
    over = max(0, kept - machine.l2_bytes * 3 // 4)
    spilled = each * 2 * over / speeds.l3_rate
    total = each * (per_block + inputs + outputs)
    if members * teams > 1:
        total += BARRIER_CYCLES * (1 if members == 1 else 2 * each)
    return total + (waiting + spilled) * speeds.cycles_per_us
