"""The tiles of a panel of channels in a band of lines, and how each is multiplied and stored.

    for each line, for each tile of pixels in it
        multiply over planes, lines, columns and channels of the window; store

Accumulators stay in registers over the whole window. The tiles of a line differ by at most one
pixel (`balanced`). Tiles whose windows reach over the left or right edge have code of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.tile import Address, Place, Tile
from microkernels.vector.expressions import Expr, Index, materialise, ramp
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.emission import choose, for_groups, opaque_block, quarters, which_size
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.epilogue.tile_results import rest, store_tile
from tir_schedules.product.tile_products import LoadPanel

from .config import Across
from .weight import PanelFetch

if TYPE_CHECKING:
    from .loops import ConvLoops


class Band(NamedTuple):
    """Some lines of a plane.

    Attributes
    ----------
    share : Expr
        Number of the thread among those along channels and tiles.
    plane, line : Expr
        The plane, and the first line.
    lines : Expr or int
        How many.
    scratch : Buffer or None
        Where accumulators of tile registers go.
    """

    share: Expr
    plane: Expr
    line: Expr
    lines: Index
    scratch: Expr | None


@dataclass(frozen=True)
class PanelLoops:
    """The tiles of a panel in a band.

    Attributes
    ----------
    loops : ConvLoops
        The convolution.
    band : Band
        Its lines.
    piece : Expr
        Number of the thread among those along the tiles of a line.
    group, vector : Expr or int
        Number of the group of channels, and the first vector of the panel in it.
    vectors : int
        How many.
    """

    loops: ConvLoops
    band: Band
    piece: Expr
    group: Index
    vector: Index
    vectors: int

    def emit(self) -> None:
        """All tiles."""
        loops, band, config = self.loops, self.band, self.loops.config
        load_b = self._load_b()
        across = loops.layout.plan.across

        def going_on(position: Index, positions: int) -> None:
            self._tile(band.line, position, load_b, 1, positions)

        def in_lines(line: Index, height: int) -> None:
            if loops.outliers is not None:
                loops.outliers.add(line, height, self.vector, self.vectors, load_b)
            if loops.windows.geometry.opens_image:
                self._dynamic_line(line, load_b)
            else:
                self._lines(line, height, load_b)

        if across is not None:
            for_groups(_overlapping(across.total, loops.layout.plan.tiles[0]), going_on)
        elif config.lines > 1:
            assert isinstance(band.lines, int)
            for_groups(balanced(band.lines, config.lines), in_lines)
        else:
            with I.serial(band.lines) as i:
                in_lines(band.line + i, 1)

    def _tile(
        self,
        line: Index,
        column: Index,
        load_b: LoadPanel,
        height: int,
        columns: int,
        whole: bool = True,
    ) -> None:
        with opaque_block("tile"):
            _Tile(self, line, column, load_b).emit(height, columns, whole)

    def _lines(self, line: Index, height: int, load_b: LoadPanel) -> None:
        """The tiles of some lines that this thread has."""
        loops, config, width = self.loops, self.loops.config, self.loops.windows.geometry.outputs[2]
        if loops.layout.kernel.by_tiles:
            # One configuration does for all: the last tile overlaps the one before.
            found = [(each, True) for each in _overlapping(width, loops.layout.plan.tiles[0])]
        else:
            found = list(self._pieces(width))
        pieces, threads = sum(group.count for group, _ in found), loops.grid.tiles
        first, count = share_of(pieces, self.piece, threads)
        fetch = PanelFetch(loops.layout.packed, loops.weight, config.band * pieces)
        before = 0

        def emit(group: Group, whole: bool, ahead: Index, column: Index, columns: int) -> None:
            read_b = load_b
            if config.fetches:
                read_b = fetch.beside(load_b, ahead + (column - group.start) // group.size)
            self._tile(line, column, read_b, height, columns, whole)

        for group, whole in found:
            tile = partial(emit, group, whole, (line - self.band.line) * pieces + before)
            if threads == 1:
                for_groups([group], tile)
            else:
                _for_some(group, first - before, first + count - before, tile)
            before += group.count

    def _dynamic_line(self, line: Index, load_b: LoadPanel) -> None:
        """Whole tiles, then one for the rest: what it has too many is not stored."""
        columns, rows = extent(self.loops.windows.geometry.outputs[2]), self.loops.config.rows
        whole = materialise(I.floordiv(columns, rows))
        with I.serial(whole) as number:
            self._tile(line, number * rows, load_b, 1, rows)
        left, sizes = materialise(columns - whole * rows), quarters(rows)
        kind, rest = which_size(left, sizes), _Tile(self, line, whole * rows, load_b)
        with I.If(left > 0), I.Then():
            choose(kind, range(len(sizes)), lambda which: rest.emit(1, sizes[which], True, left))

    def _load_b(self) -> LoadPanel:
        """How tiles read the weight of the panel."""
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

    def _pieces(self, width: int) -> Iterator[tuple[Group, bool]]:
        """Tiles of a line, those alike as one group, and whether their windows are whole."""
        tiles = [
            (group.start + i * group.size, group.size)
            for group in balanced(width, self.loops.config.rows)
            for i in range(group.count)
        ]
        is_whole = self.loops.windows.whole
        kinds = itertools.groupby(tiles, lambda tile: (is_whole(*tile), tile[1]))
        for (whole, size), alike in kinds:
            starts = [start for start, _ in alike]
            if whole:
                yield Group(starts[0], len(starts), size), True
            else:
                yield from ((Group(start, 1, size), False) for start in starts)


class _Tile:
    """One tile of a panel: `line` and `column` are its first pixel in the plane of the band."""

    def __init__(self, panel: PanelLoops, line: Index, column: Index, load_b: LoadPanel) -> None:
        self.loops, self.windows, self.plane = panel.loops, panel.loops.windows, panel.band.plane
        self.group, self.vector, self.vectors = panel.group, panel.vector, panel.vectors
        self.line, self.column, self.load_b = line, column, load_b
        self.scratch = panel.band.scratch
        wide = self.windows.wide
        # Steps of the tile in one of the weight.
        self.parts = 1 if wide is None else wide.parts
        # Bounds of the loops over planes and lines of a window.
        depth = extent(self.windows.geometry.outputs[0])
        self.outer = (
            self.windows.bounds(0, I.floormod(self.plane, depth)),
            self.windows.bounds(1, line),
        )

    def emit(self, height: int, columns: int, whole: bool, stored: Expr | None = None) -> None:
        """Multiplies and stores `height` lines of `columns` pixels, of one line perhaps fewer."""
        loops, kernel, windows = self.loops, self.loops.tile, self.windows
        rows, begin, outliers = height * columns, loops.start, loops.outliers

        def start(i: int, j: int) -> Any:
            parts = []
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

            def load_a(i: int, ks: Sequence[Index]) -> Expr | Address:
                tap = (*self._outer_tap(ks), ks[2])
                return windows.load(self._start(i, columns, tap), ks[-1])

            def load_b(j: int, ks: Sequence[Index]) -> Expr | Address:
                return self._load_b(j, self._run(ks, taps), ks[-1])

            into = None if self.scratch is None else Place(self.scratch)
            loads, reduced = (load_a, load_b), (*extents, taps, steps)
            result = kernel.emit(rows, self.vectors, reduced, *loads, init, into, columns=alike)
        else:
            result = kernel.begin(rows, self.vectors, init)
            for tap in range(windows.geometry.kernel[2]):
                self._one_tap(result, columns, tap)
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

    def _one_tap(self, result: Tile, columns: int, tap: int) -> None:
        """One column of all windows of a tile, for the pixels where it lies inside."""
        loops, kernel, windows = self.loops, self.loops.tile, self.windows
        assert isinstance(self.column, int)
        inside = windows.inside(self.column, columns, tap)
        if not inside:
            return
        fused = loops.layout.form == "fused"
        steps = windows.geometry.group_channels // kernel.kr

        def load_a(i: int, ks: Sequence[Index]) -> Expr | Address:
            found = (*self._outer_tap(ks), tap)
            return windows.load(self._start(i, columns, found), ks[-1])

        def load_b(j: int, ks: Sequence[Index]) -> Expr | Address:
            if fused:
                return self._load_b(j, self._run(ks, 1), tap * steps + ks[-1])
            taps = windows.geometry.kernel[2]
            return self._load_b(j, self._run(ks, 1) * taps + tap, ks[-1])

        extents = [high - low for low, high in self.outer]
        kernel.accumulate(result, inside, (*extents, steps), load_a, load_b)

    def _outer_tap(self, ks: Sequence[Index]) -> tuple[Index, Index]:
        """Plane and line of a tap."""
        (plane, _), (line, _) = self.outer
        return plane + ks[0], line + ks[1]

    def _run(self, ks: Sequence[Index], inner: int) -> Index:
        """Number of a run of a window."""
        plane, line = self._outer_tap(ks)
        found = plane * self.windows.geometry.kernel[1] + line
        return found * inner + ks[2] if inner > 1 else found

    def _start(self, i: int, columns: int, tap: Sequence[Index]) -> Expr:
        line, column = self.line + i // columns, self.column + i % columns
        return self.windows.element(line, column, self.group, tap)

    def _load_b(self, j: int, run: Index, step: Index) -> Expr | Address:
        step = run * (self.loops.layout.steps * self.parts) + step
        return self.load_b(self.vector, self.vectors, step, j)

    def _class(self, i: int, columns: int) -> Index:
        """The class of a pixel of the tile."""
        classes = self.loops.layout.classes
        assert classes is not None
        if classes.whole:
            return 0
        depth, _, width = self.windows.geometry.outputs
        position = [
            I.floormod(self.plane, depth),
            self.line + i // columns,
            self.column + i % columns,
        ]
        if not isinstance(self.column, int):  # a tile of whole windows: any of them
            position[2] = next(c for c in range(width) if self.windows.whole(c, 1))
        return classes.number(position[3 - len(classes.axes) :])

    def _store_pixels(self, result: Tile, across: Across) -> None:
        """Stores the positions of a tile that are pixels of the result."""
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
    """First and count of the pieces that part `number` of `parts` gets."""
    if parts == 1:
        return tirx.const(0, "int32"), as_expr(total)
    first = I.floordiv(number * total, parts)
    return first, I.floordiv((number + 1) * total, parts) - first


def _for_some(group: Group, first: Expr, last: Expr, body: Callable[[Index, int], None]) -> None:
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
