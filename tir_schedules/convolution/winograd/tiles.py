"""The tiles of a Winograd convolution, and their transforms.

    x     ->    V [products][tiles][C]            B^T d B of every tile and channel
    M [products][tiles][panel]    ->    pixels    A^T m A of every tile and output channel

Tiles of x overlap. At the edges, what lies outside of x is replaced by 0 after a load from the
nearest pixel; nothing is copied. Where an image ends within a tile, or an epilogue is long, the
results are stored in L1, and a loop runs over those that exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index, bind, materialise
from tir_schedules.convolution.geometry import ConvGeometry, one_image
from tir_schedules.core.emission import ceil_div, opaque_block, where_all
from tir_schedules.core.extents import as_expr, extent, flat_rows, item_operands, operand_views
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_dynamic
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector
from tir_schedules.epilogue.tile_results import LONG_EPILOGUE, store_columns

from .algorithm import Algorithm


@dataclass(frozen=True)
class WinogradProblem:
    """A convolution region in tiles.

    With dilation, the results of a tile are as far apart as the taps. The first tiles of all phases
    come first, then the second tile of every phase, and so on.
    """

    geometry: ConvGeometry  # with a height and a width
    rows: Index  # tiles along the height of an image
    columns: Index  # tiles along the width of an image
    algorithm: Algorithm
    sample: Expr | None = None  # the image, if the number of images is dynamic
    line: bool = False  # whether x and the result have no height

    @staticmethod
    def of(region: Region, counted: bool = False) -> WinogradProblem:
        """The tiles of a region; of one image of the sample size, if sizes are dynamic.

        With `counted`, emits code that counts the tiles of all images of dynamic sizes.
        """

        def count(size: int, step: int, tile: int) -> Index:
            found = _phases(size, step) * ceil_div(extent(size), step * tile)
            return materialise(as_expr(found)) if counted else found

        geometry = ConvGeometry.of(region if counted else one_image(region))
        pairs = zip(geometry.kernel, geometry.dilation, strict=True)
        dilation = tuple(step if taps > 1 else 1 for taps, step in pairs)  # one tap has no dilation
        image, algorithm = replace(geometry, dilation=dilation).with_axes(2), Algorithm.of(region)
        sizes = zip(image.outputs, image.dilation, algorithm.axes, strict=True)
        rows, columns = (count(size, step, axis.tile) for size, step, axis in sizes)
        return WinogradProblem(image, rows, columns, algorithm, line=len(geometry.kernel) == 1)

    @property
    def tiles(self) -> int:
        """Tiles of all samples; only if they are static."""
        assert isinstance(self.rows, int) and isinstance(self.columns, int)
        return self.geometry.batch * self.rows * self.columns

    def padded(self, axis: int) -> bool:
        """Whether windows reach outside of x along an axis."""
        return self.geometry.before[axis] > 0 or self.geometry.after[axis] > 0

    def start(self, axis: int, number: Expr) -> Expr:
        """The first result of tile `number` along an axis."""
        step, tile = self.geometry.dilation[axis], self.algorithm.axes[axis].tile
        if step == 1:
            return number * tile
        phases = _phases(self.geometry.outputs[axis], step)
        whole = I.floordiv(number, phases)
        return number - whole * phases + whole * (step * tile)

    def last_start(self, axis: int) -> int | None:
        """The largest first result of any tile of an axis; None if the tiles are dynamic."""
        tiles = (self.rows, self.columns)[axis]
        if not isinstance(tiles, int):
            return None
        step, tile = self.geometry.dilation[axis], self.algorithm.axes[axis].tile
        phases = _phases(self.geometry.outputs[axis], step)
        return (tiles // phases - 1) * step * tile + phases - 1

    def index(self, sample: Expr, y: Expr, x: Expr) -> list[Expr]:
        """The indices of a pixel of x or of the result, without the channel."""
        return [sample, x] if self.line else [sample, y, x]

    def place(self, tile: Expr) -> tuple[Expr, Expr, Expr]:
        """Emits the sample, row and column of a tile, and returns them."""
        known = isinstance(self.columns, int) and isinstance(self.rows, int)
        named = bind if known else materialise
        tile = named(tile)
        line = named(I.floordiv(tile, self.columns))
        column = named(tile - line * self.columns)
        if self.sample is not None:
            return self.sample, line, column
        if self.geometry.batch == 1:
            return tirx.const(0, "int32"), line, column
        sample = named(I.floordiv(line, self.rows))
        return sample, named(line - sample * self.rows), column


def _phases(size: int, step: int) -> int:
    """Number of phases: first results of tiles that are less than a step from the beginning."""
    return step if is_dynamic((size,)) else min(size, step)


def in_memory(values: Sequence[Expr]) -> list[Expr]:
    """The values, each computed once.

    TVM repeats the expression of a `bind` name at each use. The second transform would repeat the
    first one that way: ten times as many instructions.
    """
    return [materialise(value) for value in values]


def part_of(count: Index, members: int, member: Expr) -> tuple[Index, Index]:
    """First and end of one thread's chunk of `count` items, as `members` threads share them."""
    if members == 1:
        return 0, count
    return I.floordiv(member * count, members), I.floordiv((member + 1) * count, members)


