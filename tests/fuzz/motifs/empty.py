"""Tensors without elements, and of one element, through operators of all kinds."""

from __future__ import annotations

from onnx import TensorProto

from ..drawing import Draw, Value
from .chains import reduced
from .parts import activation, binary

TYPES = ("float32", "float32", "float32", "int64", "int32", "bool", "float16")


def empty(d: Draw) -> None:
    """Draws operators on shapes with zeros and ones in them."""
    shape = [d.pick((0, 0, 1, 2, 3, 8)) for _ in range(d.integer(1, 4))]
    dtype = d.pick(TYPES)
    value = d.input(d.numbers.integers(0, 5, shape).astype(dtype))
    for _ in range(d.integer(1, 5)):
        form = d.pick(FORMS)
        value = d.attempt(lambda form=form, value=value: form(d, value), value)


def _product(d: Draw, x: Value) -> Value:
    """A product without rows, without columns, or with empty sums."""
    columns = d.pick((0, 1, 4, 17))
    return d.node("MatMul", x, d.either(d.normal(x.shape[-1], columns), 0.6))


def _concat(d: Draw, x: Value) -> Value:
    axis = d.integer(0, len(x.shape) - 1)
    shape = list(x.shape)
    shape[axis] = d.pick((0, 0, 1, 3))
    other = d.either(d.numbers.integers(0, 5, shape).astype(x.dtype))
    return d.node("Concat", *((x, other) if d.chance(0.5) else (other, x)), axis=axis)


def _slice(d: Draw, x: Value) -> Value:
    axis = d.integer(0, len(x.shape) - 1)
    start, end = d.integer(-2, 3), d.integer(-2, 3)
    return d.node("Slice", x, d.integers(start), d.integers(end), d.integers(axis))


def _reduce(d: Draw, x: Value) -> Value:
    op = d.pick(("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceMean", "ReduceL2"))
    return reduced(d, op, x, d.integer(0, len(x.shape) - 1), keep=d.chance(0.5))


def _moved(d: Draw, x: Value) -> Value:
    form = d.pick(("Transpose", "Unsqueeze", "Tile", "Pad", "Expand", "Gather", "Flatten"))
    rank = len(x.shape)
    if form == "Transpose":
        return d.node(form, x, perm=d.rng.sample(range(rank), rank))
    if form == "Unsqueeze":
        return d.node(form, x, d.integers(0))
    if form == "Tile":
        return d.node(form, x, d.integers(*(d.integer(0, 2) for _ in x.shape)))
    if form == "Pad":
        return d.node(form, x, d.integers(*(d.integer(0, 1) for _ in range(2 * rank))))
    if form == "Expand":
        return d.node(form, x, d.integers(*(d.pick((0, 2)) if n == 1 else n for n in x.shape)))
    if form == "Gather":
        extent = x.shape[0]
        indices = d.numbers.integers(0, max(1, extent), d.pick((0, 2)) if extent else 0)
        return d.node(form, x, d.constant(indices), axis=0)
    return d.node(form, x, axis=d.integer(0, rank))


def _cast(d: Draw, x: Value) -> Value:
    return d.node("Cast", x, to=d.pick((TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL)))


def _softmax(d: Draw, x: Value) -> Value:
    return d.node("Softmax", x, axis=d.integer(0, len(x.shape) - 1))


FORMS = (
    _product,
    _product,
    _concat,
    _slice,
    _reduce,
    _moved,
    _moved,
    _cast,
    _softmax,
    activation,
    binary,
)
