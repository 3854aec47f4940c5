"""Tables that convert between float32 and the floats of 4 or 8 bits; arrays of these are bits.

To a narrow float: the upper half of a float32's bits, its last bit set if any bit of the lower half
is, chooses one of 2 ** 16 results. That bit tells an exact value and a tie from what lies beyond
them, as no narrow float has more than three bits behind its point.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from onnx import TensorProto, helper, numpy_helper

_UPPER = 2**16


@cache
def decoding_table(elem_type: int) -> np.ndarray:
    """The float32 for each of 256 bytes; of four bits, the upper half does not count."""
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
        if saturate and elem_type != TensorProto.FLOAT4E2M1:  # whose casts always do
            return numpy_helper.saturate_cast(halves, dtype).view(np.uint8)
        return halves.astype(dtype).view(np.uint8)


def decode(codes: np.ndarray, elem_type: int) -> np.ndarray:
    """Bytes as float32."""
    return decoding_table(elem_type)[codes]


def encode(values: np.ndarray, elem_type: int, saturate: bool, round_mode: str) -> np.ndarray:
    """float32 as bytes."""
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    half = (bits >> 16) | ((bits & (_UPPER - 1)) != 0)
    return encoding_table(elem_type, saturate, round_mode)[half]
