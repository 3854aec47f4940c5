"""Pads and crops axes with a number, by amounts that follow from sizes.

    Pad(x: [n, 4], [m - n, 0, 0, 0])    ->    y: [m, 4], y[i, j] = x[i - (m - n), j] if that is in x

An amount below 0 crops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE
from relay_passes.ir.graph import op_name
from relay_passes.lower.legalize_moves import PLACES

from ...expressions import (
    Attrs,
    Expr,
    Inputs,
    constant,
    current_builder,
    dtype_of,
    emit_te,
    known_dims,
    literal,
    normalize,
)
from ..operators import operator
from .elements import known_elements
from .requests import check
from .sizes import (
    INDEX,
    dims_of,
    emit_kernel,
    index,
    is_number,
    put,
    same_size,
    simplified,
    sizes_in,
)


def open_pad(x: Expr, pads: np.ndarray, number: float) -> Expr:
    """A tensor with a number around it.

    Parameters
    ----------
    pads : ndarray [rank, 2]
        Numbers and expressions of sizes: the amounts before and after each axis.
    """
    dims = dims_of(x)
    amounts = [[amount(each) for each in pair] for pair in pads]
    for extent, pair in zip(dims, amounts, strict=True):  # what is cropped is there
        check(extent + sum(te.min(each, index(0)) for each in pair) >= 0)
    before = [pair[0] for pair in amounts]
    sizes = [
        simplified(extent + sum(pair, start=index(0)))
        for extent, pair in zip(dims, amounts, strict=True)
    ]
    changed = [axis for axis, pair in enumerate(amounts) if not all(is_number(n, 0) for n in pair)]
    if not changed:
        return x

    def compute(x: te.Tensor, sizes: list[Expr], before: list[Expr]) -> te.Tensor:
        def element(*place: Expr) -> Expr:
            at = [i - behind for i, behind in zip(place, before, strict=True)]
            inside = [tirx.all(at[axis] >= 0, at[axis] < x.shape[axis]) for axis in changed]
            outside = tirx.const(number, str(x.dtype))
            return tirx.if_then_else(tirx.all(*inside), x(*at), outside)

        return te.compute(sizes, element, name="padded")

    return emit_te(compute, x, sizes, before, primfunc_name_hint="pad")


def amount(value: object) -> Expr:
    """How much an axis grows at one end: of a number or an expression of sizes."""
    return index(int(value)) if isinstance(value, int | np.integer) else simplified(value)


def pad_by_table(x: Expr, axis: int, pads: np.ndarray, mode: str) -> Expr:
    """Pads and crops axes of open sizes with elements of the tensor itself.

        Pad(x: [n, 4], [1, 0, m - n, 0], mode=reflect)    ->    R.take(x, i, axis=0): [1 + m, 4]

    The table i says which element each place has. The program computes it when it runs.

    A tensor with elements of its own before and behind an axis.

    Parameters
    ----------
    pads : ndarray [2]
        The amounts before and after, numbers and expressions of sizes. Negative ones crop first.
    mode
        "edge", "reflect" or "wrap", as ONNX has them.
    """
    extent, (before, after) = dims_of(x)[axis], map(amount, pads)
    if is_number(before, 0) and is_number(after, 0):
        return x
    cropped = [te.min(each, index(0)) for each in (before, after)]
    kept, size = simplified(extent + cropped[0] + cropped[1]), simplified(extent + before + after)
    check(kept >= 0)  # what is cropped is there
    some = tirx.any(kept > 0, tirx.EQ(size, index(0)))
    check(some, "an axis of no elements is padded by some")

    def compute(size: Expr, kept: Expr, before: Expr) -> te.Tensor:
        def element(place: Expr) -> Expr:
            inner = place - te.max(before, index(0))
            outside = _source(mode, inner, kept)
            behind = tirx.if_then_else(inner < kept, inner, outside)
            return tirx.if_then_else(inner < 0, outside, behind) - te.min(before, index(0))

        return te.compute((size,), element, name="places")

    # By itself: in one kernel with what reads it, it would be computed for every element.
    places = emit_te(
        compute,
        size,
        kept,
        before,
        primfunc_name_hint="pad_places",
        primfunc_attrs={OP_PATTERN: OPAQUE, PLACES: True},
    )
    return normalize(relax.op.take(x, places, axis, mode="clip"))


def _source(mode: str, place: Expr, extent: Expr) -> Expr:
    """The element at a place that may be outside; `pad_converter` has the same for numbers."""
    last = extent - 1
    if mode == "edge":
        return te.max(te.min(place, last), index(0))
    if mode == "wrap":
        return tirx.floormod(place, te.max(extent, index(1)))
    period = te.max(2 * last, index(1))
    inside = tirx.floormod(place, period)
    return te.min(inside, period - inside)


def known_parts(vector: Expr) -> list[Any]:
    """What is known of the elements of a vector some of which are computed.

    Concat([1, 1], s: float32[2])    ->    [1, 1, None, None]

    Numbers, expressions of sizes, and None for what is not known; one for each element.
    """
    array = constant(vector)
    if array is not None:
        return list(array.ravel().tolist())
    elements = known_elements(vector)
    if elements is not None:
        return list(elements.ravel())
    call = current_builder().lookup_binding(vector) if isinstance(vector, relax.Var) else vector
    if isinstance(call, relax.Call) and op_name(call) == "relax.concat":
        parts = [known_parts(each) for each in call.args[0].fields]
        return [each for part in parts for each in part]
    (count,) = known_dims(vector)
    return [None] * count


# Range whose limits are computed.
#
# Its elements are start + i * delta, rounded once where the type is narrower than float64. Its
# length is that of exact arithmetic of integers, and of float64 for floats.


LONGEST = 1 << 31  # a longer one would be taken for a mistake: memory has to hold it


@operator("Range")
def _range(inputs: Inputs, attrs: Attrs) -> Any:
    dtype = dtype_of(inputs[0])
    wide = "float64" if "float" in dtype else INDEX
    known = [each for each in map(constant, inputs) if each is not None]
    if len(known) == len(inputs):
        start, limit, delta = (each.astype(wide).item() for each in known)
        count = max(0, math.ceil((limit - start) / delta))
        return literal((start + np.arange(count, dtype=wide) * delta).astype(known[0].dtype))
    vectors = [normalize(relax.op.reshape(each, (1,))) for each in inputs]
    length = _known_length(inputs)
    plain = None if length is None else _arange(inputs, length, dtype)
    if plain is not None:
        return plain
    if length is None:
        length = _length(vectors, wide)

    def compute(start: te.Tensor, delta: te.Tensor, length: Expr) -> te.Tensor:
        def element(place: Expr) -> Expr:
            first, step = tirx.Cast(wide, start[0]), tirx.Cast(wide, delta[0])
            return tirx.Cast(dtype, first + tirx.Cast(wide, place) * step)

        return te.compute((length,), element, name="range")

    start, _, delta = vectors
    return emit_te(compute, start, delta, length, primfunc_name_hint="range")


def _known_length(inputs: Sequence[Any]) -> Expr | None:
    """The length where start and limit follow from sizes, and delta is a positive number."""
    known = [known_elements(each) for each in inputs]
    if any(each is None for each in known):
        return None
    start, limit, delta = (each.item() for each in known if each is not None)
    if not isinstance(delta, int) or delta <= 0:
        return None
    up = te.max(index(0) + limit - start, index(0)) + index(delta - 1)
    return simplified(tirx.floordiv(up, index(delta)))


def _arange(inputs: Sequence[Any], length: Expr, dtype: str) -> Expr | None:
    """R.arange, if it has that length."""
    known = [known_elements(each) for each in inputs]
    start, end, step = (each.item() for each in known if each is not None)
    found = normalize(relax.op.arange(start, end, step, dtype))
    return found if same_size(dims_of(found)[0], length) else None


def _length(vectors: Sequence[Expr], wide: str) -> Expr:
    """The length as the program computes it; it refuses a delta of 0."""

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        start, limit, delta = (tirx.Cast(wide, each[0]) for each in ins)
        zero, one = tirx.const(0, wide), tirx.const(1, wide)
        stands: Expr = tirx.EQ(delta, zero)
        step = tirx.Select(stands, one, delta)
        if wide == INDEX:
            up, size = step > 0, tirx.Select(step > 0, step, zero - step)
            ahead = tirx.Select(up, limit - start, start - limit)
            count = tirx.floordiv(te.max(ahead, zero) + size - 1, size)
        else:
            steps = te.ceil((limit - start) / step)
            possible = tirx.all(steps > zero, steps < tirx.const(LONGEST, wide))
            count = tirx.Cast(INDEX, tirx.Select(possible, steps, zero))
            stands = tirx.any(stands, tirx.Not(steps < tirx.const(LONGEST, wide)))
        (found,) = outs
        put(found, count, 1)
        fits = tirx.all(tirx.Not(stands), found[1] < index(LONGEST))
        put(found, tirx.Select(fits, index(1), index(0)))

    (found,) = emit_kernel("range_length", vectors, [([2], INDEX)], body)
    return sizes_in(found)[0]
