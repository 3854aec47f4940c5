"""The cost of a depthwise convolution and the matmul that reads it, as two kernels and in bands.

    separate   two kernels: two calls and barriers; the tensor between them goes through the caches
               and, with several threads, to another core
    bands      one kernel: every thread takes bands of lines through both parts, one barrier

The estimate takes its constants for calls, barriers and weights from `chains.cost`. Measured (Zen
4, 2 cores, pairs of MobileNet v1 and EfficientNet-Lite0): on one thread, pairs of f32 and bfloat16
stay as fast (0.92 to 1.03; 1.12 for one whose x is four times L2), because the core prefetches the
tensor between them; pairs of 8-bit integers gain 2% to 6%. On two threads all pairs gain 2% to 8%,
except those with so few lines that one thread waits. An Emerald Rapids reads L3 at a third of the
rate: pairs of f32 whose image and product pass L2 gain 11% to 26% on one thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from msgspec.structs import replace as replace_config
from tvm import DataType

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from tir_schedules.convolution.depthwise import config as depthwise_config
from tir_schedules.convolution.depthwise.config import DepthwiseConfig, DepthwiseProblem, dot_kernel
from tir_schedules.convolution.geometry import SAMPLE_EXTENT, one_image
from tir_schedules.core.config import Config, check_numbers
from tir_schedules.core.region import Region
from tir_schedules.cost import parallel
from tir_schedules.cost.cost import Cost
from tir_schedules.product import matmul
from tir_schedules.product.tile_config import MatmulConfig
from tir_schedules.product.tile_config import check as check_matmul

from . import cost, parts

# Cycles of a depthwise multiply-add of one vector of f32 lanes: 1.1 to 1.4 (f32), 1.3 to 1.6.
DEPTHWISE_CYCLES = 1.4
# Rows that another thread wrote are read this many times faster than single lines (Zen 4, 28x240x40
# to 14x480x80: 20 to 50 thousand bytes a microsecond).
FOREIGN_ROWS = 2.5
# Fractions of L2's rate. 8-bit results that need not leave L1: 0.2 to 0.85 (f32: not visible). A
# panel of a weight that fits L1 is read from L2 again for each band (28x28x256 by 256, f32: bands
# of one line 1031 us, of 14 lines 957).
NARROW_SHARE, PANEL_SHARE = 0.42, 0.845
# Numbers of images, and of their lines and columns, for which dynamic merges are estimated.
DYNAMIC_SIZES = ((1, SAMPLE_EXTENT), (8, SAMPLE_EXTENT), (1, 4 * SAMPLE_EXTENT))
MOST_PIXELS = 1 << 20  # of a band
BAND_CYCLES = 925  # loops around one more band: 7x7x1152 in bands of one line or seven


@dataclass(frozen=True, kw_only=True)
class PairEstimate(parallel.MergeEstimate):
    """The estimate of both ways, and the configuration of the merged one."""

    config: PairConfig


def estimate_pair(region: Region, machine: Machine) -> PairEstimate:
    """The cost of both parts, separate and in the best bands.

    Parameters
    ----------
    region : Region
        A region of kind "depthwise_pointwise". If sizes are dynamic, both ways are compared for
        several sizes (`DYNAMIC_SIZES`). If one size is slower as one kernel by more than merging
        has to save, its estimate is the result; else the estimate of the size that saves the most.
    machine : Machine
        Its threads share the work.
    """
    if region.is_dynamic:
        return _estimate_dynamic(region, machine)
    pair = _Pair(region, machine)
    sizes = band_sizes(pair.problem.rows.outputs)
    sizes = [n for n in sizes if n == 1 or n * pair.line_bytes <= machine.l2_bytes // 2]
    serial = [in_bands(region, machine, lines, 1) for lines in sizes]
    halves = [*parallel.halves(machine.threads)]
    shared = (in_bands(region, machine, n, t) for n in sizes for t in halves)
    found = [(pair.in_bands(config), config) for config in (*serial, *shared)]
    alone = min(pair.in_bands(config).total for config in serial)

    def is_even(way: tuple[Cost, PairConfig]) -> bool:
        # By the fraction of all lines that the busiest thread has.
        lines, threads = way[1].lines, way[1].threads
        share = math.ceil(bands_of(pair.problem, lines) / threads) * lines / pair.lines
        return parallel.even_enough(machine, alone, min(1.0, share))

    if not any(map(is_even, found)):  # bands of single lines may be even, in tiles of one row
        lines = (in_bands(region, machine, 1, t, most_rows=1) for t in halves)
        found += [(pair.in_bands(config), config) for config in lines]
    _, config = parallel.fewest_unless_uneven(found, lambda way: way[0].total, is_even)
    return _estimate(pair, config, config)


def _estimate(pair: _Pair, config: PairConfig, cut: PairConfig) -> PairEstimate:
    """The estimate of both ways; `cut` has the bands of `config` for the size of the pair."""
    height = f"{cut.lines} line{'s' * (cut.lines > 1)}"
    return PairEstimate(
        separate=pair.separate(),
        merged=pair.in_bands(cut),
        how=f"in bands of {height} {parallel.on_threads(config.threads)}",
        least=parallel.DEPTHWISE_POINTWISE,
        config=config,
    )


def _estimate_dynamic(region: Region, machine: Machine) -> PairEstimate:
    """The decisive estimate among several sizes of images, with bands for any size."""
    if DepthwiseProblem.of(region.parts[0]).has_dynamic_image:
        ways = [in_dynamic_bands(region, machine, t) for t in sorted({1, machine.threads})]
    else:
        ways = [estimate_pair(with_images(region, 1, SAMPLE_EXTENT), machine).config]
    decisive = []
    for config in ways:  # the size that decides whether its bands pay
        found = []
        for images, size in DYNAMIC_SIZES:
            known = with_images(region, images, size)
            cut = cut_lines(known, config) if config.pixels else config
            found.append(_estimate(_Pair(known, machine), config, cut))
        worst, best = max(found, key=_time_share), min(found, key=_time_share)
        loses = _time_share(worst) > 1 + parallel.DEPTHWISE_POINTWISE.share
        decisive.append(worst if loses else best)
    return min(decisive, key=_time_share)


def _time_share(estimate: PairEstimate) -> float:
    return estimate.merged.total / estimate.separate.total


def with_images(region: Region, images: int, size: int) -> Region:
    """The pair with `images` images of `size` lines and columns, where these are dynamic."""
    first, second = region.parts
    known = one_image(first, images, size)
    rows = parts.with_rows(second, math.prod(known.output.shape[:-1]))
    return region.sampled().replace(parts=(known, rows), output=rows.output)


def usual(region: Region, config: PairConfig) -> tuple[Region, PairConfig]:
    """The pair for samples of dynamic sizes, and the configuration with its bands for them."""
    if not DepthwiseProblem.of(region.parts[0]).has_dynamic_image:
        return region.sampled(), config
    known = with_images(region, 1, SAMPLE_EXTENT)
    return known, cut_lines(known, config)


def cut_lines(region: Region, config: PairConfig) -> PairConfig:
    """Cuts images of one size into the bands of the kernel for any size.

    A band has as many tiles of lines as fit into `config.pixels` pixels, at least one. As far as
    possible, threads have equally many bands of all images, and bands equally many lines.
    """
    problem = DepthwiseProblem.of(region.parts[0])
    tiles = math.ceil(problem.rows.outputs / config.lines)
    most = max(1, config.pixels // (problem.columns.outputs * config.lines))
    total = math.ceil(problem.batch * math.ceil(tiles / most) / config.threads) * config.threads
    bands = min(tiles, math.ceil(total / problem.batch))
    lines = min(problem.rows.outputs, math.ceil(tiles / bands) * config.lines)
    return replace_config(config, lines=lines, pixels=0)


class _Pair:
    """The costs of both parts on a machine."""

    def __init__(self, region: Region, machine: Machine) -> None:
        self.machine = machine
        self.region = region
        self.first, self.second = region.parts
        self.problem = DepthwiseProblem.of(self.first)
        self.made = self.first.output.nbytes
        self.lines = self.problem.batch * self.problem.rows.outputs
        self.line_bytes = self.made // self.lines
        self.weight = self.second.inputs[1].nbytes

    def separate(self) -> Cost:
        """Two kernels in their default configurations."""
        first = depthwise_config.default_config(self.first, self.machine)
        second = matmul.default_config(self.second, self.machine)
        tasks = second.threads
        compute = self._depthwise() / first.threads + self._product(self.second, second)
        forks = self.machine.fork_us(first.threads) + self.machine.fork_us(tasks)
        barriers = 2 * self.machine.call_us + forks
        touched = self.made + self.first.inputs[0].nbytes
        beyond = min(self.made / tasks, max(0.0, touched / tasks - self.machine.l2_bytes))
        shown = self.machine.result_exposed(tasks)
        between = shown * (cost.STORE_TRANSFERS + 1) * beyond / self.machine.l3_rate(tasks)
        read = self.made // second.threads_m
        rate = FOREIGN_ROWS * self.machine.foreign_rate
        between += (1 - self._own(first, second)) * read / rate
        between += self._narrow(read)
        passes = math.ceil(self.lines * self.problem.columns.outputs / second.m_block)
        weights = self._weights(second, passes / second.threads_m, compute)
        weights /= second.threads_n * second.threads_k
        return Cost(compute, weights=weights, between=between, barriers=barriers)

    def in_bands(self, config: PairConfig) -> Cost:
        """One kernel that computes both parts in bands."""
        share = math.ceil(bands_of(self.problem, config.lines) / config.threads)
        lines = min(self.lines, share * config.lines)
        width = self.problem.columns.outputs
        rows = pointwise_rows(self.region, config.lines)
        product = self._product(rows, config.pointwise) * lines / config.lines
        loops = share * BAND_CYCLES / self.machine.cycles_per_us
        compute = self._depthwise() * lines / self.lines + product + loops
        barriers = self.machine.call_us + self.machine.fork_us(config.threads)
        passes = share * math.ceil(config.lines * width / config.pointwise.m_block)
        weights = self._weights(config.pointwise, passes, compute)
        band = config.lines * self.line_bytes
        between = self._narrow(lines * self.line_bytes) if band > self.machine.l1_bytes else 0.0
        beyond = share * max(0.0, band - self.machine.l2_bytes)
        between += (cost.STORE_TRANSFERS + 1) * beyond / self.machine.l3_rate(config.threads)
        return Cost(compute, weights=weights, between=between, barriers=barriers)

    def _narrow(self, size: int) -> float:
        """Microseconds to move 8-bit results between L1 and L2; 0 for other types."""
        narrow = DataType(self.first.output.dtype).itemsize == 1
        return size / (NARROW_SHARE * self.machine.l2_rate) if narrow else 0.0

    def _own(self, first: DepthwiseConfig, second: MatmulConfig) -> float:
        """Returns the fraction of a matmul thread's input that this thread wrote itself."""
        if second.threads == 1 and first.threads == 1:
            return 1.0
        kernel = dot_kernel(self.first, self.machine.isa)
        lanes = self.machine.isa.f32_lanes
        block = lanes * first.vectors if kernel is None else kernel.lanes * kernel.kr
        chunks = math.ceil(self.problem.channels / (block * first.blocks))
        # The first kernel's threads share channels before they share lines.
        by_lines = chunks < first.threads == second.threads_m
        return 1.0 if by_lines else 1 / max(first.threads, second.threads_m)

    def _depthwise(self) -> float:
        """The first part on one thread, in microseconds."""
        products = self.problem.flops / 2 / self.machine.isa.f32_lanes
        return products * DEPTHWISE_CYCLES / self.machine.cycles_per_us

    def _product(self, part: Region, config: MatmulConfig) -> float:
        cycles = matmul.estimated_cycles(part, config, self.machine)
        return cycles / self.machine.cycles_per_us

    def _weights(self, config: MatmulConfig, passes: float, compute: float) -> float:
        """Microseconds that `passes` passes over the weight add to computing with it."""
        time = passes * self.weight / self.machine.l3_rate()
        if self.weight > self.machine.l2_bytes // 2:
            return max(0.0, time - compute) + self.machine.l3_exposed() * time
        panel = 64 * config.vectors * config.k_block  # bytes: a step is a line of each vector
        if panel > self.machine.l1_bytes:
            return 0.0
        return passes * self.weight / (PANEL_SHARE * self.machine.l2_rate)


