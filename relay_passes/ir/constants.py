"""Constants of a module, such as weights."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import IRModule, relax
from tvm.ir import GenericConst
from tvm.runtime import Tensor

from microkernels.base.arrays import ALIGNMENT


def constants_of(mod: IRModule) -> list[GenericConst]:
    """The tensors in a module's Relax functions, each object once."""
    functions = [each for each in mod.functions.values() if isinstance(each, relax.Function)]
    return list(dict.fromkeys(each for function in functions for each in constants_in(function)))


def constants_in(function: relax.Function) -> list[GenericConst]:
    """The tensors in a Relax function, each object once."""
    found: list[relax.Expr] = []
    relax.analysis.post_order_visit(function, found.append)
    constants = (each for each in found if isinstance(each, GenericConst))
    return list(dict.fromkeys(each for each in constants if isinstance(each.value, Tensor)))


def memory_of(tensor: Tensor) -> memoryview:
    """A tensor's bytes, not copied; they keep the tensor alive."""
    memory = (ctypes.c_ubyte * bytes_of(tensor)).from_address(tensor.data_ptr())
    vars(memory)["tensor"] = tensor
    return memoryview(memory).cast("B")


def array_of(tensor: Tensor, dtype: np.dtype[Any] | None = None) -> np.ndarray[Any, Any]:
    """A tensor's elements, not copied and read-only.

    Parameters
    ----------
    tensor : tvm.runtime.Tensor
        The tensor; the array keeps it alive.
    dtype : numpy.dtype, optional
        The element type, if NumPy has no type of the tensor's type name.
    """
    name = str(tensor.dtype)
    kind = dtype or np.dtype(getattr(ml_dtypes, name, name))
    array = np.ndarray(tuple(map(int, tensor.shape)), kind, memory_of(tensor))
    array.flags.writeable = False
    return array


def tensor_of(array: np.ndarray[Any, Any]) -> Tensor | None:
    """The tensor whose elements an array of `array_of` is; None for any other array."""
    tensor = getattr(array.base, "tensor", None)
    if not isinstance(tensor, Tensor) or array.shape != tuple(map(int, tensor.shape)):
        return None
    return tensor if str(array.dtype) == str(tensor.dtype) and array.flags.c_contiguous else None


def constant_of(array: np.ndarray[Any, Any]) -> GenericConst:
    """A constant with an array's elements; it may share memory: do not write to the array."""
    tensor = tensor_over(array)
    if tensor is None:
        tensor = tvm.runtime.tensor(np.asarray(array, order="C"))
    return relax.const(tensor)


def tensor_over(array: np.ndarray[Any, Any]) -> Tensor | None:
    """A tensor in an array's memory; None if TVM cannot use that memory."""
    # NumPy exports neither read-only arrays nor types of ml_dtypes.
    known = array.dtype.kind in "fiu" and array.dtype.isnative and array.flags.writeable
    if not known or not array.flags.c_contiguous or not array.size:
        return None
    return None if array.ctypes.data % ALIGNMENT else tvm.runtime.from_dlpack(array)


def bytes_of(tensor: Tensor) -> int:
    """The size of a tensor's elements."""
    return math.prod(tensor.shape) * tensor.dtype.itemsize
