"""Matrices in cache whose rows AMX tiles read and write: flat buffers with a fixed row distance.

Tile instructions get the distance between rows as a number. TVM shrinks or widens a 2-D buffer to
the columns that it believes to be visited, and the number would then be wrong. The rows of a flat
buffer stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I

from microkernels.tile import Place
from microkernels.vector.expressions import Expr, lanes_of, ramp


@dataclass(frozen=True)
class FlatPlace(Place):
    """A window of a flat buffer whose rows are `pitch` elements apart."""

    def index(self, row: Expr | int, column: Expr | int) -> list[Expr | int]:
        """The index of an element of the window."""
        return [(self.row + row) * self.pitch + (self.column + column)]


@dataclass(frozen=True)
class Matrix:
    """Rows of elements in a flat buffer.

    Attributes
    ----------
    buffer : buffer
        Of one dimension.
    pitch : int or Expr
        Elements from one row to the next.
    """

    buffer: Expr
    pitch: int | Expr

    @staticmethod
    def allocate(rows: int, pitch: int, dtype: str) -> Matrix:
        """A new one in the current block, aligned to a line of the cache."""
        return Matrix(I.sblock_alloc_buffer((rows * pitch,), dtype, align=64), pitch)

    def index(self, row: Expr | int, column: Expr | int) -> Expr | int:
        """The index of an element."""
        return row * self.pitch + column

    def load(self, row: Expr | int, column: Expr | int, lanes: int) -> Expr:
        """Elements of a row from a column on."""
        return self.buffer[ramp(self.index(row, column), lanes)]

    def store(self, row: Expr | int, column: Expr | int, value: Expr) -> None:
        """Stores as many elements as the value has lanes."""
        I.buffer_store(self.buffer, value, [ramp(self.index(row, column), lanes_of(value))])

    def place(self, row: Expr | int = 0, column: Expr | int = 0) -> Place:
        """Where tiles are stored, from a row and a column on."""
        assert isinstance(self.pitch, int)
        return FlatPlace(self.buffer, row, column, pitch=self.pitch)
