"""Placement: where the elements of a tensor lie in a larger tensor that contains it.

    concat of [56, 56, 64] and [56, 56, 32] along the last axis, second part:
        extents (3136, 32), strides (96, 1), offset 64

The flat index of the part is split into digits, coarse to fine; `extents` are their ranges,
`strides` their distances in memory. A tensor of another shape with as many elements fits the same
placement if its axes divide the digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Where a tensor lies.

    Attributes
    ----------
    extents, strides : tuple of int
        Digits of the flat index, coarse to fine, and how far apart their values lie.
    offset : int
        Where element 0 lies.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @staticmethod
    def whole(size: int) -> Placement:
        """Of a tensor that is all there is."""
        return Placement((size,), (1,))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.extents)

    def strides_of(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """Distances along the axes of a tensor of this shape; None if they are not constant."""
        if math.prod(shape) != self.size:
            return None
        digits = list(zip(self.extents, self.strides, strict=True))
        found: list[int] = []
        for extent in reversed(shape):
            size, stride = digits.pop() if digits else (1, 1)
            while size % extent and digits and digits[-1][1] == size * stride:
                size *= digits.pop()[0]  # the next digit goes on where this one ends
            if size % extent:
                return None
            found.append(stride)
            if size > extent:
                digits.append((size // extent, stride * extent))
        return tuple(found[::-1]) if not digits else None

    def part(self, row: int, first: int, size: int) -> Placement | None:
        """Columns `first` to `first + size` of every row of so many elements.

        None if a row does not lie in one piece.
        """
        digits = list(zip(self.extents, self.strides, strict=True))
        piece, stride = digits.pop()
        while piece < row and digits and digits[-1][1] == piece * stride:
            piece *= digits.pop()[0]
        if stride != 1 or piece % row:
            return None
        digits += [(piece // row, row), (size, 1)]
        kept = [digit for digit in digits if digit[0] != 1] or [(1, 1)]
        extents, strides = zip(*kept, strict=True)
        return Placement(extents, strides, self.offset + first)
