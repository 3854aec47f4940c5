"""Perceptrons and normalisations in a row, as operators and as exporters write them."""

from __future__ import annotations

import numpy as np

from ..drawing import Draw, Value
from .parts import activation, batch, epilogue, size, unary, weight


def chain(d: Draw) -> None:
    """Draws a transformer's blocks without attention, or similar layers."""
    value = d.input(d.normal(*d.pick(((size(d, 65),), (batch(d), size(d, 33)))), size(d)))
    for _ in range(d.integer(1, 4)):
        block = d.pick((norm, norm, perceptron, gated, residual, softmax, reduction, mean_pool))
        value = d.attempt(lambda block=block, value=value: block(d, value), value)
    epilogue(d, value, 3)


def norm(d: Draw, x: Value) -> Value:
    """A normalisation of some form."""
    forms = (layer_norm, layer_norm_parts, rms_norm_parts, rms_norm, skip_norm, group_norm, l2)
    return d.pick(forms)(d, x)


def _factor(d: Draw, x: Value) -> Value:
    return d.constant(1 + d.normal(x.shape[-1], scale=0.3))


def layer_norm(d: Draw, x: Value) -> Value:
    """LayerNormalization over one axis or several."""
    axis = d.pick((-1, -1, len(x.shape) - 1, d.integer(1, len(x.shape)) - 1))
    shape = x.shape[axis:]
    bias = [d.constant(d.normal(*shape))] if d.chance(0.7) else []
    scale = d.constant(1 + d.normal(*shape, scale=0.3))
    return d.node("LayerNormalization", x, scale, *bias, axis=axis, epsilon=d.pick((1e-5, 1e-3)))


def layer_norm_parts(d: Draw, x: Value) -> Value:
    """Layer normalisation in the form of exporters that do not use the operator."""
    mean = reduced(d, "ReduceMean", x, -1)
    centred = d.node("Sub", x, mean)
    if d.chance(0.6):
        square = d.node("Pow", centred, d.constant(np.float32(2)))
    else:
        square = d.node("Mul", centred, centred)
    variance = d.node("Add", reduced(d, "ReduceMean", square, -1), d.constant(np.float32(1e-5)))
    y = d.node("Div", centred, d.node("Sqrt", variance))
    y = d.node("Mul", y, _factor(d, x)) if d.chance(0.8) else y
    return d.node("Add", y, d.constant(d.normal(x.shape[-1]))) if d.chance(0.8) else y


def rms_norm_parts(d: Draw, x: Value) -> Value:
    """RMS normalisation in the form of exporters."""
    square = d.node("Pow", x, d.constant(np.float32(2))) if d.chance(0.6) else d.node("Mul", x, x)
    mean = d.node("Add", reduced(d, "ReduceMean", square, -1), d.constant(np.float32(1e-5)))
    root = d.node("Sqrt", mean)
    factor = d.node("Reciprocal", root) if d.chance(0.5) else None
    y = d.node("Div", x, root) if factor is None else d.node("Mul", x, factor)
    return d.node("Mul", y, _factor(d, x)) if d.chance(0.7) else d.node("Mul", _factor(d, x), y)


def rms_norm(d: Draw, x: Value) -> Value:
    """ONNX Runtime's SimplifiedLayerNormalization."""
    return d.contrib("SimplifiedLayerNormalization", x, _factor(d, x), epsilon=1e-5)


def skip_norm(d: Draw, x: Value) -> Value:
    """ONNX Runtime's fused addition and layer normalisation."""
    older = [each for each in d.values if each.shape == x.shape and each.dtype == x.dtype]
    other = d.pick(older)
    factors = [_factor(d, x), d.constant(d.normal(x.shape[-1]))]
    return d.contrib("SkipLayerNormalization", x, other, *factors, epsilon=1e-5)


def group_norm(d: Draw, x: Value) -> Value:
    """Instance normalisation if there are three dimensions, else layer normalisation."""
    if len(x.shape) != 3:
        return layer_norm(d, x)
    scale, bias = d.constant(d.normal(x.shape[1])), d.constant(d.normal(x.shape[1]))
    return d.node("InstanceNormalization", x, scale, bias, epsilon=1e-5)


def l2(d: Draw, x: Value) -> Value:
    """Scales rows to length one."""
    if d.chance(0.4):
        return d.node("LpNormalization", x, axis=-1, p=2)
    size_of_row = reduced(d, "ReduceL2", x, -1)
    return d.node("Div", x, d.node("Max", size_of_row, d.constant(np.float32(1e-6))))


def reduced(d: Draw, op: str, x: Value, *axes: int, keep: bool = True) -> Value:
    """A reduction, with its axes as an input or an attribute, as the opset wants."""
    as_input = d.opset >= (13 if op == "ReduceSum" else 18)
    if as_input:
        return d.node(op, x, d.integers(*axes), keepdims=int(keep))
    return d.node(op, x, axes=list(axes), keepdims=int(keep))


def perceptron(d: Draw, x: Value) -> Value:
    """Two products with an activation between them."""
    width, inner = x.shape[-1], size(d)
    hidden = d.node("MatMul", x, weight(d, width, inner, terms=width))
    hidden = activation(d, d.node("Add", hidden, d.constant(d.normal(inner))))
    y = d.node("MatMul", hidden, weight(d, inner, width, terms=inner))
    return d.node("Add", y, x) if d.chance(0.5) else y


def gated(d: Draw, x: Value) -> Value:
    """Two products of one value, multiplied with each other, and a third product."""
    width, inner = x.shape[-1], size(d)
    left, right = (d.node("MatMul", x, weight(d, width, inner, terms=width)) for _ in range(2))
    gate = d.node("Mul", left, d.node("Sigmoid", left)) if d.chance(0.6) else activation(d, left)
    return d.node("MatMul", d.node("Mul", gate, right), weight(d, inner, width, terms=inner))


def residual(d: Draw, x: Value) -> Value:
    """Adds a function of a normalised value to that value."""
    return d.node("Add", x, unary(d, norm(d, x)))


def softmax(d: Draw, x: Value) -> Value:
    """A softmax along one axis."""
    op = d.pick(("Softmax", "Softmax", "LogSoftmax", "Hardmax"))
    return d.node(op, x, axis=d.pick((-1, -1, 0, len(x.shape) - 1)))


def reduction(d: Draw, x: Value) -> Value:
    """A reduction that keeps its axis, broadcast into an operation with its input."""
    ops = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceLogSumExp")
    axis = d.pick((-1, 0, d.integer(0, len(x.shape) - 1)))
    part = reduced(d, d.pick((*ops, "ReduceSumSquare", "ReduceL2")), x, axis)
    return d.node(d.pick(("Sub", "Add", "Mul", "Max")), x, part)


def mean_pool(d: Draw, x: Value) -> Value:
    """A mean over the rows that a mask selects, as in sentence embeddings."""
    mask = d.input((d.numbers.random((*x.shape[:-1], 1)) < 0.7).astype(np.float32))
    total = reduced(d, "ReduceSum", d.node("Mul", x, mask), -2)
    count = reduced(d, "ReduceSum", mask, -2)
    return d.node("Div", total, d.node("Max", count, d.constant(np.float32(1e-6))))
