"""Operators of all types: arithmetic, casts, comparisons, moves, reductions, indices."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import helper

from ..drawing import Array, Draw, Value
from .chains import reduced
from .parts import batch, size

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float32", "float16", "float64", "bfloat16")
ARITHMETIC = ("Add", "Sub", "Mul", "Max", "Min", "Div", "Mod", "Where", "Clip", "Pow")


def elementwise(d: Draw) -> None:
    """Draws three to nine operators in a row, on tensors of one type."""
    dtype = d.pick((*INTEGERS, *FLOATS, "bool"))
    shape = d.pick(((size(d),), (size(d, 33), size(d, 33)), (batch(d), size(d, 9), size(d, 33))))
    value = d.input(numbers(d, dtype, shape))
    for _ in range(d.integer(3, 9)):
        step = d.pick((calculated, calculated, calculated, cast, compared, moved, counted))
        value = d.attempt(lambda step=step, value=value: step(d, value), value)


def numbers(d: Draw, dtype: str, shape: tuple[int, ...]) -> Array:
    """Values of a type, mostly small ones."""
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    if dtype == "bool":
        return d.numbers.random(shape) < 0.5
    if dtype in INTEGERS:
        limits = np.iinfo(kind)
        few = (max(int(limits.min), -9), 9)
        low, high = d.pick((few, few, (int(limits.min), int(limits.max))))
        return d.numbers.integers(low, high, shape, kind, endpoint=True)
    return d.normal(*shape, scale=2.0).astype(kind)


def _other(d: Draw, x: Value) -> Value:
    """An operand of the same type."""
    older = [each for each in d.values if each.shape == x.shape and each.dtype == x.dtype]
    older = [each for each in older if each.name != x.name]
    if older and d.chance(0.3):
        return d.pick(older)
    shape = d.pick((x.shape, x.shape[-1:], (), tuple(1 for _ in x.shape)))
    return d.either(numbers(d, str(x.dtype), shape), 0.5)


def calculated(d: Draw, x: Value) -> Value:
    """Arithmetic of one operand or two."""
    if x.dtype == bool:
        op = d.pick(("And", "Or", "Xor", "Not", "Equal"))
        return d.node(op, x) if op == "Not" else d.node(op, x, _other(d, x))
    if d.chance(0.3):
        return d.node(d.pick(("Abs", "Neg", "Sign", "Relu", "Identity", "Floor", "Round")), x)
    if x.dtype.kind in "iu" and d.chance(0.25):
        return _of_bits(d, x)
    op = d.pick(ARITHMETIC)
    if op == "Where":
        return d.node(op, d.node("Less", x, _other(d, x)), x, _other(d, x))
    if op == "Clip":
        low, high = sorted(numbers(d, str(x.dtype), (2,)))
        return d.node(op, x, d.constant(low), d.constant(high))
    if op in ("Div", "Mod"):
        divisor = d.constant(np.array(d.pick((1, 2, 3, 5, 7)), x.dtype))
        attributes = {"fmod": 1} if op == "Mod" and x.dtype.kind not in "iu" else {}
        return d.node(op, x, divisor, **attributes)
    if op == "Pow":
        return d.node(op, x, d.constant(np.array(d.pick((0, 1, 2, 3)), x.dtype)))
    return d.node(op, x, _other(d, x))


def _of_bits(d: Draw, x: Value) -> Value:
    op = d.pick(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"))
    if op == "BitwiseNot":
        return d.node(op, x)
    if op == "BitShift":
        count = d.constant(np.array(d.integer(0, 8 * x.dtype.itemsize - 1), x.dtype))
        return d.node(op, x, count, direction=d.pick(("LEFT", "RIGHT")))
    return d.node(op, x, _other(d, x))


def cast(d: Draw, x: Value) -> Value:
    """Casts to a type that holds the values: ONNX does not define the others."""
    fitting = [name for name in (*INTEGERS, *FLOATS, "bool") if _fits(x.array, name)]
    kind = np.dtype(getattr(ml_dtypes, name := d.pick(fitting), None) or name)
    return d.node("Cast", x, to=helper.np_dtype_to_tensor_dtype(kind))


def _fits(array: Array, dtype: str) -> bool:
    if dtype not in INTEGERS or not array.size:
        return True
    limits, wide = np.iinfo(dtype), array.astype(np.float64)
    return bool(wide.min() >= float(limits.min) and wide.max() <= float(limits.max) * 0.99)


def compared(d: Draw, x: Value) -> Value:
    """A comparison, whose booleans a later cast may turn into numbers."""
    op = d.pick(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"))
    return d.node(op, x, _other(d, x))


def moved(d: Draw, x: Value) -> Value:
    """Concatenates, slices, transposes, repeats or gathers."""
    rank = len(x.shape)
    form = d.pick(
        (
            *("concat", "slice", "transpose", "gather", "tile", "pad", "unsqueeze", "scatter"),
            "expand",
        )
    )
    axis = d.integer(-rank, rank - 1)
    extent = x.shape[axis]
    if form == "concat":
        return d.node("Concat", x, d.either(numbers(d, str(x.dtype), x.shape)), axis=axis)
    if form == "slice":
        start = d.integer(-extent, extent - 1)
        return d.node("Slice", x, *(d.integers(each) for each in (start, 2**31 - 1, axis)))
    if form == "transpose":
        return d.node("Transpose", x, perm=d.rng.sample(range(rank), rank))
    if form == "gather":
        op = d.pick(("Gather", "GatherElements"))
        shape = x.shape if op == "GatherElements" else (d.integer(1, 5),)
        indices = d.numbers.integers(-extent, extent, shape)
        return d.node(op, x, d.either(indices), axis=axis)
    if form == "tile":
        return d.node("Tile", x, d.integers(*(d.integer(1, 2) for _ in x.shape)))
    if form == "pad":
        return d.node("Pad", x, d.integers(*(d.integer(0, 2) for _ in range(2 * rank))))
    if form == "expand":
        one = d.node("Slice", x, d.integers(0), d.integers(1), d.integers(axis))
        return d.node("Expand", one, d.integers(*x.shape))
    if form == "unsqueeze":
        return d.node("Unsqueeze", x, d.integers(d.integer(-rank - 1, rank)))
    count = d.integer(1, extent)
    rows = d.constant(d.rng.sample(range(x.shape[0]), min(count, x.shape[0])), np.int64)
    rows = d.node("Unsqueeze", rows, d.integers(-1))
    updates = d.either(numbers(d, str(x.dtype), (rows.shape[0], *x.shape[1:])))
    return d.node("ScatterND", x, rows, updates)


def counted(d: Draw, x: Value) -> Value:
    """Reductions, and indices of the largest elements."""
    axis = d.integer(-len(x.shape), len(x.shape) - 1)
    form = d.pick(("ReduceSum", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "CumSum", "TopK"))
    if form in ("ArgMax", "ArgMin"):
        last = d.integer(0, 1)
        return d.node(form, x, axis=axis, select_last_index=last, keepdims=d.integer(0, 1))
    if form == "CumSum":
        flags = {"exclusive": d.integer(0, 1), "reverse": d.integer(0, 1)}
        return d.node(form, x, d.constant(np.int64(axis)), **flags)
    if form == "TopK":
        count = d.integers(d.integer(1, x.shape[axis]))
        found = d.several(form, 2, x, count, axis=axis, largest=d.integer(0, 1))
        return found[d.integer(0, 1)]
    return reduced(d, form, x, axis, keep=d.chance(0.5))
