"""Operators of graphs that pt2e has quantised, as the low-precision passes recognise them.

    quantize_per_tensor(x, scale, zero, low, high, int8)   ->  R.quantize(x, scale, zero)
    dequantize_per_channel(q, scales, zeros, axis, ...)    ->  R.dequantize(q, scales, zeros, axis)

A narrower range than that of the type, such as -127 to 127, becomes limits behind R.quantize.
Quotients are divided, where torch multiplies by the reciprocal: ties may round otherwise.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import GenericConst

from .chosen_ranges import (
    choose_qparams,
    choose_symmetric,
    dequantize_by_range,
    limited,
    quantize_by_range,
)
from .constants import type_name
from .token_ranges import PER_TOKEN


def quantize(node: Any, importer: Any) -> relax.Expr:
    """`quantize_per_tensor` or `quantize_per_channel`: x, scale, zero, (axis,) low, high, type."""
    by_range = quantize_by_range(node, importer)
    if by_range is not None:
        return by_range
    x, scale, zero, *rest = importer.retrieve_args(node)
    axis, (low, high, torch_type) = (-1, rest) if len(rest) == 3 else (rest[0], rest[1:])
    dtype = type_name(torch_type)
    emit = importer.block_builder.emit
    parameters = _parameter(importer, scale, "float32"), _parameter(importer, zero, dtype)
    value = emit(relax.op.quantize(x, *parameters, axis=axis, out_dtype=dtype))
    return limited(emit, value, low, high)


def dequantize(node: Any, importer: Any) -> relax.Expr:
    """`dequantize_per_tensor` or `dequantize_per_channel`: as of `quantize`."""
    by_range = dequantize_by_range(node, importer)
    wanted = type_name(node.meta["val"].dtype)
    if by_range is not None and wanted == "float32":
        return by_range
    q, scale, zero, *rest = importer.retrieve_args(node)
    axis = rest[0] if len(rest) == 4 else -1
    narrow = str(q.ty.dtype)
    zeros = relax.const(0, narrow) if zero is None else _parameter(importer, zero, narrow)
    emit = importer.block_builder.emit
    wide = emit(
        relax.op.dequantize(q, _parameter(importer, scale, "float32"), zeros, axis, "float32")
    )
    return wide if wanted == "float32" else emit(relax.op.astype(wide, wanted))


def _parameter(importer: Any, value: Any, dtype: str) -> relax.Expr:
    """A scale or zero point: a constant of rank 0 or 1 wherever it is known."""
    if isinstance(value, GenericConst):
        array = value.value.numpy()
        return relax.const(array.astype(dtype).reshape(() if array.size == 1 else (-1,)))
    if isinstance(value, (int, float)):
        return relax.const(value, dtype)
    return importer.block_builder.emit(relax.op.astype(value, dtype))


QUANTIZED = {
    "choose_qparams.tensor": choose_qparams,
    "choose_qparams_symmetric.tensor": choose_symmetric,
    **PER_TOKEN,
    **{f"quantize_per_tensor.{form}": quantize for form in ("default", "tensor")},
    **{f"dequantize_per_tensor.{form}": dequantize for form in ("default", "tensor")},
    "quantize_per_channel.default": quantize,
    "dequantize_per_channel.default": dequantize,
}
