"""Arrays on cache lines, and the types of integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

RANGES = {"uint8": (0, 255), "int8": (-128, 127)}
SHIFT = 128
"""int8 plus this is uint8, and uint8 less this is int8; only the highest bits differ."""


ALIGNMENT = 64
SHORT = 8
"""Longest row that NumPy copies element by element."""


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """`np.empty` on cache lines. NumPy asks Linux for large pages, which are filled faster."""
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)


def transposed(array: np.ndarray[Any, Any], order: Sequence[int]) -> np.ndarray[Any, Any]:
    """A copy with the axes in another order, in new memory on cache lines.

    NumPy writes whole rows, and reads each element from another line of a matrix: three to eight
    times slower than by cache lines of a few columns. It copies short rows one by one, which takes
    more than twice as long as column by column.
    """
    view = array.transpose(order)
    copy = aligned_empty(view.shape, array.dtype)
    columns = view.shape[-1] if view.ndim else 1
    line = max(1, ALIGNMENT // array.itemsize)
    step = 1 if columns <= SHORT else line if view.size >= columns * line else columns
    if step >= columns or view.strides[-1] <= array.itemsize:
        copy[...] = view
        return copy
    for start in range(0, columns, step):
        copy[..., start : start + step] = view[..., start : start + step]
    return copy
