"""The loops of a convolution inside a thread.

    for each band of lines of a plane (its part of x stays in L2)
        for each panel of channels (widened in cache first, if 8-bit integers are)
            for each line, for each tile of pixels in it:
                multiply over planes, lines, columns and channels of the window; store

Accumulators stay in registers over the whole window. The tiles of a line differ by at most one
pixel (`balanced`). Tiles whose windows reach over the left or right edge have code of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.kernels.byte_pairs import byte_tile
from microkernels.microkernel import Microkernel
from microkernels.tile import Address, Place, Tile
from microkernels.vector.expressions import Expr, Index, materialise, ramp
from tir_schedules.core import emission
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.epilogue.tile_results import rest, store_tile
from tir_schedules.product.amx_tiles import TileTask
from tir_schedules.product.byte_outliers import weight_fits
from tir_schedules.product.staged_panels import WidePanels
from tir_schedules.product.tile_products import LoadPanel

from .config import Across, ConvConfig
from .weight import PanelFetch, WeightLayout
from .windows import ConvOutliers, Windows


class Band(NamedTuple):
    """Neighbouring lines of a plane, which one thread computes for all its channels."""

    share: Expr  # number of the thread, among those along channels and tiles
    plane: Expr
    line: Expr  # the first line
    lines: Index  # number of lines
    scratch: Expr | None  # buffer for the accumulators of tile registers


@dataclass(frozen=True)
class PanelLoops:
    """The tiles of a panel in a band."""

    loops: ConvLoops
    band: Band
    piece: Expr  # number of the thread, among those along the tiles of a line
    group: Index  # number of the group of channels
    vector: Index  # first vector of the panel in the group
    vectors: int  # vectors of the panel

    def emit(self) -> None:
        """Emits all tiles."""
        loops, band, config = self.loops, self.band, self.loops.config
        load_b = self._load_b()
        across = loops.layout.plan.across

        def going_on(position: Index, positions: int) -> None:
            with emission.opaque_block("tile"):
                _Tile(self, band.line, position, load_b).emit(1, positions)

        def in_lines(line: Index, height: int) -> None:
            if loops.outliers is not None:
                loops.outliers.add(line, height, self.vector, self.vectors, load_b)
            if loops.windows.geometry.has_dynamic_image:
                self._dynamic_line(line, load_b)
            else:
                self._lines(line, height, load_b)

        if across is not None:
            tiles = loops.windows.tiles(across.total, loops.layout.plan.tiles[0])
            emission.for_groups([group for group, _ in tiles], going_on)
        elif config.lines > 1:
            assert isinstance(band.lines, int)
            emission.for_groups(balanced(band.lines, config.lines), in_lines)
        else:
            with I.serial(band.lines) as i:
                in_lines(band.line + i, 1)

    def _lines(self, line: Index, height: int, load_b: LoadPanel) -> None:
        """Emits this thread's tiles of `height` lines."""
        loops, config, width = self.loops, self.loops.config, self.loops.windows.geometry.outputs[2]
        found = list(loops.windows.tiles(width, loops.layout.plan.tiles[0]))
        pieces, threads = sum(group.count for group, _ in found), loops.layout.plan.grid.tiles
        first, count = share_of(pieces, self.piece, threads)
        fetch = PanelFetch(loops.layout.packed, loops.weight, config.band * pieces)
        before = 0

        def emit(group: Group, whole: bool, ahead: Index, column: Index, columns: int) -> None:
            read_b = load_b
            if config.fetches:
                read_b = fetch.beside(load_b, ahead + (column - group.start) // group.size)
            with emission.opaque_block("tile"):
                _Tile(self, line, column, read_b).emit(height, columns, whole)

        for group, whole in found:
            tile = partial(emit, group, whole, (line - self.band.line) * pieces + before)
            if threads == 1:
                emission.for_groups([group], tile)
            else:
                _for_some(group, first - before, first + count - before, tile)
            before += group.count

    def _dynamic_line(self, line: Index, load_b: LoadPanel) -> None:
        """Emits whole tiles, then one for the tail, whose surplus pixels are not stored."""
        columns, rows = extent(self.loops.windows.geometry.outputs[2]), self.loops.config.rows
        whole = materialise(I.floordiv(columns, rows))
        with I.serial(whole) as number, emission.opaque_block("tile"):
            _Tile(self, line, number * rows, load_b).emit(1, rows)
        left, sizes = materialise(columns - whole * rows), emission.quarters(rows)
        kind, rest = emission.which_size(left, sizes), _Tile(self, line, whole * rows, load_b)
        with I.If(left > 0), I.Then():
            numbers = range(len(sizes))
            emission.choose(kind, numbers, lambda at: rest.emit(1, sizes[at], stored=left))

    def _load_b(self) -> LoadPanel:
        """The function by which tiles read the weight of the panel."""
        loops, layout = self.loops, self.loops.layout
        before = self.group * layout.packed.size
        if loops.wide_panels is not None:
            steps = (0, layout.packed.steps)
            return loops.wide_panels.stage(self.vector, self.vectors, steps, before)
        distance = layout.packed.start(0, self.vectors, 1, 0)

        def load(panel: Index, width: int, step: Index, j: int) -> Expr | Address:
            start = before + layout.packed.start(panel, width, step, j)
            return layout.kernel.b_operand(loops.weight, start, distance)

        return load


class _Tile:
    """One tile of a panel; `line` and `column` are its first pixel in the plane of the band."""

    def __init__(self, panel: PanelLoops, line: Index, column: Index, load_b: LoadPanel) -> None:
        self.loops, self.windows, self.plane = panel.loops, panel.loops.windows, panel.band.plane
        self.group, self.vector, self.vectors = panel.group, panel.vector, panel.vectors
        self.line, self.column, self.load_b = line, column, load_b
        self.scratch = panel.band.scratch
        wide = self.windows.wide
        # Steps of the tile for each step of the weight.
        self.parts = 1 if wide is None else wide.parts
        # Bounds of the loops over planes and lines of a window.
        plane = I.floormod(self.plane, extent(self.windows.geometry.outputs[0]))
        self.outer = self.windows.bounds(0, plane), self.windows.bounds(1, line)

    def emit(
        self, height: int, columns: int, whole: bool = True, stored: Expr | None = None
    ) -> None:
        """Multiplies and stores `height` lines of `columns` pixels, or `stored` pixels of one."""
        loops, kernel, windows = self.loops, self.loops.tile, self.windows
        rows, begin, outliers = height * columns, loops.start, loops.outliers

        def start(i: Any, j: int) -> Any:
            parts = list[Any]()
            if outliers is not None:
                line, column = i // columns, self.column + i % columns
                parts.append(outliers.sum(line, column, self.vectors, j))
            if begin is not None:
                parts.append(begin(self._class(i, columns), self.group, self.vector + j))
            return parts[0] if len(parts) == 1 else parts[0] + parts[1]

        # Tiles of AMX read a copy, in which every window is whole: all rows start alike.
        init = start if outliers or (begin and not kernel.by_tiles) else None
        alike = partial(start, 0) if begin and kernel.by_tiles else None
        taps = windows.geometry.kernel[2] if loops.layout.form == "split" else 1
        steps = loops.layout.steps * self.parts
        extents = [high - low for low, high in self.outer]
        if whole:
            into = None if self.scratch is None else Place(self.scratch)
            loads, reduced = self._loads(columns), (*extents, taps, steps)
            result = kernel.emit(rows, self.vectors, reduced, *loads, init, into, columns=alike)
        else:
            result = kernel.begin(rows, self.vectors, init)
            reduced = (*extents, windows.geometry.group_channels // kernel.kr)
            for tap in range(windows.geometry.kernel[2]):
                inside = windows.inside(self.column, columns, tap)
                if inside:
                    kernel.accumulate(result, inside, reduced, *self._loads(columns, tap))
        across = loops.layout.plan.across
        if across is not None:
            self._store_pixels(result, across)
            return
        if stored is None:
            store_tile(result, kernel, loops.epilogue_cost, self._store(columns))
            return
        store, lanes = self._store(columns), kernel.lanes
        passing = I.sblock_alloc_buffer((rows, self.vectors * lanes), kernel.acc_dtype)
        rest(result, passing, 0)
        with I.serial(stored) as i:
            for j in range(self.vectors):
                store(i, j, passing[i, ramp(j * lanes, lanes)], j == self.vectors - 1)

    def _loads(
        self, columns: int, tap: int | None = None
    ) -> tuple[Callable[[int, Sequence[Any]], Any], Callable[[int, Sequence[Any]], Any]]:
        """The functions that load windows and the weight; with `tap`, one column of windows."""
        layout, kernel = self.loops.layout, self.loops.tile
        geometry, steps = self.windows.geometry, layout.steps * self.parts
        (first_plane, _), (first_line, _) = self.outer

        def load_a(i: int, ks: Sequence[Any]) -> Expr | Address:
            place = first_plane + ks[0], first_line + ks[1], ks[2] if tap is None else tap
            line, column = self.line + i // columns, self.column + i % columns
            return self.windows.load(self.windows.element(line, column, self.group, place), ks[-1])

        def load_b(j: int, ks: Sequence[Any]) -> Expr | Address:
            run, step = (first_plane + ks[0]) * geometry.kernel[1] + (first_line + ks[1]), ks[-1]
            if layout.form == "split" and geometry.kernel[2] > 1:
                run = run * geometry.kernel[2] + (ks[2] if tap is None else tap)
            elif tap is not None:
                step = tap * (geometry.group_channels // kernel.kr) + step
            return self.load_b(self.vector, self.vectors, run * steps + step, j)

        return load_a, load_b

    def _class(self, i: int, columns: int) -> Index:
        """The class of positions of a pixel of the tile."""
        classes = self.loops.layout.classes
        assert classes is not None
        if classes.whole:
            return 0
        depth, _, width = self.windows.geometry.outputs
        line, column = self.line + i // columns, self.column + i % columns
        position = [I.floormod(self.plane, depth), line, column]
        if not isinstance(self.column, int):  # all windows of the tile are whole: take any such one
            position[2] = next(c for c in range(width) if self.windows.whole(c, 1))
        return classes.number(position[3 - len(classes.axes) :])

    def _store_pixels(self, result: Tile, across: Across) -> None:
        """Stores those positions of a tile that are pixels of the result."""
        _, height, width = self.windows.geometry.outputs
        with I.serial(result.rows) as i:
            position = self.column + i
            line = I.floordiv(position, across.distance)
            column = position - line * across.distance
            with I.If(column < width), I.Then():
                pixel = (self.plane * height + self.line + line) * width + column
                for j in range(result.vectors):
                    last = j == result.vectors - 1
                    vector = self.vector + j
                    self.loops.store(pixel, self.group, vector, result.value(i, j), last)

    def _store(self, columns: int) -> Callable[[Index, int, Expr, bool], None]:
        _, height, width = map(extent, self.windows.geometry.outputs)

        def store(i: Index, j: int, value: Expr, last: bool) -> None:
            y, x = divmod(i, columns) if isinstance(i, int) else (i // columns, i % columns)
            pixel = (self.plane * height + (self.line + y)) * width + (self.column + x)
            self.loops.store(pixel, self.group, self.vector + j, value, last)

        return store


def share_of(total: Index, number: Expr, parts: int) -> tuple[Expr, Expr]:
    """First and count of the items that thread `number` of `parts` gets."""
    if parts == 1:
        return tirx.const(0, "int32"), as_expr(total)
    first = I.floordiv(number * total, parts)
    return first, I.floordiv((number + 1) * total, parts) - first


def _for_some(group: Group, first: Expr, last: Expr, body: Callable[[Index, int], None]) -> None:
    """Runs `body(start, size)` for the items of a group whose numbers are in [first, last)."""
    if group.count == 1:
        with I.If(tirx.all(first <= 0, last > 0)), I.Then():
            body(group.start, group.size)
        return
    low = tirx.Max(first, tirx.const(0, "int32"))
    high = tirx.Min(last, tirx.const(group.count, "int32"))
    with I.serial(tirx.Max(high - low, tirx.const(0, "int32"))) as i:
        body(group.start + (low + i) * group.size, group.size)


# (class of positions, group, vector of its columns) -> the start of accumulators or, for AMX tiles,
# its address
Start = Callable[[Index, Index, Index], "Expr | Address"]
# (flat pixel, group, vector of its columns, accumulators, whether it ends its panel)
Store = Callable[[Expr, Index, Index, Expr, bool], None]


@dataclass
class ConvLoops:
    """Emits the loops of one convolution into the PrimFunc under construction."""

    config: ConvConfig
    layout: WeightLayout
    windows: Windows
    weight: Expr  # packed
    start: Start | None  # of the accumulators; zero if None
    store: Store  # emits the epilogue for one vector
    epilogue_cost: int
    by_bytes: bool = False  # whether pairs of bytes are multiplied
    outliers: ConvOutliers | None = None  # those of a band whose bytes were cut to seven bits
    # Loops by bytes, for bands where no pair of products saturates (see `byte_outliers`).
    fitting: ConvLoops | None = None
    wide_panels: WidePanels | None = field(default=None, init=False)  # made by `emit`

    @property
    def tile(self) -> Microkernel:
        """The microkernel that multiplies."""
        if self.windows.wide is not None:
            return self.windows.wide.kernel
        return byte_tile(self.layout.kernel) if self.by_bytes else self.layout.kernel

    def emit(self, task: Expr) -> None:
        """Emits the bands of one thread of the grid."""
        wide, packed, kernel = self.windows.wide, self.layout.packed, self.layout.kernel
        widest, rows = max(packed.widths), self.layout.plan.tiles[0]
        if wide is not None:
            self.wide_panels = WidePanels(packed, self.weight, wide, packed.steps, widest)
        scratch = None
        if kernel.by_tiles:
            # As wide as the widest panel: TVM drops columns that no loop visits, but the distance
            # of rows was given to the tiles before that.
            shape = (rows, widest * kernel.lanes)
            scratch = I.sblock_alloc_buffer(shape, kernel.acc_dtype, align=64)
        state = TileTask()
        state.configure(kernel, rows)
        for_bands = self._dynamic_bands if self.windows.geometry.has_dynamic_image else self._bands
        for_bands(task, scratch)
        state.release()

    def _bands(self, task: Expr, scratch: Expr | None) -> None:
        """Emits the bands of one thread."""
        config, grid = self.config, self.layout.plan.grid
        height = self.windows.geometry.outputs[1]
        bands = -(-height // config.band)
        number = I.floormod(task, grid.bands)
        first, count = share_of(bands * self._planes, number, grid.bands)
        with I.serial(count) as band:
            index = first + band
            plane, line = I.floordiv(index, bands), I.floormod(index, bands) * config.band
            lines: Index = config.band
            if height % config.band:  # never if tiles run on from line to line
                lines = tirx.Min(tirx.const(config.band, "int32"), height - line)
            self._band(Band(I.floordiv(task, grid.bands), plane, line, lines, scratch))

    def _dynamic_bands(self, task: Expr, scratch: Expr | None) -> None:
        """Emits the bands of one thread if lines or columns are dynamic."""
        grid, most = self.layout.plan.grid, self.config.band
        height = as_expr(extent(self.windows.geometry.outputs[1]))
        of_plane = materialise(tirx.Max(height, tirx.const(1, "int32")))
        total = materialise(height * self._planes)
        # Threads share the lines, and cut theirs into bands: bands that have one size for any
        # height are too few to be shared evenly.
        first, count = map(materialise, share_of(total, I.floormod(task, grid.bands), grid.bands))
        before = materialise(I.floordiv(first, of_plane))
        with I.serial(emission.ceil_div(first + count, of_plane) - before) as number:
            plane = materialise(before + number)
            begin = materialise(tirx.Max(first - plane * height, tirx.const(0, "int32")))
            end = materialise(tirx.Min(first + count - plane * height, height))

            def band(at: Expr, lines: Expr) -> None:
                share, line = I.floordiv(task, grid.bands), materialise(begin + at)
                self._band(Band(share, plane, line, lines, scratch))

            emission.for_blocks(end - begin, most, band)

    @property
    def _planes(self) -> Index:
        geometry = self.windows.geometry
        return extent(geometry.batch) * extent(geometry.outputs[0])

    def _band(self, band: Band) -> None:
        """Emits one band: copies its lines if needed, and multiplies them."""
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

        emission.branch(small, lambda: fitting._multiply(band), widened)

    def _multiply(self, band: Band) -> None:
        """Emits the products of a band whose lines are copied already."""
        groups, channels = self.windows.geometry.groups, self.layout.plan.grid.channels
        piece, share = I.floordiv(band.share, channels), I.floormod(band.share, channels)

        def panels(start: Index, size: int, group: Index = 0) -> None:
            def panel(vector: Index, vectors: int) -> None:
                PanelLoops(self, band, piece, group, start + vector, vectors).emit()

            emission.for_groups(balanced(size, self.config.vectors), panel)

        if groups == 1:
            emission.for_share(self.layout.plan.shares, share, panels)
            return
        first, count = share_of(groups, share, channels)
        with I.serial(count) as group:
            panels(0, self.layout.plan.shares[0].size, first + group)
