"""Resize and Upsample: R.image.resize2d if its result is equal, else taps along each axis.

    Resize(x, scales=[1, 1, 2, 2], mode=nearest)     ->    R.image.resize2d(x, ...)
    Resize(x, scales=[1, 1, 1.5, 1], mode=linear)    ->    R.take(x, i, 2) * w + R.take(x, j, 2) * v
    an image of dynamic size                         ->    sums of taps in one kernel, for floats
    antialiased, or with a region read at run time   ->    sums of as many taps as the scale needs

The tables i, j, w and v are constants, or are computed at run time. TVM's operator takes outputs /
inputs as the scale, ignoring the node's scale, and only resizes two axes of four.

Extents are numbers or follow from sizes: from given sizes, or from scales that are fractions. Other
extents (given by data, by one scale for all dynamic axes, or by 0.3137 and 4.2) are computed by a
kernel.
"""

from __future__ import annotations

import functools
import math
import operator as operators
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ... import expressions as ex
from ...expressions import Attrs, Expr, Place
from ..graph.elements import known_parts
from ..graph.kernels import emit_kernel, put, size_in, sizes_in
from ..graph.requests import MISFIT, check
from ..graph.sizes import INDEX, dims_of, index, plain, same_size, simplified
from ..operators import operator
from . import resize_taps
from .resize_taps import KERNEL, REACH, Axis, Element, Number, Numbers, Resizing, Taps

_IN_RELAX = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")

_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
_EPSILON = np.float32(1e-5)  # TVM adds it before rounding down
# Coordinates and their rounding that give element i // factor for output i.
_WHOLE = {"asymmetric": ("floor",), "half_pixel": ("round_prefer_floor", "round_prefer_ceil")}
_FLOATS_IN_RELAX = ("float32", "float16", "bfloat16")
"""Types for which R.image.resize2d is correct, after widening."""
# Types with weighted sums in float32; all other types use float64.
_SINGLE = (*_FLOATS_IN_RELAX, "int8", "uint8", "int16", "uint16")
LARGEST_DENOMINATOR = 64
LARGEST_EXTENT = 1 << 16  # extents up to this are tried with a fraction
MOST = 1 << 31  # elements in an axis; more are refused as a mistake: memory has to hold them
MOST_WRITTEN = 16  # elements on each side of a filter whose sum is unrolled


@operator("Resize")
def _resize(x: Expr, *given: Expr, **attrs: Any) -> Expr:
    """Resize by region, scales and sizes; opset 10 only has scales, and one transformation."""
    if len(given) == 1:
        attrs = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "simple"} | attrs
        given = None, *given
    how = Resizing(**{name: attrs[name] for name in Resizing._fields if name in attrs})
    if how.mode not in _METHODS:
        raise ValueError(f"unknown mode {how.mode!r}")
    axes, dtype = _axes(x, [*given, None, None][:3], attrs, how), ex.dtype_of(x)
    changed = {place: axis for place, axis in enumerate(axes) if not axis.is_same}
    for axis in changed.values():
        if not (isinstance(axis.scale, float) and axis.scale > 0):
            # An empty axis cannot be resized to elements.
            check(tirx.any(axis.before > 0, tirx.EQ(axis.after, index(0))))
    if not changed:
        return x
    if not all(axis.is_choice for axis in changed.values()):
        x = ex.cast(x, "float32" if dtype in _SINGLE else "float64")
    fast = _in_relax(how, axes)
    if fast is not None and dtype in _FLOATS_IN_RELAX:
        size = relax.ShapeExpr([axis.after for axis in axes[2:]])
        return _rounded(relax.op.image.resize2d(x, size, layout="NCHW", **fast), dtype)
    # For integer results, every product and every sum is rounded, in the order of the taps, because
    # ties depend on it. LLVM would fuse a product and a sum to one instruction.
    is_apart = "float" not in dtype
    filters = any(axis.wants_filter for axis in changed.values())
    known = how.mode == "nearest" or all(axis.taps is not None for axis in axes)
    if not (is_apart or known or filters):  # floats, without intermediate rounding
        x = _summed(x, changed)
    else:
        for place, axis in changed.items():
            x = _along(x, axis, place, is_apart)
    x = _rounded(x, dtype)
    if how.coordinate_transformation_mode == "tf_crop_and_resize":
        for place, axis in changed.items():
            if axis.taps is None or not axis.taps.inside.all():
                inside = _beside(axis.table("inside"), axis, len(axes) - 1 - place)
                x = ex.normalize(relax.op.where(inside, x, ex.number(x, how.extrapolation_value)))
    return x


