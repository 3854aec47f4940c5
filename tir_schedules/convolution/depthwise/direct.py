"""Depthwise tiles of f32 that read x in place, with one multiply-add for each tap and vector.

A tile of pixels and vectors of channels is accumulated in registers. A column of x is loaded once
for all taps that use it, in all rows of the tile. Nothing is copied, and taps outside of x are left
out: along the columns at compile time (tiles at the edges have code of their own), along the rows
by the bounds of a loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, bind, constant, materialise, ramp, splat
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.core.open_loops import ceil_div, choose
from tir_schedules.epilogue.epilogue import Columns, load_vector

from .config import DepthwiseConfig
from .problem import DepthwiseProblem
from .results import Accumulators, Corner, Results
from .strips import BEGIN, END, MIDDLE, OTHER, Strip, open_strip, strips, used_columns


@dataclass(frozen=True)
class DirectTiles:
    """The tiles of a region.

    Attributes
    ----------
    problem : DepthwiseProblem
        Its geometry.
    config : DepthwiseConfig
        Its numbers.
    lanes : int
        Of a vector.
    x, w : Buffer
        The image, and the weight as `convolution.depthwise.weight` packs it.
    results : Results
        Where they go.
    """

    problem: DepthwiseProblem
    config: DepthwiseConfig
    lanes: int
    x: Expr
    w: Expr
    results: Results

    @property
    def items(self) -> Expr | int:
        """Pieces of work, which threads share: a band of rows of some channels each."""
        return extent(self.problem.batch) * (self._chunks * self._bands)

    @property
    def _bands(self) -> Expr | int:
        outputs = extent(self.problem.rows.outputs)
        if isinstance(outputs, int):
            return -(-outputs // self.config.rows)
        return ceil_div(outputs, self.config.rows)

    @property
    def _width(self) -> int:
        """Channels of a register tile."""
        return self.config.vectors * self.lanes

    @property
    def _chunks(self) -> int:
        whole = self.problem.channels // self._width
        return max(1, -(-whole // self.config.blocks))

    def share(self, first: Expr, last: Expr) -> None:
        """The items from `first` to `last`."""
        # Loops begin at 0: TVM loses what others begin with in the bounds of loops inside.
        with I.serial(last - first) as number:
            item = bind(first + number)
            band = I.floormod(item, self._bands)
            rest = I.floordiv(item, self._bands)
            if self.problem.opens_image:
                band, rest = materialise(band), materialise(rest)
            batch = extent(self.problem.batch)
            sample, chunk = I.floormod(rest, batch), I.floordiv(rest, batch)
            if not isinstance(batch, int):
                sample, chunk = materialise(sample), materialise(chunk)
            self._band(sample, band, chunk)

    def prepared(self) -> contextlib.AbstractContextManager[None]:
        """The scope in which `bands` may be emitted."""
        return contextlib.nullcontext()

    def bands(self, sample: Expr, first: Expr, count: Expr, begins: Expr) -> None:
        """All channels of `count` neighbouring bands of an image, from `first` on.

        `begins` says that the bands before the first have not been computed just before.
        """
        with I.serial(self._chunks) as chunk, I.serial(count) as number:
            self._band(sample, first + number, chunk)

    def _band(self, sample: Expr, band: Expr, chunk: Expr) -> None:
        """One band of rows: all of them at once where all taps are inside, else row by row."""
        axis, rows = self.problem.rows, self.config.rows
        if rows == 1:
            self._columns(sample, band, 1, chunk)
            return
        if self.problem.opens_image:
            self._open_band(sample, band, chunk)
            return
        inside = [
            number
            for number in range(axis.outputs // rows)
            if axis.is_inside(number * rows) and axis.is_inside(number * rows + rows - 1)
        ]

        def one_by_one() -> None:
            most = tirx.Min(tirx.const(rows, "int32"), axis.outputs - band * rows)
            with I.serial(most) as row:
                self._columns(sample, band * rows + row, 1, chunk)

        def at_once() -> None:
            self._columns(sample, band * rows, rows, chunk)

        if not inside:
            one_by_one()
        elif len(inside) == self._bands:
            at_once()
        else:
            with I.If(tirx.all(band >= inside[0], band <= inside[-1])):
                with I.Then():
                    at_once()
                with I.Else():
                    one_by_one()

    def _open_band(self, sample: Expr, band: Expr, chunk: Expr) -> None:
        """The same, where the number of rows or of columns is known at run time only."""
        axis, rows = self.problem.rows, self.config.rows
        first = materialise(band * rows)
        left = materialise(extent(axis.outputs) - first)
        top = first * axis.stride - axis.before
        end = top + axis.span(rows)
        at_once = tirx.all(left >= rows, top >= 0, end <= extent(axis.extent))
        if self.problem.columns.is_open:
            at_once = tirx.all(at_once, self._is_long())
        with I.If(at_once):
            with I.Then():
                self._columns(sample, first, rows, chunk)
            with I.Else(), I.serial(tirx.Min(tirx.const(rows, "int32"), left)) as row:
                self._columns(sample, materialise(first + row), 1, chunk)

    def _inside(self) -> Expr:
        """The first column of a line of open length whose window reaches over the end of x."""
        axis = self.problem.columns
        inside = I.floordiv(extent(axis.extent) + axis.before - axis.span(1), axis.stride) + 1
        return tirx.Min(inside, extent(axis.outputs))

    def _is_long(self) -> Expr:
        """Whether no tile of a line of open length reaches over both ends of x."""
        axis, size = self.problem.columns, self.config.columns
        if size * axis.stride < axis.before:
            return tirx.const(False, "bool")
        last = as_expr(extent(axis.outputs)) - size
        return tirx.all(
            self._inside() >= size, tirx.any(last <= 0, last * axis.stride >= axis.before)
        )

    def _open_columns(self, sample: Expr, row: Expr, rows: int, chunk: Expr) -> None:
        """Columns whose number is known at run time only: whole tiles, of which the last one may
        overlap the one before.

        The first one and the last one have code of their own. Where both are the same, or padding
        is wider than a tile, code looks at every column of x; tiles of several rows are not used
        there.
        """
        axis, size = self.problem.columns, self.config.columns
        outputs = extent(axis.outputs)
        inside = materialise(self._inside())
        last = materialise(tirx.Max(outputs - size, tirx.const(0, "int32")))
        sizes = sorted({-(-size // 2), size})
        with I.serial(ceil_div(outputs, size)) as number, opaque_block("columns"):
            first = materialise(tirx.Min(number * size, last))
            left = materialise(tirx.Min(outputs - first, tirx.const(size, "int32")))
            begins, ends = first * axis.stride >= axis.before, first + size <= inside
            middle, at_begin, at_end, other = (
                tirx.const(kind, "int32") for kind in (MIDDLE, BEGIN, END, OTHER)
            )
            if len(sizes) > 1:
                other = other + tirx.Cast("int32", left > sizes[0])
            inner = tirx.Select(ends, middle, tirx.Select(left >= size, at_end, other))
            outer = tirx.Select(tirx.all(first <= 0, ends), at_begin, other)

            def tile(kind: int) -> None:
                strip = open_strip(axis, kind, sizes, left)
                self._channels(Corner(sample, row, first), rows, strip, chunk)

            kind = materialise(tirx.Select(begins, inner, outer))
            choose(kind, range(OTHER + len(sizes) if rows == 1 else OTHER), tile)

    def _columns(self, sample: Expr, row: Expr, rows: int, chunk: Expr) -> None:
        if self.problem.columns.is_open:
            self._open_columns(sample, row, rows, chunk)
            return
        for strip in strips(self.problem, self.config.columns):
            if strip.count == 1:
                column = tirx.const(strip.start, "int32")
                self._channels(Corner(sample, row, column), rows, strip, chunk)
                continue
            with I.serial(strip.count) as number:
                corner = Corner(sample, row, strip.start + number * strip.size)
                self._channels(corner, rows, strip, chunk)

    def _channels(self, corner: Corner, rows: int, strip: Strip, chunk: Expr) -> None:
        """All channels of a chunk; the last one has what is left over as well."""
        width, blocks = self._width, self.config.blocks
        whole, rest = divmod(self.problem.channels, width)
        if whole:
            most = tirx.const(blocks, "int32")
            if whole % blocks:
                most = tirx.Min(most, whole - chunk * blocks)
            with I.serial(most) as number:
                block = chunk * blocks + number
                self._tile(corner, rows, strip, block * self.config.vectors, width)
        if rest:
            with I.If(chunk == self._chunks - 1), I.Then():
                first = tirx.const(whole * self.config.vectors, "int32")
                self._tile(corner, rows, strip, first, rest)

    def _tile(self, corner: Corner, rows: int, strip: Strip, vector: Expr, valid: int) -> None:
        with opaque_block("tile"):
            vectors = -(-valid // self.lanes)
            tile = Accumulators(rows, strip.size, vectors, self.lanes, "float32")
            tile.fill(lambda _vector: constant(0.0, "float32", self.lanes))
            axis = self.problem.rows
            top = corner.row * axis.stride - axis.before
            if rows == 1:
                first, count = self._tap_rows(top)
                with I.serial(count) as number:
                    tap = first + number
                    self._row(
                        tile, corner, strip, vector, valid, top + tap * axis.dilation, [(0, tap)]
                    )
            else:
                for offset in range(axis.span(rows)):
                    taps = [
                        (i, tirx.const(offset - i * axis.stride, "int32"))
                        for i in range(rows)
                        if 0 <= offset - i * axis.stride < axis.taps
                    ]
                    self._row(tile, corner, strip, vector, valid, top + offset, taps)
            self.results.store(tile, corner, vector * self.lanes, valid, strip.stored)

    def _tap_rows(self, top: Expr) -> tuple[Expr, Expr]:
        """The first of the taps that lie within x, and how many do, for a window from `top` on."""
        axis = self.problem.rows
        step, zero = axis.dilation, tirx.const(0, "int32")
        known = not axis.is_open
        if known and all(axis.is_inside(row) for row in range(axis.outputs)):
            return zero, tirx.const(axis.taps, "int32")
        first = tirx.Max(zero, I.floordiv(step - 1 - top, step))
        last = I.floordiv(extent(axis.extent) + step - 1 - top, step)
        last = tirx.Min(tirx.const(axis.taps, "int32"), last)
        bound = bind(first)
        return bound, tirx.Max(tirx.const(0, "int32"), last - bound)

    def _row(
        self,
        tile: Accumulators,
        corner: Corner,
        strip: Strip,
        vector: Expr,
        valid: int,
        row: Expr,
        taps: Sequence[tuple[int, Expr]],
    ) -> None:
        """One row of x: `taps` are (row of the tile, row of the weight)."""
        axis = self.problem.columns
        start = strip.start if strip.edge and strip.stored is None else None
        weights: dict[tuple[int, int, int], Expr] = {}

        def weight(i: int, tap: int, j: int) -> Expr:
            if (i, tap, j) not in weights:
                weights[i, tap, j] = bind(self._weight(vector + j, dict(taps)[i], tap))
            return weights[i, tap, j]

        users = used_columns(axis.stride, axis.dilation, axis.taps, strip.size)
        for offset, uses in users.items():
            if start is not None:
                position = start * axis.stride - axis.before + offset
                if position < 0 or (not axis.is_open and position >= axis.extent):
                    continue
            column = corner.column * axis.stride - axis.before + offset
            exists = None
            if offset in strip.checked:
                # Columns outside are read at the nearest inside, and count as zeros.
                width = extent(axis.extent)
                exists = bind(tirx.all(column >= 0, column < width))
                column = tirx.Max(tirx.Min(column, width - 1), tirx.const(0, "int32"))
            for j in range(tile.vectors):
                columns = Columns(
                    (vector + j) * self.lanes, self.lanes, min(self.lanes, valid - j * self.lanes)
                )
                pixel = self.problem.pixel(corner.sample, row, column)
                value = load_vector(self.x, "float32", pixel, columns)
                if exists is not None:
                    zeros = constant(0.0, "float32", self.lanes)
                    value = tirx.Select(splat(exists, self.lanes), value, zeros)
                value = bind(value)
                for i, _tap in taps:
                    for k, tap in uses:
                        total = tile.get(i, k, j) + value * weight(i, tap, j)
                        tile.set(i, k, j, total)

    def _weight(self, vector: Expr, row: Expr, column: int) -> Expr:
        problem = self.problem
        tap = vector * problem.taps + row * problem.columns.taps + column
        return self.w[ramp(tap * self.lanes, self.lanes)]
