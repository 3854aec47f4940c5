"""Parts that motifs of all families use: sizes, epilogues, activations."""

from __future__ import annotations

import numpy as np
import onnx

from ..drawing import Draw, Value

# Next to the widths of vectors and tiles, and some multiples of blocks.
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 100)
ACTIVATIONS = (
    *("Relu", "Sigmoid", "Tanh", "Erf", "Softplus", "Softsign", "Elu", "Selu", "Celu", "LeakyRelu"),
    *("HardSigmoid", "HardSwish", "ThresholdedRelu", "Mish", "Gelu"),
)
UNARY = (
    *("Abs", "Neg", "Floor", "Ceil", "Round", "Sign", "Sqrt", "Exp", "Log", "Reciprocal"),
    *("Sin", "Cos", "Atan", "Sinh", "Cosh", "Asinh", "Identity", "Not"),
)
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu")
COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
FLOAT = onnx.TensorProto.FLOAT


def size(d: Draw, most: int = 100) -> int:
    """A size next to some kernel's limit."""
    return d.pick([each for each in SIZES if each <= most])


def batch(d: Draw, most: int = 3) -> int:
    """A batch size."""
    return d.integer(1, most)


def weight(d: Draw, *shape: int, terms: int) -> Value:
    """A weight whose product keeps its input's magnitude; each sum has `terms` terms."""
    return d.constant(d.normal(*shape, scale=terms**-0.5))


def operand(d: Draw, value: Value) -> Value:
    """An operand that broadcasts with a value: a number, row, column, tensor or an older value."""
    shape = value.shape
    older = [each for each in d.values if each.shape == shape and each.dtype == value.dtype]
    if len(older) > 1 and d.chance(0.3):
        return d.pick(older)
    form = d.pick(("number", "one", "row", "rows", "column", "tensor", "some"))
    if form == "number" or not shape:
        return d.constant(np.float32(d.pick((0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 1e-3, -0.7))))
    if form == "one":
        return d.constant(d.normal(*(1,) * d.integer(1, len(shape))))
    if form == "row":
        return d.either(d.normal(shape[-1]), 0.8)
    if form == "rows":
        return d.either(d.normal(1, shape[-1]) if len(shape) > 1 else d.normal(shape[-1]), 0.8)
    if form == "column":
        sizes = [1] * len(shape)
        place = d.integer(0, len(shape) - 1)
        sizes[place] = shape[place]
        return d.either(d.normal(*sizes), 0.7)
    if form == "some":
        return d.either(d.normal(*(each if d.chance(0.6) else 1 for each in shape)), 0.5)
    return d.either(d.normal(*shape), 0.3)


def binary(d: Draw, value: Value) -> Value:
    """An operator of two operands; the second one keeps the result in bounds."""
    op = d.pick(BINARY)
    other = operand(d, value)
    if op == "PRelu":
        slope = (
            d.constant(d.normal(*other.shape)) if len(other.shape) <= len(value.shape) else other
        )
        return d.node(op, value, slope)
    if op == "Div":
        other = d.node("Add", d.node("Abs", other), d.constant(np.float32(0.5)))
        if d.chance(0.2):
            value, other = other, d.node("Add", d.node("Abs", value), d.constant(np.float32(0.5)))
    elif op == "Pow":
        exponent = d.pick((2.0, 3.0, 0.5, 1.0, 0.0, -1.0, 1.5))
        if exponent != int(exponent) or exponent < 0:
            value = d.node("Add", d.node("Abs", value), d.constant(np.float32(0.25)))
        other = d.constant(np.float32(exponent))
    elif d.chance(0.4):
        value, other = other, value
    return d.node(op, value, other)


def unary(d: Draw, value: Value) -> Value:
    """An operator of one operand, which is first moved into the operator's domain."""
    if d.chance(0.55):
        return activation(d, value)
    op = d.pick(UNARY)
    if op in ("Sqrt", "Log", "Reciprocal"):
        value = d.node("Add", d.node("Abs", value), d.constant(np.float32(0.25)))
    elif op in ("Exp", "Sinh", "Cosh"):
        value = d.node("Clip", value, d.constant(np.float32(-8)), d.constant(np.float32(5)))
    elif op == "Not":
        condition = d.node("Greater", value, operand(d, value))
        return d.node("Cast", d.node("Not", condition), to=FLOAT)
    return d.node(op, value)


