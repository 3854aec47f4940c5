"""Quantised graphs: QDQ, quantised operators, dynamic quantisation, weights of few bits."""

from __future__ import annotations

import numpy as np

from ..drawing import Array, Draw, Value
from .convolutions import CHANNELS
from .parts import FLOAT, activation, batch, binary, size

BYTES = (np.uint8, np.int8)


def quantized(d: Draw) -> None:
    """Draws layers of one quantised form, or of several."""
    form = d.pick((qdq_products, qdq_convolutions, q_operators, q_convolutions, dynamic, few_bits))
    form(d)


def scale_of(d: Draw, usual: float) -> float:
    """A scale: a power of two, which gives exact ties, or any number."""
    if d.chance(0.4):
        return float(2.0 ** round(np.log2(usual)))
    return float(np.float32(usual * d.rng.uniform(0.6, 1.6)))


def zero_of(d: Draw, dtype: type) -> Array:
    """A zero point."""
    limits = np.iinfo(dtype)
    middle = 128 if dtype is np.uint8 else 0
    return np.array(d.pick((middle, 0, d.integer(int(limits.min), int(limits.max)))), dtype)


def there_and_back(d: Draw, x: Value) -> Value:
    """QuantizeLinear and DequantizeLinear, with a scale for the values of x."""
    dtype = d.pick(BYTES)
    largest = float(np.abs(x.array).max(initial=1e-3)) or 1.0
    parameters = [d.constant(np.float32(scale_of(d, largest / 100))), d.constant(zero_of(d, dtype))]
    return d.node("DequantizeLinear", d.node("QuantizeLinear", x, *parameters), *parameters)


def q_weight(d: Draw, shape: tuple[int, ...], axis: int, terms: int) -> Value:
    """A dequantised weight, with one scale or one scale per index of an axis."""
    dtype = d.pick((np.int8, np.int8, np.uint8))
    limits = np.iinfo(dtype)
    values = d.numbers.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    usual = terms**-0.5 / 70
    if d.chance(0.5):
        scale, zero = np.float32(scale_of(d, usual)), zero_of(d, dtype)
        return d.node("DequantizeLinear", d.constant(values), d.constant(scale), d.constant(zero))
    count = shape[axis]
    scales = np.array([scale_of(d, usual) for _ in range(count)], np.float32)
    zeros = np.zeros(count, dtype)
    if d.chance(0.4):
        zeros = d.numbers.integers(limits.min, limits.max, count, dtype, endpoint=True)
    constants = [d.constant(each) for each in (values, scales, zeros)]
    return d.node("DequantizeLinear", *constants, axis=axis)


def qdq_products(d: Draw) -> None:
    """Products of dequantised operands."""
    value = d.input(d.normal(*d.pick(((), (batch(d),))), size(d, 33), size(d)))
    for _ in range(d.integer(1, 3)):
        value = d.attempt(lambda value=value: _qdq_product(d, value), value)
        value = d.attempt(lambda value=value: _between(d, value), value)
    if d.chance(0.5):
        d.attempt(lambda: there_and_back(d, value), value)


def _qdq_product(d: Draw, x: Value) -> Value:
    x = there_and_back(d, x)
    depth, columns = x.shape[-1], size(d)
    if d.chance(0.2):
        other = there_and_back(d, d.input(d.normal(depth, columns, scale=depth**-0.5)))
        return d.node("MatMul", x, other)
    if len(x.shape) == 2 and d.chance(0.4):
        w = q_weight(d, (columns, depth), 0, depth)
        bias = [d.constant(d.normal(columns))] if d.chance(0.7) else []
        return d.node("Gemm", x, w, *bias, transB=1)
    y = d.node("MatMul", x, q_weight(d, (depth, columns), 1, depth))
    return d.node("Add", y, d.constant(d.normal(columns))) if d.chance(0.6) else y


def _between(d: Draw, x: Value) -> Value:
    """Operators between quantised layers."""
    form = d.pick(("nothing", "activation", "binary", "quantised"))
    if form == "activation":
        return activation(d, x)
    if form == "binary":
        return binary(d, x)
    return there_and_back(d, x) if form == "quantised" else x


