"""Checks the arrays that callers give, and makes tensors of them that kernels can read.

NumPy aligns arrays to 16 bytes. Our templates read arrays of any alignment; TVM's own kernels
expect 64 bytes. So an array is copied if it goes to one of TVM's kernels and is not aligned, or if
it is so small that a copy costs less than passing it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.runtime import Tensor

from microkernels.errors import FeedError

from .dlpack import array_of, tensor_of
from .tensors import TensorInfo, numpy_dtype

ALIGNMENT = 64
ZERO_COPY_BYTES = 1 << 13
_SHAPE_HINT = "; give an array of the shape expected"


def aligned_empty(info: TensorInfo) -> np.ndarray:
    """An array without contents, aligned for kernels; its sizes must be known."""
    shape = info.static_shape
    assert shape is not None
    raw = np.empty(info.nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + info.nbytes].view(numpy_dtype(info.dtype)).reshape(shape)


def to_array(value: Any, info: TensorInfo) -> np.ndarray:
    """A value as an array of the input's type and shape.

    Arrays must have the right type already; lists and numbers are converted if no information of
    another kind gets lost (integers may become floats, floats may not become integers).

    Raises
    ------
    FeedError
        Naming the input, what it expects and what it got.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
    else:
        array = _from_sequence(value, info)
    fits = array.dtype == numpy_dtype(info.dtype)
    if not fits or not info.fits(array.shape):
        found = TensorInfo(info.name, array.shape, str(array.dtype))
        hint = _hint(array, info) if not fits else _SHAPE_HINT
        raise FeedError(f"input {info.name!r}: expected {info}, got {found}{hint}")
    return array


def _hint(array: np.ndarray, info: TensorInfo) -> str:
    """What to do about an array of another type; NumPy itself lacks bfloat16."""
    if info.dtype != "bfloat16":
        known = array.dtype.kind in "biuf" and info.dtype in np.sctypeDict
        return f"; array.astype({info.dtype!r}) converts it" if known else ""
    if array.dtype == np.uint16:
        return "; if these are the bits, give array.view(ml_dtypes.bfloat16)"
    return "; array.astype(ml_dtypes.bfloat16) rounds to it"


def to_tensor(array: np.ndarray) -> Tensor:
    """An array as an aligned tensor; shares its memory if that is aligned already."""
    if not (is_plain(array) and is_aligned(array)):
        aligned = aligned_empty(TensorInfo("", array.shape, str(array.dtype)))
        aligned[...] = array
        array = aligned
    return tensor_of(array)


def is_plain(array: np.ndarray) -> bool:
    """Whether the runtime can take an array without a copy."""
    flags = array.flags
    return flags.c_contiguous and flags.writeable


def is_aligned(array: np.ndarray) -> bool:
    """Whether any kernel can read a plain array where it is."""
    return array.ctypes.data % ALIGNMENT == 0


def _from_sequence(value: Any, info: TensorInfo) -> np.ndarray:
    if isinstance(value, Tensor):
        return array_of(value)
    if value is None or isinstance(value, (str, bytes, dict)):
        raise FeedError(f"input {info.name!r}: expected {info}, got {type(value).__name__}")
    try:
        array = np.asarray(value)
        wanted = numpy_dtype(info.dtype)
        if array.dtype.kind in "biuf" and np.can_cast(array.dtype, wanted, "same_kind"):
            return np.asarray(value, dtype=wanted)
        return array
    except Exception as error:
        raise FeedError(
            f"input {info.name!r}: expected {info}, got {type(value).__name__} that is not an "
            f"array: {error}"
        ) from error
