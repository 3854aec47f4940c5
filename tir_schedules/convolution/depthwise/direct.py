"""Depthwise tiles of f32 that read x in place, with one multiply-add for each tap and vector.

A tile of pixels and vectors of channels is accumulated in registers. A column of x is loaded once
for all taps that use it, in all rows of the tile. Nothing is copied, and taps outside of x are left
out: along the columns at compile time (tiles at the edges have code of their own), along the rows
by the bounds of a loop. If the number of columns is dynamic, one code serves all edges: columns
that may lie outside are loaded with a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, Index, bind, constant, materialise, ramp, splat
from tir_schedules.convolution.geometry import alike_tiles
from tir_schedules.core.emission import branch, ceil_div, choose, opaque_block
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.epilogue.epilogue import Columns, load_vector

from .config import DepthwiseConfig, DepthwiseProblem
from .results import Accumulators, Corner, DepthwiseTiles, Results


class Margin(NamedTuple):
    """A column of x that may lie outside of x, and then counts as zeros.

    Attributes
    ----------
    loaded, kept : Expr
        Number of lanes that exist: all or none. TVM drops the mask of a load if a Select with the
        mask's condition takes its value, so the number has two names. LLVM sees that they are
        equal, and makes one load.
    shift : Expr or None
        Distance to a column that is read anyway, if this one lies outside; else 0. The load then
        touches no other cache line (5x5 at 20x20x192: 26 instead of 29 us on a Zen 5). None for
        tiles of several rows, whose windows are small: there it costs more than it saves.
    """

    loaded: Expr
    kept: Expr
    shift: Expr | None


@dataclass(frozen=True)
class Strip:
    """`count` tiles of `size` columns from `start` on; `edge` if taps of one lie outside of x."""

    start: int
    count: int
    size: int
    edge: bool
    # Columns of x that may lie outside, counted from the first one of a tile.
    margins: Mapping[int, Margin] = field(default_factory=dict)


def strips(problem: DepthwiseProblem, most: int) -> Iterator[Strip]:
    """The columns in balanced tiles: equal neighbours in one strip, each edge tile in its own."""

    def is_whole(start: int, size: int) -> bool:
        return all(map(problem.columns.is_inside, (start, start + size - 1)))

    for group, whole in alike_tiles(problem.columns.outputs, most, is_whole):
        yield Strip(group.start, group.count, group.size, not whole)


Weights = dict[tuple[int, int, int], Expr]
"""(Row of the window, column of it, vector of channels) -> a weight that is bound to a name."""


class Line(NamedTuple):
    """Neighbouring rows of results, with all their columns and channels.

    Places are in memory (`materialise`): as expressions for every tap and pixel, they would be most
    of the code that TVM and LLVM see of a tile.
    """

    sample: Expr
    row: Expr  # the first row of results
    rows: int  # number of rows
    taps: Index  # rows of the window that lie within x
    x: Expr  # place in x of the first of these taps, for the first window and channel
    pitch: Index  # elements of a row of x
    w: Expr  # elements before the first of these taps in the weights of a vector of channels


@dataclass(frozen=True)
class DirectTiles(DepthwiseTiles):
    """The tiles of a region that read x in place."""

    problem: DepthwiseProblem
    config: DepthwiseConfig
    lanes: int
    x: Expr  # the image as a vector
    w: Expr  # the weight as `DepthwiseWeight` packs it
    results: Results

    @property
    def _width(self) -> int:
        """Channels of a register tile."""
        return self.config.vectors * self.lanes

    @property
    def chunks(self) -> int:
        whole = self.problem.channels // self._width
        return max(1, -(-whole // self.config.blocks))

    def band(self, sample: Expr, band: Expr, chunk: Expr, begins: Expr) -> None:
        """Emits one band: all rows at once if all their taps are inside of x, else row by row."""
        axis, rows = self.problem.rows, self.config.rows
        if rows == 1:
            self._columns(sample, band, 1, chunk)
            return
        named: Callable[[Expr], Expr] = (
            materialise if self.problem.has_dynamic_image else lambda at: at
        )
        first = named(band * rows)
        left = named(extent(axis.outputs) - first)

        def one_by_one() -> None:
            with I.serial(tirx.Min(tirx.const(rows, "int32"), left)) as row:
                self._columns(sample, named(first + row), 1, chunk)

        def at_once() -> None:
            self._columns(sample, first, rows, chunk)

        if self.problem.has_dynamic_image:
            top = first * axis.stride - axis.before
            inside = tirx.all(left >= rows, top >= 0, top + axis.span(rows) <= extent(axis.extent))
            if self.problem.columns.is_dynamic:
                outputs = as_expr(extent(self.problem.columns.outputs))
                inside = tirx.all(inside, outputs >= self.config.columns)
            branch(inside, at_once, one_by_one)
            return
        whole = [
            number
            for number in range(axis.outputs // rows)
            if axis.is_inside(number * rows) and axis.is_inside(number * rows + rows - 1)
        ]
        if len(whole) in (0, self.count):
            (at_once if whole else one_by_one)()
        else:
            branch(tirx.all(band >= whole[0], band <= whole[-1]), at_once, one_by_one)

    def _dynamic_columns(self, line: Line, chunk: Expr) -> None:
        """Emits dynamic columns: whole tiles, of which the last one may overlap the one before."""
        axis, most = self.problem.columns, self.config.columns
        # A line shorter than a tile is cut into smaller tiles.
        sizes = [most] if line.rows > 1 else sorted({most, -(-most // 2), 1}, reverse=True)
        outputs = extent(axis.outputs)
        # The first column whose window reaches over the end of x.
        inside = I.floordiv(extent(axis.extent) + axis.before - axis.span(1), axis.stride) + 1
        inside = materialise(tirx.Min(inside, outputs))
        fitting = [tirx.Cast("int32", tirx.LT(outputs, size)) for size in sizes[:-1]]
        kind = materialise(sum(fitting, tirx.const(0, "int32")))
        size = tirx.const(sizes[-1], "int32")
        for which, each in reversed(list(enumerate(sizes[:-1]))):
            size = tirx.Select(kind <= which, tirx.const(each, "int32"), size)
        size = materialise(size)
        last = materialise(tirx.Max(outputs - size, tirx.const(0, "int32")))
        with I.serial(ceil_div(outputs, size)) as number, opaque_block("columns"):
            first = materialise(tirx.Min(number * size, last))

            def at_edge(which: int) -> None:
                strip = Strip(0, 1, sizes[which], False, self._margins(line, first, sizes[which]))
                self._channels(line, first, strip, chunk)

            if line.rows < self.config.rows:  # the first and the last line, or short lines
                choose(kind, range(len(sizes)), at_edge)
                return
            # Tiles whose windows lie inside of x have code of their own, which checks no columns.
            within = tirx.all(first * axis.stride >= axis.before, first + size <= inside, kind <= 0)
            with I.If(within):
                with I.Then():
                    self._channels(line, first, Strip(0, 1, sizes[0], False), chunk)
                with I.Else():
                    choose(kind, range(len(sizes)), at_edge)

    def _margins(self, line: Line, column: Expr, size: int) -> dict[int, Margin]:
        """Columns of x that may lie outside, counted from the first one of a tile."""
        axis, zero = self.problem.columns, tirx.const(0, "int32")
        span, found = axis.span(size), {}
        for offset in axis.used_columns(size):
            if axis.before <= offset < span - axis.after:
                continue
            position = column * axis.stride + (offset - axis.before)
            exists = materialise(tirx.all(position >= 0, position < extent(axis.extent)))
            count = I.sblock_alloc_buffer((1,), "int32")
            I.buffer_store(count, tirx.Select(exists, tirx.const(self.lanes, "int32"), zero), [0])
            shift = None
            if line.rows == 1:
                apart = tirx.const((axis.before - offset) * self.problem.channels, "int32")
                shift = materialise(tirx.Select(exists, zero, apart))
            found[offset] = Margin(I.bind(count[0]), I.bind(count[0]), shift)
        return found

    def _columns(self, sample: Expr, row: Expr, rows: int, chunk: Expr) -> None:
        line = self._line(sample, row, rows)
        if self.problem.columns.is_dynamic:
            self._dynamic_columns(line, chunk)
            return
        for strip in strips(self.problem, self.config.columns):
            if strip.count == 1:
                column = tirx.const(strip.start, "int32")
                self._channels(line, column, strip, chunk)
                continue
            with I.serial(strip.count) as number:
                self._channels(line, strip.start + number * strip.size, strip, chunk)

    def _channels(self, line: Line, column: Expr, strip: Strip, chunk: Expr) -> None:
        """Emits all channels of a chunk."""

        def of_block(block: Expr, _number: Expr, valid: int) -> None:
            self._tile(line, column, strip, block * self.config.vectors, valid)

        self.over_channels(chunk, self._width, of_block)

    def _tile(self, line: Line, column: Expr, strip: Strip, vector: Expr, valid: int) -> None:
        """Emits one register tile from a column on."""
        problem, lanes, rows = self.problem, self.lanes, line.rows
        with opaque_block("tile"):
            tile = Accumulators(rows, strip.size, -(-valid // lanes), lanes, "float32")
            tile.fill(lambda _vector: constant(0.0, "float32", lanes))
            start = column * (problem.columns.stride * problem.channels) + vector * lanes
            x = materialise(line.x + start)
            w = materialise(vector * (problem.taps * lanes) + line.w)
            steps = problem.columns.taps * lanes
            weights: Weights = {}
            if rows == 1:
                with I.serial(line.taps) as number:
                    at = materialise(x + number * (line.pitch * problem.rows.dilation))
                    taps = [(0, 0, materialise(w + number * steps))]
                    self._row(tile, strip, at, taps, valid, weights)
            else:
                axis = problem.rows
                for offset in range(axis.span(rows)):
                    users = [(i, offset - i * axis.stride) for i in range(rows)]
                    taps = [(i, t, w + t * steps) for i, t in users if 0 <= t < axis.taps]
                    at = materialise(x + line.pitch * offset)
                    self._row(tile, strip, at, taps, valid, weights)
            corner = Corner(line.sample, line.row, column)
            self.results.store(tile, corner, vector * lanes, valid)

    def _line(self, sample: Expr, row: Expr, rows: int) -> Line:
        """Rows `row` to `row + rows` of the result, with the taps of their windows within x."""
        problem, axis = self.problem, self.problem.rows
        top = row * axis.stride - axis.before
        zero, most = tirx.const(0, "int32"), tirx.const(axis.taps, "int32")
        first: Expr = zero  # first tap that lies within x
        taps: Index = axis.taps if rows > 1 else most
        whole = not axis.is_dynamic and all(map(axis.is_inside, range(axis.outputs)))
        if rows == 1 and not whole:
            step = axis.dilation
            last = I.floordiv(extent(axis.extent) + step - 1 - top, step)
            first = materialise(tirx.Max(zero, I.floordiv(step - 1 - top, step)))
            taps = materialise(tirx.Max(zero, tirx.Min(most, last) - first))
        before = tirx.const(problem.columns.before, "int32")
        pixel = problem.pixel(sample, top + first * axis.dilation, -before)
        pitch = extent(problem.columns.extent * problem.channels)
        x = materialise(pixel * problem.channels)
        w = first * (problem.columns.taps * self.lanes)
        return Line(sample, row, rows, taps, x, pitch, w)

    def _row(
        self,
        tile: Accumulators,
        strip: Strip,
        x: Expr,
        taps: Sequence[tuple[int, int, Expr]],
        valid: int,
        weights: Weights,
    ) -> None:
        """Adds the products of one row of x, which starts at place `x`."""
        axis, lanes, channels = self.problem.columns, self.lanes, self.problem.channels
        users = axis.used_columns(strip.size)
        for offset, uses in users.items():
            if strip.edge:
                position = strip.start * axis.stride - axis.before + offset
                if position < 0 or (not axis.is_dynamic and position >= axis.extent):
                    continue
            at = x + offset * channels
            for j in range(tile.vectors):
                exist = min(lanes, valid - j * lanes)
                margin = strip.margins.get(offset)
                value = bind(self._load(at + j * lanes if j else at, exist, margin))
                # Row of the tile, row of the weight, and the place of that row of the weight.
                for i, row, first in taps:
                    for k, tap in uses:
                        if (row, tap, j) not in weights:
                            place = first + (j * self.problem.taps + tap) * lanes
                            weights[row, tap, j] = bind(self.w[ramp(place, lanes)])
                        tile.set(i, k, j, tile.get(i, k, j) + value * weights[row, tap, j])

    def _load(self, at: Expr, exist: int, margin: Margin | None) -> Expr:
        """A vector of x of `exist` lanes, and of a margin's lanes; the other lanes are 0."""
        lanes = self.lanes
        if margin is None:
            return load_vector(self.x, "float32", (), Columns(at, lanes, exist))
        zeros = constant(0.0, "float32", lanes)
        if lanes == 1:
            return tirx.if_then_else(margin.loaded > 0, self.x[at], zeros)
        most = tirx.const(exist, "int32")
        loaded, kept = tirx.Min(margin.loaded, most), tirx.Min(margin.kept, most)
        at = at if margin.shift is None else at + margin.shift
        columns = Columns(at, lanes, loaded)
        value = load_vector(self.x, "float32", (), columns)
        return tirx.Select(tirx.LT(ramp(0, lanes), splat(kept, lanes)), value, zeros)
