"""Operators on single elements: arithmetic, comparisons, logic, and activations that Relax has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..data_sized.sizes import dims_of
from ..graph.expressions import (
    Converter,
    Expr,
    constant,
    dtype_of,
    literal,
    rank_of,
)

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
    "IsNaN": relax.op.isnan,
    "Log": relax.op.log,
    "Neg": relax.op.negative,
    "Not": relax.op.logical_not,
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


def _unary(operator: Callable[[Expr], Expr]) -> Converter:
    return lambda builder, inputs, attrs: operator(inputs[0])


def _binary(operator: Callable[[Expr, Expr], Expr]) -> Converter:
    return lambda builder, inputs, attrs: operator(inputs[0], inputs[1])


def _divide(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    divisor = constant(inputs[1])
    if divisor is not None and divisor.dtype.kind in "iu" and not divisor.all():
        raise ValueError("integers are divided by 0")
    return relax.op.divide(inputs[0], inputs[1])


def _where(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    return relax.op.where(*inputs)


def _identity(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    return inputs[0]


def _reciprocal(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    return relax.op.divide(_one(inputs[0]), inputs[0])


def _softsign(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x = inputs[0]
    below = builder.normalize(relax.op.add(builder.normalize(relax.op.abs(x)), _one(x)))
    return relax.op.divide(x, below)


def _one(x: Expr) -> Expr:
    return literal(np.array(1, dtype_of(x)))


def _leaky_relu(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    return relax.op.nn.leakyrelu(inputs[0], attrs.get("alpha", 0.01))


def _prelu(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """One slope for each element along an axis, or a choice between two products."""
    x, slope = inputs
    sizes = dims_of(slope)
    rank = rank_of(x)
    axes = [axis for axis, size in enumerate(sizes) if getattr(size, "value", 0) != 1]
    if len(axes) < 2:
        axis = rank - len(sizes) + axes[0] if axes else rank - 1
        size = sizes[axes[0]] if axes else 1
        return relax.op.nn.prelu(x, builder.normalize(relax.op.reshape(slope, (size,))), axis)
    zero = literal(np.array(0, dtype_of(x)))
    steep = builder.normalize(relax.op.multiply(x, slope))
    return relax.op.where(builder.normalize(relax.op.less(x, zero)), steep, x)


ARITHMETIC_CONVERTERS: dict[str, Converter] = {
    **{name: _unary(operator) for name, operator in _UNARY.items()},
    **{name: _binary(operator) for name, operator in _BINARY.items()},
    "Div": _divide,
    "Dropout": _identity,
    "Identity": _identity,
    "LeakyRelu": _leaky_relu,
    "OptionalGetElement": _identity,
    "PRelu": _prelu,
    "Reciprocal": _reciprocal,
    "Softsign": _softsign,
    "Where": _where,
}
