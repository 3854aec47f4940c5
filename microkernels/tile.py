"""Tile: the accumulators that a microkernel emits, and the addresses of operands and results.

The callables are the arguments of `Microkernel.emit`: they read A and B, and start the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from microkernels.vector.expressions import Index

from .vector.expressions import Expr, ramp


@dataclass(frozen=True)
class Address:
    """Rows in memory: a pointer to the first row, and the bytes from one row to the next.

    `passing` says that the rows leave the first-level cache before they are read again.
    """

    pointer: Expr
    stride: int
    passing: bool = False


@dataclass(frozen=True)
class Place:
    """A window of a matrix in memory, from a row and a column on.

    `leading` maps a row of the matrix to all indices of the buffer but the last. `pitch` is the
    number of elements from one row to the next; 0 means the size of the last dimension.
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

        The row is a number; if the accumulators are in memory, it may be any expression.
        """
        if self.place is not None:
            *leading, column = self.place.index(row, vector * self.lanes)
            return self.place.buffer[(*leading, ramp(column, self.lanes))]
        assert isinstance(row, int)
        return self.buffers[row][ramp(vector * self.lanes, self.lanes)]
