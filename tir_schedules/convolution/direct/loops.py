"""The loops of a convolution inside a thread.

    for each band of lines of a plane (its part of x stays in L2)
        for each panel of channels (widened in cache first, where 8-bit integers are)
            for each line, for each tile of pixels in it:
                multiply over planes, lines, columns and channels of the window; store

Accumulators stay in registers over the whole window. The tiles of a line differ by at most one
pixel (`balanced`). Tiles whose windows reach over the left or right edge have code of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.kernels.byte_pairs import byte_tile
from microkernels.microkernel import Microkernel
from microkernels.tile import Address
from microkernels.vector.expressions import Expr, Index, materialise
from tir_schedules.core.blocking import balanced
from tir_schedules.core.emission import branch, ceil_div, for_blocks, for_groups, for_share
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.product.byte_outliers import weight_fits
from tir_schedules.product.staged_panels import WidePanels
from tir_schedules.product.tile_products import TileTask

from .config import ConvConfig, Grid
from .tiles import Band, PanelLoops, share_of
from .weight import WeightLayout
from .windows import ConvOutliers, Windows

# (class of positions, group, vector of its columns) -> what accumulators start with; or, for tiles,
# where that is
Start = Callable[[Index, Index, Index], "Expr | Address"]
# (flat pixel, group, vector of its columns, accumulators, whether it ends its panel)
Store = Callable[[Expr, Index, Index, Expr, bool], None]


@dataclass
class ConvLoops:
    """The loops for one convolution; `share` puts them into the PrimFunc under construction.

    Attributes
    ----------
    config : ConvConfig
        Its numbers.
    layout : WeightLayout
        Of its weight.
    windows : Windows
        Where windows are read.
    weight : Buffer
        Packed.
    start : callable or None
        What accumulators start with; zero if None.
    store : callable
        Emits the epilogue for one vector.
    epilogue_cost : int
        As of `store_tile`.
    by_bytes : bool
        Whether pairs of bytes are multiplied.
    outliers : ConvOutliers or None
        What bytes of the band were cut off, if anything.
    fitting : ConvLoops or None
        Loops by bytes, for bands where no pair of products saturates (see `byte_outliers`).
    wide_panels : WidePanels or None
        Widens the panels; `emit` makes it.
    """

    config: ConvConfig
    layout: WeightLayout
    windows: Windows
    weight: Expr
    start: Start | None
    store: Store
    epilogue_cost: int
    by_bytes: bool = False
    outliers: ConvOutliers | None = None
    fitting: ConvLoops | None = None
    wide_panels: WidePanels | None = field(default=None, init=False)

    @property
    def tile(self) -> Microkernel:
        """What multiplies."""
        if self.windows.wide is not None:
            return self.windows.wide.kernel
        return byte_tile(self.layout.kernel) if self.by_bytes else self.layout.kernel

    def emit(self, task: Expr) -> None:
        """The share of one thread of the grid."""
        wide, packed, kernel = self.windows.wide, self.layout.packed, self.layout.kernel
        widest, rows = max(packed.widths), self.layout.plan.tiles[0]
        if wide is not None:
            self.wide_panels = WidePanels(packed, self.weight, wide, packed.steps, widest)
        scratch = None
        if kernel.by_tiles:
            # As wide as the widest panel: TVM cuts off columns that nobody visits, and tiles are
            # told the distance of rows before.
            shape = (rows, widest * kernel.lanes)
            scratch = I.sblock_alloc_buffer(shape, kernel.acc_dtype, align=64)
        state = TileTask()
        state.configure(kernel, rows)
        for_bands = self._dynamic_bands if self.windows.geometry.opens_image else self._bands
        for_bands(task, scratch)
        state.release()

    def _bands(self, task: Expr, scratch: Expr | None) -> None:
        """The bands of one thread."""
        config, grid, (_, height, _) = self.config, self.grid, self.windows.geometry.outputs
        bands = -(-height // config.band)
        number = I.floormod(task, grid.bands)
        first, count = share_of(bands * self._planes, number, grid.bands)
        with I.serial(count) as band:
            index = first + band
            plane, line = I.floordiv(index, bands), I.floormod(index, bands) * config.band
            lines: Index = config.band
            if height % config.band:  # never where tiles go on from line to line
                lines = tirx.Min(tirx.const(config.band, "int32"), height - line)
            self._band(Band(I.floordiv(task, grid.bands), plane, line, lines, scratch))

    def _dynamic_bands(self, task: Expr, scratch: Expr | None) -> None:
        """The same of dynamic lines or columns: threads share lines, and cut theirs in bands.

        Bands that have a number of lines for any height are too few to be shared evenly.
        """
        grid, most = self.grid, self.config.band
        height = as_expr(extent(self.windows.geometry.outputs[1]))
        of_plane = materialise(tirx.Max(height, tirx.const(1, "int32")))
        total = materialise(height * self._planes)
        first, count = map(materialise, share_of(total, I.floormod(task, grid.bands), grid.bands))
        before = materialise(I.floordiv(first, of_plane))
        with I.serial(ceil_div(first + count, of_plane) - before) as number:
            plane = materialise(before + number)
            begin = materialise(tirx.Max(first - plane * height, tirx.const(0, "int32")))
            end = materialise(tirx.Min(first + count - plane * height, height))

            def band(at: Expr, lines: Expr) -> None:
                share, line = I.floordiv(task, grid.bands), materialise(begin + at)
                self._band(Band(share, plane, line, lines, scratch))

            for_blocks(end - begin, most, band)

    @property
    def grid(self) -> Grid:
        """The threads that have work."""
        return self.layout.plan.grid

    @property
    def _planes(self) -> Index:
        geometry = self.windows.geometry
        return extent(geometry.batch) * extent(geometry.outputs[0])

    def _band(self, band: Band) -> None:
        """One band: its lines are copied if need be, and multiplied."""
        depth = extent(self.windows.geometry.outputs[0])
        where = I.floordiv(band.plane, depth), I.floormod(band.plane, depth), band.line, band.lines
        if self.fitting is None:
            self.windows.enter(*where)
            self._multiply(band)
            return
        fitting = self.fitting
        fitting.windows.enter(*where)
        small = weight_fits(self.weight, self.layout.answer)
        if fitting.outliers is not None:
            small = fitting.outliers.split(band.lines, small)
        else:
            small = tirx.Or(small, fitting.windows.small(band.lines))

        def widened() -> None:
            self.windows.enter(*where)
            self._multiply(band)

        branch(small, lambda: fitting._multiply(band), widened)

    def _multiply(self, band: Band) -> None:
        """A band whose lines are there."""
        groups, channels = self.windows.geometry.groups, self.grid.channels
        piece, share = I.floordiv(band.share, channels), I.floormod(band.share, channels)

        def panels(start: Index, size: int, group: Index = 0) -> None:
            for_groups(
                balanced(size, self.config.vectors),
                lambda vector, vectors: PanelLoops(
                    self, band, piece, group, start + vector, vectors
                ).emit(),
            )

        if groups == 1:
            for_share(self.layout.plan.shares, share, panels)
            return
        first, count = share_of(groups, share, channels)
        with I.serial(count) as group:
            panels(0, self.layout.plan.shares[0].size, first + group)
