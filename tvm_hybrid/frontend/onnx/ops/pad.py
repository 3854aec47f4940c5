"""Pad: amounts are numbers, or follow from sizes; negative ones crop.

Pad(x, pads)                            ->    R.nn.pad(x, pads)
Pad(x, pads), some of them negative     ->    R.nn.pad(R.strided_slice(x, ...), ...)
Pad(x: [n, 4], [m - n, 0, 0, 0])        ->    a kernel, y[i, j] = x[i - (m - n), j] if that is in x
Pad(x, pads, mode=reflect)              ->    R.take(x, [1, 0, 1, 2, ...], axis), axis by axis
of an axis of open size, or by amounts
that follow from sizes                  ->    the same with a table that the program computes
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from relay_passes.legalize.moves import PLACES

from ...expressions import Attrs, Expr, Inputs, constant, emit_te, literal, normalize
from ..graph.elements import known_elements
from ..graph.kernels import emit_alone
from ..graph.requests import check
from ..graph.sizes import dims_of, index, is_number, simplified
from ..operators import operator

_MODES = ("reflect", "edge", "wrap")  # that take elements of the tensor

Pads = list[tuple[Expr, Expr]]
"""The amounts before and after each axis."""


@operator("Pad")
def _pad(inputs: Inputs, attrs: Attrs) -> Any:
    x, rank = inputs[0], len(dims_of(inputs[0]))
    if any(item is not None and constant(item) is None for item in inputs[2:]):
        raise ValueError("the value to pad with, or the axes, are computed at run time")
    given = attrs.get("pads", attrs.get("paddings"))
    amounts = given if len(inputs) < 2 else known_elements(inputs[1])
    if amounts is None:
        raise ValueError("the amounts to pad by are computed at run time")
    value, axes = constant(inputs[2]), constant(inputs[3])
    pads: Pads = [(index(0), index(0))] * rank
    places = range(rank) if axes is None else axes % rank
    for axis, (before, after) in zip(places, np.reshape(amounts, (2, -1)).T, strict=True):
        pads[axis] = simplified(index(before)), simplified(index(after))
    mode = attrs.get("mode", "constant")
    if mode == "constant":
        number = attrs.get("value", 0.0) if value is None or not value.size else value.item()
        return _pad_with(x, pads, number)
    if mode not in _MODES:
        raise ValueError(f"unknown mode {mode!r}")
    for axis, pair in enumerate(pads):
        x = _pad_from(x, axis, pair, mode)
    return x


def _pad_with(x: Expr, pads: Pads, number: float) -> Expr:
    """A tensor with a number around it."""
    dims = dims_of(x)
    changed = [axis for axis, pair in enumerate(pads) if not all(is_number(n, 0) for n in pair)]
    known = all(isinstance(each, tirx.IntImm) for pair in pads for each in pair)
    cropped = [axis for axis in changed if known and min(map(int, pads[axis])) < 0]
    if known and all(isinstance(dims[axis], tirx.IntImm) for axis in cropped):
        if cropped:
            begin = [max(0, -int(pads[axis][0])) for axis in cropped]
            end = [int(dims[axis]) - max(0, -int(pads[axis][1])) for axis in cropped]
            x = normalize(relax.op.strided_slice(x, cropped, begin, end))
        amounts = [max(0, int(each)) for pair in pads for each in pair]
        return relax.op.nn.pad(x, amounts, "constant", number) if any(amounts) else x
    for extent, pair in zip(dims, pads, strict=True):  # what is cropped is there
        check(extent + sum(te.min(each, index(0)) for each in pair) >= 0)
    before = [pair[0] for pair in pads]
    sizes = [simplified(n + sum(pair, start=index(0))) for n, pair in zip(dims, pads, strict=True)]

    def compute(x: te.Tensor, sizes: list[Expr], before: list[Expr]) -> te.Tensor:
        def element(*place: Expr) -> Expr:
            at = [i - behind for i, behind in zip(place, before, strict=True)]
            inside = [tirx.all(at[axis] >= 0, at[axis] < x.shape[axis]) for axis in changed]
            outside = tirx.const(number, str(x.dtype))
            return tirx.if_then_else(tirx.all(*inside), x(*at), outside)

        return te.compute(sizes, element, name="padded")

    return emit_te(compute, x, sizes, before, primfunc_name_hint="pad")


def _pad_from(x: Expr, axis: int, pads: tuple[Expr, Expr], mode: str) -> Expr:
    """A tensor with elements of its own before and behind an axis.

    Negative amounts crop first, as in ONNX Runtime: it tells in mode "wrap".
    """
    extent, (before, after) = dims_of(x)[axis], pads
    if is_number(before, 0) and is_number(after, 0):
        return x
    cropped = [te.min(each, index(0)) for each in pads]
    kept, size = simplified(extent + cropped[0] + cropped[1]), simplified(extent + before + after)
    check(kept >= 0)  # what is cropped is there
    some = tirx.any(kept > 0, tirx.EQ(size, index(0)))
    check(some, "an axis of 0 elements is padded by some of them")
    if all(isinstance(each, tirx.IntImm) for each in (extent, *pads)):
        place = np.arange(int(size)) - max(int(before), 0)
        source = _source(mode, place, int(kept), np.minimum, np.maximum)
        places: Expr = literal(source - min(int(before), 0))
        return normalize(relax.op.take(x, places, axis, mode="clip"))

    def compute(size: Expr, kept: Expr, before: Expr) -> te.Tensor:
        def element(place: Expr) -> Expr:
            inner = place - te.max(before, index(0))
            outside = _source(mode, inner, kept, te.min, te.max)
            behind = tirx.if_then_else(inner < kept, inner, outside)
            return tirx.if_then_else(inner < 0, outside, behind) - te.min(before, index(0))

        return te.compute((size,), element, name="places")

    places = emit_alone("pad_places", compute, size, kept, before, marks={PLACES: True})
    return normalize(relax.op.take(x, places, axis, mode="clip"))


def _source(
    mode: str, place: Any, extent: Any, least: Callable[..., Any], most: Callable[..., Any]
) -> Any:
    """The element at a place that may be outside, of arrays or in a kernel."""
    last = extent - 1
    if mode == "edge":
        return most(least(place, last), 0)
    if mode == "wrap":
        return place % most(extent, 1)
    period = most(2 * last, 1)  # there and back
    inside = place % period
    return least(inside, period - inside)
