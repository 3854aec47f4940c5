"""Placement: where the elements of a tensor lie in a larger tensor that contains it.

    concat of [56, 56, 64] and [56, 56, 32] along the last axis, second part:
        extents (3136, 32), strides (96, 1), offset 64

The flat index of the part is split into digits, coarse to fine; `extents` are their ranges,
`strides` their distances in memory. A tensor of another shape with as many elements fits the same
placement if its axes divide the digits. The coarsest digit may be symbolic: rows of any number.

    concat of [n, 56, 64] and [n, 56, 32] along the last axis, second part:
        extents (n * 56, 32), strides (96, 1), offset 64
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .size import SymbolicSize, is_open, quotient


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

    def strides_of(self, shape: Sequence[Any]) -> tuple[Any, ...] | None:
        """Distances along the axes of a tensor of this shape; None if they are not constant.

        If the coarsest digit is symbolic, extents and distances may be expressions. That the tensor
        has as many elements is not checked then.
        """
        is_rows = is_open(self.extents)
        known = all(map(_is_known, shape))
        if known == is_rows or (known and math.prod(shape) != self.size):
            return None
        digits = list(zip(self.extents, self.strides, strict=True))
        found: list[Any] = []
        for extent in reversed(shape):
            size, stride = digits.pop() if digits else (1, 1)
            while not _divides(extent, size) and digits and digits[-1][1] == size * stride:
                size = size * digits.pop()[0]  # the next digit goes on where this one ends
            if not _divides(extent, size):
                return None
            found.append(stride)
            if isinstance(size, SymbolicSize):
                digits.append((size, stride * extent))  # all coarser axes are within it
            elif size > extent:
                digits.append((size // extent, stride * extent))
        return tuple(found[::-1]) if len(digits) == is_rows else None

    def part(self, row: int, first: int, size: int) -> Placement | None:
        """Columns `first` to `first + size` of every row of so many elements.

        None if a row does not lie in one piece.
        """
        digits = list(zip(self.extents, self.strides, strict=True))
        piece, stride = digits.pop()
        while quotient(piece, row) is None and digits and digits[-1][1] == piece * stride:
            piece = piece * digits.pop()[0]
        rows = quotient(piece, row)
        if stride != 1 or rows is None or is_open((row, size)):
            return None
        digits += [(rows, row), (size, 1)]
        kept = [digit for digit in digits if digit[0] != 1] or [(1, 1)]
        extents, strides = zip(*kept, strict=True)
        return Placement(extents, strides, self.offset + first)


def _is_known(extent: Any) -> bool:
    """Whether an extent is a number."""
    return isinstance(extent, int) and not isinstance(extent, SymbolicSize)


def _divides(extent: Any, size: int) -> bool:
    """Whether an axis is a part of a digit, or of the symbolic one, which has all coarser axes."""
    return isinstance(size, SymbolicSize) or (_is_known(extent) and size % extent == 0)