@operator("Upsample")
def _upsample(x: Expr, scales: Expr, **attrs: Any) -> Expr:
    return _resize(x, ex.cast(scales, "float32"), **{"nearest_mode": "floor"} | attrs)


def _in_relax(how: Resizing, axes: list[Axis]) -> dict[str, Any] | None:
    """Arguments for which R.image.resize2d gives an equal result; None if there are none."""
    if len(axes) != 4 or not axes[0].is_same or not axes[1].is_same:
        return None
    found = {"method": _METHODS[how.mode], "cubic_alpha": how.cubic_coeff_a}
    coordinates, rounding = how.coordinate_transformation_mode, how.nearest_mode
    known = [axis.taps for axis in axes if axis.taps is not None]
    is_known = len(known) == len(axes)
    if is_known and any(len(taps.index) == 1 for taps in known[2:]):
        return None
    if how.mode != "nearest":
        # For a factor that is not whole, the scale may differ from the quotient of the sizes.
        exact = coordinates == "align_corners" or all(
            axis.scale is None or axis.is_whole or (is_known and axis.is_quotient) for axis in axes
        )
        plain = not (how.exclude_outside or how.antialias)
        among = _IN_RELAX if is_known else ("half_pixel", "asymmetric")
        if not exact or not plain or coordinates not in among:
            return None
        return found | {"coordinate_transformation_mode": coordinates}
    # For whole factors many attributes are equivalent; "asymmetric" with "floor" is the cheapest.
    plain = rounding in _WHOLE.get(coordinates, ()) or rounding == "simple"
    for place, element in (("asymmetric", "floor"), (coordinates, rounding)):
        if is_known:
            fits = place in _IN_RELAX and all(
                np.array_equal(_nearest_in_relax(place, element, taps), taps.index)
                for taps in known[2:]
            )
        else:
            fits = plain and all(axis.is_whole for axis in axes)
        if fits:
            return found | {"coordinate_transformation_mode": place, "rounding_method": element}
    return None


def _nearest_in_relax(coordinates: str, rounding: str, taps: Taps) -> np.ndarray:
    """The element that TVM reads for every output, [outputs, 1]."""
    extent, outputs = taps.extent, len(taps.index)
    shifted = {"floor": _EPSILON, "ceil": -_EPSILON}.get(rounding, np.float32(0))
    scale = np.float32(extent) / np.float32(outputs)
    x, half = np.arange(outputs, dtype=np.float32), np.float32(0.5)
    if coordinates == "align_corners":
        place = np.float32(extent - 1) / np.float32(outputs - 1) * x
    else:
        place = scale * x if coordinates == "asymmetric" else (x + half) * scale - half
    half_up = {"round_prefer_floor": -half, "round_prefer_ceil": half}.get(rounding, np.float32(0))
    upwards = rounding in ("ceil", "round_prefer_floor")
    at = (np.ceil if upwards else np.floor)(place + shifted + half_up)
    return np.clip(at.astype(np.int64), 0, extent - 1)[:, None]


def _rounded(value: Expr, dtype: str) -> Expr:
    """A value in the result's type; integers are rounded to even and saturated."""
    value = ex.normalize(value)
    if ex.dtype_of(value) == dtype or "float" in dtype:
        return ex.cast(value, dtype)
    limits, wide = np.iinfo(dtype), np.dtype(ex.dtype_of(value)).type
    low, high = wide(limits.min), wide(limits.max)
    if int(high) > limits.max:  # the float cannot hold it
        high = np.nextafter(high, wide(0))
    above = relax.op.maximum(relax.op.round(value), ex.literal(np.array(low)))
    return ex.cast(relax.op.minimum(above, ex.literal(np.array(high))), dtype)


