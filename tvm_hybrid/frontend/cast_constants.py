"""Casts constants exactly as kernels do (`microkernels.vector.ieee.convert`).

For a float that the integer type cannot hold, NumPy's result depends on the CPU's instruction,
which may differ between vectors and single elements.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import helper

from .node_builder import attributes_of


def cast(node: onnx.NodeProto, x: np.ndarray) -> np.ndarray:
    """Cast of a constant."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(attributes_of(node)["to"]))
    if dtype.kind not in "iu" or x.dtype.kind in "iub":
        with np.errstate(all="ignore"):
            return x.astype(dtype)
    if x.dtype == np.float16 and dtype == np.uint32:
        x = np.where(np.isfinite(x), x, 0)
    return to_integers(x.astype(np.float64), dtype)


def to_integers(x: NDArray[np.float64], dtype: DTypeLike) -> np.ndarray:
    """The low bits of an int32 or an int64, whichever the kernels go by."""
    dtype = np.dtype(dtype)
    if dtype not in (np.uint32, np.uint64):
        wide = np.int64 if dtype == np.int64 else np.int32
        return _signed(x, wide).astype(dtype)
    half = 2.0 ** (8 * dtype.itemsize - 1)
    above = x >= half
    low = _signed(np.where(above, x - half, x), np.int32 if dtype == np.uint32 else np.int64)
    return low.view(dtype) ^ np.where(above, np.uint64(half), np.uint64(0)).astype(dtype)


def _signed(x: NDArray[np.float64], dtype: type[np.signedinteger]) -> np.ndarray:
    """Towards zero; the least integer for what the type cannot hold."""
    limits = np.iinfo(dtype)
    whole = np.trunc(x)
    inside = (whole >= float(limits.min)) & (whole < -float(limits.min))
    return np.where(inside, np.where(inside, whole, 0).astype(dtype), dtype(limits.min))