class PairConfig(Config, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    lines : int
        Lines of the image whose pixels go through both parts together; the fewest of them, if the
        image's size is dynamic.
    threads : int
        Threads that share the bands.
    depthwise : DepthwiseConfig
        Configuration of the first part, on one thread.
    pointwise : MatmulConfig
        Configuration of the second part, for the pixels of a band, on one thread.
    pixels : int
        Most pixels of a band with more than the fewest lines; 0 if the image's size is static.
    """

    lines: int
    threads: int
    depthwise: DepthwiseConfig
    pointwise: MatmulConfig
    pixels: int = 0

    def of_parts(self, region: Region) -> list[Config]:
        """The configuration of every part."""
        return [self.depthwise, self.pointwise]


def check(region: Region, config: PairConfig, isa: Isa) -> tuple[DepthwiseProblem, Microkernel]:
    """The first part's geometry and the second one's kernel, for a configuration that is legal.

    Raises
    ------
    ConfigError
        If the configuration is not legal; the message says why.
    """
    first, second = region.parts
    problem = depthwise_config.check(first, config.depthwise, isa)
    kernel = check_matmul(second, config.pointwise, isa)
    limits = {"lines": problem.rows.outputs, "threads": 4096}
    if problem.has_dynamic_image:
        limits["pixels"] = MOST_PIXELS
    check_numbers(region, config, limits)
    if config.lines < problem.rows.outputs and config.lines % config.depthwise.rows:
        raise ConfigError(
            f"lines={config.lines} are no whole tiles of {config.depthwise.rows} rows, for "
            f"{region.key}"
        )
    if config.depthwise.threads * config.pointwise.threads > 1:
        raise ConfigError(f"threads within a part of a band, for {region.key}")
    return problem, kernel


def in_bands(
    region: Region, machine: Machine, lines: int, threads: int, most_rows: int = 2
) -> PairConfig:
    """Bands of `lines` or somewhat more lines, with default configurations of the parts for them.

    Register tiles of the first part have at most `most_rows`.
    """
    problem = DepthwiseProblem.of(region.parts[0])
    depthwise, one = _of_first_part(region, machine, most_rows), replace(machine, threads=1)
    lines = min(problem.rows.outputs, math.ceil(lines / depthwise.rows) * depthwise.rows)
    pointwise = matmul.default_config(pointwise_rows(region, lines), one)
    threads = min(threads, bands_of(problem, lines))
    return PairConfig(lines=lines, threads=threads, depthwise=depthwise, pointwise=pointwise)


def in_dynamic_bands(region: Region, machine: Machine, threads: int) -> PairConfig:
    """Bands that fill half of L2, for images of dynamic size."""
    first, second = region.parts
    depthwise = _of_first_part(region, machine)
    pixel_bytes = first.output.shape[-1] * DataType(first.output.dtype).itemsize
    pixels = min(MOST_PIXELS, max(1, machine.l2_bytes // 2 // pixel_bytes))
    return PairConfig(
        lines=depthwise.rows,
        threads=threads,
        depthwise=depthwise,
        pointwise=matmul.default_config(second, replace(machine, threads=1)),
        pixels=pixels,
    )


def _of_first_part(region: Region, machine: Machine, most_rows: int = 2) -> DepthwiseConfig:
    """The first part's configuration on one thread; its ring of rows stays from band to band."""
    first = region.parts[0]
    config = depthwise_config.default_config(first, replace(machine, threads=1), most_rows)
    kernel = dot_kernel(first, machine.isa)
    if kernel is None:
        return config
    blocks = math.ceil(first.output.shape[-1] / (kernel.lanes * kernel.kr))
    return replace_config(config, blocks=blocks)


def bands_of(problem: DepthwiseProblem, lines: int) -> int:
    """Number of bands of `lines` lines in all images."""
    return problem.batch * math.ceil(problem.rows.outputs / lines)


def pointwise_rows(region: Region, lines: int) -> Region:
    """The second part with only the pixels of a band."""
    first, second = region.parts
    return parts.with_rows(second, lines * DepthwiseProblem.of(first).columns.outputs)


def band_sizes(outputs: int) -> list[int]:
    """Lines of bands that are worth trying: those that leave no thin last band."""
    return sorted({math.ceil(outputs / bands) for bands in range(1, outputs + 1)})


def variations(region: Region, default: PairConfig, machine: Machine) -> Iterator[PairConfig]:
    """Other bands; then other numbers for one part at a time."""
    first, one = region.parts[0], replace(machine, threads=1)
    for threads in sorted({1, machine.threads}):
        for lines in band_sizes(DepthwiseProblem.of(first).rows.outputs):
            yield in_bands(region, machine, lines, threads)
    for found in depthwise_config.space(first, one):
        if default.lines % found.rows == 0:
            yield replace_config(default, depthwise=found)
    for tile in matmul.neighbourhood(pointwise_rows(region, default.lines), one):
        yield replace_config(default, pointwise=tile)