def flat_epilogue(region: Region, buffers: Sequence[Expr], kernel: Microkernel) -> Epilogue:
    """The epilogue over as few leading dimensions as its operands allow; vectors have none.

    Over a matrix [pixels, channels], a row is the address of a pixel, without divisions.
    """
    seen, listed = flat_rows(region), item_operands(region)
    operands = (
        msgspec.structs.replace(each, shape=each.shape[-1:])
        if number not in listed and each.shape[:-1] == (1,)
        else each
        for number, each in enumerate(seen.operands)
    )
    seen = seen.replace(operands=tuple(operands))
    return Epilogue(seen, operand_views(buffers, region, seen), kernel.narrow)


@dataclass(frozen=True)
class OutputTransform:
    """Transforms products back, and stores the results."""

    problem: WinogradProblem
    out: Expr  # [N, OH, OW, OC]
    epilogue: Epilogue  # its rows count the pixels of all images
    lanes: int
    m: Expr  # flat
    pitches: tuple[int, int]  # elements of M from one matrix, and from one tile, to the next

    def emit(self, start: Expr, first: Expr, tiles: Expr, panel: Expr, width: Expr) -> None:
        """Emits a block of `tiles` tiles, for `width` vectors of output channels from `panel` on.

        `start` is where the block starts in M, `first` is its first tile.
        """
        matrix, tile_pitch = self.pitches
        algorithm = self.problem.algorithm
        lines, columns = algorithm.axes

        def place(at: Expr, i: int, j: int) -> Expr:
            return ex.ramp(at + (i * columns.reach + j) * matrix, self.lanes)

        with I.serial(tiles) as tile, opaque_block("restore"):
            sample, row, column = self.problem.place(first + tile)
            y, x = (bind(self.problem.start(axis, at)) for axis, at in enumerate((row, column)))
            with I.serial(width) as vector, opaque_block("vector"):
                at = ex.materialise(start + tile * tile_pitch + vector * self.lanes)
                halves, results = list[list[Expr]](), list[list[Expr]]()
                for j in range(columns.reach):
                    line = [bind(self.m[place(at, i, j)]) for i in range(lines.reach)]
                    halves.append(in_memory(lines.output_transform(line)))
                for p in range(lines.tile):
                    whole = columns.output_transform([half[p] for half in halves])
                    results.append(in_memory(list(map(algorithm.given, whole))))
                down, right = self.problem.geometry.dilation

                def put(value: Expr, i: Index, j: Index) -> None:
                    self._store(value, sample, y + i * down, x + j * right, panel + vector)

                self._put_all(results, start + algorithm.products * matrix, y, x, put)

    def _put_all(
        self,
        results: Sequence[Sequence[Expr]],
        rest: Expr,
        y: Expr,
        x: Expr,
        put: Callable[[Expr, Index, Index], None],
    ) -> None:
        """Stores the existing results of a tile whose first pixel is (y, x)."""
        outputs, axes = self.problem.geometry.outputs, self.problem.algorithm.axes
        steps = self.problem.geometry.dilation
        high, wide = (axis.tile for axis in axes)
        ends = list(zip((y, x), outputs, map(extent, outputs), steps, axes, strict=True))

        def whole() -> None:
            for i in range(high):
                for j in range(wide):
                    put(results[i][j], i, j)

        def left(pixel: Expr, end: Index, step: int, tile: int) -> Expr:
            """Existing results of a tile along an axis; the last tile of a phase may have none."""
            if step == 1:
                return tirx.Min(end - pixel, tile)
            return tirx.Max(tirx.Min(I.floordiv(end - pixel + (step - 1), step), tile), 0)

        def cut() -> None:
            for i in range(high):
                for j in range(wide):
                    place = ex.ramp(rest + (i * wide + j) * self.lanes, self.lanes)
                    I.buffer_store(self.m, results[i][j], [place])
            rows, columns = (
                left(pixel, end, step, axis.tile) for pixel, _, end, step, axis in ends
            )
            with I.serial(rows) as y_in, I.serial(columns) as x_in, opaque_block("result"):
                place = ex.ramp(rest + (y_in * wide + x_in) * self.lanes, self.lanes)
                put(bind(self.m[place]), y_in, x_in)

        if self.epilogue.cost > LONG_EPILOGUE:
            cut()
            return
        inside = [
            tirx.LE(pixel + ((axis.tile - 1) * step + 1), end)
            for pixel, size, end, step, axis in ends
            if axis.tile > 1 and (is_dynamic((size,)) or size % (step * axis.tile))
        ]
        where_all(inside, whole, cut)

    def _store(self, value: Expr, sample: Expr, y: Expr, x: Expr, vector: Expr) -> None:
        """Stores one vector of output channels of one pixel."""
        height, width = map(extent, self.problem.geometry.outputs)
        pixel = (sample * height + y) * width + x

        def store(columns: Columns) -> None:
            index = self.problem.index(sample, y, x)
            store_vector(self.out, self.epilogue(value, pixel, columns), index, columns)

        store_columns(self.problem.geometry.out_channels, self.lanes, vector, True, store)


