"""A depthwise convolution's axes, its configuration, and the legal values of that."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import has_pairs, widening_tile
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.vector.expressions import Expr
from tir_schedules.convolution.geometry import ConvGeometry, one_image
from tir_schedules.core.config import Config, check_numbers
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_dynamic
from tir_schedules.cost.cost import flops_us
from tir_schedules.cost.parallel import threads_worth
from tir_schedules.product.tile_config import KERNEL_TYPES

# Most multiplications that one register tile unrolls; LLVM takes 0.1 ms for each.
MOST_UNROLLED = 4096
PIECES = 4  # items of work for each thread, if threads share bands and channels
LEAST_VECTORS = 4  # of channels in an item of work
SET_BYTES = 4096  # addresses this far apart share a set of L1
# How much longer a thread takes to read some channels of every pixel from beyond L2 than to read
# all channels, times the number of threads: these write neighbouring cache lines (56x56x144 on two
# threads of a Zen 5 takes 39 us instead of 28).
STRIDED = 2.0
SMALL_IMAGE = 8  # bands that an image of dynamic size is assumed to have
MOST_COLUMNS = 32  # of a kernel: every column of x at the edges has code of its own


# The two axes of a depthwise convolution, and its buffers by row and column of an image.
#
#     Y[n, h, w, c] = sum over (i, j) of X[n, h * s + i * d - p, w * s' + j * d' - p', c] * W[i, j,
#     c]
#
# Templates work on rows and columns. A single axis counts as the rows, with one column. If the
# first of two axes is a single row, the axes are swapped, because the taps of a column share a loop
# while those of a row are unrolled.


N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Axis:
    """One axis: positions of x and of the result, taps, stride, dilation and padding."""

    extent: int
    taps: int
    outputs: int
    stride: int
    dilation: int
    before: int
    after: int = 0

    def span(self, outputs: N) -> N:
        """Positions of padded x that `outputs` neighbouring results are computed from."""
        return (outputs - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    def inside(self, output: int) -> range:
        """The taps of one result that lie within x."""
        start = output * self.stride - self.before
        found = [t for t in range(self.taps) if 0 <= start + t * self.dilation < self.extent]
        return range(found[0], found[-1] + 1) if found else range(0)

    def used_columns(self, columns: int) -> dict[int, list[tuple[int, int]]]:
        """For each position from a tile's first one on, the (column, tap) pairs that use it."""
        found: dict[int, list[tuple[int, int]]] = {}
        for column in range(columns):
            for tap in range(self.taps):
                position = column * self.stride + tap * self.dilation
                found.setdefault(position, []).append((column, tap))
        return dict(sorted(found.items()))

    @property
    def is_dynamic(self) -> bool:
        """Whether the number of positions is dynamic."""
        return is_dynamic((self.extent, self.outputs))

    def is_inside(self, output: int) -> bool:
        """Whether all taps of a result lie within x; the axis is static."""
        start = output * self.stride - self.before
        return start >= 0 and start + self.span(1) <= self.extent


_SINGLE = Axis(1, 1, 1, 1, 1, 0)


