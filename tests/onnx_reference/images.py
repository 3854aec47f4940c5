"""Operators of quantised CNNs on [N, C, ...] as in ONNX; integer sums are exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .arithmetic import F32, Array, Quantized, quantize, quantize_sum, quantized, scaled
from .convolution import integer_conv

Value = Array | Quantized
Attributes = Mapping[str, Any]
Operator = Callable[[Sequence[Any], Attributes], Value]


def _real(value: Value) -> Array:
    return value.real() if isinstance(value, Quantized) else value


def _last(x: Array) -> Array:
    """Moves axis 1 of [N, C, ...] or [OC, C, ...] to the end."""
    return np.moveaxis(x, 1, -1)


def _weight(w: Quantized) -> Quantized:
    """[OC, C / groups, ...] -> [..., C / groups, OC]."""
    moved = np.moveaxis(np.moveaxis(w.q, 1, -1), 0, -1)
    return quantized(moved, w.scale, w.zero_point, None if w.axis is None else -1)


def _sums(x: Array, w: Array, attributes: Attributes) -> Array:
    """The integer convolution, channels last, of integers minus zero points; x [N, C, ...]."""
    return integer_conv(
        _last(x),
        w,
        strides=attributes.get("strides"),
        padding=attributes.get("pads"),
        dilation=attributes.get("dilations"),
        groups=attributes.get("group", 1),
    )


def _conv(inputs: Sequence[Any], attributes: Attributes) -> Value:
    """Conv of dequantised operands: the integer convolution, scaled; an int32 bias in the sum."""
    x, w = inputs[:2]
    assert isinstance(x, Quantized) and isinstance(w, Quantized), "float convolutions round sums"
    bias, weight = inputs[2] if len(inputs) > 2 else None, _weight(w)
    total = _sums(x.centred, weight.centred, attributes)
    return np.moveaxis(scaled(total, x, weight, bias), -1, 1)


def _conv_integer(inputs: Sequence[Any], attributes: Attributes) -> Value:
    x, w, *zeros = inputs
    zero_x = zeros[0] if zeros else np.zeros((), x.dtype)
    zero_w = zeros[1] if len(zeros) > 1 else np.zeros((), w.dtype)
    weight = _weight(quantized(w, np.ones(zero_w.size), zero_w, 0))
    return np.moveaxis(_sums(quantized(x, 1, zero_x).centred, weight.centred, attributes), -1, 1)


def _qlinear_conv(inputs: Sequence[Any], attributes: Attributes) -> Value:
    """Requantizes by one factor, x_scale * w_scale / y_scale, in ONNX Runtime's order."""
    w, w_scale, w_zero = inputs[3:6]
    x, w = quantized(*inputs[:3]), _weight(quantized(w, w_scale, w_zero, 0))
    total = _sums(x.centred, w.centred, attributes)
    if len(inputs) > 8:
        total = total + inputs[8]
    factor = x.scale * w.scale / inputs[6]
    return quantize(np.moveaxis(total.astype(F32) * factor, -1, 1), F32(1), inputs[7])


def _windows(x: Array, attributes: Attributes, fill: int) -> Array:
    """Windows of a pool, [N, C, outputs..., taps]; elements outside are `fill`."""
    kernel = attributes["kernel_shape"]
    rank = len(kernel)
    pads, strides = attributes.get("pads", [0] * 2 * rank), attributes.get("strides", [1] * rank)
    margins = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    wide = np.pad(x, margins, constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(wide, kernel, tuple(range(2, 2 + rank)))
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in strides))]
    return windows.reshape(*windows.shape[: 2 + rank], -1)


def _max_pool(inputs: Sequence[Any], attributes: Attributes) -> Value:
    """The largest integer stands for the largest number."""
    x = inputs[0]
    q = x.q if isinstance(x, Quantized) else x
    largest = _windows(q, attributes, np.iinfo(q.dtype).min).max(-1)
    return x.moved(largest) if isinstance(x, Quantized) else largest


def _mean(sums: Array, count: Array, x: Quantized) -> Array:
    """Exact integer sums times scale / count."""
    assert x.axis is None
    return np.asarray(sums.astype(F32) * (x.scale / count.astype(F32)), F32)


def _average_pool(inputs: Sequence[Any], attributes: Attributes) -> Value:
    x = inputs[0]
    assert isinstance(x, Quantized)
    sums = _windows(x.centred, attributes, 0).sum(-1)
    counted = int(attributes.get("count_include_pad", 0))
    count = _windows(np.ones(x.q.shape, np.int64), attributes, counted).sum(-1)
    return _mean(sums, count, x)


def _global_average_pool(inputs: Sequence[Any], _: Attributes) -> Value:
    x = inputs[0]
    assert isinstance(x, Quantized)
    axes = tuple(range(2, x.q.ndim))
    count = np.asarray(math.prod(x.q.shape[2:]))
    return _mean(x.centred.sum(axes, keepdims=True), count, x)


def _requantised(operator: Operator, to: Callable[..., Array] = quantize) -> Operator:
    """QLinear...Pool(x, sx, zx, sy, zy)."""

    def apply(inputs: Sequence[Any], attributes: Attributes) -> Value:
        result = operator([quantized(*inputs[:3])], attributes)
        return to(_real(result), inputs[3], inputs[4])

    return apply


def _concat(inputs: Sequence[Any], attributes: Attributes) -> Value:
    return np.concatenate([_real(part) for part in inputs], attributes["axis"])


def _resize(inputs: Sequence[Any], attributes: Attributes) -> Value:
    """Integer factors, asymmetric, rounded down: repeats every pixel."""
    x, factors = inputs[0], inputs[2]
    assert attributes["coordinate_transformation_mode"] == b"asymmetric"
    assert (attributes["mode"], attributes["nearest_mode"]) == (b"nearest", b"floor")
    q = x.q if isinstance(x, Quantized) else x
    for axis, factor in enumerate(factors):
        assert factor == int(factor)
        q = np.repeat(q, int(factor), axis)
    return x.moved(q) if isinstance(x, Quantized) else q


def _pad(inputs: Sequence[Any], _: Attributes) -> Value:
    """Pads with zeros."""
    x, pads = _real(inputs[0]), [int(each) for each in inputs[1]]
    return np.pad(x, list(zip(pads[: x.ndim], pads[x.ndim :], strict=True)))


IMAGE_OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "AveragePool"): _average_pool,
    ("", "Concat"): _concat,
    ("", "Conv"): _conv,
    ("", "ConvInteger"): _conv_integer,
    ("", "GlobalAveragePool"): _global_average_pool,
    ("", "MaxPool"): _max_pool,
    ("", "Pad"): _pad,
    ("", "QLinearConv"): _qlinear_conv,
    ("", "Resize"): _resize,
    ("com.microsoft", "QLinearAveragePool"): _requantised(_average_pool, quantize_sum),
    ("com.microsoft", "QLinearGlobalAveragePool"): _requantised(_global_average_pool),
}
