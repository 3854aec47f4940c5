"""NaN, infinities, zeros of both signs, denormals and large numbers."""

from __future__ import annotations

import numpy as np

from ..drawing import Array, Draw, Value
from .chains import reduced
from .parts import ACTIVATIONS, COMPARISONS, SIZES

# fmt: off
VALUES = np.array([
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 88, -88, 20, -20, 1e10, -1e10,
    0.5, -0.5, 1, -1, 0.3, 2.5,
], np.float32)
# fmt: on
UNARY = (
    *("Abs", "Neg", "Sqrt", "Exp", "Log", "Reciprocal", "Floor", "Ceil", "Round", "Sign"),
    *ACTIVATIONS,
)
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu")
REDUCTIONS = ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean")


def special(d: Draw) -> None:
    """Draws operators on special values, alone or on sums of their rows."""
    shape = (d.pick(SIZES[:14]), d.pick(SIZES[:14]))
    value = d.input(_array(d, shape))
    if d.chance(0.4):
        value = d.node("MatMul", value, d.constant(np.ones((shape[1], 1), np.float32)))
    for _ in range(d.integer(1, 6)):
        form = d.pick((_unary, _unary, _binary, _binary, _chosen, _reduced, _moved))
        value = d.attempt(lambda form=form, value=value: form(d, value), value)


def _array(d: Draw, shape: tuple[int, ...]) -> Array:
    """Special values among ordinary ones."""
    ordinary = d.normal(*shape)
    places = d.numbers.random(shape) < d.pick((0.05, 0.3, 1.0))
    return np.where(places, d.numbers.choice(VALUES, shape), ordinary)


def _unary(d: Draw, x: Value) -> Value:
    return d.node(d.pick(UNARY), x)


def _operand(d: Draw, x: Value) -> Value:
    if d.chance(0.3):
        return d.constant(d.pick(list(VALUES)))
    shape = d.pick((x.shape, x.shape[-1:], tuple(1 for _ in x.shape)))
    return d.either(_array(d, shape))


def _binary(d: Draw, x: Value) -> Value:
    op, other = d.pick(BINARY), _operand(d, x)
    if op != "PRelu" and d.chance(0.4):
        x, other = other, x
    return d.node(op, x, other)


def _chosen(d: Draw, x: Value) -> Value:
    if d.chance(0.4):
        return d.node("Where", d.node("IsNaN", x), _operand(d, x), x)
    return d.node("Where", d.node(d.pick(COMPARISONS), x, _operand(d, x)), x, _operand(d, x))


def _reduced(d: Draw, x: Value) -> Value:
    if d.chance(0.2):
        return d.node("Softmax", x, axis=-1)
    if d.chance(0.3):
        return d.node(d.pick(("ArgMax", "ArgMin")), x, axis=0)
    return reduced(d, d.pick(REDUCTIONS), x, d.integer(0, 1))


def _moved(d: Draw, x: Value) -> Value:
    if d.chance(0.5):
        return d.node("Transpose", x, perm=[1, 0])
    return d.node("Concat", x, d.either(_array(d, x.shape)), axis=d.integer(0, 1))
