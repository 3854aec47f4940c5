"""Tile: the accumulators that a microkernel emits, and where its operands and they lie.

The callables are what `Microkernel.emit` takes: how A and B are read, and what sums start with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from microkernels.vector.expressions import Index

from .vector.expressions import Expr, ramp


@dataclass(frozen=True)
class Address:
    """Where rows lie in memory: a pointer to the first, and bytes from one to the next.

    `passing` says that they are not read again before they have left the first-level cache.
    """

    pointer: Expr
    stride: int
    passing: bool = False


@dataclass(frozen=True)
class Place:
    """A window of a matrix in memory, from a row and a column on.

    `leading` maps a row of the matrix to all indices of the buffer but the last; `pitch` counts the
    elements from one row to the next, 0 for those of the last dimension.
    """

    buffer: Expr
    row: Index = 0
    column: Index = 0
    leading: Callable[..., Sequence[Index]] = lambda row: [row]
    pitch: int = 0

    def index(self, row: Index, column: Index) -> list[Index]:
        """Indices of an element of the window."""
        return [*self.leading(self.row + row), self.column + column]


LoadA = Callable[[int, Sequence[Index]], Expr | Address]
LoadB = Callable[[int, Sequence[Index]], Expr | Address]
MultiplyAdd = Callable[[Expr, Expr, Expr], Expr]
Start = Callable[[Index, int], Expr]
Between = Callable[[Index, int, int], None]
Columns = Callable[[int], Expr | Address]


@dataclass(frozen=True)
class Tile:
    """Accumulators of one emitted tile, in registers or in memory."""

    rows: int
    vectors: int
    lanes: int
    buffers: tuple[Expr, ...] = ()
    place: Place | None = None

    def value(self, row: Index, vector: Index) -> Expr:
        """The accumulated vector: `lanes` columns from column `vector * lanes`.

        The row is a number, or, of accumulators in memory, any expression.
        """
        if self.place is not None:
            *leading, column = self.place.index(row, vector * self.lanes)
            return self.place.buffer[(*leading, ramp(column, self.lanes))]
        assert isinstance(row, int)
        return self.buffers[row][ramp(vector * self.lanes, self.lanes)]
