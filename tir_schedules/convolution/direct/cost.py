"""Estimated cycles of a convolution, by which its configuration is chosen.

A step of K of a tile costs the longest of its waits; taps outside of the image are not counted.
Pixels a multiple of 4 KB apart share one L1 set: tiles with more than 8 such pixels run at half
speed (measured on 7x7x2048 f32: 49% of peak with 14 pixels, 98% with 7).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from tvm import DataType

from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named
from tir_schedules.convolution.geometry import ConvGeometry, one_image
from tir_schedules.core.blocking import balanced, busy_grid, grids_of, thread_grids
from tir_schedules.core.config import best_first
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.core.region import Region
from tir_schedules.cost.amx_cost import amx_cycles
from tir_schedules.cost.cost import elements_a_product, flops_us, product_rate
from tir_schedules.cost.parallel import even_enough, fewest_unless_uneven, halves, threads_worth
from tir_schedules.product.tile_config import PIECES, fewest_cycles, region_kernels, register_tiles

from . import config as conv
from .config import ConvConfig, ConvPlan, Grid, has_small_edges

STAGE_CYCLES = 2.0  # for a vector that is copied: a load, a store, some of the loop
RUN_CYCLES = 4.0  # for a run: the loop around it
SET_BYTES = 4096  # addresses this far apart share a set of L1
SET_ROWS, SET_PENALTY = 8, 2.0
LINE_CYCLES = 10.0  # for a line of the image
L3_EXPOSED = 0.418  # part of the time to read weights from L3 that computing does not hide
FETCHING_TILES = 64  # most tiles of a panel: with more, the wait of the first one hardly matters
WAITING = 1.5  # how much longer L3 takes for a line with its latency, beside the products
WIDE_PIXELS = 32  # fewest pixels of a band for which a panel is widened
NEARLY_EVEN = 1.1  # most lines of the busiest thread, over the fewest possible


def default_config(region: Region, machine: Machine) -> ConvConfig:
    """The configuration with the fewest estimated cycles."""
    estimate = _Estimate(region, machine)
    config = fewest_cycles(estimate.best(), estimate.cycles)
    return msgspec.structs.replace(config, fetches=waits(region, config, machine))


def waits(region: Region, config: ConvConfig, machine: Machine) -> bool:
    """Whether the first tile of a panel would wait for its weight, which comes from L3.

    Measured on f32 alone (Emerald Rapids, in ResNet-50): 7x7x512 with 3x3 takes 1.59 instead of
    2.07 ms if the panel before prefetches it, 14x14x512 with 3x3 /2 1.75 instead of 2.23 ms,
    28x28x512 with 1x1 /2 1.24 instead of 1.56 ms, 28x28x256 with 3x3 /2 1.38 instead of 1.55 ms.
    """
    plan, width = ConvPlan.of(region, config), ConvGeometry.of(region).outputs[-1]
    kernel, columns = plan.kernel, plan.shares[0].size / plan.vectors
    near = region.inputs[1].nbytes * columns <= machine.l2_bytes // 4
    if kernel.b_dtype != "float32" or not plan.may_fetch or near:
        return False
    tiles = config.band * math.ceil(width / config.rows)
    reading_us = 4 * kernel.lanes / machine.l3_rate(math.prod(plan.grid))
    rows = min(config.rows, width)
    step_us = rows / product_rate(kernel, machine) / machine.cycles_per_us
    return tiles <= FETCHING_TILES and WAITING * reading_us > step_us


def candidates(region: Region, machine: Machine) -> list[ConvConfig]:
    """The best configuration of every kernel."""
    return _Estimate(region, machine).best()


def space(region: Region, machine: Machine) -> Iterator[ConvConfig]:
    """Every register tile with bands of several sizes, staged or not, on every grid of threads."""
    default = default_config(region, machine)
    if ConvGeometry.of(region).has_dynamic_image:
        yield default
        yield from (each for each in candidates(region, machine) if each != default)
        return
    estimate = _Estimate(region, machine)
    kernels = region_kernels(region, machine.isa)
    found = {
        config
        for kernel in kernels
        for config in _configs(estimate, kernel, every=True)
        if kernel.by_tiles or config.lines > 1
    }
    found.update(_tiled(estimate, kernels))
    yield from best_first(default, found, estimate.cycles)


def _tiled(estimate: _Estimate, kernels: Sequence[Microkernel]) -> Iterator[ConvConfig]:
    """Legal configurations of vector kernels, with tiles of one line."""
    region, geometry = estimate.region, estimate.geometry
    _, height, width = geometry.outputs
    n_vectors = math.ceil(geometry.group_out_channels / kernels[0].lanes)
    grids = {(1, 1), *thread_grids(estimate.machine.threads)}
    tiles = register_tiles(kernels, width, n_vectors)
    for (kernel, rows, vectors), (threads_m, threads_n) in itertools.product(tiles, grids):
        bands = {math.ceil(height / pieces) for pieces in PIECES}
        wide = conv.wide_of(region, kernel) is not None
        bands.add(estimate.band(threads_m, wide))
        in_place = conv.reads_in_place(region, kernel) and has_small_edges(geometry, rows)
        for band, staged in itertools.product(bands, {True, not in_place}):
            tile: dict[str, Any] = {"rows": rows, "vectors": vectors, "band": band}
            grid: dict[str, Any] = {"threads_m": threads_m, "threads_n": threads_n}
            yield ConvConfig(kernel=kernel.name, staged=staged, **tile, **grid)


def _configs(estimate: _Estimate, kernel: Microkernel, every: bool = False) -> Iterator[ConvConfig]:
    """Legal configurations of one kernel."""
    region, machine, geometry = estimate.region, estimate.machine, estimate.geometry
    _, height, width = geometry.outputs
    vectors = math.ceil(geometry.group_out_channels / kernel.lanes)
    dynamic, wide = estimate.has_dynamic_image, conv.wide_of(region, kernel) is not None
    stagings = [True] if dynamic or not conv.reads_in_place(region, kernel) else [False, True]
    if not geometry.padded and not every and len(stagings) > 1 and width >= kernel.mr:
        stagings = [False]
    for staged in stagings:
        tiles = [(kernel.mr, 1)] if dynamic else _tiles(geometry, kernel, staged)
        for rows, lines in tiles:
            if kernel.by_tiles and lines > estimate.lines_in_l2(wide):
                continue  # tiles would run on over more lines than stay in L2
            if not staged and not has_small_edges(geometry, rows):
                continue
            whole = lines if kernel.by_tiles else height
            serial = ConvConfig(
                kernel=kernel.name,
                rows=rows,
                lines=lines,
                vectors=min(kernel.vectors, vectors),
                band=estimate.band(1, wide) if lines == 1 else whole,
                staged=staged,
            )
            grids = _grids(estimate, kernel, serial)
            if every:
                all_threads = (Grid(*grid, 1) for grid in thread_grids(machine.threads))
                grids = list(dict.fromkeys([*all_threads, Grid(1, 1, 1), *grids]))
            for grid in grids:
                bands = {estimate.band(grid.bands, wide)}
                if every:
                    bands |= {max(1, band // 2) for band in bands} | {height}
                for band in {whole} if lines > 1 else bands:
                    threads = dict(zip(("threads_m", "threads_n", "threads_x"), grid, strict=True))
                    yield msgspec.structs.replace(serial, band=band, **threads)


def _grids(estimate: _Estimate, kernel: Microkernel, serial: ConvConfig) -> list[Grid]:
    """Grids of all threads and of halves of them; one thread if there is little work."""
    geometry, machine = estimate.geometry, estimate.machine
    if threads_worth(machine, flops_us(geometry.flops / elements_a_product(kernel), machine)) == 1:
        return [Grid(1, 1, 1)]
    depth, height, width = geometry.outputs
    bands = height // serial.band if serial.lines > 1 else height
    lines = geometry.batch * depth * bands
    parts = ConvPlan(geometry, serial, kernel).channel_parts
    tiles = math.ceil(width / serial.rows)
    if kernel.by_tiles and (serial.lines > 1 or width % serial.rows):
        tiles = 1  # the last tile overlaps the one before, or tiles run on from line to line
    found = []
    for high, wide in grids_of(halves(machine.threads)):
        bands, channels = busy_grid(lines, parts, min(high, lines), wide)
        pieces = busy_grid(1, tiles, 1, max(1, high // lines))[1]
        found.append(Grid(bands, channels, 1 if estimate.has_dynamic_image else pieces))
    return list(dict.fromkeys(found))


def _tiles(geometry: ConvGeometry, kernel: Microkernel, staged: bool) -> Iterator[tuple[int, int]]:
    """(Pixels in a line, lines) of each register tile that cuts a line into nearly equal tiles."""
    _, height, width = geometry.outputs
    if kernel.by_tiles:
        yield min(kernel.mr, width), 1
        for lines in (each for each in range(2, height + 1) if height % each == 0):
            yield min(kernel.mr, conv.positions_across(geometry, lines).total), lines
        return
    fewest = math.ceil(width / kernel.mr)
    cuts = {math.ceil(width / size) for size in range(1, kernel.mr + 1)}
    sizes = {math.ceil(width / pieces) for pieces in cuts if pieces <= 2 * fewest + 1}
    sizes |= {size for size in range(max(1, kernel.mr // 2), kernel.mr + 1) if width % size == 0}
    for rows in sorted(sizes):
        yield rows, 1
    if staged and 2 * width <= kernel.mr and height > 1:
        most = kernel.mr // width
        yield from ((width, lines) for lines in range(2, min(most, height) + 1))


def _most_lines(geometry: ConvGeometry, band: int, threads: int) -> int:
    """Lines of the thread with the most lines; the last band of a plane may be lower."""
    height, planes = geometry.outputs[1], geometry.batch * geometry.outputs[0]
    bands = math.ceil(height / band)
    whole, rest = divmod(math.ceil(planes * bands / threads), bands)
    return whole * height + rest * band


def estimated_cycles(region: Region, config: ConvConfig, machine: Machine) -> float:
    """Cycles of the busiest thread."""
    return _Estimate(region, machine).cycles(config)


class _Estimate:
    """Estimates for the configurations of one region, with intermediate results shared."""

    def __init__(self, region: Region, machine: Machine) -> None:
        self.has_dynamic_image = ConvGeometry.of(region).has_dynamic_image
        region = one_image(region)
        self.region, self.machine = region, machine
        self.geometry = ConvGeometry.of(region).as_volume()
        self.weight = region.inputs[1].nbytes
        self.lines: dict[tuple[str, int, int, bool, int], float] = {}
        self.cycles = functools.cache(self._cycles)
        """Cycles of the busiest thread, cached for each configuration."""

    def best(self) -> list[ConvConfig]:
        """The best configuration of every kernel."""
        kernels = region_kernels(self.region, self.machine.isa)
        if self.has_dynamic_image:  # only static columns can be cut so that tiles of AMX fit
            kernels = tuple(kernel for kernel in kernels if not kernel.by_tiles)
        configs = (list(_configs(self, kernel)) for kernel in kernels)
        return [fewest_unless_uneven(found, self.cycles, self.is_even) for found in configs]

    def _cycles(self, config: ConvConfig) -> float:
        geometry, machine = self.geometry, self.machine
        kernel = microkernel_named(config.kernel)
        plan = ConvPlan(geometry, config, kernel)
        depth, height, _ = geometry.outputs
        bands = math.ceil(height / config.band)
        share_m = math.ceil(bands * geometry.batch * depth / config.threads_m)
        lines = _most_lines(geometry, config.band, config.threads_m)
        vectors = plan.shares[0].size
        groups = 1
        if geometry.groups > 1:
            groups = math.ceil(geometry.groups / config.threads_n)
        total = 0.0
        for panel in balanced(vectors, config.vectors):
            key = (config.kernel, config.rows, config.lines, config.staged, panel.size)
            if key not in self.lines:
                self.lines[key] = _line_cycles(self, config, kernel, panel.size)
            total += panel.count * self.lines[key] * lines / config.lines
        tiles = math.ceil(geometry.outputs[2] / config.rows)
        total *= groups * math.ceil(tiles / config.threads_x) / tiles
        if config.staged:  # the lines of x that a band needs are copied
            copied = (config.band - 1) * geometry.strides[1] + geometry.kernel[1]
            elements = geometry.extents[2] * geometry.channels * geometry.kernel[0]
            one = elements / kernel.lanes * STAGE_CYCLES + LINE_CYCLES * geometry.kernel[0]
            total += copied / config.band * one * lines
        share_n = vectors / plan.vectors * groups / geometry.groups
        weight = self.weight * share_n
        threads = math.prod(plan.grid)
        # The weight comes from L3, once for each band if it does not stay in L2.
        passes = share_m if weight > machine.l2_bytes // 2 else 1
        rate = machine.l3_rate(threads) / machine.cycles_per_us
        total += passes * weight / rate * L3_EXPOSED
        return total + machine.fork_us(threads) * machine.cycles_per_us

    def band(self, threads: int, wide: bool) -> int:
        """Lines of a band: its lines of x fit in half of L2, and threads get nearly equal numbers.

        If panels of the weight are widened for each band, a band has at least `WIDE_PIXELS` pixels.
        """
        geometry, most = self.geometry, self.lines_in_l2(wide)
        height, planes = geometry.outputs[1], geometry.batch * geometry.outputs[0]
        if wide:
            most = max(most, math.ceil(WIDE_PIXELS / geometry.outputs[2]))
        counts = range(math.ceil(height / most), height)
        least = math.ceil(planes * height / threads)

        def nearly_even(bands: int) -> bool:
            return _most_lines(geometry, math.ceil(height / bands), threads) / least <= NEARLY_EVEN

        # With more than some ten bands for each thread all counts are nearly even: few are tried.
        alike = (n for n in counts if (planes * n) % threads == 0)
        bands = next(filter(nearly_even, itertools.chain(alike, counts)), height)
        return math.ceil(height / bands)

    def lines_in_l2(self, wide: bool) -> int:
        """Lines of the result whose lines of x fit in half of L2; at least 1."""
        geometry = self.geometry
        item = 2 if wide else DataType(self.region.inputs[0].dtype).itemsize
        line = geometry.extents[2] * geometry.channels * item * geometry.strides[1]
        return max(1, self.machine.l2_bytes // 2 // (line * geometry.kernel[0]))

    def is_even(self, config: ConvConfig) -> bool:
        """Whether all threads have nearly equal work, or the work is little."""
        kernel, (depth, height, width) = microkernel_named(config.kernel), self.geometry.outputs
        plan, planes = ConvPlan(self.geometry, config, kernel), self.geometry.batch * depth
        grid = plan.grid
        largest = _most_lines(self.geometry, config.band, grid.bands) / (planes * height)
        totals = plan.channel_parts, math.ceil(width / config.rows)
        for total, threads in zip(totals, grid[1:], strict=True):
            largest *= math.ceil(total / threads) / total
        serial = msgspec.structs.replace(config, threads_m=1, threads_n=1, threads_x=1)
        alone = self.cycles(serial) / self.machine.cycles_per_us
        return even_enough(self.machine, alone, largest)


def _line_cycles(
    estimate: _Estimate, config: ConvConfig, kernel: Microkernel, vectors: int
) -> float:
    """Cycles of one line of tiles for one panel of the weight."""
    region, geometry, machine = estimate.region, estimate.geometry, estimate.machine
    width = geometry.outputs[2]
    form = conv.form_of(region, kernel)
    channels: float = kernel.steps(geometry.group_channels)
    taps_z, taps_y, taps_x = geometry.kernel
    if form == "fused":
        steps: float = kernel.steps(taps_x * geometry.group_channels)
        channels = steps / taps_x
    else:
        steps = taps_x * channels
    outer = taps_z * taps_y * (1 if config.staged else _inside(geometry, 1))
    runs = 1 if form == "fused" else taps_x
    if kernel.by_tiles:
        rows, tiles = ConvPlan(geometry, config, kernel).tiles
        taps = taps_z * taps_y * runs
        sizes = {"m": rows, "n": vectors * kernel.lanes, "rows": rows, "vectors": vectors}
        sizes |= {"m_block": rows, "k_block": int(steps * taps_z * taps_y), "runs": taps}
        k = taps_x // runs * geometry.group_channels
        return tiles * amx_cycles(ProductPlan(kernel=kernel, k=k, **sizes), machine)
    pitch = geometry.strides[2] * geometry.channels * DataType(region.inputs[0].dtype).itemsize
    shares = not config.staged and pitch % SET_BYTES == 0

    def step_of(rows: int) -> float:
        penalty = SET_PENALTY if shares and rows > SET_ROWS else 1
        return penalty * _step_cycles(rows, vectors, kernel, machine)

    cycles = LINE_CYCLES
    for group in balanced(width, config.rows):
        rows = group.size * config.lines
        whole = outer * (steps * step_of(rows) + runs * RUN_CYCLES) + 20 + 2 * rows * vectors
        cycles += group.count * whole
    if config.staged:
        return cycles
    for first, rows in conv.edge_tiles(geometry, config.rows):
        inside = (geometry.reached(2, tap, first, first + rows) for tap in range(taps_x))
        edge = sum(
            channels * _step_cycles(count, vectors, kernel, machine) for count in inside if count
        )
        cycles += outer * (edge + (taps_x - runs) * RUN_CYCLES - steps * step_of(rows))
    return cycles


def _step_cycles(rows: int, vectors: int, kernel: Microkernel, machine: Machine) -> float:
    """Cycles of a step of K of a tile: the longest of its waits."""
    products = rows * vectors / product_rate(kernel, machine)
    loads = rows / machine.broadcast_rate + vectors / machine.load_rate
    # `Machine.step_cycles` adds the other waits, but it was fitted to matrix products, not to
    # convolutions.
    return max(products, machine.fma_latency, loads) + vectors / 64


def _inside(geometry: ConvGeometry, axis: int) -> float:
    """The fraction of an axis's taps that lie inside of x, over all positions."""
    outputs, taps = geometry.outputs[axis], geometry.kernel[axis]
    return sum(geometry.reached(axis, tap, 0, outputs) for tap in range(taps)) / (outputs * taps)
