"""Fusible operators: one entry gives an operator to the epilogue of every template.

An entry holds the vector emitter, the meaning by NumPy (in the precision of its arguments) and the
Relax operator that it stands for. All values are f32, except conditions (bool).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from math import erf as scalar_erf
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector import ieee, vector_math
from microkernels.vector.expressions import Expr, bind, like

Array = np.ndarray


@dataclass(frozen=True)
class FusibleOp:
    """One operator.

    Attributes
    ----------
    name : str
        Name of the step in an epilogue.
    arity : int
        Number of arguments.
    emit : callable
        Vector expressions -> vector expression.
    numpy : callable
        The meaning, on arrays.
    relax : str
        The Relax operator with the same arguments; "" if it only arises by rewriting.
    cost : int
        Instructions for one vector, roughly; for cost estimates.
    """

    name: str
    arity: int
    emit: Callable[..., Expr]
    numpy: Callable[..., Any]
    relax: str = ""
    cost: int = 1


def _relu(x: Expr) -> Expr:
    return ieee.maximum(like(0, x), x)


def _leaky_relu(x: Expr, slope: Expr) -> Expr:
    # AVX2 blends by the sign itself, which costs less than a comparison. Only for -0 the results
    # differ: in the sign of a zero, or if the slope is not finite.
    known = ieee.number_of(slope)
    by_sign = known is None or 0 < known < math.inf
    negative = ieee.is_negative(x) if by_sign else x < like(0, x)
    return tirx.Select(negative, ieee.multiply(x, slope), x)


def _square(x: Expr) -> Expr:
    x = bind(x)
    return x * x


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0, -x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + _erf(x / np.sqrt(2)))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


_erf = np.vectorize(scalar_erf, otypes=[np.float64])

_ENTRIES = (
    FusibleOp("add", 2, ieee.add, np.add, "relax.add"),
    FusibleOp("subtract", 2, ieee.subtract, np.subtract, "relax.subtract"),
    FusibleOp("multiply", 2, ieee.multiply, np.multiply, "relax.multiply"),
    FusibleOp("divide", 2, ieee.divide, np.divide, "relax.divide", cost=8),
    FusibleOp("maximum", 2, ieee.maximum, np.maximum, "relax.maximum"),
    FusibleOp("minimum", 2, ieee.minimum, np.minimum, "relax.minimum"),
    FusibleOp("negative", 1, lambda x: x * like(-1, x), np.negative, "relax.negative"),
    FusibleOp("abs", 1, ieee.absolute, np.abs, "relax.abs"),
    FusibleOp("relu", 1, _relu, lambda x: np.maximum(x, 0), "relax.nn.relu"),
    FusibleOp("leaky_relu", 2, _leaky_relu, lambda x, slope: np.where(x < 0, x * slope, x), cost=2),
    FusibleOp("square", 1, _square, np.square, "relax.square"),
    FusibleOp("sqrt", 1, I.sqrt, np.sqrt, "relax.sqrt", cost=16),
    FusibleOp("rsqrt", 1, vector_math.rsqrt, lambda x: 1 / np.sqrt(x), "relax.rsqrt", cost=20),
    FusibleOp("exp", 1, vector_math.exp, np.exp, "relax.exp", cost=15),
    FusibleOp("log", 1, vector_math.log, np.log, "relax.log", cost=30),
    FusibleOp("erf", 1, vector_math.erf, _erf, "relax.erf", cost=18),
    FusibleOp("tanh", 1, vector_math.tanh, np.tanh, "relax.tanh", cost=16),
    FusibleOp("sigmoid", 1, vector_math.sigmoid, _sigmoid, "relax.sigmoid", cost=17),
    FusibleOp("gelu", 1, vector_math.gelu_erf, _gelu, "relax.nn.gelu", cost=27),
    FusibleOp("gelu_tanh", 1, vector_math.gelu_tanh, _gelu_tanh, "relax.nn.gelu_tanh", cost=20),
    FusibleOp("silu", 1, vector_math.silu, lambda x: x * _sigmoid(x), "relax.nn.silu", cost=17),
    FusibleOp(
        "hardswish", 1, vector_math.hardswish, lambda x: x * np.clip(x / 6 + 0.5, 0, 1), cost=5
    ),
    FusibleOp("softplus", 1, vector_math.softplus, _softplus, "relax.nn.softplus", cost=28),
    FusibleOp("where", 3, tirx.Select, np.where, "relax.where"),
    FusibleOp("less", 2, lambda x, y: x < y, np.less, "relax.less"),
    FusibleOp("less_equal", 2, lambda x, y: x <= y, np.less_equal, "relax.less_equal"),
    FusibleOp("greater", 2, lambda x, y: x > y, np.greater, "relax.greater"),
    FusibleOp("greater_equal", 2, lambda x, y: x >= y, np.greater_equal, "relax.greater_equal"),
)

FUSIBLE_OPS: dict[str, FusibleOp] = {entry.name: entry for entry in _ENTRIES}
FUSIBLE_BY_RELAX: dict[str, FusibleOp] = {entry.relax: entry for entry in _ENTRIES if entry.relax}
# Steps that are no entries of FUSIBLE_OPS, with their cost in instructions.
SPECIAL_STEPS = {
    "constant": 0,
    "item": 0,
    "range": 0,
    "cast": 1,
    "quantize": 6,
    "dequantize": 3,
    "requantize": 4,
}


def cost_of(op: str) -> int:
    """Instructions of a step for one vector, roughly."""
    return FUSIBLE_OPS[op].cost if op in FUSIBLE_OPS else SPECIAL_STEPS[op]
