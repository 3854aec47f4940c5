"""Pads and crops axes with a number, by amounts that follow from sizes.

    Pad(x: [n, 4], [m - n, 0, 0, 0])    ->    y: [m, 4], y[i, j] = x[i - (m - n), j] if that is in x

An amount below 0 crops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE
from relay_passes.ir.graph import op_name
from relay_passes.lower.legalize_moves import PLACES

from ..expressions import Expr, constant, known_dims
from .elements import known_elements
from .kernels import index
from .requests import check
from .sizes import dims_of, is_number, simplified


def open_pad(builder: relax.BlockBuilder, x: Expr, pads: np.ndarray, number: float) -> Expr:
    """A tensor with a number around it.

    Parameters
    ----------
    pads : ndarray [rank, 2]
        Numbers and expressions of sizes: the amounts before and after each axis.
    """
    dims = dims_of(x)
    amounts = [[amount(each) for each in pair] for pair in pads]
    for extent, pair in zip(dims, amounts, strict=True):  # what is cropped is there
        check(builder, extent + sum(te.min(each, index(0)) for each in pair) >= 0)
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

    return builder.emit_te(compute, x, sizes, before, primfunc_name_hint="pad")


def amount(value: object) -> Expr:
    """How much an axis grows at one end: of a number or an expression of sizes."""
    return index(int(value)) if isinstance(value, int | np.integer) else simplified(value)


def pad_by_table(
    builder: relax.BlockBuilder, x: Expr, axis: int, pads: np.ndarray, mode: str
) -> Expr:
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
    check(builder, kept >= 0)  # what is cropped is there
    some = tirx.any(kept > 0, tirx.EQ(size, index(0)))
    check(builder, some, "an axis of no elements is padded by some")

    def compute(size: Expr, kept: Expr, before: Expr) -> te.Tensor:
        def element(place: Expr) -> Expr:
            inner = place - te.max(before, index(0))
            outside = _source(mode, inner, kept)
            behind = tirx.if_then_else(inner < kept, inner, outside)
            return tirx.if_then_else(inner < 0, outside, behind) - te.min(before, index(0))

        return te.compute((size,), element, name="places")

    # By itself: in one kernel with what reads it, it would be computed for every element.
    places = builder.emit_te(
        compute,
        size,
        kept,
        before,
        primfunc_name_hint="pad_places",
        primfunc_attrs={OP_PATTERN: OPAQUE, PLACES: True},
    )
    return builder.normalize(relax.op.take(x, places, axis, mode="clip"))


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


def known_parts(builder: relax.BlockBuilder, vector: Expr) -> list[Any]:
    """What is known of the elements of a vector some of which are computed.

    Concat([1, 1], s: float32[2])    ->    [1, 1, None, None]

    Numbers, expressions of sizes, and None for what is not known; one for each element.
    """
    array = constant(vector)
    if array is not None:
        return list(array.ravel().tolist())
    elements = known_elements(builder, vector)
    if elements is not None:
        return list(elements.ravel())
    call = builder.lookup_binding(vector) if isinstance(vector, relax.Var) else vector
    if isinstance(call, relax.Call) and op_name(call) == "relax.concat":
        parts = [known_parts(builder, each) for each in call.args[0].fields]
        return [each for part in parts for each in part]
    (count,) = known_dims(vector)
    return [None] * count
