"""Stores the accumulators of depthwise tiles: epilogue, tails of channels, packed bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, materialise, ramp
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.core.extents import extent, row_itself
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_open
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector
from tir_schedules.epilogue.packed_bytes import wide_bytes
from tir_schedules.product.tile_products import LONG_EPILOGUE


@dataclass(frozen=True)
class Corner:
    """The first pixel of a tile."""

    sample: Expr
    row: Expr
    column: Expr


class Accumulators:
    """Registers of a tile: a vector for each pixel and each vector of channels."""

    def __init__(self, rows: int, columns: int, vectors: int, lanes: int, dtype: str) -> None:
        self.rows, self.columns, self.vectors = rows, columns, vectors
        self.lanes, self.dtype = lanes, dtype
        # One small buffer a pixel: a larger one would become a heap allocation.
        self._buffers = [
            [I.sblock_alloc_buffer((vectors * lanes,), dtype) for _ in range(columns)]
            for _ in range(rows)
        ]

    def fill(self, start: Callable[[int], Expr]) -> None:
        """Gives every pixel what `start` has for a vector of channels."""
        for j in range(self.vectors):
            value = start(j)
            for i in range(self.rows):
                for k in range(self.columns):
                    self.set(i, k, j, value)

    def get(self, row: int, column: int, vector: int) -> Expr:
        """The accumulators of one pixel and vector."""
        return self._buffers[row][column][ramp(vector * self.lanes, self.lanes)]

    def set(self, row: int, column: int, vector: int, value: Expr) -> None:
        """Replaces them."""
        index = ramp(vector * self.lanes, self.lanes)
        I.buffer_store(self._buffers[row][column], value, [index])


class Results:
    """How tiles are stored.

    Parameters
    ----------
    region : Region
        The convolution.
    problem : DepthwiseProblem
        Its geometry.
    lanes : int
        Of the accumulators.
    out : Buffer
        The result, as a matrix of pixels.
    epilogue : Epilogue
        What becomes of accumulators first.
    leading_of : callable
        Flat index of a pixel -> leading indices of `out`.
    """

    def __init__(
        self,
        region: Region,
        problem: DepthwiseProblem,
        lanes: int,
        out: Expr,
        epilogue: Epilogue,
        leading_of: Callable[[Expr], Sequence[Expr]] = row_itself,
    ) -> None:
        self.region, self.problem, self.lanes = region, problem, lanes
        self.out, self.epilogue = out, epilogue
        self.leading_of = leading_of
        self._bytes = wide_bytes(region, lanes, epilogue)

    def store(
        self,
        tile: Accumulators,
        corner: Corner,
        channel: Expr,
        valid: int,
        stored: Expr | None = None,
    ) -> None:
        """Stores a tile whose first `valid` channels, from `channel` on, exist.

        With `stored`, so many of its columns exist.
        """
        pixels = tile.rows * tile.columns
        channel = materialise(channel)
        if stored is not None:
            self._through_memory(tile, corner, channel, valid, stored)
            return
        if self.epilogue.cost <= LONG_EPILOGUE or pixels == 1:
            for i in range(tile.rows):
                line = self._line(corner, i)
                for k in range(tile.columns):
                    values = [tile.get(i, k, j) for j in range(tile.vectors)]
                    self._pixel(line + k if k else line, channel, values, valid)
            return
        # A long epilogue is not repeated for every pixel, which would cost LLVM seconds.
        self._through_memory(tile, corner, channel, valid, tile.columns)

    def _through_memory(
        self, tile: Accumulators, corner: Corner, channel: Expr, valid: int, columns: Expr | int
    ) -> None:
        """Stores the first columns of a tile, one by one."""
        pixels = tile.rows * tile.columns
        lanes = tile.lanes
        passing = I.sblock_alloc_buffer((pixels, tile.vectors * lanes), tile.dtype)
        for i in range(tile.rows):
            for k in range(tile.columns):
                for j in range(tile.vectors):
                    place: list[Expr | int] = [i * tile.columns + k, ramp(j * lanes, lanes)]
                    I.buffer_store(passing, tile.get(i, k, j), place)
        for i in range(tile.rows):
            line = self._line(corner, i)
            with I.serial(columns) as column:
                number = column + i * tile.columns
                values = [passing[number, ramp(j * lanes, lanes)] for j in range(tile.vectors)]
                self._pixel(line + column, channel, values, valid)

    def _line(self, corner: Corner, row: int) -> Expr:
        """Flat index of the first pixel of one row of a tile.

        It is in memory: written out for every pixel it would be most of what LLVM sees.
        """
        return materialise(self.problem.output_row(corner.sample, corner.row + row, corner.column))

    def _pixel(self, at: Expr, channel: Expr, values: Sequence[Expr], valid: int) -> None:
        leading = self.leading_of(at)
        lanes, packed = self.lanes, []
        for j, value in enumerate(values):
            columns = Columns(channel + j * lanes, lanes, min(lanes, valid - j * lanes))
            if self._bytes is None:
                store_vector(self.out, self.epilogue(value, at, columns), leading, columns)
            else:
                packed.append(self.epilogue(value, at, columns, self._bytes))
        if self._bytes is not None:
            self._bytes.store(self.out, packed, leading, channel)


# The two axes of a depthwise convolution, and its buffers by row and column of an image.
#
#     Y[n, h, w, c] = sum over (i, j) of X[n, h * s + i * d - p, w * s' + j * d' - p', c] * W[i, j,
#     c]
#
# Templates work on rows and columns. A single axis is taken for the rows, with one column. If the
# first of two axes is a single row, the axes are swapped, because taps of a column share a loop
# while those of a row are unrolled.


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

    def span(self, outputs: int) -> int:
        """Positions of padded x that so many neighbouring results are computed from."""
        return (outputs - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    def inside(self, output: int) -> range:
        """The taps of one result that lie within x."""
        start = output * self.stride - self.before
        found = [t for t in range(self.taps) if 0 <= start + t * self.dilation < self.extent]
        return range(found[0], found[-1] + 1) if found else range(0)

    @property
    def is_open(self) -> bool:
        """Whether its positions are known at run time only."""
        return is_open((self.extent, self.outputs))

    def is_inside(self, output: int) -> bool:
        """Whether all taps of a result lie within x; its positions are known."""
        start = output * self.stride - self.before
        return start >= 0 and start + self.span(1) <= self.extent


_SINGLE = Axis(1, 1, 1, 1, 1, 0)


@dataclass(frozen=True)
class DepthwiseProblem:
    """Batch, channels and axes of a region.

    Attributes
    ----------
    batch, channels : int
        Samples, and channels of x, of the weight and of the result.
    rows, columns : Axis
        The axes of an image.
    swapped : bool
        Whether the rows are the second axis of x.
    rank : int
        Axes of x.
    """

    batch: int
    channels: int
    rows: Axis
    columns: Axis
    swapped: bool
    rank: int

    @staticmethod
    def of(region: Region) -> DepthwiseProblem:
        """The problem of a region with one or two axes."""
        found = ConvGeometry.of(region)
        axes = [
            Axis(*numbers)
            for numbers in zip(
                found.extents,
                found.kernel,
                found.outputs,
                found.strides,
                found.dilation,
                found.before,
                found.after,
                strict=True,
            )
        ]
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
    def opens_image(self) -> bool:
        """Whether rows or columns are known at run time only."""
        return self.rows.is_open or self.columns.is_open

    def pixel(self, sample: Expr, row: Expr, column: Expr) -> Expr:
        """Flat index of a pixel of x.

        With the axes swapped, the columns have a single position.
        """
        row = sample * _const(self.rows.extent) + row
        return row * _const(self.columns.extent) + column

    def output_row(self, sample: Expr, row: Expr, column: Expr) -> Expr:
        """Flat index of a pixel of the result, as the epilogue counts rows."""
        # With one of the axes swapped the other has a single position.
        row = sample * _const(self.rows.outputs) + row
        return row * _const(self.columns.outputs) + column


def _const(size: int) -> Expr:
    found = extent(size)
    return tirx.const(found, "int32") if isinstance(found, int) else found
