"""Steps of a layout, for NumPy arrays and for Relax expressions: a layout is written once.

lines = reshaped(weight, (K, N))                # a constant: the array that the kernel reads
panel = permuted(lines, (1, 0))                 # a parameter: operators that compute it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from tvm import relax

from microkernels.base.arrays import aligned_empty, transposed

A = TypeVar("A", np.ndarray, relax.Expr)

_BYTES = np.arange(0, 32, 8, dtype=np.int32)


def reshaped(array: A, shape: Sequence[int]) -> A:
    """The elements in another shape."""
    if isinstance(array, np.ndarray):
        return array.reshape(shape)
    return relax.op.reshape(array, shape)


def permuted(array: A, axes: Sequence[int]) -> A:
    """The axes in another order."""
    if isinstance(array, np.ndarray):
        return transposed(array, axes)
    return relax.op.permute_dims(array, axes)


def padded(array: A, behind: Sequence[int]) -> A:
    """Appends `behind` zeros to each axis."""
    if not any(behind):
        return array
    if isinstance(array, np.ndarray):
        return np.pad(array, [(0, count) for count in behind])
    return relax.op.nn.pad(array, [each for count in behind for each in (0, count)])


def sliced(array: A, axis: int, first: int, end: int) -> A:
    """The positions [first, end) of an axis."""
    if isinstance(array, np.ndarray):
        return array[(slice(None),) * axis + (slice(first, end),)]
    return relax.op.strided_slice(array, [axis], [first], [end])


def chosen(array: A, axis: int, positions: Sequence[int] | np.ndarray) -> A:
    """Some positions of an axis, in any order."""
    if isinstance(array, np.ndarray):
        return array.take(positions, axis)
    return relax.op.take(array, relax.const(np.array(positions, np.int32)), axis, mode="clip")


def joined(parts: Sequence[A]) -> A:
    """The elements of all parts in a flat array, one part after the other; on cache lines."""
    first = parts[0]
    if not isinstance(first, np.ndarray):
        flat = [relax.op.flatten(part) for part in parts]
        return relax.op.concat(flat, axis=0) if len(flat) > 1 else flat[0]
    whole = aligned_empty([sum(part.size for part in parts)], first.dtype)
    start = 0
    for part in parts:
        whole[start : start + part.size].reshape(part.shape)[...] = part
        start += part.size
    return whole


def as_type(array: A, dtype: str) -> A:
    """The elements as another type."""
    if isinstance(array, np.ndarray):
        return array.astype(dtype, copy=False)
    return relax.op.astype(array, dtype)


def product(left: np.ndarray, right: A) -> A:
    """A matrix times the last two axes, in float64."""
    left = left.astype(np.float64)
    if isinstance(right, np.ndarray):
        return np.matmul(left, right)
    return relax.op.matmul(relax.const(left, "float64"), right)


def as_bytes(numbers: A, count: int, dtype: str, each: int = 4) -> A:
    """The lowest `each` bytes of integers as a flat array of an 8-bit type, in memory order."""
    if isinstance(numbers, np.ndarray):
        return numbers.reshape(-1, 1).view(dtype)[:, :each].reshape(-1)
    column = relax.op.reshape(numbers, (count, 1))
    shifted = relax.op.right_shift(column, relax.const(_BYTES[:each]))
    single = relax.op.bitwise_and(shifted, relax.const(255, "int32"))
    return relax.op.reshape(relax.op.astype(single, dtype), (each * count,))