def _summed(x: Expr, changed: Mapping[int, Axis]) -> Expr:
    """Resizes all changed axes, one after the other, in one kernel."""
    tables = [list(zip(*axis.tables(ex.dtype_of(x)), strict=True)) for axis in changed.values()]

    def along(x: te.Tensor, axis: int, places: list[te.Tensor], weights: list[te.Tensor]) -> Any:
        def element(*at: Expr) -> Expr:
            parts = [
                x(*at[:axis], place[at[axis]], *at[axis + 1 :]) * weight[at[axis]]
                for place, weight in zip(places, weights, strict=True)
            ]
            return functools.reduce(operators.add, parts)

        shape = [*x.shape[:axis], places[0].shape[0], *x.shape[axis + 1 :]]
        return te.compute(shape, element, name="resized")

    def compute(x: te.Tensor, tables: list[list[list[te.Tensor]]]) -> te.Tensor:
        steps = zip(changed, tables, strict=True)
        return functools.reduce(lambda value, step: along(value, step[0], *step[1]), steps, x)

    return ex.emit_te(compute, x, tables, primfunc_name_hint="resize")


def _along(x: Expr, axis: Axis, place: int, is_apart: bool) -> Expr:
    """Resizes one axis; if `is_apart`, products are rounded before they are added."""
    if axis.wants_filter:
        return _filtered(x, axis, place, is_apart)
    tables, total = axis.tables(ex.dtype_of(x)), None
    for at, weight in tables:
        part = ex.normalize(relax.op.take(x, at, place, mode="clip"))
        if len(tables) == 1:
            return part
        part = ex.normalize(part * _beside(weight, axis, len(dims_of(x)) - 1 - place))
        if is_apart:
            part = relax.op.maximum(part, ex.number(part, float(np.finfo(ex.dtype_of(part)).min)))
        total = part if total is None else ex.normalize(total + part)
    return total


def _beside(vector: Expr, axis: Axis, behind: int) -> Expr:
    """Reshapes a vector along an axis to broadcast over `behind` later axes."""
    shape = relax.ShapeExpr([axis.after, *[index(1)] * behind])
    return ex.normalize(relax.op.reshape(vector, shape))


# Sums of any number of elements along an axis of dynamic extent, as antialiasing needs them.
#
#     y[o] = sum over t of x[first[o] + t] * weight[o, t]
#
# Filters are as wide as 1 / scale, and both tables are computed at run time. A region that is read
# at run time uses them too: this takes less code than a table for each tap of each axis.


def _filtered(x: Expr, axis: Axis, place: int, is_apart: bool) -> Expr:
    """Resizes a float tensor along an axis.

    Parameters
    ----------
    is_apart
        Whether products are rounded before they are added, in the order of the taps.
    """
    reach, most = index(REACH[axis.how.mode]), MOST_WRITTEN if is_apart else math.inf
    if axis.how.antialias:
        scale: Any = axis.scale
        wide = math.ceil(int(reach) / min(scale, 1.0)) if isinstance(scale, float) else None
        is_found = wide is None or wide > most
        reach = size_in(axis.emit("reach", _reach, reach)) if is_found else index(wide)

    def first(i: Expr, of: Numbers, reach: Expr) -> Expr:
        return te.floor(axis.place(i, of)).astype("int64") - reach + 1

    def firsts(of: Numbers, reach: Expr) -> te.Tensor:
        return te.compute((of.outputs,), lambda i: first(i, of, reach), name="first")

    def weights(of: Numbers, reach: Expr) -> te.Tensor:
        def weight(i: Expr, tap: Expr) -> Expr:
            near, at, how = axis.place(i, of), first(i, of, reach) + tap, axis.how
            return resize_taps.weight(how, at, near, of, KERNEL, how.antialias)

        shape = (of.outputs, 2 * reach)
        raw = te.compute(shape, weight, name="raw")
        tap = te.reduce_axis((0, 2 * reach), name="tap")
        total = te.compute(shape[:1], lambda i: te.sum(raw[i, tap], axis=tap), name="total")
        return te.compute(shape, lambda i, t: KERNEL.float32(raw[i, t] / total[i]), name="weight")

    begins = axis.emit("first", firsts, reach)
    parts = ex.cast(axis.emit("filter", weights, reach), ex.dtype_of(x))
    shape = [*dims_of(x)[:place], axis.after, *dims_of(x)[place + 1 :]]

    def element(i: Place, x: te.Tensor, begins: te.Tensor, parts: te.Tensor) -> Expr:
        taps = parts.shape[1]

        def product(tap: Expr) -> Expr:
            at = resize_taps.held(begins[i[place]] + tap, x.shape[place], KERNEL)
            value = x(*i[:place], at, *i[place + 1 :]) * parts[i[place], tap]
            return resize_taps.apart(value) if is_apart else value

        if is_apart and isinstance(taps, tirx.IntImm):
            # Unrolled: a schedule adds up a static number of terms in any order.
            return functools.reduce(operators.add, map(product, map(index, range(int(taps)))))
        tap = te.reduce_axis((0, taps), name="tap")
        return te.sum(product(tap.var), axis=tap)

    return ex.emit_each("filtered", shape, element, x, begins, parts, hint="resize_filtered")


