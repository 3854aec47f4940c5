"""Resize of images whose sizes are open.

    to the nearest element, by whole factors          ->  R.image.resize2d
    linear or cubic, of two axes, half_pixel or
    asymmetric, by whole factors or to given sizes    ->  R.image.resize2d
    other forms                                       ->  R.take(x, i) * w + R.take(x, j) * v along
                                                          each axis

The tables i, j, w and v are computed when it runs. Sizes may be numbers or follow from others, as
those of another image do. `resize_taps` has the same for known sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..expressions import Expr, cast, constant, dtype_of, given
from .elements import known_elements
from .kernels import index
from .requests import check
from .resize_tables import Resizing, Table
from .sizes import dims_of, same_size, simplified

# (coordinates, rounding) that take element i // factor for output i.
_WHOLE = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
}
LARGEST_DENOMINATOR = 64


def open_resize(
    builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any], how: Resizing
) -> Expr:
    """The resized image.

    Raises
    ------
    ValueError
        Its scales are computed, or the form needs to know the sizes.
    """
    x = inputs[0]
    before = dims_of(x)
    after, factors = _wanted(builder, inputs, attrs, before)
    if how.antialias or how.coordinates == "tf_crop_and_resize":
        raise ValueError("an image of open sizes is neither antialiased nor cropped")
    changed = [axis for axis in range(len(before)) if not same_size(before[axis], after[axis])]
    for axis in changed:
        if factors[axis] is None:  # nothing can be made of no elements
            check(builder, tirx.any(before[axis] > 0, tirx.EQ(after[axis], index(0))))
    fast = _in_relax(how, len(before), changed, factors)
    if fast is not None and dtype_of(x) == "float32":
        size = relax.ShapeExpr(after[2:])
        return relax.op.image.resize2d(x, size, layout="NCHW", **fast)
    return _by_tables(builder, x, how, after, changed, factors)


def _wanted(
    builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any], before: list[Expr]
) -> tuple[list[Expr], list[Fraction | None]]:
    """The sizes of the result, and the factors; those of given sizes are None."""
    rank = len(before)
    axes = [int(axis) % rank for axis in attrs.get("axes", range(rank))]
    sizes = given(inputs, 3)
    after, factors = list(before), [Fraction(1)] * rank
    if sizes is not None and _may_be_given(sizes):
        policy = attrs.get("keep_aspect_ratio_policy", b"stretch")
        elements = known_elements(builder, sizes)
        if elements is None or policy not in (b"stretch", "stretch"):
            raise ValueError("an image of open sizes is resized to sizes that depend on data")
        found: list[Fraction | None] = [*factors]
        for axis, size in zip(axes, elements, strict=True):
            wanted = index(size) if isinstance(size, int) else size
            found[axis] = Fraction(1) if same_size(before[axis], wanted) else None
            after[axis] = wanted
        return after, found
    scales = constant(inputs[1]) if len(inputs) == 2 else constant(given(inputs, 2))
    if scales is None or scales.size != len(axes):
        raise ValueError("an image of open sizes is resized by scales that are computed")
    for axis, scale in zip(axes, np.asarray(scales, np.float32).ravel(), strict=True):
        factor = Fraction(float(scale)).limit_denominator(LARGEST_DENOMINATOR)
        if np.float32(float(factor)) != scale:
            raise ValueError(f"an image of open sizes is resized by {scale}, which is no fraction")
        factors[axis] = factor
        product = before[axis] * index(factor.numerator)
        after[axis] = simplified(tirx.floordiv(product, index(factor.denominator)))
    return after, list(factors)


def _may_be_given(sizes: Expr) -> bool:
    array = constant(sizes)
    return array is None or bool(array.size)


def _in_relax(
    how: Resizing, rank: int, changed: list[int], factors: list[Fraction | None]
) -> dict[str, Any] | None:
    """Arguments with which R.image.resize2d computes the same, whatever the sizes are."""
    if rank != 4 or not set(changed) <= {2, 3}:
        return None
    whole = [factor is not None and factor.denominator == 1 for factor in factors]
    if how.mode == "nearest":
        is_plain = (how.coordinates, how.rounding) in _WHOLE or how.rounding == "simple"
        form = {"method": "nearest_neighbor", "rounding_method": "floor"}
        asymmetric = {"coordinate_transformation_mode": "asymmetric"}
        return {**form, **asymmetric} if is_plain and all(whole) else None
    # A factor that is no whole number may not be the quotient of the sizes.
    exact = all(factor is None or factor.denominator == 1 for factor in factors)
    if not exact or how.exclude_outside or how.coordinates not in ("half_pixel", "asymmetric"):
        return None
    return {
        "method": how.mode,
        "coordinate_transformation_mode": how.coordinates,
        "cubic_alpha": how.cubic_a,
    }


def _by_tables(
    builder: relax.BlockBuilder,
    x: Expr,
    how: Resizing,
    after: list[Expr],
    changed: list[int],
    factors: list[Fraction | None],
) -> Expr:
    """Weighted sums of elements along one axis after the other."""
    dtype, before = dtype_of(x), dims_of(x)
    if how.mode != "nearest":
        if "float" not in dtype:
            raise ValueError("integers of an image of open sizes are not interpolated")
        x = cast(builder, x, "float64" if dtype == "float64" else "float32")
    for axis in changed:
        table = Table(how, before[axis], after[axis], factors[axis])
        ones = [1] * (len(before) - 1 - axis)
        total: Expr = None
        for tap in range(table.taps):
            places = table.emit(builder, "index", tap)
            part = builder.normalize(relax.op.take(x, places, axis, mode="clip"))
            if how.mode != "nearest":
                weight = cast(builder, table.emit(builder, "weight", tap), dtype_of(x))
                shape = relax.ShapeExpr([after[axis], *ones])
                shaped = builder.normalize(relax.op.reshape(weight, shape))
                part = builder.normalize(relax.op.multiply(part, shaped))
            total = part if total is None else builder.normalize(relax.op.add(total, part))
        x = total
    return cast(builder, x, dtype)
