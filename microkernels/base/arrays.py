"""Arrays on cache lines, and the types of integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

RANGES = {"uint8": (0, 255), "int8": (-128, 127)}
SHIFT = 128
"""int8 plus this is uint8, and uint8 less this is int8; their highest bits differ, nothing else."""


ALIGNMENT = 64


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """As `np.empty`. NumPy asks Linux for large pages, which are filled faster than small ones."""
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)
