"""Stores the accumulators of depthwise tiles: epilogue, tails of channels, packed bytes."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, Index, bind, materialise, ramp
from tir_schedules.core.emission import ceil_div
from tir_schedules.core.extents import extent
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector
from tir_schedules.epilogue.packed_bytes import wide_bytes
from tir_schedules.epilogue.tile_results import LONG_EPILOGUE

from .config import DepthwiseConfig, DepthwiseProblem


class Corner(NamedTuple):
    """The first pixel of a tile."""

    sample: Expr
    row: Expr
    column: Expr


class Accumulators:
    """The registers of a tile: a vector for each pixel and each vector of channels."""

    def __init__(self, rows: int, columns: int, vectors: int, lanes: int, dtype: str) -> None:
        self.rows, self.columns, self.vectors = rows, columns, vectors
        self.lanes, self.dtype = lanes, dtype
        # One small buffer for each pixel: a larger one would become a heap allocation.
        self._buffers = [
            [I.sblock_alloc_buffer((vectors * lanes,), dtype) for _ in range(columns)]
            for _ in range(rows)
        ]

    def fill(self, start: Callable[[int], Expr]) -> None:
        """Sets every pixel to `start(j)`, for each vector of channels j."""
        for j in range(self.vectors):
            value = start(j)
            for i, k in itertools.product(range(self.rows), range(self.columns)):
                self.set(i, k, j, value)

    def get(self, row: int, column: int, vector: int) -> Expr:
        """The accumulators of one pixel and vector."""
        return self._buffers[row][column][ramp(vector * self.lanes, self.lanes)]

    def set(self, row: int, column: int, vector: int, value: Expr) -> None:
        """Replaces the accumulators of one pixel and vector."""
        index = ramp(vector * self.lanes, self.lanes)
        I.buffer_store(self._buffers[row][column], value, [index])


@dataclass
class Results:
    """Stores tiles into the result of a region."""

    region: Region
    problem: DepthwiseProblem
    lanes: int  # of the accumulators
    out: Expr  # the result, as a matrix of pixels
    epilogue: Epilogue
    leading_of: Callable[[Expr], Sequence[Expr]]  # flat index of a pixel -> leading indices of out

    def __post_init__(self) -> None:
        self._bytes = wide_bytes(self.region, self.lanes, self.epilogue)

    def store(
        self,
        tile: Accumulators,
        corner: Corner,
        channel: Expr,
        valid: int,
        stored: Expr | None = None,
    ) -> None:
        """Stores a tile of `valid` channels from `channel` on, and of `stored` columns if given."""
        pixels, vectors, lanes = tile.rows * tile.columns, range(tile.vectors), tile.lanes
        channel = materialise(channel)
        at_once = stored is None and (self.epilogue.cost <= LONG_EPILOGUE or pixels == 1)
        passing: Expr | None = None
        if not at_once:
            # A loop over pixels: code of a long epilogue for every pixel would cost LLVM seconds.
            passing = I.sblock_alloc_buffer((pixels, tile.vectors * lanes), tile.dtype)
            for i, k, j in itertools.product(range(tile.rows), range(tile.columns), vectors):
                place: list[Index] = [i * tile.columns + k, ramp(j * lanes, lanes)]
                I.buffer_store(passing, tile.get(i, k, j), place)
        for i in range(tile.rows):
            # In memory: as an expression for every pixel it would be most of the code for LLVM.
            first = self.problem.output_row(corner.sample, corner.row + i, corner.column)
            line = materialise(first)
            if passing is None:
                for k in range(tile.columns):
                    values = [tile.get(i, k, j) for j in vectors]
                    self._pixel(line + k if k else line, channel, values, valid)
                continue
            with I.serial(tile.columns if stored is None else stored) as column:
                number = column + i * tile.columns
                values = [passing[number, ramp(j * lanes, lanes)] for j in vectors]
                self._pixel(line + column, channel, values, valid)

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


class DepthwiseTiles(ABC):
    """The tiles of a region: bands of rows, each with some channels."""

    problem: DepthwiseProblem
    config: DepthwiseConfig

    @property
    @abstractmethod
    def chunks(self) -> int:
        """Number of chunks of channels."""

    @abstractmethod
    def band(self, sample: Expr, band: Expr, chunk: Expr, begins: Expr) -> None:
        """Emits one band of rows for a chunk of channels.

        `begins` is true if the band before it was not computed just before.
        """

    def over_channels(
        self, chunk: Expr, width: int, body: Callable[[Expr, Expr, int], None]
    ) -> None:
        """Runs `body(block, number in the chunk, channels)` for a chunk's blocks of `width`.

        The last chunk also has the tail of the channels.
        """
        blocks, last = self.config.blocks, self.chunks - 1
        whole, rest = divmod(self.problem.channels, width)
        if whole:
            most = tirx.const(blocks, "int32")
            if whole < self.chunks * blocks:
                most = tirx.Min(most, whole - chunk * blocks)
            with I.serial(most) as number:
                body(chunk * blocks + number, number, width)
        if rest:
            with I.If(tirx.EQ(chunk, last)), I.Then():
                block, within = (tirx.const(n, "int32") for n in (whole, whole - last * blocks))
                body(block, within, rest)

    def prepared(self) -> AbstractContextManager[None]:
        """The scope that bands are emitted in."""
        return nullcontext()

    @property
    def count(self) -> Index:
        """Bands of an image."""
        return ceil_div(extent(self.problem.rows.outputs), self.config.rows)

    @property
    def items(self) -> Index:
        """Number of items that threads share: a band of rows with a chunk of channels each."""
        return extent(self.problem.batch) * (self.chunks * self.count)

    def share(self, first: Expr, last: Expr) -> None:
        """Emits the items from `first` to `last`."""
        # The loop begins at 0: TVM loses another beginning in the bounds of inner loops.
        with self.prepared(), I.serial(last - first) as number:
            item, batch = bind(first + number), extent(self.problem.batch)
            band, rest = I.floormod(item, self.count), I.floordiv(item, self.count)
            if self.problem.has_dynamic_image:
                band, rest = materialise(band), materialise(rest)
            sample, chunk = I.floormod(rest, batch), I.floordiv(rest, batch)
            if not isinstance(batch, int):
                sample, chunk = materialise(sample), materialise(chunk)
            self.band(sample, band, chunk, tirx.any(tirx.EQ(number, 0), tirx.EQ(band, 0)))

    def bands(self, sample: Expr, first: Expr, count: Expr, begins: Expr) -> None:
        """Emits all channels of `count` neighbouring bands of an image, from `first` on.

        `begins` is true if the band before `first` was not computed just before. If it was, and one
        chunk has all channels, the ring still holds the rows that were staged for it.
        """
        with I.serial(self.chunks) as chunk, I.serial(count) as number:
            starts: Expr = tirx.EQ(number, 0)
            if self.chunks == 1:
                starts = tirx.all(starts, begins)
            self.band(sample, first + number, chunk, starts)