@dataclass(frozen=True)
class DepthwiseProblem:
    """Batch, channels and axes of a region."""

    batch: int
    channels: int  # of x, of the weight and of the result
    rows: Axis
    columns: Axis
    swapped: bool  # whether the rows are the second axis of x
    rank: int  # number of axes of x

    @staticmethod
    def of(region: Region) -> DepthwiseProblem:
        """The problem of a region with one or two axes."""
        found = ConvGeometry.of(region)
        sizes = found.extents, found.kernel, found.outputs
        steps = found.strides, found.dilation, found.before, found.after
        axes = [Axis(*numbers) for numbers in zip(*sizes, *steps, strict=True)]
        rank = len(axes)
        if rank == 1:
            axes.append(_SINGLE)
        first = axes[0]
        swapped = rank == 2 and (first.extent, first.taps, first.outputs) == (1, 1, 1)
        swapped = swapped and first.before == 0
        rows, columns = reversed(axes) if swapped else axes
        return DepthwiseProblem(found.batch, found.channels, rows, columns, swapped, rank)

    @property
    def taps(self) -> int:
        """Taps of a window."""
        return self.rows.taps * self.columns.taps

    @property
    def flops(self) -> int:
        """Multiplications and additions, padding included."""
        pixels = self.batch * self.rows.outputs * self.columns.outputs
        return 2 * pixels * self.channels * self.taps

    @property
    def has_dynamic_image(self) -> bool:
        """Whether rows or columns are dynamic."""
        return self.rows.is_dynamic or self.columns.is_dynamic

    def pixel(self, sample: Expr, row: Expr, column: Expr) -> Expr:
        """Flat index of a pixel of x.

        With the axes swapped, the columns have a single position.
        """
        row = sample * as_expr(extent(self.rows.extent)) + row
        return row * as_expr(extent(self.columns.extent)) + column

    def output_row(self, sample: Expr, row: Expr, column: Expr) -> Expr:
        """Flat index of a pixel of the result, as the epilogue counts rows."""
        # If the axes are swapped, the columns have a single position.
        row = sample * as_expr(extent(self.rows.outputs)) + row
        return row * as_expr(extent(self.columns.outputs)) + column


class DepthwiseConfig(Config, frozen=True, kw_only=True):
    """Blocking and threads of a depthwise convolution.

    Attributes
    ----------
    rows, columns : int
        Pixels of a register tile.
    vectors : int
        Vectors of channels of a register tile; 1 if x is interleaved, which takes kr vectors.
    blocks : int
        Register tiles of channels that are computed before the next pixels or, if x is staged,
        before the next rows.
    threads : int
        Threads that share the rows of all images and the blocks of channels.
    """

    rows: int
    columns: int
    vectors: int = 1
    blocks: int = 1
    threads: int = 1


def dot_kernel(region: Region, isa: Isa) -> Microkernel | None:
    """The kernel whose multiply-add takes kr taps at once; None for f32, where kr is 1."""
    if region.inputs[1].dtype == "float32":
        return None
    kernel = kernels_for(isa, *KERNEL_TYPES[region.inputs[1].dtype])[0]
    return widening_tile(kernel) if has_pairs(kernel) else kernel


def check(region: Region, config: DepthwiseConfig, isa: Isa) -> DepthwiseProblem:
    """The problem, if a configuration is legal; ConfigError names the number that is not."""
    problem = DepthwiseProblem.of(region)
    kernel = dot_kernel(region, isa)
    vectors = math.ceil(problem.channels / isa.f32_lanes)
    limits = {
        "rows": problem.rows.outputs,
        "columns": problem.columns.outputs,
        "vectors": vectors if kernel is None else 1,
        "blocks": vectors if kernel is None else _blocks(problem, kernel),
        "threads": 4096,
    }
    check_numbers(region, config, limits)
    if config.rows > 1 and problem.rows.dilation > 1:
        raise ConfigError(f"rows={config.rows} with taps that lie apart, for {region.key}")
    unrolled = products(problem, config.rows, config.columns, config.vectors, kernel)
    if unrolled > MOST_UNROLLED:
        raise ConfigError(
            f"a tile of {config.rows}x{config.columns} pixels has {unrolled} products, more than "
            f"{MOST_UNROLLED}, for {region.key}"
        )
    return problem


def products(
    problem: DepthwiseProblem, rows: int, columns: int, vectors: int, kernel: Microkernel | None
) -> int:
    """Multiplications that a register tile unrolls."""
    if kernel is None:
        taps = problem.taps if rows > 1 else problem.columns.taps
        return rows * columns * vectors * taps
    groups = math.ceil(problem.rows.span(rows) / kernel.kr)
    if rows == 1:
        groups = math.ceil(problem.rows.taps / kernel.kr)
    return rows * columns * groups * problem.columns.taps * kernel.kr


