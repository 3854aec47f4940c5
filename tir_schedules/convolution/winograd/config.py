"""The configuration of the template "conv2d_winograd", and which values are worth trying."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import has_pairs
from microkernels.machines.guesses import decided
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named
from tir_schedules.convolution.direct import cost as conv_cost
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.core import blocking
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.config import best_first
from tir_schedules.core.product_plan import ProductPlan, TileConfig, is_integer
from tir_schedules.core.region import Region
from tir_schedules.cost.cost import Cost, flops_us
from tir_schedules.cost.parallel import halves, threads_worth
from tir_schedules.product.tile_config import check_tile, register_tiles

from .tiles import WinogradProblem

LINE = 16  # f32 values of a cache line
_MOST_TILES = 128  # of a block: with 128 tiles, V of 16 channels is as large as L2
_FEWEST_TILES = 4  # of a block: the weights pass through the caches once for each block
_LINE_SIZES = 6  # block sizes tried for lines of results, whose costs differ little


class WinogradConfig(TileConfig, frozen=True, kw_only=True):
    """Blocking and threads of a Winograd convolution.

    `m_block` counts the tiles of results that are transformed, multiplied and transformed back
    before the next ones; it bounds what lies in L2. A block may have one tile more, if blocks of
    that size would outnumber the tiles. If image sizes are dynamic, `m_block` is a multiple of
    `rows`, and K is not cut.

    Attributes
    ----------
    threads_tiles : int
        Teams of threads; each team takes blocks of tiles.
    threads_panels : int
        Threads of a team, which share the transform of a block and then its panels of channels.
    """

    threads_tiles: int = 1
    threads_panels: int = 1

    def teams(self, problem: WinogradProblem) -> int:
        """Number of teams that have tiles."""
        return min(self.threads_tiles, problem.tiles)

    def blocks(self, problem: WinogradProblem) -> tuple[tuple[Group, ...], int]:
        """The blocks of tiles, larger ones first, and the most blocks of one team."""
        teams = self.teams(problem)
        each = math.ceil(math.ceil(problem.tiles / teams) / self.m_block)
        return blocking.shares(problem.tiles, min(problem.tiles, teams * each)), each

    def plan(self, problem: WinogradProblem) -> ProductPlan:
        """How the product for one element of the transformed tiles is cut."""
        geometry = problem.geometry
        plan = ProductPlan.of(self, problem.tiles, geometry.out_channels, geometry.channels)
        return replace(plan, kernel=problem.algorithm.kernel(plan.kernel))

    def panels(self, problem: WinogradProblem, kernel: Microkernel) -> tuple[Group, ...]:
        """The panels of output channels, in vectors; wider ones first."""
        return balanced(math.ceil(problem.geometry.out_channels / kernel.lanes), self.vectors)


def odd_lines(elements: int, item: int = 4) -> int:
    """Elements of the smallest odd number of cache lines that holds `elements` of `item` bytes.

    A power of two would put all matrices, or all rows of a register tile, into one set of L1.
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
    if not geometry.has_dynamic_image:
        return kernel
    if config.m_block % config.rows:
        raise ConfigError(f"m_block: no multiple of rows={config.rows}, for {region.key}")
    if config.k_block < geometry.channels:
        raise ConfigError(f"k_block: dynamic sizes take all {geometry.channels}, for {region.key}")
    return kernel


