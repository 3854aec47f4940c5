"""The configuration of the templates of direct convolution."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named
from tir_schedules.convolution.geometry import ConvGeometry, one_image
from tir_schedules.core import product_plan
from tir_schedules.core.blocking import Group, balanced, panel_widths, shares
from tir_schedules.core.config import Config, check_numbers
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region
from tir_schedules.product.staged_panels import WideProduct, wide_product
from tir_schedules.product.tile_config import RESULT_DTYPES, check_kernel

Form = Literal["fused", "split"]
# Limit for tiles at the left and right edge that read x itself: each column of their windows has
# code of its own, which takes LLVM some 50 ms. Beyond it, windows are read from a padded copy.
MOST_EDGE_TAPS = 32


class ConvConfig(Config, frozen=True, kw_only=True):
    """Blocking and threads of a direct convolution.

    Attributes
    ----------
    kernel : str
        The microkernel.
    rows : int
        Most pixels of a register tile in one line of the image.
    lines : int
        Lines of the image that a register tile spans; more than 1 only if `staged`. AMX tiles then
        run on from line to line of a band, which has `lines` lines (`ConvPlan.across`).
    vectors : int
        Most vectors of channels of a register tile.
    band : int
        Lines of the result that are finished, for all channels, before the next ones are begun.
    staged : bool
        Whether windows are read from a padded copy of the band's lines, and not from x itself.
    threads_m, threads_n : int
        Threads along bands and along channels.
    threads_x : int
        Threads along the register tiles of a line, if there are fewer lines than threads.
    fetches : bool
        Whether the tiles of a panel prefetch the next panel of the weight while they multiply.
    """

    kernel: str
    rows: int
    lines: int = 1
    vectors: int
    band: int
    staged: bool = False
    threads_m: int = 1
    threads_n: int = 1
    threads_x: int = 1
    fetches: bool = False


def reject_operands(region: Region, dtypes: Mapping[str, Collection[str]]) -> str | None:
    """Why no template builds a convolution of these operands, or None.

    `dtypes` has the types of x for each type of the weight.
    """
    x, w = region.inputs[:2]
    if not w.constant:
        return "a weight that is not constant"
    if x.dtype not in dtypes.get(w.dtype, ()):
        return f"x of type {x.dtype} and weight of type {w.dtype}"
    if region.output.dtype not in RESULT_DTYPES:
        return f"output of type {region.output.dtype}"
    geometry = ConvGeometry.of(region)
    if min((*x.shape, *w.shape, *geometry.outputs)) <= 0:
        return "a dimension is 0"
    if min(geometry.before + geometry.after) < 0:
        return "negative padding"
    if not is_integer(region):
        return None
    if ("a_quantize" in region.attrs) != (x.dtype == "float32"):
        return f"x of type {x.dtype}, quantised by the kernel"
    if product_plan.quantizes_dynamically(region) or region.attrs.get("b_zero_point", 0):
        return "a range that the kernel finds, or a zero point of the weight"
    return product_plan.reject_zero_points(region)


def form_of(region: Region, kernel: Microkernel) -> Form:
    """How the elements of a window follow each other where the kernel reads them.

    "fused": all taps of a line, with their channels, are one run of memory. "split": each tap is a
    run. A run is padded to whole steps of the kernel, with zeros in the weight. A run of floats has
    to end there, because the elements behind it in memory could be infinite.
    """
    geometry = ConvGeometry.of(region)
    width = geometry.kernel[-1]
    contiguous = width == 1 or (geometry.groups == 1 and geometry.dilation[-1] == 1)
    unit = kernel.kr * kernel.depth
    whole = width * geometry.group_channels % unit == 0
    return "fused" if contiguous and (whole or is_integer(region)) else "split"


def wide_of(region: Region, kernel: Microkernel) -> WideProduct | None:
    """How tiles multiply 8-bit integers that were widened in cache; None if they do not."""
    if not is_integer(region):
        return None
    geometry = ConvGeometry.of(one_image(region))
    return wide_product(kernel, geometry.batch * math.prod(geometry.outputs), 1, 1)


def reads_in_place(region: Region, kernel: Microkernel) -> bool:
    """Whether the kernel can read windows from x itself."""
    geometry = ConvGeometry.of(region)
    dtype = region.inputs[0].dtype
    matching = (kernel.a_dtype, "int8" if kernel.a_dtype == "uint8" else "")
    if kernel.by_tiles or dtype not in matching or geometry.has_dynamic_image:
        return False
    if wide_of(region, kernel) is not None:
        return False
    return geometry.group_channels % kernel.kr == 0


def edge_tiles(geometry: ConvGeometry, rows: int) -> list[tuple[int, int]]:
    """First pixel and size of the tiles of a line whose windows reach over one of its ends.

    A line is cut by `balanced`; `geometry` has three axes.
    """
    width, (first, last) = geometry.outputs[2], geometry.whole(2)
    found: list[tuple[int, int]] = []
    for group in balanced(width, rows):
        end = group.start + group.count * group.size
        left = min(group.count, max(0, math.ceil((first - group.start) / group.size)))
        right = min(group.count - left, max(0, math.ceil((end - last) / group.size)))
        for number in (*range(left), *range(group.count - right, group.count)):
            found.append((group.start + number * group.size, group.size))
    return found


def has_small_edges(geometry: ConvGeometry, rows: int) -> bool:
    """Whether tiles at the edges may read x itself, by `MOST_EDGE_TAPS`."""
    geometry = geometry.as_volume()
    return len(edge_tiles(geometry, rows)) * geometry.kernel[2] <= MOST_EDGE_TAPS


class Across(NamedTuple):
    """Tiles of AMX that run on from one line to the next.

    In the copy, a line is followed directly by the next one, so the windows of both are equally far
    apart. Positions between the last pixel of a line and the first one of the next are multiplied,
    too, but not stored.

        3x3, padding 1: 9 positions for 7 pixels, 61 for 7 lines: four tiles instead of seven
    """

    distance: int  # positions from one line to the next
    total: int  # positions from the first pixel to the last one of a band


def positions_across(geometry: ConvGeometry, lines: int) -> Across:
    """The positions of `lines` lines of the result; `geometry` has three axes."""
    width, stride = geometry.outputs[2], geometry.strides[2]
    span = (geometry.kernel[2] - 1) * geometry.dilation[2] + 1
    distance = math.ceil(((width - 1) * stride + span) / stride)
    return Across(distance, (lines - 1) * distance + width)


class Grid(NamedTuple):
    """Threads along bands, along channels and along the tiles of a line."""

    bands: int
    channels: int
    tiles: int


@dataclass(frozen=True)
class ConvPlan:
    """How a configuration cuts a convolution over any number of axes."""

    geometry: ConvGeometry
    config: ConvConfig
    kernel: Microkernel

    @staticmethod
    def of(region: Region, config: ConvConfig) -> ConvPlan:
        """The plan of a region."""
        return ConvPlan(ConvGeometry.of(region), config, microkernel_named(config.kernel))

    @property
    def across(self) -> Across | None:
        """How tiles run on from line to line; None if each line has tiles of its own."""
        if not self.kernel.by_tiles or self.config.lines == 1:
            return None
        return positions_across(self.geometry.as_volume(), self.config.lines)

    @property
    def tiles(self) -> tuple[int, int]:
        """Most pixels of a register tile, and number of tiles in a line, or in all lines across."""
        width = self.geometry.as_volume().outputs[-1]
        positions = width if self.across is None else self.across.total
        rows = min(self.config.rows, positions)
        return rows, math.ceil(positions / rows)

    @property
    def grid(self) -> Grid:
        """The numbers of threads that have work."""
        config, channels = self.config, min(self.config.threads_n, self.channel_parts)
        depth, height, width = self.geometry.as_volume().outputs
        if self.geometry.has_dynamic_image:
            return Grid(config.threads_m, channels, config.threads_x)
        bands = self.geometry.batch * depth * math.ceil(height / config.band)
        tiles = min(config.threads_x, math.ceil(width / config.rows))
        return Grid(min(config.threads_m, bands), channels, tiles)

    @property
    def channel_parts(self) -> int:
        """Number of units that threads along channels share: groups, or vectors of one group."""
        return self.geometry.groups if self.geometry.groups > 1 else self.vectors

    @property
    def vectors(self) -> int:
        """Vectors of output channels of a group."""
        return math.ceil(self.geometry.group_out_channels / self.kernel.lanes)

    @property
    def _parts(self) -> int:
        """Chunks of a group's vectors; 1 if threads share groups."""
        return self.grid.channels if self.geometry.groups == 1 else 1

    @property
    def panels(self) -> tuple[int, ...]:
        """Vectors of every panel of a group; no panel belongs to two threads."""
        return tuple(panel_widths(self.vectors, self._parts, self.config.vectors))

    @property
    def shares(self) -> tuple[Group, ...]:
        """The chunk of a group's vectors for each thread along channels."""
        return shares(self.vectors, self._parts)

    @property
    def may_fetch(self) -> bool:
        """Whether `fetches` can be set: one thread has all tiles of a panel's lines, one by one."""
        one_by_one = (self.config.lines, self.config.threads_x) == (1, 1)
        return one_by_one and not self.kernel.by_tiles and not self.geometry.has_dynamic_image