def is_too_large(problem: DepthwiseProblem, kernel: Microkernel | None) -> bool:
    """Whether even a tile of one pixel unrolls too many multiplications."""
    return products(problem, 1, 1, 1, kernel) > MOST_UNROLLED or problem.columns.taps > MOST_COLUMNS


def default_config(region: Region, machine: Machine, most_rows: int = 2) -> DepthwiseConfig:
    """A configuration by closed formula, with tiles of at most `most_rows` rows.

    f32: most registers are accumulators; with AVX2, half of them if a tile has two rows. Small
    windows have tiles of two rows: with AVX2 always, else for images beyond L2, which are then read
    less often (3x3 at 112x112x32: 66 us instead of 73 on a Zen 4), and for dynamic sizes. A tile is
    computed for all channels before the next pixels in two cases. With AVX2, so that memory is read
    in order (3x3 on a Zen 3: 1.2 to 1.9 times as fast as channels in the outer loop, 5x5: 0.95 to
    1.12). For dynamic sizes, so that the kind of a tile is found once for all channels. With
    AVX-512 a vector of channels is a whole cache line. On cores that start two FMAs of 512 bits a
    cycle, small windows take two vectors side by side, and all channels if that is estimated faster
    (`_order_us`; 3x3 with all channels on an Emerald Rapids, 20 shapes: 0.35 to 1.0 of the time of
    one vector, at 28x28x192 1.17, at 14x14x480 1.46; 5x5 would take 0.9 to 1.5). An odd number of
    vectors in the outer loop would leave one without a partner: tiles of two rows then take one by
    one (Zen 5, 56x56 with 144, 176 and 240 channels: 0.92 to 0.97 of the time of pairs).

    Interleaved: taps beyond kr are further weights for each accumulator. Half as many accumulators
    are then faster (5x5 at 28x28x240, int8: 60 us instead of 67), unless that makes two tiles of
    one (7x7x1152: 17 instead of 14). (Zen 4, one thread.)
    """
    dynamic = DepthwiseProblem.of(region).columns.is_dynamic
    region = one_image(region)
    problem, kernel = DepthwiseProblem.of(region), dot_kernel(region, machine.isa)
    x, outputs = region.inputs[0], problem.columns.outputs
    large = x.nbytes > machine.l2_bytes
    wide = machine.isa.f32_lanes == 16
    registers = 32 if wide else 16
    threads = threads_worth(machine, flops_us(problem.flops, machine))
    rows, vectors, blocks = 1, 1, 1
    if kernel is None:
        # The last tile of dynamic columns overlaps the one before, if only by part of a tile.
        columns = 7 if dynamic else registers * 7 // 16
        several = min(2, problem.rows.outputs, most_rows)
        small = problem.taps <= 9 and problem.rows.dilation == 1
        if several > 1 and small and (large or dynamic or not wide):
            rows, columns = several, 3 if dynamic and not wide else 4
        paired = small and wide and not dynamic and machine.fma_rate == 2
        if paired:
            vectors = min(2, math.ceil(problem.channels / machine.isa.f32_lanes))
            columns = 2 if rows > 1 else 7
        if dynamic or paired or not wide:
            # All channels of a pixel in order, or some if there are too few bands for the threads.
            bands = problem.batch * (SMALL_IMAGE if dynamic else -(-problem.rows.outputs // rows))
            total, chunks = math.ceil(problem.channels / machine.isa.f32_lanes), 1
            if threads > 1 and bands < PIECES * threads:
                chunks = min(math.ceil(PIECES * threads / bands), math.ceil(total / LEAST_VECTORS))
            blocks = math.ceil(total / chunks / vectors)
    else:
        columns = registers * 7 // 8 // 4
        if kernel.kr == 4 and problem.rows.taps > kernel.kr and columns < outputs:
            columns = -(-columns // 2)
        if large:
            blocks = _blocks(problem, kernel)
    columns = max(1, min(columns, outputs))
    while columns > 1 and products(problem, rows, columns, vectors, kernel) > MOST_UNROLLED // 4:
        columns -= 1
    config = DepthwiseConfig(
        rows=rows, columns=columns, vectors=vectors, blocks=blocks, threads=threads
    )
    ways = config.varied("blocks", (1,) if vectors > 1 else ())
    best = min(ways, key=lambda way: _order_us(region, way, machine))
    unpaired = best.blocks == 1 and math.ceil(problem.channels / machine.isa.f32_lanes) % 2
    return msgspec.structs.replace(best, vectors=1) if rows > 1 and unpaired else best


def _order_us(region: Region, config: DepthwiseConfig, machine: Machine) -> float:
    """Estimated microseconds of f32 tiles in the order of `blocks`; computing hides only memory."""
    problem, threads = DepthwiseProblem.of(region), config.threads
    rows, x = problem.rows, region.inputs[0].nbytes
    channels = min(problem.channels, config.blocks * config.vectors * machine.isa.f32_lanes)
    # Some channels of every pixel may have few sets of L1.
    sets = min(1.0, 4 * channels / math.gcd(SET_BYTES, 4 * problem.channels))
    span, passes = rows.span(config.rows), 1.0
    # Threads that share the channels of a pixel write lines beside each other's. So several threads
    # take pairs of vectors one by one only if L1 does not even hold what one tile reads (time of
    # blocks of 1 over all, two threads: 14x14x480 0.6, 14x14x672 0.5, 7x7x960 0.5; but 28x28x144
    # 1.2, 56x56x72 2.1).
    columns = problem.columns.extent if threads == 1 else problem.columns.span(config.columns)
    # Rows of x come from L2 again for every row of tiles, unless L1 holds all rows that a tile
    # needs.
    if 4 * channels * (span * columns + problem.taps) > machine.l1_bytes * sets:
        passes = max(1.0, span / (config.rows * rows.stride))
    us = flops_us(problem.flops, machine) + passes * x / machine.l2_rate
    # From beyond L2, rows come in order only if all channels of a pixel do.
    if (x + region.output.nbytes) / threads > machine.l2_bytes:
        strided = 1.0 if channels == problem.channels else STRIDED * threads
        us = max(us, strided * x / machine.l3_rate(threads))
    # Time of blocks of 1 over all, estimated and measured (Zen 5, one thread): 56x56x144 0.83 0.84,
    # 28x28x192 0.71 0.75, 14x14x480 0.71 0.45, 7x7x960 0.71 0.51; 28x28x256 and 14x14x512, whose
    # pixels share sets, 1.0 1.3 and 1.0 1.5.
    return us / threads


def space(region: Region, machine: Machine) -> Iterator[DepthwiseConfig]:
    """The default, then other tiles and loop orders."""
    region = one_image(region)
    problem, kernel = DepthwiseProblem.of(region), dot_kernel(region, machine.isa)
    default = default_config(region, machine)
    yield default
    lanes = machine.isa.f32_lanes
    vectors = math.ceil(problem.channels / lanes)
    most_rows, most_columns = problem.rows.outputs, problem.columns.outputs
    of_tile = itertools.product(
        [rows for rows in ((1, 2, 4) if problem.rows.dilation == 1 else (1,)) if rows <= most_rows],
        [n for n in sorted({1, 2, 3, 4, 7, 8, 14, default.columns}) if n <= most_columns],
        [width for width in ((1, 2) if kernel is None else (1,)) if width <= vectors],
    )
    for rows, columns, width in of_tile:
        if products(problem, rows, columns, width, kernel) > MOST_UNROLLED:
            continue
        tiles = vectors // width if kernel is None else _blocks(problem, kernel)
        tile = {"rows": rows, "columns": columns, "vectors": width}
        all_threads = sorted({1, machine.threads, default.threads})
        for blocks, threads in itertools.product({1, max(1, tiles)}, all_threads):
            config = DepthwiseConfig(**tile, blocks=blocks, threads=threads)
            if config != default:
                yield config


def _blocks(problem: DepthwiseProblem, kernel: Microkernel) -> int:
    """Number of blocks of interleaved channels."""
    return math.ceil(problem.channels / (kernel.lanes * kernel.kr))