def candidates(region: Region, machine: Machine) -> Iterator[WinogradConfig]:
    """Every kernel and grid with each block size that cuts a team's tiles evenly."""
    problem = WinogradProblem.of(region)
    geometry, tiles = problem.geometry, problem.tiles
    dynamic = ConvGeometry.of(region).has_dynamic_image
    for teams, members in _grids(problem, machine):
        if teams > tiles:
            continue
        shared = {"k_block": geometry.channels, "threads_tiles": teams, "threads_panels": members}
        part = math.ceil(tiles / teams)
        least = min(_FEWEST_TILES, part)
        sizes = {balanced(part, most)[0].size for most in range(least, min(part, _MOST_TILES) + 1)}
        for kernel in problem.algorithm.kernels(machine.isa):
            n_vectors = math.ceil(geometry.out_channels / kernel.lanes)
            if dynamic:
                sizes = set(range(kernel.mr, _MOST_TILES + 1, kernel.mr))
            ordered = sorted(sizes)
            if min(problem.geometry.kernel) == 1:
                ordered = ordered[:: -max(1, len(ordered) // _LINE_SIZES)]
            for size in ordered:
                rows, vectors = min(kernel.mr, size), math.ceil(n_vectors / min(members, n_vectors))
                tile = {"rows": rows, "vectors": min(kernel.vectors, vectors), "m_block": size}
                yield WinogradConfig(kernel=kernel.name, **tile, **shared)


def _grids(problem: WinogradProblem, machine: Machine) -> list[tuple[int, int]]:
    """Grids of all threads and of halves of them, with and without threads that have no panels."""
    geometry = problem.geometry
    if threads_worth(machine, flops_us(geometry.flops, machine)) == 1:
        return [(1, 1)]
    grids = list(blocking.grids_of(halves(machine.threads)))
    vectors = math.ceil(geometry.out_channels / machine.isa.f32_lanes)
    busy = (blocking.busy_grid(problem.tiles, vectors, *grid) for grid in grids)
    return list(dict.fromkeys([*grids, *busy]))


def other_tiles(region: Region, machine: Machine) -> Iterator[WinogradConfig]:
    """Every register tile, in blocks of six of the sizes that the candidates have."""
    found = sorted({c.m_block for c in candidates(region, machine)})
    sizes = {found[len(found) * part // 6] for part in range(6)}
    problem = WinogradProblem.of(region)
    dynamic = ConvGeometry.of(region).has_dynamic_image
    kernels = problem.algorithm.kernels(machine.isa)
    n_vectors = math.ceil(problem.geometry.out_channels / kernels[0].lanes)
    for teams, members in blocking.thread_grids(machine.threads):
        if teams > problem.tiles:
            continue
        channels = problem.geometry.channels
        shared = {"k_block": channels, "threads_tiles": teams, "threads_panels": members}
        for size in sorted(sizes):
            for kernel, rows, vectors in register_tiles(kernels, size, n_vectors):
                if dynamic and size % rows:
                    continue
                tile = {"rows": rows, "vectors": vectors, "m_block": size}
                yield WinogradConfig(kernel=kernel.name, **tile, **shared)


# Estimated cost of a Winograd convolution, and of the same convolution done directly.
#
#     compute      products of every tile, by `blocking.estimate_cycles`
#     transforms   of x and of the results: cycles for each tile and vector
#     weights      read from L3 or memory once for each block; only what products do not hide
#     between      transformed tiles of a block that do not fit in L2
#     barriers     forks and joins of parallel regions, and tiles that another core transformed
#
# Measured on one machine (Zen 4, 3.7 GHz, 1 MB of L2, 32 MB of L3), one thread, cache hot;
# estimated and measured microseconds:
#
#     56x56x64     560  558       28x28x128   535  534       14x14x256    670  671
#     80x80x64    1141 1171       40x40x96    620  621       7x7x512     1676 1595
#     48x48x3x32    31   30       32x32x16     17   19       10x10x64      26   27
#
# For lines of taps, the time of the direct template divided by that of Winograd, estimated and
# measured (Zen 4, kernels of avx512): 512x512 to 256, 5 taps 2.34 2.27; 7500x128, 3 taps, dilation
# 16 1.74 1.96; 1500x384, 3 taps 1.90 1.79; 128x192, 5 taps 2.28 2.23; 2100x32 to 200, 7 taps 1.27
# 1.46; 500x64, 2 taps 1.26 1.40; 64x64, 3 taps 1.51 1.50.


# Cycles to transform one vector of a tile of x, and one of the results, of a 3x3 kernel; measured
# from L2. The cycles of other tiles are scaled by their number of products.
TRANSFORM_CYCLES = {"float32": (110.0, 90.0), "int16": (45.0, 30.0)}
TRANSFORM_PRODUCTS = {"float32": 36, "int16": 16}
# For 8-bit integers without VNNI, measured on an Emerald Rapids. WORDS: time of a product of words
# over that of one of f32. BY_BYTES: time of the template "conv2d" by bytes over its estimate.
WORDS, BY_BYTES = {"avx512": 1.0, "avx2": 0.55}, {"avx512": 1.5, "avx2": 1.1}
TILE_CYCLES = 80.0  # for each tile: its place, its edges, the loops around its vectors
LINE_TILE_CYCLES = 40.0  # for each tile that is a line of results
# Reading weights overlaps with HIDDEN of the products' cycles; EXPOSED of the overlap still shows.
HIDDEN, EXPOSED = 0.95, 0.1
ALIKE = 2  # most threads that memory counts for, among threads that read the same weight
SUM_BYTES = 4


def winograd_cost(
    region: Region, config: WinogradConfig, machine: Machine, cold: bool = False
) -> Cost:
    """Estimated cost of a configuration.

    Parameters
    ----------
    cold : bool
        Whether the weights come from memory, because those of the whole model do not fit in L3.
    """
    return _cost(WinogradProblem.of(region), config, machine, cold)


def _cost(problem: WinogradProblem, config: WinogradConfig, machine: Machine, cold: bool) -> Cost:
    kernel = microkernel_named(config.kernel)
    lanes, channels, algorithm = kernel.lanes, problem.geometry.channels, problem.algorithm
    part = algorithm.products / TRANSFORM_PRODUCTS[algorithm.element]
    of_input, of_output = (part * cycles for cycles in TRANSFORM_CYCLES[algorithm.element])
    matrices = algorithm.products * algorithm.bytes  # bytes of an element in all of them
    sums = algorithm.products * SUM_BYTES
    blocks, each = config.blocks(problem)
    tiles, members, teams = blocks[0].size, config.threads_panels, config.teams(problem)
    n_vectors = math.ceil(problem.geometry.out_channels / lanes)
    c_vectors = math.ceil(channels * algorithm.bytes / (SUM_BYTES * lanes))
    panels = config.panels(problem, kernel)
    widths = [group.size for group in panels for _ in range(group.count)]
    share = sum(widths[: math.ceil(len(widths) / members)])  # vectors of the busiest thread
    products = algorithm.products * blocking.estimate_cycles(
        tiles, share, channels, config.rows, config.vectors, config.k_block, machine
    )
    if algorithm.element == "int16":
        products *= WORDS[kernel.isa_name]
    of_inputs = math.ceil(c_vectors / members) * tiles
    if c_vectors < members:
        of_inputs = math.ceil(tiles / members) * c_vectors
    of_tile = TILE_CYCLES if min(axis.taps for axis in algorithm.axes) > 1 else LINE_TILE_CYCLES
    transforms = of_inputs * of_input + tiles * (share * of_output + of_tile)
    whole = matrices * channels * n_vectors * lanes
    weight = matrices * channels * share * lanes
    kept = tiles * (matrices * channels + sums * config.vectors * lanes)
    beyond = whole > machine.l3_bytes
    near = weight + kept <= machine.l2_bytes
    threads, per_us = members * teams, machine.cycles_per_us
    grid = threads, members
    first = _weight_cycles(weight, products, machine, grid, cold or beyond, False)
    later = _weight_cycles(weight, products, machine, grid, beyond, near)
    over = max(0, kept - machine.l2_bytes * 3 // 4)
    foreign = matrices * tiles * channels * (members - 1) / members
    forks = 0 if threads == 1 else 1 if members == 1 else 2 * each
    return Cost(
        compute=each * products,
        transforms=each * transforms,
        weights=first + (each - 1) * later,
        between=each * 2 * over / machine.l3_rate(threads) * per_us,
        barriers=per_us
        * (forks * machine.fork_us(threads) + each * foreign / machine.foreign_rate),
    )


def direct_cycles(region: Region, machine: Machine, cold: bool = False) -> float:
    """Cycles of the convolution in the template "conv2d", with its default configuration."""
    config = conv_cost.default_config(region, machine)
    computing = conv_cost.estimated_cycles(region, config, machine)
    kernel = microkernel_named(config.kernel)
    if has_pairs(kernel):
        computing *= BY_BYTES[kernel.isa_name]
    weight = region.inputs[1].nbytes
    if not cold and weight <= machine.l3_bytes:
        return computing
    grid = config.threads_m * config.threads_n * config.threads_x, config.threads_n
    return computing + _weight_cycles(
        weight / config.threads_n, computing, machine, grid, True, False
    )


def _weight_cycles(
    size: float, products: float, machine: Machine, grid: tuple[int, int], far: bool, near: bool
) -> float:
    """Cycles of reading `size` bytes of weights that `products` cycles of products do not hide."""
    if near:
        return 0.0
    threads, readers = grid  # all threads, and those that read different parts of the weight
    us = size / machine.l3_rate(threads)
    # Threads that read one part do so at about the same time, so all but the first find it in L3.
    if far:
        us = max(us, size / machine.memory_rate(min(threads, ALIKE * readers)))
    cycles = us * machine.cycles_per_us
    return max(0.0, cycles - HIDDEN * products) + EXPOSED * min(cycles, products)


def default_config(region: Region, machine: Machine) -> WinogradConfig:
    """The fastest configuration as estimated; on a guessed machine, the one that loses least."""

    def best(machine: Machine) -> WinogradConfig:
        return min(candidates(region, machine), key=_order(region, machine))

    return decided(machine, best, lambda config, machine: _order(region, machine)(config)[0])


def space(region: Region, machine: Machine) -> Iterator[WinogradConfig]:
    """The default, then all candidates and other register tiles, fastest estimated first."""
    default = default_config(region, machine)
    found = {*candidates(region, machine), *other_tiles(region, machine)}
    yield from best_first(default, found, _order(region, machine))


def _order(region: Region, machine: Machine) -> Callable[[WinogradConfig], tuple[float, str, int]]:
    problem = WinogradProblem.of(region)
    channels, columns = region.inputs[1].shape[-2:]
    # A model with weights of this size has others, which take their place in L3.
    whole = problem.algorithm.bytes * problem.algorithm.products * channels * columns
    cold = whole > machine.l3_bytes // 4

    def order(config: WinogradConfig) -> tuple[float, str, int]:
        return _cost(problem, config, machine, cold).total, config.kernel, config.m_block

    return order
