"""Operators on single elements: arithmetic, comparisons, logic, and activations that Relax has."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ... import expressions as ex
from ...expressions import OPSET, OUTPUTS, Attrs, Converter, Expr, Inputs
from ..graph.requests import broadcast
from ..graph.sizes import dims_of
from ..operators import operator

DROPOUT_MASK_OF_BOOL = 10
_UNARY: dict[str, Callable[[Expr], Expr]] = {
    "Abs": relax.op.abs,
    "Acos": relax.op.acos,
    "Acosh": relax.op.acosh,
    "Asin": relax.op.asin,
    "Asinh": relax.op.asinh,
    "Atan": relax.op.atan,
    "Atanh": relax.op.atanh,
    "BitwiseNot": relax.op.bitwise_not,
    "Ceil": relax.op.ceil,
    "Cos": relax.op.cos,
    "Cosh": relax.op.cosh,
    "Erf": relax.op.erf,
    "Exp": relax.op.exp,
    "Floor": relax.op.floor,
    "Identity": lambda x: x,
    "IsNaN": relax.op.isnan,
    "Log": relax.op.log,
    "Neg": relax.op.negative,
    "Not": relax.op.logical_not,
    "Reciprocal": lambda x: ex.number(x, 1) / x,
    "Relu": relax.op.nn.relu,
    "Round": relax.op.round,
    "Sigmoid": relax.op.sigmoid,
    "Sin": relax.op.sin,
    "Sinh": relax.op.sinh,
    "Sqrt": relax.op.sqrt,
    "Tan": relax.op.tan,
    "Tanh": relax.op.tanh,
}
_BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Add": relax.op.add,
    "And": relax.op.logical_and,
    "BitwiseAnd": relax.op.bitwise_and,
    "BitwiseOr": relax.op.bitwise_or,
    "BitwiseXor": relax.op.bitwise_xor,
    "Equal": relax.op.equal,
    "Greater": relax.op.greater,
    "GreaterOrEqual": relax.op.greater_equal,
    "Less": relax.op.less,
    "LessOrEqual": relax.op.less_equal,
    "Mul": relax.op.multiply,
    "Or": relax.op.logical_or,
    "Sub": relax.op.subtract,
    "Xor": relax.op.logical_xor,
}


def _binary(name: str, made: Callable[[Expr, Expr], Expr]) -> Converter:
    def convert(inputs: Inputs, attrs: Attrs) -> Any:
        same = unchanged(name, inputs)
        return made(inputs[0], inputs[1]) if same is None else same

    return convert


_NEUTRAL = {"Mul": 1, "Div": 1, "Pow": 1, "Add": 0, "Sub": 0}
_COMMUTATIVE = ("Mul", "Add")


def unchanged(name: str, inputs: Inputs) -> Expr | None:
    """The operand that arithmetic with a neutral constant leaves as it is, or None.

        Mul(x, 1)   Div(x, 1)   Pow(x, 1)   Add(x, 0)   Sub(x, 0)    ->    x

    Exporters leave such nodes behind. Only where the constant does not widen x. Formulas around
    it are recognised then, such as x * sigmoid(1 * x).
    """
    left, right = inputs
    pairs = [(left, right), (right, left)] if name in _COMMUTATIVE else [(left, right)]
    for value, other in pairs if name in _NEUTRAL else ():
        array, shape = ex.constant(other), ex.static_dims(value)
        if array is None or shape is None or ex.constant(value) is not None or not array.size:
            continue
        if not np.all(array == _NEUTRAL[name]):
            continue
        aligned = shape[len(shape) - array.ndim :]
        if (
            ex.dtype_of(value) == ex.dtype_of(other)
            and array.ndim <= len(shape)
            and all(one in (1, full) for one, full in zip(array.shape, aligned, strict=True))
        ):
            return value
    return None


@operator("Div")
def _divide(inputs: Inputs, attrs: Attrs) -> Any:
    divisor = ex.constant(inputs[1])
    if divisor is not None and divisor.dtype.kind in "iu" and not divisor.all():
        raise ValueError("integers are divided by 0")
    same = unchanged("Div", inputs)
    return relax.op.divide(inputs[0], inputs[1]) if same is None else same


@operator("Dropout")
def _dropout(inputs: Inputs, attrs: Attrs) -> Any:
    """The input, as of inference, and a mask that keeps everything."""
    x, (ratio, training) = inputs[0], (ex.constant(inputs[place]) for place in (1, 2))
    trains = inputs[2] is not None and (training is None or training.any())
    if trains and (ratio is None or ratio.any()):
        raise ValueError("it is or may be in training mode; export it for inference")
    if not any(attrs[OUTPUTS][1:]):
        return x
    one = ex.literal(np.array(True)) if attrs[OPSET] >= DROPOUT_MASK_OF_BOOL else ex.number(x, 1)
    return relax.Tuple([x, broadcast(one, dims_of(x))])


@operator("Clip")
def _clip(inputs: Inputs, attrs: Attrs) -> Any:
    value, dtype = inputs[0], ex.dtype_of(inputs[0])
    bounds = []
    for position, name in ((1, "min"), (2, "max")):
        given = inputs[position]
        bound = attrs.get(name) if given is None else ex.constant(given)
        if given is not None and bound is None:
            return _clip_to(inputs)
        bounds.append(None if bound is None or np.isnan(bound) else np.asarray(bound).item())
    low, high = bounds
    if low is not None and high is not None and low <= high and "float" in dtype:
        return relax.op.clip(value, relax.prim_value(low), relax.prim_value(high))
    if low is not None:
        value = relax.op.maximum(value, ex.literal(np.array(low, dtype)))
    if high is not None:
        value = relax.op.minimum(value, ex.literal(np.array(high, dtype)))
    return value


def _clip_to(inputs: Sequence[Any]) -> Any:
    """Bounds that are computed; one that is NaN bounds nothing."""
    value, dtype = inputs[0], ex.dtype_of(inputs[0])
    for bound, limit, open_end in zip(
        inputs[1:3], (relax.op.maximum, relax.op.minimum), (-np.inf, np.inf), strict=False
    ):
        if bound is None:
            continue
        if "float" in dtype:
            free = ex.literal(np.array(open_end, dtype))
            bound = relax.op.where(relax.op.isnan(bound), free, bound)
        value = limit(value, bound)
    return value


def _chain(made: Callable[[Expr, Expr], Expr]) -> Converter:
    return lambda inputs, attrs: functools.reduce(made, inputs)


@operator("Mean")
def _mean(inputs: Inputs, attrs: Attrs) -> Any:
    return _chain(relax.op.add)(inputs, attrs) / ex.number(inputs[0], len(inputs))


for _name, _one_operand in _UNARY.items():
    operator(_name)(lambda inputs, attrs, made=_one_operand: made(inputs[0]))
operator("OptionalGetElement", static=True)(lambda inputs, attrs: inputs[0])
operator("Where")(lambda inputs, attrs: relax.op.where(*inputs))
for _name, _two_operands in _BINARY.items():
    operator(_name)(_binary(_name, _two_operands))
operator("Max")(_chain(relax.op.maximum))
operator("Min")(_chain(relax.op.minimum))
operator("Sum")(_chain(relax.op.add))