def activation(d: Draw, value: Value) -> Value:
    """An activation, as one operator or in the form of exporters."""
    form = d.pick((*ACTIVATIONS, "silu", "gelu", "gelu_tanh", "clip", "hard_swish", "quick_gelu"))
    if form == "silu":
        return d.node("Mul", value, d.node("Sigmoid", value))
    if form == "gelu":
        return erf_gelu(d, value)
    if form == "gelu_tanh":
        return tanh_gelu(d, value)
    if form == "quick_gelu":
        scaled = d.node("Mul", value, d.constant(np.float32(1.702)))
        return d.node("Mul", value, d.node("Sigmoid", scaled))
    if form == "hard_swish":
        moved = d.node("Add", value, d.constant(np.float32(3)))
        cut = d.node("Clip", moved, d.constant(np.float32(0)), d.constant(np.float32(6)))
        return d.node("Div", d.node("Mul", value, cut), d.constant(np.float32(6)))
    if form == "clip":
        low = d.constant(np.float32(d.pick((-1.0, 0.0, -0.5)))) if d.chance(0.8) else None
        high = d.constant(np.float32(d.pick((1.0, 6.0, 0.5)))) if d.chance(0.8) else None
        return d.node("Clip", value, low, *([] if high is None else [high]))
    attributes = {}
    if form in ("Elu", "LeakyRelu", "ThresholdedRelu", "Celu") and d.chance(0.6):
        attributes["alpha"] = d.pick((0.1, 0.5, 1.0, 2.0))
    if form == "HardSigmoid" and d.chance(0.5):
        attributes = {"alpha": 1 / 6, "beta": 0.5}
    if form == "Gelu" and d.chance(0.5):
        attributes = {"approximate": "tanh"}
    return d.node(form, value, **attributes)


def erf_gelu(d: Draw, x: Value) -> Value:
    """GELU in the form of PyTorch's exporter, with its factors in one of several orders."""
    root = d.node("Div", x, d.constant(np.float32(2**0.5)))
    one = d.node("Add", d.node("Erf", root), d.constant(np.float32(1)))
    half = d.constant(np.float32(0.5))
    if d.chance(0.5):
        return d.node("Mul", d.node("Mul", x, one), half)
    return d.node("Mul", x, d.node("Mul", half, one))


def tanh_gelu(d: Draw, x: Value) -> Value:
    """GELU's approximation by tanh in the form of exporters."""
    cube = d.node("Pow", x, d.constant(np.float32(3)))
    inner = d.node("Add", x, d.node("Mul", cube, d.constant(np.float32(0.044715))))
    scaled = d.node("Mul", inner, d.constant(np.float32((2 / np.pi) ** 0.5)))
    one = d.node("Add", d.node("Tanh", scaled), d.constant(np.float32(1)))
    return d.node("Mul", d.node("Mul", x, d.constant(np.float32(0.5))), one)


def chosen(d: Draw, value: Value) -> Value:
    """Where, with a computed or constant condition."""
    other = operand(d, value)
    if d.chance(0.3):
        shape = d.pick((value.shape, value.shape[-1:], (), (1,)))
        condition = d.constant(d.numbers.random(shape) < 0.5)
    else:
        condition = d.node(d.pick(COMPARISONS[:4]), value, operand(d, value))
        if d.chance(0.3):
            condition = d.node("Not", condition)
    return d.node("Where", condition, *((value, other) if d.chance(0.5) else (other, value)))


def there_and_back(d: Draw, value: Value) -> Value:
    """Casts or quantises to another type and back."""
    if d.chance(0.5):
        to = d.pick(("FLOAT16", "BFLOAT16", "INT32", "INT8", "DOUBLE", "INT64"))
        middle = d.node("Cast", value, to=getattr(onnx.TensorProto, to))
        return d.node("Cast", middle, to=FLOAT)
    dtype = d.pick((np.uint8, np.int8))
    zero = d.constant(np.array(d.pick((0, 3, 100)), dtype))
    scale = d.constant(np.float32(d.pick((0.01, 0.02, 0.05))))
    return d.node("DequantizeLinear", d.node("QuantizeLinear", value, scale, zero), scale, zero)


STEPS = (unary, unary, binary, binary, binary, chosen, there_and_back)


def epilogue(d: Draw, value: Value, most: int = 6) -> Value:
    """Applies elementwise operators to a value; skips unsuitable ones."""
    for _ in range(d.integer(0, most)):
        step = d.pick(STEPS)
        value = d.attempt(lambda step=step, value=value: step(d, value), value)
    return value