def _reach(of: Numbers, radius: Expr) -> te.Tensor:
    """Number of a filter's elements on each side, [1]."""
    wide = te.ceil(KERNEL.float64(int(radius)) / resize_taps.narrowed(of, KERNEL)).astype("int64")
    # An empty axis, or one that becomes empty, keeps the plain radius.
    some = tirx.all(of.outputs > 0, of.extent > 0)
    element = tirx.if_then_else(some, wide, radius)
    return te.compute((1,), lambda _: element, name="reach")


# The axes of an image that is resized: their extents, scales and regions.
#
#     scales            int(extent * scale), in float32
#     sizes             as they are, and their quotients
#     one scale         the smallest or largest quotient; extents are int(extent * quotient + 0.5)


# (scales or sizes, axis, all extents, NumPy or `KERNEL`) -> whether the request makes sense, the
# extent and the scale of the axis.
Rule = Callable[[Any, int, Sequence[Any], Any], tuple[Any, Any, Any]]
Extents = list[tuple[Expr, Number | None]]


def _axes(x: Expr, given: Sequence[Any], attrs: Attrs, how: Resizing) -> list[Axis]:
    """All axes with their region, scale and sizes, some of which may be absent or empty."""
    before = dims_of(x)
    places = [int(axis) % len(before) for axis in attrs.get("axes", range(len(before)))]
    extents = [before[place] for place in places]
    region, scales, sizes = (
        None if each is None or 0 in ex.known_dims(each) else each for each in given
    )
    wanted = scales if sizes is None else sizes
    if wanted is None:
        raise ValueError("it has neither scales nor sizes")
    if ex.known_dims(wanted) != (len(places),):
        raise ValueError(f"it has {ex.known_dims(wanted)} scales or sizes for {len(places)} axes")
    if sizes is None:
        pairs = _by_scales(scales, extents, how.coordinate_transformation_mode == "align_corners")
    else:
        pairs = _by_sizes(sizes, extents, attrs.get("keep_aspect_ratio_policy", "stretch"))
    regions: list[tuple[Number, Number]] = [(0.0, 1.0)] * len(places)
    # Other transformations ignore the region.
    if region is not None and how.coordinate_transformation_mode == "tf_crop_and_resize":
        (size,) = ex.known_dims(region)
        if size != 2 * len(places):
            raise ValueError(f"its roi has {size} numbers for {len(places)} axes")
        vector = ex.cast(region, "float32")
        array = ex.constant(vector)
        read = (Element(vector, place) for place in range(size))
        numbers: list[Number] = [*read] if array is None else array.tolist()
        regions = list(zip(numbers[: len(places)], numbers[len(places) :], strict=True))
    found = [Axis(how, extent, extent) for extent in before]
    for place, (after, scale), own in zip(places, pairs, regions, strict=True):
        found[place] = Axis(how, before[place], after, scale, own)
    return found


def _by_scales(scales: Expr, extents: list[Expr], whole: bool) -> Extents:
    """Extents by scales; align_corners needs whole sizes, as ONNX and ONNX Runtime disagree on the
    meaning of others."""

    def rule(asked: Any, axis: int, extents: Sequence[Any], m: Any) -> tuple[Any, Any, Any]:
        exact = m.float32(extents[axis]) * asked[axis]
        fits = m.logical_and(asked[axis] > m.float32(0), exact < m.float32(MOST))
        if whole:
            fits = m.logical_and(fits, exact - m.floor(exact) <= exact * m.float32(1e-6))
        return fits, m.int64(exact), asked[axis]

    parts, found, pairs, misfit = known_parts(scales), Extents(), Extents(), MISFIT
    if whole:
        misfit = (
            f"scales {parts} of {tuple(plain(extents))} give no whole sizes, for which ONNX and "
            "ONNX Runtime disagree about align_corners; give sizes instead of scales"
        )
    for axis, (part, extent) in enumerate(zip(parts, extents, strict=True)):
        if part is not None and isinstance(extent, tirx.IntImm):
            pairs.append(_known(rule, [np.float32(part)], 0, [extent], misfit))
        elif (factor := _fraction(part)) is None:
            found = found or _found(ex.cast(scales, "float32"), extents, rule)
            pairs.append(found[axis])
        else:
            product = extent * index(factor.numerator)
            if whole:
                rest = tirx.floormod(product, index(factor.denominator))
                check(tirx.EQ(rest, index(0)), misfit)
            after = simplified(tirx.floordiv(product, index(factor.denominator)))
            pairs.append((after, float(np.float32(float(factor)))))
    return pairs


