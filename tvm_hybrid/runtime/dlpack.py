"""Arrays as tensors and back, without a copy.

NumPy's DLPack has no bfloat16. So such an array is passed as its bits (uint16), and the receiver
corrects the type.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm.runtime import Tensor

from microkernels.base.tvm_compat.runtime import create_view

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BITS = np.dtype(np.uint16)


def tensor_of(array: np.ndarray) -> Tensor:
    """The memory of an array of consecutive elements as a tensor, wherever it lies.

    An array without elements gives a tensor of its own: kernels expect other strides than NumPy's.
    """
    return view_of(array) if array.size else tvm.runtime.empty(array.shape, array.dtype.name)


def view_of(array: np.ndarray) -> Tensor:
    """The memory of an array as a tensor of the same strides."""
    if array.dtype != BFLOAT16:
        return cast(Tensor, tvm_ffi.from_dlpack(array))  # TVM has registered its own class
    return _view(tvm_ffi.from_dlpack(array.view(BITS)), array.shape, BFLOAT16)


def array_of(tensor: Tensor) -> np.ndarray:
    """The memory of a tensor as an array."""
    if str(tensor.dtype) != "bfloat16":
        return np.from_dlpack(tensor)
    return np.from_dlpack(_view(tensor, tuple(tensor.shape), BITS)).view(BFLOAT16)


def _view(tensor: tvm_ffi.Tensor, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    """The tensor's memory with another element type."""
    return create_view()(tensor, _shape(shape), _dtype(dtype.name), 0)


@functools.lru_cache(maxsize=256)
def _shape(shape: tuple[int, ...]) -> Any:
    return tvm_ffi.Shape(shape)


@functools.cache
def _dtype(name: str) -> Any:
    return tvm.DataType(name)
