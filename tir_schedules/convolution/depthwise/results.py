"""Stores the accumulators of depthwise tiles: epilogue, tails of channels, packed bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I

from microkernels.vector.expressions import Expr, materialise, ramp
from tir_schedules.core.flat_rows import row_itself
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector
from tir_schedules.epilogue.packed_bytes import wide_bytes
from tir_schedules.product.tile_stores import LONG_EPILOGUE

from .problem import DepthwiseProblem


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