def check(region: Region, config: ConvConfig, isa: Isa) -> Microkernel:
    """The microkernel of a legal configuration; ConfigError names the field of an illegal one."""
    kernel = microkernel_named(config.kernel)
    geometry = ConvGeometry.of(region)
    limits = dict.fromkeys(("lines", "band", "threads_m", "threads_n", "threads_x"))
    check_numbers(region, config, {"rows": kernel.mr, "vectors": kernel.vectors, **limits})
    check_kernel(region, kernel, isa, product_plan.product_types(region))
    if not config.staged and not reads_in_place(region, kernel):
        raise ConfigError(f"staged=False: {kernel.name} cannot read windows of {region.key}")
    if not config.staged and not has_small_edges(geometry, config.rows):
        raise ConfigError(
            f"staged=False: tiles of {config.rows} pixels at the edges have more than "
            f"{MOST_EDGE_TAPS} taps with code of their own, for {region.key}"
        )
    if config.fetches and not ConvPlan(geometry, config, kernel).may_fetch:
        raise ConfigError(
            f"fetches needs a vector kernel, static sizes, lines=1 and threads_x=1: {region.key}"
        )
    if geometry.has_dynamic_image:
        if kernel.by_tiles:
            raise ConfigError(f"{kernel.name}: AMX tiles need static sizes, not {region.key}")
        if (config.lines, config.threads_x) != (1, 1):
            raise ConfigError(f"lines and threads_x must be 1 for dynamic sizes: {region.key}")
        return kernel
    width = geometry.outputs[-1]
    by_line = kernel.by_tiles and config.lines == 1
    if config.threads_x > 1 and by_line and width % min(config.rows, width):
        raise ConfigError(f"threads_x={config.threads_x}: tiles overlap, for {region.key}")
    if config.lines > 1:
        height = geometry.as_volume().outputs[1]
        if kernel.by_tiles:
            if not config.staged or config.band != config.lines or height % config.band:
                raise ConfigError(
                    f"lines={config.lines}: AMX tiles need equal staged bands of as many lines: "
                    f"{region.key}"
                )
            if config.threads_x > 1:
                raise ConfigError(f"threads_x={config.threads_x}: tiles run on over lines")
            return kernel
        if not config.staged or config.band < height:
            raise ConfigError(f"lines={config.lines} needs a staged, whole image: {region.key}")
        if config.rows * config.lines > kernel.mr:
            raise ConfigError(f"{config.lines} lines of {config.rows} pixels exceed {kernel.name}")
    return kernel
