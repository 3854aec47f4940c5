"""The operators of `evaluate`: NumPy functions that are exact or round once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from .arithmetic import (
    F32,
    Array,
    Quantized,
    dynamic_quantize,
    integer_product,
    matmul,
    quantize,
    quantize_sum,
    quantized,
    scaled,
)
from .images import IMAGE_OPERATORS

Value = Array | Quantized
Attributes = Mapping[str, Any]
Operator = Callable[[Sequence[Any], Attributes], Value | tuple[Value, ...]]


def real(value: Value) -> Array:
    """The value as an ordinary array."""
    return value.real() if isinstance(value, Quantized) else value


def _optional(inputs: Sequence[Any], place: int) -> Any:
    return inputs[place] if place < len(inputs) else None


def _quantize_linear(inputs: Sequence[Any], attributes: Attributes) -> Value:
    x, scale, zero = real(inputs[0]), inputs[1], _optional(inputs, 2)
    if zero is None:
        kind = attributes.get("output_dtype", 0) or onnx.TensorProto.UINT8
        zero = np.zeros(scale.shape, helper.tensor_dtype_to_np_dtype(kind))
    axis = None if scale.size == 1 else attributes.get("axis", 1)
    return quantize(x, scale, zero, axis)


def _dequantize_linear(inputs: Sequence[Any], attributes: Attributes) -> Value:
    q, scale, zero = inputs[0], inputs[1], _optional(inputs, 2)
    zero = np.zeros(scale.shape, q.dtype) if zero is None else zero
    return quantized(q, scale, zero, attributes.get("axis", 1))


def _product(a: Value, b: Value) -> Array:
    if isinstance(a, Quantized) and isinstance(b, Quantized):
        return matmul(a, b)
    return np.matmul(real(a), real(b))


def _transpose(value: Value, order: Sequence[int]) -> Value:
    if isinstance(value, Quantized):
        axis = None if value.axis is None else list(order).index(value.axis)
        return quantized(value.q.transpose(order), value.scale, value.zero_point, axis)
    return value.transpose(order)


def _gemm(inputs: Sequence[Any], attributes: Attributes) -> Value:
    assert attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0
    a, b = inputs[:2]
    a = _transpose(a, (1, 0)) if attributes.get("transA") else a
    b = _transpose(b, (1, 0)) if attributes.get("transB") else b
    bias = _optional(inputs, 2)
    if isinstance(a, Quantized) and isinstance(b, Quantized):
        return scaled(integer_product(a.centred, b.centred), a, b, bias)
    result = _product(a, b)
    return result if bias is None else result + real(bias)


def _matmul_integer(inputs: Sequence[Any], _: Attributes) -> Array:
    a, b = (item.astype(np.int64) for item in inputs[:2])
    for place, zero in enumerate(inputs[2:4]):
        if zero is None:
            continue
        wide = zero.astype(np.int64)
        if place == 0:
            a = a - (wide if wide.size == 1 else wide[..., None])
        else:
            b = b - wide
    return integer_product(a, b)


def _requantized(sums: Array, a: Quantized, b: Quantized, scale: Array, zero: Array) -> Array:
    """Sums times one factor, a_scale * b_scale / scale; the specification leaves the order open."""
    factor = a.scale * b.scale / scale
    return quantize(sums.astype(F32) * factor, F32(1), zero)


def _qlinear_matmul(inputs: Sequence[Any], _: Attributes) -> Value:
    b, b_scale, b_zero = inputs[3:6]
    a, b = quantized(*inputs[:3]), quantized(b, b_scale, b_zero, b.ndim - 1)
    return _requantized(integer_product(a.centred, b.centred), a, b, *inputs[6:])


def _qgemm(inputs: Sequence[Any], attributes: Attributes) -> Value:
    """com.microsoft QGemm: the bias counts in steps of a_scale * b_scale."""
    assert attributes.get("alpha", 1.0) == 1.0
    a, a_scale, a_zero, b, b_scale, b_zero = inputs[:6]
    left = quantized(a.T if attributes.get("transA") else a, a_scale, a_zero)
    right = quantized(b.T if attributes.get("transB") else b, b_scale, b_zero, 1)
    sums, bias = integer_product(left.centred, right.centred), _optional(inputs, 6)
    if bias is not None:
        sums = sums + bias
    if _optional(inputs, 7) is None:
        return sums.astype(F32) * (left.scale * right.scale)
    return _requantized(sums, left, right, *inputs[7:])


def _matmul_integer_to_float(inputs: Sequence[Any], _: Attributes) -> Value:
    """com.microsoft MatMulIntegerToFloat(A, B, a_scale, b_scale, a_zero, b_zero, bias)."""
    a, b, a_scale, b_scale = inputs[:4]
    zeros = [_optional(inputs, 4), _optional(inputs, 5)]
    a_zero = np.zeros((), a.dtype) if zeros[0] is None else zeros[0]
    b_zero = np.zeros(b_scale.shape, b.dtype) if zeros[1] is None else zeros[1]
    result = matmul(quantized(a, a_scale, a_zero), quantized(b, b_scale, b_zero, b.ndim - 1))
    bias = _optional(inputs, 6)
    return result if bias is None else result + bias


def _dynamic_quantize_matmul(inputs: Sequence[Any], attributes: Attributes) -> Value:
    """com.microsoft DynamicQuantizeMatMul(A, B, b_scale, b_zero, bias)."""
    q, scale, zero = dynamic_quantize(real(inputs[0]))
    rest = [inputs[1], scale, inputs[2], zero, _optional(inputs, 3), _optional(inputs, 4)]
    return _matmul_integer_to_float([q, *rest], attributes)


def _qlinear_binary(function: Callable[[Array, Array], Array]) -> Operator:
    def operator(inputs: Sequence[Any], _: Attributes) -> Value:
        a, b = (quantized(*inputs[i : i + 3]).real() for i in (0, 3))
        return quantize_sum(function(a, b), inputs[6], inputs[7])

    return operator


def _qlinear_leaky_relu(inputs: Sequence[Any], attributes: Attributes) -> Value:
    x = quantized(*inputs[:3]).real()
    return quantize(_leaky_relu([x], attributes), inputs[3], inputs[4])


def _qlinear_concat(inputs: Sequence[Any], attributes: Attributes) -> Value:
    scale, zero = inputs[:2]
    parts = [quantized(*inputs[i : i + 3]).real() for i in range(2, len(inputs), 3)]
    return quantize(np.concatenate(parts, attributes["axis"]), scale, zero)


def _leaky_relu(inputs: Sequence[Any], attributes: Attributes) -> Array:
    x = real(inputs[0])
    return np.where(x < 0, x * F32(attributes.get("alpha", 0.01)), x)


def _clip(inputs: Sequence[Any], _: Attributes) -> Array:
    low, high = (_optional(inputs, i) for i in (1, 2))
    return np.clip(real(inputs[0]), low, high) if (low, high) != (None, None) else real(inputs[0])


def _move(function: Callable[[Array, Sequence[Any], Attributes], Array]) -> Operator:
    """Wraps an operator that only moves values, so that it also accepts 8-bit values."""

    def operator(inputs: Sequence[Any], attributes: Attributes) -> Value:
        x, rest = inputs[0], inputs[1:]
        if isinstance(x, Quantized) and x.axis is None:
            return x.moved(function(x.q, rest, attributes))
        return function(real(x), rest, attributes)

    return operator


def _reshape(x: Array, rest: Sequence[Any], _: Attributes) -> Array:
    sizes = [x.shape[i] if size == 0 else int(size) for i, size in enumerate(rest[0])]
    return x.reshape(sizes)


def _slice(x: Array, rest: Sequence[Any], _: Attributes) -> Array:
    starts, ends, axes = (list(map(int, item)) for item in rest[:3])
    places = [slice(None)] * x.ndim
    for start, end, axis in zip(starts, ends, axes, strict=True):
        places[axis] = slice(start, end)
    return x[tuple(places)]


def _transpose_node(inputs: Sequence[Any], attributes: Attributes) -> Value:
    x = inputs[0]
    rank = (x.q if isinstance(x, Quantized) else x).ndim
    return _transpose(x, attributes.get("perm", range(rank)[::-1]))


def _elementwise(function: Callable[..., Array]) -> Operator:
    return lambda inputs, _: function(*map(real, inputs))


def _cast(inputs: Sequence[Any], attributes: Attributes) -> Array:
    return real(inputs[0]).astype(helper.tensor_dtype_to_np_dtype(attributes["to"]))


OPERATORS: dict[tuple[str, str], Operator] = {
    **IMAGE_OPERATORS,
    ("", "QuantizeLinear"): _quantize_linear,
    ("", "DequantizeLinear"): _dequantize_linear,
    ("", "DynamicQuantizeLinear"): lambda inputs, _: dynamic_quantize(real(inputs[0])),
    ("", "MatMul"): lambda inputs, _: _product(*inputs),
    ("", "Gemm"): _gemm,
    ("", "MatMulInteger"): _matmul_integer,
    ("", "QLinearMatMul"): _qlinear_matmul,
    ("com.microsoft", "QGemm"): _qgemm,
    ("com.microsoft", "MatMulIntegerToFloat"): _matmul_integer_to_float,
    ("com.microsoft", "DynamicQuantizeMatMul"): _dynamic_quantize_matmul,
    ("com.microsoft", "QLinearAdd"): _qlinear_binary(np.add),
    ("com.microsoft", "QLinearMul"): _qlinear_binary(np.multiply),
    ("com.microsoft", "QLinearLeakyRelu"): _qlinear_leaky_relu,
    ("com.microsoft", "QLinearConcat"): _qlinear_concat,
    ("", "Add"): _elementwise(np.add),
    ("", "Sub"): _elementwise(np.subtract),
    ("", "Mul"): _elementwise(np.multiply),
    ("", "Div"): _elementwise(np.divide),
    ("", "Relu"): _elementwise(lambda x: np.maximum(x, x.dtype.type(0))),
    ("", "LeakyRelu"): _leaky_relu,
    ("", "Clip"): _clip,
    ("", "Cast"): _cast,
    ("", "Reshape"): _move(_reshape),
    ("", "Slice"): _move(_slice),
    ("", "Flatten"): _move(
        lambda x, _, a: x.reshape((int(np.prod(x.shape[: a.get("axis", 1)])), -1))
    ),
    ("", "Squeeze"): _move(lambda x, rest, _: x.squeeze(tuple(map(int, rest[0])))),
    ("", "Unsqueeze"): _move(lambda x, rest, _: np.expand_dims(x, tuple(map(int, rest[0])))),
    ("", "Transpose"): _transpose_node,
}
