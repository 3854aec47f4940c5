"""Checks the arrays that callers give, and makes tensors of them that kernels can read.

NumPy aligns arrays to 16 bytes. Our templates read arrays of any alignment; TVM's own kernels
expect 64 bytes. So an array is copied if it goes to one of TVM's kernels and is not aligned, or if
it is so small that a copy costs less than passing it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm.runtime import Tensor

from microkernels.base.errors import FeedError

from .dlpack import array_of, tensor_of
from .open_feeds import check_sizes
from .tensors import InputInfo, TensorInfo, numpy_dtype

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


def to_array(value: Any, info: InputInfo) -> np.ndarray:
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
    fits = array.dtype == _dtype(info)
    if not fits or not info.fits(array.shape):
        found = TensorInfo(info.name, array.shape, str(array.dtype))
        hint = _hint(array, info) if not fits else _SHAPE_HINT
        raise FeedError(f"input {info.name!r}: expected {info}, got {found}{hint}")
    return array


def check_feeds(
    values: Sequence[Any], infos: Sequence[TensorInfo], limits: Mapping[str, int]
) -> None:
    """Refuses values that do not fit their inputs, each other, or the limits of the model.

    Raises
    ------
    FeedError
        Naming the input, or the sizes.
    """
    arrays = map(to_array, values, infos)
    check_sizes(infos, [array.shape for array in arrays], limits)


def named_feeds(feeds: Any, names: Sequence[str]) -> dict[str, Any]:
    """Feeds, in the order of the inputs' names.

    Raises
    ------
    FeedError
        If they are no dictionary, or one is missing or unknown.
    """
    if not isinstance(feeds, Mapping):
        raise FeedError(
            f"the feeds must be a dictionary from input names ({', '.join(names)}) to arrays, "
            f"not {type(feeds).__name__}"
        )
    known = f"the model's inputs are {', '.join(map(repr, names))}"
    if missing := [name for name in names if name not in feeds]:
        raise FeedError(f"no value for input {', '.join(map(repr, missing))}; {known}")
    if extra := [name for name in feeds if name not in names]:
        raise FeedError(f"the model has no input {', '.join(map(repr, extra))}; {known}")
    return {name: feeds[name] for name in names}


def check_output(name: object, names: Sequence[str]) -> None:
    """Refuses, by FeedError, the name of an output that the model does not have."""
    if name not in names:
        known = ", ".join(map(repr, names))
        raise FeedError(f"the model has no output {name!r}; its outputs are {known}")


def _dtype(info: InputInfo) -> np.dtype[Any]:
    assert info.dtype is not None  # of inputs it is known
    return numpy_dtype(info.dtype)


def _hint(array: np.ndarray, info: InputInfo) -> str:
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


def _from_sequence(value: Any, info: InputInfo) -> np.ndarray:
    if isinstance(value, Tensor):
        return array_of(value)
    if value is None or isinstance(value, (str, bytes, dict)):
        raise FeedError(f"input {info.name!r}: expected {info}, got {type(value).__name__}")
    try:
        array = np.asarray(value)
        wanted = _dtype(info)
        if array.dtype.kind in "biuf" and np.can_cast(array.dtype, wanted, "same_kind"):
            return np.asarray(value, dtype=wanted)
        return array
    except Exception as error:
        raise FeedError(
            f"input {info.name!r}: expected {info}, got {type(value).__name__} that is not an "
            f"array: {error}"
        ) from error
