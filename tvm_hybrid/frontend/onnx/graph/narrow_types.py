"""Types of 2, 4 or 8 bits per element that NumPy and TVM lack, and how the graph stores them.

    INT4, INT2, UINT4, UINT2         as int8 and uint8, by value
    FLOAT8..., FLOAT4E2M1            as uint8, by the bits of ml_dtypes' arrays

Graph.narrow has the real type of such a value. Operators that only move elements work on the stored
form; Cast, QuantizeLinear and DequantizeLinear convert from and to it (ops).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from onnx import TensorProto, helper, numpy_helper

INTEGERS = {
    TensorProto.INT2: (-2, 1),
    TensorProto.UINT2: (0, 3),
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
}
_EIGHT_BITS = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0")
FLOATS = frozenset(map(TensorProto.DataType.Value, (*_EIGHT_BITS, "FLOAT4E2M1")))
NARROW = FLOATS | INTEGERS.keys()
# Operators that move elements of their first input, of any type.
MOVING = frozenset(
    {
        *("Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split"),
        *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)


def stored_type(elem_type: int) -> int:
    """The stored element type for a value of any type."""
    if elem_type in INTEGERS:
        signed = INTEGERS[elem_type][0] < 0
        return TensorProto.INT8 if signed else TensorProto.UINT8
    return TensorProto.UINT8 if elem_type in FLOATS else elem_type


def stored(array: np.ndarray) -> np.ndarray:
    """Converts an array of an ml_dtypes type to its stored form."""
    elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    if elem_type in INTEGERS:
        return array.astype(helper.tensor_dtype_to_np_dtype(stored_type(elem_type)))
    return array.view(np.uint8) if elem_type in FLOATS else array


# Tables that convert between float32 and the floats of 4 or 8 bits, which are stored as bits.
#
# To a narrow float: the upper half of a float32's bits chooses one of 2 ** 16 results; its last bit
# is set if any bit of the lower half is. That bit separates exact values and ties from values just
# beyond them, as no narrow float has more than three bits after the point.


_UPPER = 2**16


@cache
def decoding_table(elem_type: int) -> np.ndarray:
    """The float32 for each of 256 bytes; for a type of four bits, only the lower four count."""
    used = 15 if elem_type == TensorProto.FLOAT4E2M1 else 255
    codes = (np.arange(256) & used).astype(np.uint8)
    return codes.view(helper.tensor_dtype_to_np_dtype(elem_type)).astype(np.float32)


@cache
def encoding_table(elem_type: int, saturate: bool, round_mode: str) -> np.ndarray:
    """The byte for each upper half of a float32."""
    halves = (np.arange(_UPPER, dtype=np.uint32) << 16).view(np.float32)
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    with np.errstate(all="ignore"):
        if elem_type == TensorProto.FLOAT8E8M0:
            return numpy_helper.to_float8e8m0(halves, saturate, round_mode).view(np.uint8)
        if saturate and elem_type != TensorProto.FLOAT4E2M1:  # casts to it always saturate
            return numpy_helper.saturate_cast(halves, dtype).view(np.uint8)
        return halves.astype(dtype).view(np.uint8)


def decode(codes: np.ndarray, elem_type: int) -> np.ndarray:
    """Converts stored bytes to float32."""
    return decoding_table(elem_type)[codes]


def encode(values: np.ndarray, elem_type: int, saturate: bool, round_mode: str) -> np.ndarray:
    """Converts float32 to stored bytes."""
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    half = (bits >> 16) | ((bits & (_UPPER - 1)) != 0)
    return encoding_table(elem_type, saturate, round_mode)[half]