def qdq_convolutions(d: Draw) -> None:
    """Convolutions of dequantised operands."""
    shape = (batch(d, 2), d.pick(CHANNELS), d.integer(3, 10), d.integer(3, 10))
    value = d.input(d.normal(*shape))
    for _ in range(d.integer(1, 3)):
        last = value
        value = d.attempt(lambda value=value: _qdq_convolution(d, value), value)
        if last.shape == value.shape and d.chance(0.5):
            value = d.attempt(
                lambda value=value, last=last: d.node(
                    "Add", there_and_back(d, value), there_and_back(d, last)
                ),
                value,
            )
        value = d.attempt(lambda value=value: _between(d, value), value)
    if d.chance(0.3):
        value = d.attempt(lambda: d.node("GlobalAveragePool", there_and_back(d, value)), value)
    if d.chance(0.5):
        d.attempt(lambda: there_and_back(d, value), value)


def _qdq_convolution(d: Draw, x: Value) -> Value:
    x = there_and_back(d, x)
    channels, window = x.shape[1], d.pick((1, 3))
    groups = channels if d.chance(0.3) else 1
    outer = channels if groups > 1 else d.pick(CHANNELS)
    terms = channels // groups * window**2
    w = q_weight(d, (outer, channels // groups, window, window), 0, terms)
    bias = [d.constant(d.normal(outer))] if d.chance(0.6) else []
    pads = [d.integer(0, window // 2)] * 4
    strides = [d.integer(1, 2)] * 2
    return d.node("Conv", x, w, *bias, group=groups, pads=pads, strides=strides)


def _bytes(d: Draw, dtype: type, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return d.numbers.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _scaled(d: Draw, dtype: type, usual: float) -> list[Value]:
    return [d.constant(np.float32(scale_of(d, usual))), d.constant(zero_of(d, dtype))]


def q_operators(d: Draw) -> None:
    """Draws QLinearMatMul or QGemm, then QLinearAdd, -Mul, -LeakyRelu and -Sigmoid."""
    dtype, w_dtype = d.pick(BYTES), d.pick(BYTES)
    rows, depth, columns = size(d, 33), size(d), size(d)
    a = [d.input(_bytes(d, dtype, rows, depth)), *_scaled(d, dtype, 0.02)]
    y = _scaled(d, dtype, 0.02 * 0.01 * depth**0.5 * 75 * 75 / 60)
    if d.chance(0.6):
        b = [d.constant(_bytes(d, w_dtype, depth, columns)), *_scaled(d, w_dtype, 0.01)]
        value = d.node("QLinearMatMul", *a, *b, *y)
    else:
        b = [d.constant(_bytes(d, w_dtype, columns, depth)), *_scaled(d, w_dtype, 0.01)]
        bias = d.constant(d.numbers.integers(-20000, 20000, columns), np.int32)
        value = d.contrib("QGemm", *a, *b, d.pick((bias, None)), *y, transB=1)
    for _ in range(d.integer(0, 2)):
        value = d.attempt(lambda value=value: _q_elementwise(d, value, dtype, y), value)
    if d.chance(0.3):
        d.attempt(lambda: d.node("DequantizeLinear", value, *y), value)


def _q_elementwise(d: Draw, x: Value, dtype: type, y: list[Value]) -> Value:
    form = d.pick(("QLinearAdd", "QLinearMul", "QLinearLeakyRelu", "QLinearSigmoid"))
    if form in ("QLinearAdd", "QLinearMul"):
        other = d.either(_bytes(d, dtype, *x.shape), 0.3)
        return d.contrib(form, x, *y, other, *_scaled(d, dtype, 0.02), *y)
    attributes = {"alpha": 0.25} if form == "QLinearLeakyRelu" else {}
    return d.contrib(form, x, *y, *_scaled(d, dtype, 0.02), **attributes)


def q_convolutions(d: Draw) -> None:
    """Draws QLinearConv and ConvInteger."""
    dtype, w_dtype = d.pick(BYTES), d.pick(BYTES)
    channels, outer, window = d.pick(CHANNELS), d.pick(CHANNELS), d.pick((1, 2, 3))
    x = d.input(_bytes(d, dtype, batch(d, 2), channels, d.integer(3, 9), d.integer(3, 9)))
    values = d.constant(_bytes(d, w_dtype, outer, channels, window, window))
    pads = [d.integer(0, window - 1) for _ in range(4)]
    terms = channels * window**2
    if d.chance(0.6):
        a, w = _scaled(d, dtype, 0.02), _scaled(d, w_dtype, 0.01)
        y = _scaled(d, dtype, 0.02 * 0.01 * terms**0.5 * 75 * 75 / 60)
        bias = []
        if d.chance(0.5):
            bias = [d.constant(d.numbers.integers(-9999, 9999, outer), np.int32)]
        d.node("QLinearConv", x, *a, values, *w, *y, *bias, pads=pads)
        return
    zeros = [d.constant(zero_of(d, dtype)), d.constant(zero_of(d, w_dtype))]
    sums = d.node("ConvInteger", x, values, *zeros, pads=pads)
    d.node("Mul", d.node("Cast", sums, to=FLOAT), d.constant(np.float32(0.001)))


def dynamic(d: Draw) -> None:
    """Draws DynamicQuantizeLinear and MatMulInteger."""
    value = d.input(d.normal(*d.pick(((), (batch(d),))), size(d, 33), size(d)))
    for _ in range(d.integer(1, 2)):
        value = d.attempt(lambda value=value: _dynamic_product(d, value), value)
        value = d.attempt(lambda value=value: _between(d, value), value)


def _dynamic_product(d: Draw, x: Value) -> Value:
    depth, columns = x.shape[-1], size(d)
    dtype = d.pick(BYTES)
    w = d.constant(_bytes(d, dtype, depth, columns))
    zero = d.constant(zero_of(d, dtype))
    scale = d.constant(np.float32(depth**-0.5 / 70))
    if d.chance(0.2):
        return d.contrib("DynamicQuantizeMatMul", x, w, scale, zero)
    q, x_scale, x_zero = d.several("DynamicQuantizeLinear", 3, x)
    sums = d.node("Cast", d.node("MatMulInteger", q, w, x_zero, zero), to=FLOAT)
    y = d.node("Mul", sums, d.node("Mul", x_scale, scale))
    return d.node("Add", y, d.constant(d.normal(columns))) if d.chance(0.5) else y


def few_bits(d: Draw) -> None:
    """Draws MatMulNBits, and products whose weights alone are quantised."""
    value = d.input(d.normal(*d.pick(((), (batch(d),))), size(d, 17), d.pick((16, 32, 64, 96))))
    for _ in range(d.integer(1, 2)):
        depth, columns = value.shape[-1], d.pick((16, 32, 48, 64, 33, 7))
        if d.chance(0.5):
            w = q_weight(d, (depth, columns), 1, depth)
            value = d.node("MatMul", value, w)
        else:
            value = d.attempt(lambda value=value, n=columns: _n_bits(d, value, n), value)
        value = d.attempt(lambda value=value: _between(d, value), value)


def _n_bits(d: Draw, x: Value, columns: int) -> Value:
    depth, bits, block = x.shape[-1], d.pick((4, 8)), d.pick((16, 32))
    blocks = -(-depth // block)
    packed = _bytes(d, np.uint8, columns, blocks, block * bits // 8)
    scales = d.normal(columns * blocks, scale=depth**-0.5 / 2**bits)
    if d.chance(0.5):
        scales = scales.astype(np.float16).astype(np.float32)
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    inputs = [d.constant(packed), d.constant(scales)]
    if d.chance(0.3):
        inputs.append(d.constant(_bytes(d, np.uint8, columns, -(-blocks * bits // 8))))
    return d.contrib("MatMulNBits", x, *inputs, **attributes)
