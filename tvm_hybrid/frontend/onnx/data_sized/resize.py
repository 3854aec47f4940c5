"""Resize of images whose sizes are open, or to sizes that data decide.

    to the nearest element, by whole factors          ->  R.image.resize2d
    linear or cubic, of two axes, half_pixel or
    asymmetric, by whole factors or to given sizes    ->  R.image.resize2d
    other forms, an axis of known extents             ->  the taps of known sizes
    of open ones                                      ->  R.take(x, i) * w + R.take(x, j) * v
    antialiased, or of a region that is read          ->  sums of as many taps as the scale wants

The tables i, j, w and v are computed when it runs. Sizes may be numbers or follow from others, as
those of another image do, or be found by a kernel. `resize_taps` has the same for known sizes.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ...expressions import Attrs, Expr, Inputs, cast, dtype_of, emit_te, literal, normalize
from .requests import check
from .resize_sizes import (
    REACH,
    Axis,
    Element,
    Numbers,
    Table,
    apart,
    emit_table,
    f32,
    held,
    resized_axes,
    weight_of,
)
from .resize_taps import (
    FLOATS_IN_RELAX,
    Resizing,
    apply_taps,
    axis_taps,
    is_apart,
    rounded,
    weighed,
    widened,
)
from .sizes import dims_of, index, size_in

# (coordinates, rounding) that take element i // factor for output i.
_WHOLE = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
}


def open_resize(inputs: Inputs, attrs: Attrs, how: Resizing) -> Expr:
    """The resized image.

    Parameters
    ----------
    inputs
        The image, its region, scales and sizes; absent ones are None.

    Raises
    ------
    ValueError
        A mode is unknown, or there are more or fewer scales than axes.
    """
    x = inputs[0]
    axes = resized_axes(inputs, attrs, how)
    changed = [number for number, axis in enumerate(axes) if not axis.is_same]
    for number in changed:
        axis = axes[number]
        if not (isinstance(axis.scale, float) and axis.scale > 0):
            # Nothing can be made of no elements.
            check(tirx.any(axis.before > 0, tirx.EQ(axis.after, index(0))))
    if not changed:
        return x
    fast, dtype = _in_relax(how, axes, changed), dtype_of(x)
    if changed and how.mode != "nearest":
        x = widened(x)
    if fast is not None and dtype in FLOATS_IN_RELAX:
        size = relax.ShapeExpr([axis.after for axis in axes[2:]])
        resized = normalize(relax.op.image.resize2d(x, size, layout="NCHW", **fast))
        return rounded(resized, dtype)
    weighed_axes = {number: axes[number] for number in changed}
    if _sums_at_once(how, weighed_axes, dtype):
        x = _summed(x, how, weighed_axes)
    else:
        for number, axis in weighed_axes.items():
            x = _resized(x, how, axis, number, is_apart(dtype))
    x = rounded(x, dtype)
    if how.coordinates == "tf_crop_and_resize":
        for number in changed:
            x = _extrapolated(x, how, axes[number], number)
    return x


def _in_relax(how: Resizing, axes: list[Axis], changed: list[int]) -> dict[str, Any] | None:
    """Arguments with which R.image.resize2d computes the same, whatever the sizes are."""
    if len(axes) != 4 or not set(changed) <= {2, 3}:
        return None
    if how.mode == "nearest":
        is_plain = (how.coordinates, how.rounding) in _WHOLE or how.rounding == "simple"
        form = {"method": "nearest_neighbor", "rounding_method": "floor"}
        asymmetric = {"coordinate_transformation_mode": "asymmetric"}
        whole = all(axis.is_whole for axis in axes)
        return {**form, **asymmetric} if is_plain and whole else None
    # A factor that is no whole number may not be the quotient of the sizes.
    exact = all(axis.scale is None or axis.is_whole for axis in axes)
    plain = not (how.exclude_outside or how.antialias)
    if not exact or not plain or how.coordinates not in ("half_pixel", "asymmetric"):
        return None
    return {
        "method": how.mode,
        "coordinate_transformation_mode": how.coordinates,
        "cubic_alpha": how.cubic_a,
    }


def _sums_at_once(how: Resizing, axes: Mapping[int, Axis], dtype: str) -> bool:
    """Whether one kernel adds up the taps of all axes: as floats, without rounding between."""
    if how.mode == "nearest" or not axes or is_apart(dtype):
        return False
    return not any(axis.known is None and wants_filter(Table(how, axis)) for axis in axes.values())


def _summed(x: Expr, how: Resizing, axes: Mapping[int, Axis]) -> Expr:
    """The image with other extents along axes, one after the other in one kernel."""
    found = [_tap_tables(how, axis, dtype_of(x)) for axis in axes.values()]

    def compute(value: te.Tensor, tables: list[list[te.Tensor]]) -> te.Tensor:
        for number, own in zip(axes, tables, strict=True):
            value = _along_axis(value, number, own)
        return value

    return emit_te(compute, x, found, primfunc_name_hint="resize")


def _along_axis(x: te.Tensor, number: int, tables: list[te.Tensor]) -> te.Tensor:
    """Weighted sums along an axis, by the indices of its taps and behind them all weights."""
    half = len(tables) // 2

    def element(*at: Expr) -> Expr:
        place = at[number]
        parts = [
            x(*at[:number], places[place], *at[number + 1 :]) * weights[place]
            for places, weights in zip(tables[:half], tables[half:], strict=True)
        ]
        return functools.reduce(operator.add, parts)

    shape = [*x.shape[:number], tables[0].shape[0], *x.shape[number + 1 :]]
    return te.compute(shape, element, name="resized")


def _tap_tables(how: Resizing, axis: Axis, dtype: str) -> list[Expr]:
    """The indices of all taps of an axis, and then their weights."""
    if axis.known is not None:
        taps = axis_taps(how, *axis.known)
        indices = [literal(np.ascontiguousarray(each)) for each in taps.index.T]
        return [*indices, *(literal(each.astype(dtype)) for each in taps.weight.T)]
    table = Table(how, axis)
    parts = [(what, tap) for what in ("index", "weight") for tap in range(table.taps)]
    found = [table.emit(*part) for part in parts]
    return [*found[: table.taps], *(cast(each, dtype) for each in found[table.taps :])]


def _resized(x: Expr, how: Resizing, axis: Axis, number: int, apart: bool) -> Expr:
    """The image with another extent along an axis; products by themselves if wanted."""
    rank = len(x.ty.shape.values)
    if axis.known is not None:
        return apply_taps(x, number, axis_taps(how, *axis.known), rank, apart)
    table = Table(how, axis)
    if wants_filter(table):
        return filtered(x, table, number, apart)
    total: Expr = None
    for tap in range(table.taps):
        places = table.emit("index", tap)
        part = normalize(relax.op.take(x, places, number, mode="clip"))
        if how.mode != "nearest":
            weight = cast(table.emit("weight", tap), dtype_of(x))
            shaped = _along(weight, axis, rank - 1 - number)
            part = weighed(part, shaped, apart)
        total = part if total is None else normalize(relax.op.add(total, part))
    return total


def _extrapolated(x: Expr, how: Resizing, axis: Axis, number: int) -> Expr:
    """With the extrapolation value where an axis lies outside."""
    if axis.known is None:
        inside = Table(how, axis).emit("inside")
    else:
        found = axis_taps(how, *axis.known).inside
        if found.all():
            return x
        inside = literal(found)
    mask = _along(inside, axis, len(x.ty.shape.values) - 1 - number)
    outside = literal(np.array(how.extrapolation, dtype_of(x)))
    return normalize(relax.op.where(mask, x, outside))


def _along(vector: Expr, axis: Axis, behind: int) -> Expr:
    """A vector along an axis, with others behind it."""
    shape = relax.ShapeExpr([axis.after, *[index(1)] * behind])
    return normalize(relax.op.reshape(vector, shape))


# Sums of any number of elements along an axis of open extent, as antialiasing wants them.
#
#     y[o] = sum over t of x[first[o] + t] * weight[o, t]
#
# Filters are as wide as 1 / scale, and both tables are made when the program runs. A region that is
# read goes this way, too: it takes less code than a table for each tap, and all axes may have one.


MOST_WRITTEN = 16  # elements on each side of a filter whose sum is written out


def wants_filter(table: Table) -> bool:
    """Whether filters are or may be wider than without antialiasing, or a region is read."""
    if table.how.mode == "nearest":
        return False
    scale, region = table.axis.scale, table.axis.region
    widened = table.how.antialias and not (isinstance(scale, float) and scale >= 1)
    return widened or any(isinstance(number, Element) for number in region)


def filtered(x: Expr, table: Table, number: int, is_apart: bool) -> Expr:
    """A float tensor resized along an axis of this number.

    Parameters
    ----------
    is_apart
        Whether products are rounded by themselves, and added up in the order of the taps.
    """
    reach = _reach(table, MOST_WRITTEN if is_apart else None)

    def first(i: Expr, numbers: Numbers, reach: Expr) -> Expr:
        return te.floor(table.place(i, numbers)).astype("int64") - reach + 1

    def firsts(numbers: Numbers, others: list[Expr]) -> te.Tensor:
        shape = (numbers.outputs,)
        return te.compute(shape, lambda i: first(i, numbers, others[0]), name="first")

    def weights(numbers: Numbers, others: list[Expr]) -> te.Tensor:
        (reach,) = others
        shape = (numbers.outputs, 2 * reach)
        narrowed = _narrowed(numbers) if table.how.antialias else None

        def weight(i: Expr, tap: Expr) -> Expr:
            at = first(i, numbers, reach) + tap
            return weight_of(table.how, at, table.place(i, numbers), numbers.extent, narrowed)

        raw = te.compute(shape, weight, name="raw")
        tap = te.reduce_axis((0, 2 * reach), name="tap")
        total = te.compute(shape[:1], lambda i: te.sum(raw[i, tap], axis=tap), name="total")
        return te.compute(
            shape, lambda i, t: (raw[i, t] / total[i]).astype("float32"), name="weight"
        )

    begins = emit_table(table.axis, "first", firsts, [reach])
    parts = emit_table(table.axis, "filter", weights, [reach])
    shape = [*dims_of(x)[:number], table.axis.after, *dims_of(x)[number + 1 :]]

    def compute(x: te.Tensor, begins: te.Tensor, parts: te.Tensor, shape: list[Expr]) -> te.Tensor:
        taps = parts.shape[1]
        tap = te.reduce_axis((0, taps), name="tap")

        def product(place: Sequence[Expr], tap: Expr) -> Expr:
            at = held(begins[place[number]] + tap, x.shape[number])
            value = x(*place[:number], at, *place[number + 1 :]) * parts[place[number], tap]
            return apart(value) if is_apart else value

        def element(*place: Expr) -> Expr:
            if not is_apart or not isinstance(taps, tirx.IntImm):
                return te.sum(product(place, tap.var), axis=tap)
            # Written out: a schedule adds up a known number in any order.
            return functools.reduce(
                operator.add, (product(place, index(each)) for each in range(int(taps)))
            )

        return te.compute(shape, element, name="filtered")

    parts = cast(parts, dtype_of(x))
    return emit_te(compute, x, begins, parts, shape, primfunc_name_hint="resize_filtered")


def _reach(table: Table, most: int | None) -> Expr:
    """Elements of a filter on each side: a number, of `most` at most, or a size that is found."""
    radius, scale = REACH[table.how.mode], table.axis.scale
    if not table.how.antialias:
        return index(radius)
    if isinstance(scale, float):
        wide = math.ceil(radius / min(scale, 1.0))
        if most is None or wide <= most:
            return index(wide)

    def compute(numbers: Numbers, _: list[Expr]) -> te.Tensor:
        wide = te.ceil(tirx.const(radius, "float64") / _narrowed(numbers)).astype("int64")
        # Nothing is made of no elements, and no elements of any.
        some = tirx.all(numbers.outputs > 0, numbers.extent > 0)
        return te.compute(
            (1,), lambda _: tirx.if_then_else(some, wide, index(radius)), name="reach"
        )

    return size_in(emit_table(table.axis, "reach", compute))


def _narrowed(numbers: Numbers) -> Expr:
    return te.min(numbers.scale, f32(1)).astype("float64")