def _fraction(scale: float | None) -> Fraction | None:
    """The scale as a fraction of small numbers with the sizes of the float32 product, or None."""
    if scale is None or not 0 < scale < np.inf:
        return None
    factor, single = Fraction(scale).limit_denominator(LARGEST_DENOMINATOR), np.float32(scale)
    extents = np.arange(1, LARGEST_EXTENT)
    # The float32 of 21/5 is less than 21/5: 15 elements become 62, as in ONNX Runtime.
    sizes = (extents.astype(np.float32) * single).astype(np.int64)
    same = np.array_equal(sizes, extents * factor.numerator // factor.denominator)
    return factor if same and np.float32(float(factor)) == single else None


def _by_sizes(sizes: Expr, extents: list[Expr], policy: str) -> Extents:
    """Extents by sizes; policies other than "stretch" use one quotient as the scale of all axes."""
    if policy not in ("stretch", "not_larger", "not_smaller"):
        raise ValueError(f"unknown keep_aspect_ratio_policy {policy!r}")

    def rule(asked: Any, axis: int, extents: Sequence[Any], m: Any) -> tuple[Any, Any, Any]:
        ratios = [
            m.float32(asked[place]) / m.float32(m.maximum(extent, m.int64(1)))
            for place, extent in enumerate(extents)
        ]
        fits = m.logical_and(asked[axis] >= 0, asked[axis] < m.int64(MOST))
        if policy == "stretch":
            return fits, asked[axis], ratios[axis]
        one = functools.reduce(m.minimum if policy == "not_larger" else m.maximum, ratios)
        exact = m.floor(m.float64(one) * m.float64(extents[axis]) + m.float64(0.5))
        return m.logical_and(fits, exact < m.float64(MOST)), m.int64(exact), one

    parts, pairs, stretched = known_parts(sizes), Extents(), policy == "stretch"
    if not stretched and all(isinstance(each, int) for each in (*parts, *plain(extents))):
        return [_known(rule, parts, axis, extents, MISFIT) for axis in range(len(parts))]
    is_known = stretched and None not in parts
    found = pairs if is_known else _found(ex.cast(sizes, INDEX), extents, rule)
    if not stretched:
        return found
    for axis, (part, extent) in enumerate(zip(parts, extents, strict=True)):
        scale = 1.0 if part is not None and same_size(extent, index(part)) else None
        pairs.append(found[axis] if part is None else (index(part), scale))
    return pairs


def _known(
    rule: Rule, asked: Sequence[Any], axis: int, extents: list[Expr], misfit: str
) -> tuple[Expr, float]:
    """The extent and the scale of an axis, computed from numbers at import."""
    fits, size, scale = rule(asked, axis, plain(extents), np)
    if not fits:
        raise ValueError(misfit)
    return index(int(size)), float(scale)


def _found(asked: Expr, extents: list[Expr], rule: Rule) -> Extents:
    """Extents and scales computed by a kernel; the program refuses extents that make no sense."""

    def body(asked: Expr, sizes: Expr, scales: Expr, *extents: Expr) -> None:
        put(sizes, index(1))
        for axis in range(len(extents)):
            fits, size, scale = rule(asked, axis, extents, KERNEL)
            put(scales, scale, axis)
            put(sizes, tirx.if_then_else(fits, size, index(0)), axis + 1)
            # Not `if not fits`: TVM would make it true for NaN.
            put(sizes, tirx.Select(fits, sizes[0], index(0)))

    results = [([len(extents) + 1], INDEX), ([len(extents)], "float32")]
    sizes, scales = emit_kernel("resized_sizes", [asked], results, body, extents)
    return [(size, Element(scales, axis)) for axis, size in enumerate(sizes_in(sizes))]
