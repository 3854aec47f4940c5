"""Types of 2, 4 or 8 bits per element that NumPy and TVM lack, and how the graph holds them.

    INT4, INT2, UINT4, UINT2         as int8 and uint8, by value
    FLOAT8..., FLOAT4E2M1            as uint8, by the bits of ml_dtypes' arrays

Graph.narrow tells the real type of such a value. Operators that only move elements are computed as
they are; Cast, QuantizeLinear and DequantizeLinear are rewritten (rewrites/narrow_cast.py).
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

INTEGERS = {
    TensorProto.INT2: (-2, 1),
    TensorProto.UINT2: (0, 3),
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
}
FLOATS = frozenset(
    {
        TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E4M3FNUZ,
        TensorProto.FLOAT8E5M2,
        TensorProto.FLOAT8E5M2FNUZ,
        TensorProto.FLOAT8E8M0,
        TensorProto.FLOAT4E2M1,
    }
)
NARROW = FLOATS | INTEGERS.keys()
# Operators that move elements of their first input, whatever they are.
MOVING = frozenset(
    {
        *("Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split"),
        *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)


def stored_type(elem_type: int) -> int:
    """The element type of the graph's value for a value of any type."""
    if elem_type in INTEGERS:
        signed = INTEGERS[elem_type][0] < 0
        return TensorProto.INT8 if signed else TensorProto.UINT8
    return TensorProto.UINT8 if elem_type in FLOATS else elem_type


def stored(array: np.ndarray) -> np.ndarray:
    """An array of ml_dtypes' type as the graph holds it."""
    elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    if elem_type in INTEGERS:
        return array.astype(helper.tensor_dtype_to_np_dtype(stored_type(elem_type)))
    return array.view(np.uint8) if elem_type in FLOATS else array
