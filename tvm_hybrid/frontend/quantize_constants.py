"""Quantising and dequantising constants as ONNX's text says; what the front end folds with.

ONNX's reference differs: it overflows beyond int32, has no DequantizeLinear before opset 19, and
gives an all-zero tensor the scale 1 / 255 where the operator's text leaves it open and ONNX
Runtime says 1.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import helper

from relay_passes.ir.zero_points import along_axis

from .node_builder import attributes_of


def quantize_linear(
    node: onnx.NodeProto, x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None = None
) -> np.ndarray:
    """QuantizeLinear per tensor or per axis: saturate(round_half_even(x / scale) + zero_point)."""
    attributes = attributes_of(node)
    code = attributes.get("output_dtype", 0)
    dtype: DTypeLike = helper.tensor_dtype_to_np_dtype(code) if code else np.uint8
    if zero_point is not None:
        dtype = zero_point.dtype
    if attributes.get("block_size"):
        raise ValueError("quantising in blocks is not supported")
    axis = 0 if x.ndim == 1 else attributes.get("axis", 1)
    step = along_axis(scale.astype(np.float32), x.ndim, axis)
    offset = 0 if zero_point is None else along_axis(zero_point.astype(np.float64), x.ndim, axis)
    limits = np.iinfo(dtype)
    with np.errstate(all="ignore"):
        # A float64 sum is exact here: no rounding after that of the quotient.
        value = np.rint(x.astype(np.float32) / step).astype(np.float64) + offset
    return np.clip(np.nan_to_num(value), limits.min, limits.max).astype(dtype)


def dequantize_linear(
    node: onnx.NodeProto, q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None = None
) -> np.ndarray:
    """DequantizeLinear per tensor or per axis: (q - zero_point) * scale, rounded to float32."""
    attributes = attributes_of(node)
    if attributes.get("block_size"):
        raise ValueError("blocks stay as they are")
    code = attributes.get("output_dtype", 0)
    axis = 0 if q.ndim == 1 else attributes.get("axis", 1)
    offset = 0 if zero_point is None else along_axis(zero_point.astype(np.int64), q.ndim, axis)
    difference = (q.astype(np.int64) - offset).astype(np.float32)
    value = difference * along_axis(scale.astype(np.float32), q.ndim, axis)
    return value.astype(helper.tensor_dtype_to_np_dtype(code) if code else scale.dtype)


def dynamic_quantize_linear(node: onnx.NodeProto, x: np.ndarray) -> list[np.ndarray]:
    """DynamicQuantizeLinear: the quantised tensor, its scale and its zero point."""
    zero = np.float32(0)
    high = np.maximum(x.max(initial=0), zero, dtype=np.float32)
    low = np.minimum(x.min(initial=0), zero, dtype=np.float32)
    scale = np.asarray((high - low) / np.float32(255) or np.float32(1), np.float32)
    offset = np.asarray(np.clip(np.rint(-low / scale), 0, 255), np.uint8)
    q = np.clip(np.rint(x / scale) + np.float32(offset), 0, 255).astype(np.uint8)
    return [q, scale, offset]