@dataclass(frozen=True)
class InputTransform:
    """Transforms tiles of x into V."""

    problem: WinogradProblem
    x: Expr  # [N, H, W, C]
    lanes: int
    v: Expr  # flat
    pitches: tuple[int, int]  # elements of V from one matrix, and from one tile, to the next

    @property
    def vectors(self) -> int:
        """Vectors of channels."""
        return math.ceil(self.problem.geometry.channels / self.lanes)

    def emit(self, start: Expr, first: Expr, tiles: Expr, members: int, member: Expr) -> None:
        """Emits one thread's chunk of a block of `tiles` tiles.

        The block starts at `start` in V, and `first` is its first tile. Threads share its channels,
        or its tiles if there are fewer vectors of channels than threads.
        """
        by_channels = self.vectors >= members
        of_tiles = part_of(tiles, 1 if by_channels else members, member)
        of_vectors = part_of(self.vectors, members if by_channels else 1, member)
        top, left = self.problem.geometry.before
        high, wide = (axis.reach for axis in self.problem.algorithm.axes)
        with I.serial(*of_tiles) as tile, opaque_block("transform"):
            sample, *place = self.problem.place(first + tile)
            starts = (self.problem.start(axis, at) for axis, at in enumerate(place))
            y, x = (bind(start - before) for start, before in zip(starts, (top, left), strict=True))

            def emit(edge: bool) -> None:
                rows = [self._position(0, y, i, edge) for i in range(high)]
                columns = [self._position(1, x, j, edge) for j in range(wide)]

                def load(vector: Expr, i: int, j: int) -> Expr:
                    (row, of_row), (column, of_column) = rows[i], columns[j]
                    inside = tirx.all(*of_row, *of_column) if of_row or of_column else None
                    return self._load(self.problem.index(sample, row, column), vector, inside)

                with I.serial(*of_vectors) as vector, opaque_block("vector"):
                    self._vector(load, start + tile * self.pitches[1], vector)

            inside = [*self._all_inside(0, y), *self._all_inside(1, x)]
            where_all(inside, lambda: emit(False), lambda: emit(True))

    def _vector(self, load: Callable[[Expr, int, int], Expr], start: Expr, vector: Expr) -> None:
        """Transforms one vector of channels of one tile."""
        high, wide = self.problem.algorithm.axes
        columns = [
            in_memory(high.input_transform([bind(load(vector, i, j)) for i in range(high.reach)]))
            for j in range(wide.reach)
        ]
        at = ex.materialise(start + vector * self.lanes)
        for i in range(high.reach):
            for j, value in enumerate(wide.input_transform([column[i] for column in columns])):
                place = at + (i * wide.reach + j) * self.pitches[0]
                I.buffer_store(self.v, value, [ex.ramp(place, self.lanes)])

    def _position(self, axis: int, start: Expr, offset: int, edge: bool) -> tuple[Expr, list[Expr]]:
        """An index of x that exists, and the conditions for it to be the tile's position."""
        position = start + offset * self.problem.geometry.dilation[axis]
        last = extent(self.problem.geometry.extents[axis]) - 1
        # At an edge the position may lie outside of x.
        conditions = self._inside(axis, start, offset) if edge else []
        if conditions:
            position = bind(tirx.Max(tirx.Min(position, last), 0))
        return position, conditions

    def _inside(self, axis: int, start: Expr, offset: int) -> list[Expr]:
        """The conditions for a position of a tile to lie in x; empty if it always does."""
        if self.problem.algorithm.axes[axis].reach == 1 and not self.problem.padded(axis):
            return []
        geometry, behind = self.problem.geometry, self.problem.last_start(axis)
        size, offset = geometry.extents[axis], offset * self.problem.geometry.dilation[axis]
        lowest = offset - geometry.before[axis]
        conditions: list[Expr] = []
        if lowest < 0:
            conditions.append(tirx.GE(start, -offset))
        if behind is None or lowest + behind >= size:
            conditions.append(tirx.LT(start, extent(size) - offset))
        return conditions

    def _all_inside(self, axis: int, start: Expr) -> list[Expr]:
        """The conditions for all positions of a tile along an axis to lie in x."""
        last_of = self.problem.algorithm.axes[axis].reach - 1
        first, last = (self._inside(axis, start, offset) for offset in (0, last_of))
        return [*first[: int(self.problem.geometry.before[axis] > 0)], *last[-1:]]

    def _load(self, index: Sequence[Expr], vector: Expr, inside: Expr | None) -> Expr:
        """A vector of channels of a pixel; zeros if `inside` is false."""
        lanes, channels = self.lanes, self.problem.geometry.channels
        at = ex.ramp(vector * lanes, lanes)
        if channels % lanes:  # no product reads the other lanes
            exists = tirx.LT(at, ex.constant(channels, "int32", lanes))
            dtype = ex.vector_type(str(self.x.dtype), lanes)
            value = I.masked_load(dtype, self.x, *index, at, exists)
        else:
            value = self.x[(*index, at)]
        value = self.problem.algorithm.taken(value)
        if inside is None:
            return value
        return tirx.Select(ex.splat(inside, lanes), value, ex.like(0, value))
