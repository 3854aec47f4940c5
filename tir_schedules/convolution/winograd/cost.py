"""What a 3x3 convolution costs by Winograd's tiles, and directly: estimates with named terms.

    compute      products for every tile, by `blocking.estimate_cycles`
    transforms   of x and of the results, a number of cycles for each tile and vector of it
    weights      reading them from L3 or memory, once a block of tiles; what products do not hide
    between      transformed tiles of a block that do not fit in L2
    barriers     forks and joins of parallel regions, and tiles that another core transformed

Measured on one machine (Zen 4, 3.7 GHz, 1 MB of L2, 32 MB of L3), one thread, cache hot; estimated
and measured microseconds:

    56x56x64     560  558       28x28x128   535  534       14x14x256    670  671
    80x80x64    1141 1171       40x40x96    620  621       7x7x512     1676 1595
    48x48x3x32    31   30       32x32x16     17   19       10x10x64      26   27
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from microkernels.kernels.byte_pairs import has_pairs
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tir_schedules.convolution.direct import cost as conv_cost
from tir_schedules.core.blocking import estimate_cycles
from tir_schedules.core.config import best_first
from tir_schedules.core.region import Region
from tir_schedules.cost.cost import Cost

from .algorithm import Algorithm
from .config import WinogradConfig, candidates, other_tiles
from .problem import WinogradProblem

# Of a vector of a tile, of x and of the results, measured from L2.
TRANSFORM_CYCLES = {"float32": (110.0, 90.0), "int16": (45.0, 30.0)}
# Of 8-bit integers without VNNI, measured on an Emerald Rapids: the time of a product of words over
# that of one of f32, and of the template "conv2d" by bytes over its estimate.
WORDS, BY_BYTES = {"avx512": 1.0, "avx2": 0.55}, {"avx512": 1.5, "avx2": 1.1}
TILE_CYCLES = 80.0  # of a tile: its place, its edges, the loops around its vectors
# Of the weights' way: what passes behind products, and what shows of that nevertheless.
HIDDEN, EXPOSED = 0.95, 0.1
ALIKE = 2  # threads that read the same weight count as so many for memory, at most
SUM_BYTES = 4


def winograd_cost(
    region: Region, config: WinogradConfig, machine: Machine, cold: bool = False
) -> Cost:
    """What a configuration costs.

    Parameters
    ----------
    cold : bool
        Whether the weights come from memory, because those of the whole model do not fit in L3.
    """
    problem, lanes = WinogradProblem.of(region), microkernel_named(config.kernel).lanes
    channels, algorithm = problem.geometry.channels, problem.algorithm
    of_input, of_output = TRANSFORM_CYCLES[algorithm.element]
    matrices = algorithm.products * algorithm.bytes  # bytes of an element in all of them
    sums = algorithm.products * SUM_BYTES
    blocks, each = config.blocks(problem)
    tiles, members, teams = blocks[0].size, config.threads_panels, config.teams(problem)
    n_vectors = math.ceil(problem.geometry.out_channels / lanes)
    c_vectors = math.ceil(channels * algorithm.bytes / (SUM_BYTES * lanes))
    panels = config.panels(problem, microkernel_named(config.kernel))
    widths = [group.size for group in panels for _ in range(group.count)]
    share = sum(widths[: math.ceil(len(widths) / members)])  # vectors of the busiest thread
    kernel = microkernel_named(config.kernel)
    products = algorithm.products * estimate_cycles(
        tiles, share, channels, config.rows, config.vectors, config.k_block, machine
    )
    if algorithm.element == "int16":
        products *= WORDS[kernel.isa_name]
    of_inputs = math.ceil(c_vectors / members) * tiles
    if c_vectors < members:
        of_inputs = math.ceil(tiles / members) * c_vectors
    transforms = of_inputs * of_input + tiles * (share * of_output + TILE_CYCLES)
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
    """What the same convolution costs in the template "conv2d", at its default configuration."""
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
    """What shows of the weights' way while so many cycles of products are computed.

    `grid` is how many threads there are, and how many of them read parts of their own. The others
    read the same at about the same time, and find it in L3.
    """
    if near:
        return 0.0
    threads, readers = grid
    us = size / machine.l3_rate(threads)
    if far:
        us = max(us, size / machine.memory_rate(min(threads, ALIKE * readers)))
    cycles = us * machine.cycles_per_us
    return max(0.0, cycles - HIDDEN * products) + EXPOSED * min(cycles, products)


def default_config(region: Region, machine: Machine) -> WinogradConfig:
    """The configuration with the fewest estimated cycles; no tuning is needed."""
    return min(candidates(region, machine), key=lambda config: _order(region, config, machine))


def space(region: Region, machine: Machine) -> Iterator[WinogradConfig]:
    """The default; every candidate and its blocks in other tiles, fastest estimated first."""
    default = default_config(region, machine)
    found = {*candidates(region, machine), *other_tiles(region, machine)}
    yield from best_first(default, found, lambda config: _order(region, config, machine))


def _order(region: Region, config: WinogradConfig, machine: Machine) -> tuple[float, str, int]:
    # Weights of that size are hardly alone in their model: others take their place in L3.
    algorithm = Algorithm.of(region)
    channels, columns = region.inputs[1].shape[-2:]
    whole = algorithm.bytes * algorithm.products * channels * columns
    cold = whole > machine.l3_bytes // 4
    return winograd_cost(region, config, machine, cold).total, config.kernel, config.m_block
