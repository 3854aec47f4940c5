"""The loops of a convolution inside a thread.

    for each band of lines of a plane (its part of x stays in L2)
        for each panel of channels (widened in cache first, where 8-bit integers are)
            for each line, for each tile of pixels in it:
                multiply over planes, lines, columns and channels of the window; store

Accumulators stay in registers over the whole window. The tiles of a line differ by at most one
pixel (`balanced`). Tiles whose windows reach over the left or right edge have code of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from typing import cast as typed

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.kernels.byte_pairs import byte_tile
from microkernels.microkernel import Microkernel
from microkernels.tile import Address, Place, Tile
from microkernels.vector.expressions import Expr, materialise, ramp
from tir_schedules.convolution.geometry import PositionClasses
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.emission import (
    ceil_div,
    choose,
    for_blocks,
    for_groups,
    for_share,
    opaque_block,
)
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.product.byte_outliers import weight_fits
from tir_schedules.product.tile_loops import TileTask
from tir_schedules.product.tile_products import LoadPanel, WidePanels, rest, store_tile

from .config import Across, ConvConfig, Grid, across_of, grid_of
from .weight import PanelFetch, WeightLayout
from .windows import ConvOutliers, Windows

# (class of positions, group, vector of its columns) -> what accumulators start with; or, for tiles,
# where that is
Start = Callable[["Expr | int", "Expr | int", "Expr | int"], "Expr | Address"]
# (flat pixel, group, vector of its columns, accumulators, whether it ends its panel)
Store = Callable[[Expr, "Expr | int", "Expr | int", Expr, bool], None]


@dataclass(frozen=True)
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
    wide_panels : WidePanels or None
        Widens the panels; `emit` makes it.
    by_bytes : bool
        Whether pairs of bytes are multiplied.
    outliers : ConvOutliers or None
        What bytes of the band were cut off, if anything.
    fitting : ConvLoops or None
        Loops by bytes, for bands where no pair of products saturates (see `byte_outliers`).
    """

    config: ConvConfig
    layout: WeightLayout
    windows: Windows
    weight: Expr
    start: Start | None
    store: Store
    epilogue_cost: int
    wide_panels: WidePanels | None = None
    by_bytes: bool = False
    outliers: ConvOutliers | None = None
    fitting: ConvLoops | None = None

    @property
    def tile(self) -> Microkernel:
        """What multiplies."""
        if self.windows.wide is not None:
            return self.windows.wide.kernel
        return byte_tile(self.layout.kernel) if self.by_bytes else self.layout.kernel

    def emit(self, task: Expr) -> None:
        """The share of one thread of the grid."""
        if self.windows.wide is None:
            self._emit(task)
            return
        packed = self.layout.packed
        panels = WidePanels(
            packed, self.weight, self.windows.wide, packed.steps, max(packed.widths)
        )
        replace(self, wide_panels=panels)._emit(task)

    def _emit(self, task: Expr) -> None:
        config, kernel = self.config, self.layout.kernel
        _, height, _ = self.windows.geometry.outputs
        scratch = None
        if kernel.by_tiles:
            # As wide as the widest panel: TVM cuts off columns that nobody visits, and tiles are
            # told the distance of rows before.
            shape = (self._rows, max(self.layout.packed.widths) * kernel.lanes)
            scratch = I.sblock_alloc_buffer(shape, kernel.acc_dtype, align=64)
        state = TileTask()
        state.configure(kernel, self._rows)
        if self._opened:
            self._open_bands(task, scratch)
            state.release()
            return
        bands = -(-height // config.band)
        grid = self._grid
        number = I.floormod(task, grid.bands)
        first, count = _share(bands * self._planes, number, grid.bands)
        with I.serial(count) as band:
            index = first + band
            plane, line = I.floordiv(index, bands), I.floormod(index, bands) * config.band
            lines: Expr | int = config.band
            if height % config.band:  # never where tiles go on from line to line
                lines = tirx.Min(tirx.const(config.band, "int32"), height - line)
            self._band(I.floordiv(task, grid.bands), plane, line, lines, scratch)
        state.release()

    def _open_bands(self, task: Expr, scratch: Expr | None) -> None:
        """The same where lines or columns are open: threads share lines, and cut theirs in bands.

        Bands that have a number of lines for any height are too few to be shared evenly.
        """
        grid, most = self._grid, self.config.band
        height = as_expr(extent(self.windows.geometry.outputs[1]))
        of_plane = materialise(tirx.Max(height, tirx.const(1, "int32")))
        total = materialise(height * self._planes)
        first, count = map(materialise, _share(total, I.floormod(task, grid.bands), grid.bands))
        before = materialise(I.floordiv(first, of_plane))
        with I.serial(ceil_div(first + count, of_plane) - before) as number:
            plane = materialise(before + number)
            begin = materialise(tirx.Max(first - plane * height, tirx.const(0, "int32")))
            end = materialise(tirx.Min(first + count - plane * height, height))
            for_blocks(
                end - begin,
                most,
                lambda at, lines: self._band(
                    I.floordiv(task, grid.bands),
                    plane,
                    materialise(begin + at),
                    lines,
                    scratch,
                ),
            )

    @property
    def _grid(self) -> Grid:
        return grid_of(self.layout.geometry, self.config, self.layout.kernel)

    @property
    def _planes(self) -> Expr | int:
        geometry = self.windows.geometry
        return extent(geometry.batch) * extent(geometry.outputs[0])

    @property
    def _opened(self) -> bool:
        """Whether lines or columns are known at run time only."""
        return self.windows.geometry.opens_image

    @property
    def _rows(self) -> int:
        """Pixels of the largest tile in a line."""
        if self._opened:
            return self.config.rows
        if self._across is not None:
            return min(self.config.rows, self._across.total)
        return min(self.config.rows, self.windows.geometry.outputs[2])

    @property
    def _across(self) -> Across | None:
        """How tiles go on from line to line."""
        return across_of(self.windows.geometry, self.config, self.layout.kernel)

    def _band(
        self, share: Expr, plane: Expr, line: Expr, lines: Expr | int, scratch: Expr | None
    ) -> None:
        """Lines of a plane, from `line` on."""
        depth = extent(self.windows.geometry.outputs[0])
        where = I.floordiv(plane, depth), I.floormod(plane, depth), line, lines
        if self.fitting is None:
            self.windows.enter(*where)
            self._multiply(share, plane, line, lines, scratch)
            return
        fitting, layout = self.fitting, self.layout
        fitting.windows.enter(*where)
        small = weight_fits(self.weight, layout.answer)
        if fitting.outliers is not None:
            small = fitting.outliers.split(lines, small)
        else:
            small = tirx.Or(small, fitting.windows.small(lines))
        with I.If(small):
            with I.Then():
                fitting._multiply(share, plane, line, lines, scratch)
            with I.Else():
                self.windows.enter(*where)
                self._multiply(share, plane, line, lines, scratch)

    def _multiply(
        self, share: Expr, plane: Expr, line: Expr, lines: Expr | int, scratch: Expr | None
    ) -> None:
        """A band whose lines are there."""
        groups, grid = self.windows.geometry.groups, self._grid
        piece = I.floordiv(share, grid.channels)
        share = I.floormod(share, grid.channels)

        def panel(group: Expr | int, vector: Expr | int, vectors: int) -> None:
            self._panel(group, vector, vectors, plane, line, lines, piece, scratch)

        def panels(start: Expr | int, size: int, group: Expr | int = 0) -> None:
            for_groups(
                balanced(size, self.config.vectors),
                lambda vector, vectors: panel(group, start + vector, vectors),
            )

        if groups == 1:
            for_share(self.layout.shares, share, panels)
            return
        first, count = _share(groups, share, grid.channels)
        with I.serial(count) as group:
            panels(0, self.layout.shares[0].size, first + group)

    def _panel(
        self,
        group: Expr | int,
        vector: Expr | int,
        vectors: int,
        plane: Expr,
        line: Expr,
        lines: Expr | int,
        piece: Expr,
        scratch: Expr | None,
    ) -> None:
        config, windows = self.config, self.windows
        _, _, width = windows.geometry.outputs
        load_b = self._load_b(group, vector, vectors)

        def tile(
            at: Expr | int,
            height: int,
            column: Expr | int,
            columns: int,
            whole: bool,
            reader: Callable[[Expr | int], LoadPanel] = lambda column: load_b,
        ) -> None:
            read_b = reader(column)
            with opaque_block("tile"):
                emitter = _TileEmitter(self, group, vector, vectors, plane, at, column, read_b)
                emitter.emit(height, columns, whole, scratch)

        def in_open_lines(at: Expr | int) -> None:
            """Whole tiles, then one for the rest: what it has too many is not stored."""
            columns, rows = extent(width), self.config.rows
            whole = materialise(I.floordiv(columns, rows))
            with I.serial(whole) as number:
                tile(at, 1, number * rows, rows, True)
            left = materialise(columns - whole * rows)
            sizes = sorted({-(-rows * quarter // 4) for quarter in range(1, 5)})

            def of_rest(number: int) -> None:
                emitter = _TileEmitter(
                    self, group, vector, vectors, plane, at, whole * rows, load_b
                )
                emitter.emit(1, sizes[number], True, scratch, left)

            kind: Expr = tirx.const(0, "int32")
            for size in sizes[:-1]:
                kind = kind + tirx.Cast("int32", left > size)
            with I.If(left > 0), I.Then():
                choose(kind, range(len(sizes)), of_rest)

        def in_lines(at: Expr | int, height: int) -> None:
            if self.outliers is not None:
                self.outliers.add(at, height, vector, vectors, load_b)
            if self._opened:
                in_open_lines(at)
                return
            if self.layout.kernel.by_tiles:
                # One configuration does for all: the last tile overlaps the one before.
                found = [(group, True) for group in _overlapping(width, self._rows)]
            else:
                found = list(self._pieces(width))
            pieces, threads = sum(group.count for group, _ in found), self._grid.tiles
            first, count = _share(pieces, piece, threads)
            before = 0
            for group, whole in found:
                body = functools.partial(tile, at, height, whole=whole)
                if config.fetches:
                    tiles_before = (at - line) * pieces + before
                    fetch = PanelFetch(self.layout.packed, self.weight, config.band * pieces)
                    reader = _fetching(fetch, load_b, tiles_before, group)
                    body = functools.partial(body, reader=reader)
                if threads == 1:
                    for_groups([group], body)
                else:
                    _for_some(group, first - before, first + count - before, body)
                before += group.count

        def going_on(position: Expr | int, positions: int) -> None:
            with opaque_block("tile"):
                emitter = _TileEmitter(self, group, vector, vectors, plane, line, position, load_b)
                emitter.emit(1, positions, True, scratch)

        across = self._across
        if across is not None:
            for_groups(_overlapping(across.total, self._rows), going_on)
        elif config.lines > 1:
            assert isinstance(lines, int)
            for_groups(balanced(lines, config.lines), in_lines)
        else:
            with I.serial(lines) as i:
                in_lines(line + i, 1)

    def _load_b(self, group: Expr | int, vector: Expr | int, vectors: int) -> LoadPanel:
        """How tiles read the weight of a panel."""
        layout, before = self.layout, group * self.layout.group_size
        if self.wide_panels is not None:
            return self.wide_panels.stage(vector, vectors, (0, layout.packed.steps), before)
        distance = layout.packed.start(0, vectors, 1, 0)

        def load(panel: Expr | int, width: int, step: Expr | int, j: int) -> Expr | Address:
            start = before + layout.packed.start(panel, width, step, j)
            return layout.kernel.b_operand(self.weight, start, distance)

        return load

    def _pieces(self, width: int) -> Iterator[tuple[Group, bool]]:
        """Tiles of a line, those alike as one group, and whether their windows are whole."""
        tiles = [
            (group.start + i * group.size, group.size)
            for group in balanced(width, self.config.rows)
            for i in range(group.count)
        ]
        run: list[tuple[int, int]] = []
        for tile in [*tiles, None]:
            ends = tile is None or not self.windows.whole(*tile) or (run and run[0][1] != tile[1])
            if ends and run:
                yield Group(run[0][0], len(run), run[0][1]), True
                run = []
            if tile is not None:
                if self.windows.whole(*tile):
                    run.append(tile)
                else:
                    yield Group(tile[0], 1, tile[1]), False


@dataclass(frozen=True)
class _TileEmitter:
    """One tile: `line` and `column` are its first pixel in a plane, `vector` its first columns."""

    loops: ConvLoops
    group: Expr | int
    vector: Expr | int
    vectors: int
    plane: Expr
    line: Expr | int
    column: Expr | int
    load_b: LoadPanel

    def emit(
        self,
        height: int,
        columns: int,
        whole: bool,
        scratch: Expr | None,
        stored: Expr | None = None,
    ) -> None:
        """Multiplies and stores `height` lines of `columns` pixels, of one line perhaps fewer."""
        loops, kernel = self.loops, self.loops.tile
        windows = loops.windows
        rows = height * columns
        init: Callable[[Any, int], Expr] | None = None
        alike, begin = None, loops.start
        if begin is not None:
            classes = loops.layout.classes

            def start(i: Expr | int, j: int) -> Expr:
                kind = self._class(classes, i, columns)
                return typed(Expr, begin(kind, self.group, self.vector + j))

            if kernel.by_tiles:  # they read a copy, in which every window is whole
                alike = functools.partial(self._of_all_rows, begin)
            else:
                init = start
        if loops.outliers is not None:
            init = self._with_outliers(loops.outliers, init, columns)

        outer = self._outer()
        taps = windows.geometry.kernel[2] if loops.layout.form == "split" else 1
        steps = loops.layout.steps * self._parts
        if whole:
            extents = [*(high - low for low, high in outer), taps]

            def load_a(i: int, ks: Sequence[Expr | int]) -> Expr | Address:
                tap = (*self._outer_tap(outer, ks), ks[2])
                return windows.load(self._start(i, columns, tap), ks[-1])

            def load_b(j: int, ks: Sequence[Expr | int]) -> Expr | Address:
                return self._load_b(j, self._run(outer, ks, taps), ks[-1])

            into = None if scratch is None else Place(scratch)
            result = kernel.emit(
                rows,
                self.vectors,
                (*extents, steps),
                load_a,
                load_b,
                init,
                into,
                columns=alike,
            )
        else:
            result = kernel.begin(rows, self.vectors, init)
            for tap in range(windows.geometry.kernel[2]):
                self._one_tap(result, outer, columns, tap)
        if loops._across is not None:
            self._store_pixels(result, loops._across)
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

    def _with_outliers(
        self, outliers: ConvOutliers, start: Callable[[Any, int], Expr] | None, columns: int
    ) -> Callable[[Any, int], Expr]:
        """What accumulators start with, where outliers are apart."""

        def started(i: int, j: int) -> Expr:
            line, column = i // columns, self.column + i % columns
            value = outliers.sum(line, column, self.vectors, j)
            return value if start is None else value + start(i, j)

        return started

    def _of_all_rows(self, begin: Start, j: int) -> Expr | Address:
        """What all pixels of a tile start with in one vector."""
        return begin(0, self.group, self.vector + j)

    def _one_tap(
        self, result: Tile, outer: Sequence[tuple[Expr | int, Expr | int]], columns: int, tap: int
    ) -> None:
        """One column of all windows of a tile, for the pixels where it lies inside."""
        loops, kernel = self.loops, self.loops.tile
        windows = loops.windows
        assert isinstance(self.column, int)
        inside = windows.inside(self.column, columns, tap)
        if not inside:
            return
        fused = loops.layout.form == "fused"
        steps = windows.geometry.group_channels // kernel.kr
        extents = [high - low for low, high in outer]

        def load_a(i: int, ks: Sequence[Expr | int]) -> Expr | Address:
            found = (*self._outer_tap(outer, ks), tap)
            return windows.load(self._start(i, columns, found), ks[-1])

        def load_b(j: int, ks: Sequence[Expr | int]) -> Expr | Address:
            if fused:
                return self._load_b(j, self._run(outer, ks, 1), tap * steps + ks[-1])
            taps = windows.geometry.kernel[2]
            return self._load_b(j, self._run(outer, ks, 1) * taps + tap, ks[-1])

        kernel.accumulate(result, inside, (*extents, steps), load_a, load_b)

    @property
    def _parts(self) -> int:
        """Steps of the tile in one of the weight."""
        wide = self.loops.windows.wide
        return 1 if wide is None else wide.parts

    def _outer(self) -> list[tuple[Expr | int, Expr | int]]:
        """Bounds of the loops over planes and lines of a window."""
        windows = self.loops.windows
        depth = extent(windows.geometry.outputs[0])
        return [
            windows.bounds(0, I.floormod(self.plane, depth)),
            windows.bounds(1, self.line),
        ]

    @staticmethod
    def _outer_tap(
        outer: Sequence[tuple[Expr | int, Expr | int]], ks: Sequence[Expr | int]
    ) -> tuple[Expr | int, Expr | int]:
        """Plane and line of a tap."""
        (plane, _), (line, _) = outer
        return plane + ks[0], line + ks[1]

    def _run(
        self, outer: Sequence[tuple[Expr | int, Expr | int]], ks: Sequence[Expr | int], inner: int
    ) -> Expr | int:
        """Number of a run of a window."""
        plane, line = self._outer_tap(outer, ks)
        found = plane * self.loops.windows.geometry.kernel[1] + line
        return found * inner + ks[2] if inner > 1 else found

    def _start(self, i: int, columns: int, tap: Sequence[Expr | int]) -> Expr:
        line, column = self.line + i // columns, self.column + i % columns
        return self.loops.windows.element(line, column, self.group, tap)

    def _load_b(self, j: int, run: Expr | int, step: Expr | int) -> Expr | Address:
        step = run * (self.loops.layout.steps * self._parts) + step
        return self.load_b(self.vector, self.vectors, step, j)

    def _class(self, classes: PositionClasses | None, i: Expr | int, columns: int) -> Expr | int:
        """The class of a pixel of the tile."""
        assert classes is not None
        if classes.whole:
            return 0
        assert isinstance(i, int)
        depth, _, width = self.loops.windows.geometry.outputs
        position = [
            I.floormod(self.plane, depth),
            self.line + i // columns,
            self.column + i % columns,
        ]
        if not isinstance(self.column, int):  # a tile of whole windows: any of them
            position[2] = next(c for c in range(width) if self.loops.windows.whole(c, 1))
        return classes.number(position[3 - len(classes.axes) :])

    def _store_pixels(self, result: Tile, across: Across) -> None:
        """Stores the positions of a tile that are pixels of the result."""
        _, height, width = self.loops.windows.geometry.outputs
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

    def _store(self, columns: int) -> Callable[[Expr | int, int, Expr, bool], None]:
        _, height, width = map(extent, self.loops.windows.geometry.outputs)

        def store(i: Expr | int, j: int, value: Expr, last: bool) -> None:
            if isinstance(i, int):
                line, column = self.line + i // columns, self.column + i % columns
            else:
                line, column = (
                    self.line + I.floordiv(i, columns),
                    self.column + I.floormod(i, columns),
                )
            pixel = (self.plane * height + line) * width + column
            self.loops.store(pixel, self.group, self.vector + j, value, last)

        return store


def _fetching(
    fetch: PanelFetch, load_b: LoadPanel, before: Expr | int, group: Group
) -> Callable[[Expr | int], LoadPanel]:
    """column -> how a tile of the group that begins there reads its panel."""
    return lambda column: fetch.beside(load_b, before + (column - group.start) // group.size)


def _share(total: Expr | int, number: Expr, parts: int) -> tuple[Expr, Expr]:
    """First and count of the pieces that part `number` of `parts` gets."""
    if parts == 1:
        whole = tirx.const(total, "int32") if isinstance(total, int) else total
        return tirx.const(0, "int32"), whole
    first = I.floordiv(number * total, parts)
    return first, I.floordiv((number + 1) * total, parts) - first


def _for_some(
    group: Group, first: Expr, last: Expr, body: Callable[[Expr | int, int], None]
) -> None:
    """Runs `body(start, size)` for those pieces of a group whose numbers are in [first, last)."""
    if group.count == 1:
        with I.If(tirx.all(first <= 0, last > 0)), I.Then():
            body(group.start, group.size)
        return
    low = tirx.Max(first, tirx.const(0, "int32"))
    high = tirx.Min(last, tirx.const(group.count, "int32"))
    with I.serial(tirx.Max(high - low, tirx.const(0, "int32"))) as i:
        body(group.start + (low + i) * group.size, group.size)


def _overlapping(width: int, size: int) -> list[Group]:
    """Pieces of one size; the last one overlaps the one before if they do not fit."""
    groups = [Group(0, width // size, size)]
    if width % size:
        groups.append(Group(width - size, 1, size))
    return groups
