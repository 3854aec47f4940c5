"""How the queries of attention are divided, so that AMX tiles are configured once for each height.

Vector kernels have register tiles of any height, so rows are divided into equal pieces. AMX tiles
are configured for full blocks, then for the tail, so all full blocks come first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I

from microkernels.microkernel import Microkernel
from microkernels.tile import Place
from microkernels.vector.expressions import Expr, lanes_of, ramp
from tir_schedules.core.blocking import Group, balanced, shares
from tir_schedules.core.emission import for_groups
from tir_schedules.product.tile_loops import TileTask


def tile_kernel(kernels: Sequence[Microkernel]) -> Microkernel | None:
    """The kernel that says how tiles are configured; None if all are vector kernels."""
    return next((kernel for kernel in kernels if kernel.by_tiles), None)


def row_unit(kernels: Sequence[Microkernel]) -> int:
    """Rows of which every piece but the tail is a multiple."""
    kernel = tile_kernel(kernels)
    return 1 if kernel is None else kernel.mr


def cut(rows: int, most: int, unit: int) -> tuple[Group, ...]:
    """Cuts rows into pieces of at most `most`: whole units in all of them but the last.

    >>> cut(70, 64, 32)
    (Group(start=0, count=1, size=64), Group(start=64, count=1, size=6))
    """
    whole, tail = divmod(rows, unit)
    groups = balanced(whole, max(1, most // unit)) if whole else ()
    pieces = [Group(group.start * unit, group.count, group.size * unit) for group in groups]
    if tail:
        pieces.append(Group(rows - tail, 1, tail))
    return tuple(pieces)


def blocks_of(kernel: Microkernel, rows: int) -> tuple[Group, ...]:
    """The register tiles of a band."""
    return cut(rows, kernel.mr, row_unit([kernel]))


def row_shares(rows: int, parts: int, unit: int) -> tuple[Group, ...]:
    """Cuts rows into at most `parts` shares for tasks; the last one may be smaller."""
    parts = min(parts, rows)
    if unit == 1:
        return shares(rows, parts)
    size = math.ceil(rows / unit / parts) * unit
    count, rest = divmod(rows, size)
    groups = [Group(0, count, size)] if count else []
    if rest:
        groups.append(Group(count * size, 1, rest))
    return tuple(groups)


class TileRows:
    """Runs bands of rows on tiles that are configured for them.

    Parameters
    ----------
    kernels : sequence of Microkernel
        Of both products.
    """

    def __init__(self, kernels: Sequence[Microkernel]) -> None:
        self.kernel = tile_kernel(kernels)
        self.unit = row_unit(kernels)
        self._task = TileTask()

    def each(self, rows: int, most: int, body: Callable[[Expr | int, int], None]) -> None:
        """Runs `body(start, size)` for every piece, each on tiles of its own height."""
        for group in cut(rows, most, self.unit):
            if self.kernel is not None:
                self._task.configure(self.kernel, min(group.size, self.unit))
            for_groups([group], body)

    def release(self) -> None:
        """Emits the end of the task's tiles."""
        self._task.release()


# Matrices in cache whose rows AMX tiles read and write: flat buffers with a fixed row distance.
#
# Tile instructions get the distance between rows as a number. TVM shrinks or widens a 2-D buffer to
# the columns that it believes to be visited, and the number would then be wrong. The rows of a flat
# buffer stay where they are.


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
