"""Stage 1 of the template "conv2d_winograd": tiles of x, transformed.

    V [products][tiles][C]    B^T d B of every tile and channel

Tiles overlap by two pixels. At the edges, what lies outside of x is replaced by 0 after a
load from the nearest pixel; nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import (
    Expr,
    bind,
    constant,
    like,
    materialise,
    ramp,
    splat,
    vector_type,
)
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import extent

from .control import all_of, either, in_memory, part_of
from .problem import WinogradProblem


@dataclass(frozen=True)
class _Position:
    """An index of x that exists, and what must hold for it to be the one that is meant."""

    index: Expr
    conditions: Sequence[Expr] = ()


@dataclass(frozen=True)
class InputTransform:
    """Where tiles come from and where they go to.

    Attributes
    ----------
    problem : WinogradProblem
        The region in tiles.
    x : Buffer
        [N, H, W, C].
    dtype : str
        Of x.
    lanes : int
        Of a vector.
    v : Buffer
        Flat.
    pitches : tuple of int
        Elements of V from one matrix, and from one tile, to the next.
    """

    problem: WinogradProblem
    x: Expr
    dtype: str
    lanes: int
    v: Expr
    pitches: tuple[int, int]

    @property
    def vectors(self) -> int:
        """Vectors of channels."""
        return math.ceil(self.problem.geometry.channels / self.lanes)

    def emit(self, start: Expr, first: Expr, tiles: Expr, members: int, member: Expr) -> None:
        """One of several threads' share of a block.

        Parameters
        ----------
        start : Expr
            Of V.
        first : Expr
            The block's first tile.
        tiles : Expr
            Its tiles.
        members, member : int and Expr
            Threads that share the block, and which of them this is.
        """
        by_channels = self.vectors >= members
        of_tiles = part_of(tiles, 1 if by_channels else members, member)
        of_vectors = part_of(self.vectors, members if by_channels else 1, member)
        top, left = self.problem.geometry.before
        size, reach = self.problem.algorithm.tile, self.problem.algorithm.reach
        with I.serial(*of_tiles) as tile, opaque_block("transform"):
            sample, row, column = self.problem.place(first + tile)
            y, x = bind(row * size - top), bind(column * size - left)

            def emit(edge: bool) -> None:
                rows = [self._position(0, y, i, edge) for i in range(reach)]
                columns = [self._position(1, x, j, edge) for j in range(reach)]

                def load(vector: Expr, i: int, j: int) -> Expr:
                    inside = all_of([*rows[i].conditions, *columns[j].conditions])
                    return self._load([sample, rows[i].index, columns[j].index], vector, inside)

                with I.serial(*of_vectors) as vector, opaque_block("vector"):
                    self._vector(load, start + tile * self.pitches[1], vector)

            inside = [*self._all_inside(0, y), *self._all_inside(1, x)]
            either(inside, lambda: emit(False), lambda: emit(True))

    def _vector(self, load: Callable[[Expr, int, int], Expr], start: Expr, vector: Expr) -> None:
        """One vector of channels of one tile."""
        transform, reach = self.problem.algorithm.input_transform, self.problem.algorithm.reach
        columns = [
            in_memory(transform([bind(load(vector, i, j)) for i in range(reach)]))
            for j in range(reach)
        ]
        at = materialise(start + vector * self.lanes)
        for i in range(reach):
            for j, value in enumerate(transform([column[i] for column in columns])):
                place = at + (i * reach + j) * self.pitches[0]
                I.buffer_store(self.v, value, [ramp(place, self.lanes)])

    def _position(self, axis: int, start: Expr, offset: int, edge: bool) -> _Position:
        """A position of a tile; at an edge it may lie outside."""
        position, last = start + offset, extent(self.problem.geometry.extents[axis]) - 1
        if not edge:
            return _Position(position)
        conditions = self._inside(axis, start, offset)
        if conditions:
            position = bind(tirx.Max(tirx.Min(position, last), 0))
        return _Position(position, conditions)

    def _inside(self, axis: int, start: Expr, offset: int) -> list[Expr]:
        """What must hold for a position of a tile to lie in x; nothing if it always does."""
        geometry = self.problem.geometry
        size, tiles = geometry.extents[axis], (self.problem.rows, self.problem.columns)[axis]
        lowest = offset - geometry.before[axis]
        conditions: list[Expr] = []
        if lowest < 0:
            conditions.append(tirx.GE(start, -offset))
        if not isinstance(tiles, int) or lowest + self.problem.algorithm.tile * (tiles - 1) >= size:
            conditions.append(tirx.LT(start, extent(size) - offset))
        return conditions

    def _all_inside(self, axis: int, start: Expr) -> list[Expr]:
        """The same for all positions of a tile along an axis."""
        last_of = self.problem.algorithm.reach - 1
        first, last = (self._inside(axis, start, offset) for offset in (0, last_of))
        return [*first[: int(self.problem.geometry.before[axis] > 0)], *last[-1:]]

    def _load(self, index: Sequence[Expr], vector: Expr, inside: Expr | None) -> Expr:
        """A vector of channels of a pixel; zeros unless it is inside."""
        lanes, channels = self.lanes, self.problem.geometry.channels
        at = ramp(vector * lanes, lanes)
        if channels % lanes:  # what lies in the other lanes no product reads
            exists = tirx.LT(at, constant(channels, "int32", lanes))
            dtype = vector_type(self.dtype, lanes)
            value = I.masked_load(dtype, self.x, *index, at, exists)
        else:
            value = self.x[(*index, at)]
        value = self.problem.algorithm.taken(value)
        if inside is None:
            return value
        return tirx.Select(splat(inside, lanes), value, like(0, value))
