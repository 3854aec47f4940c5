"""The axes of an image of open sizes that is resized: their extents, scales and regions.

sizes that are numbers or follow from others, scales that are fractions    ->    expressions
others: what data decide, one scale for all axes, 0.3137, 4.2              ->    sizes that a
                                                              kernel finds when the program runs
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..expressions import Expr, cast, constant, given, known_dims
from ..resize_taps import Resizing
from .kernels import index
from .parts import known_parts
from .requests import check
from .resize_axis import Axis, Element, Number
from .resize_found import sizes_as_asked, sizes_by_scales
from .sizes import dims_of, same_size, simplified

LARGEST_DENOMINATOR = 64
LARGEST_EXTENT = 1 << 16  # of the extents that a fraction is tried on


def resized_axes(
    builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any], how: Resizing
) -> list[Axis]:
    """All axes of inputs x, roi, scales and sizes, of which some are absent or empty.

    Raises
    ------
    ValueError
        There are more or fewer numbers than axes.
    """
    before = dims_of(inputs[0])
    places = [int(axis) % len(before) for axis in attrs.get("axes", range(len(before)))]
    cropped = how.coordinates == "tf_crop_and_resize"
    regions = _regions(builder, _vector(inputs, 1), len(places)) if cropped else None
    extents = [before[place] for place in places]
    sizes, scales = _vector(inputs, 3), _vector(inputs, 2)
    wanted = scales if sizes is None else sizes
    if wanted is None:
        raise ValueError("it has neither scales nor sizes")
    if known_dims(wanted) != (len(places),):
        raise ValueError(f"it has {known_dims(wanted)} scales or sizes for {len(places)} axes")
    if sizes is None:
        pairs = _by_scales(builder, wanted, extents, how)
    else:
        policy = attrs.get("keep_aspect_ratio_policy", b"stretch")
        policy = policy.decode() if isinstance(policy, bytes) else policy
        pairs = _by_sizes(builder, wanted, extents, policy)
    found = [Axis(extent, extent) for extent in before]
    for number, (place, (after, scale)) in enumerate(zip(places, pairs, strict=True)):
        region = (0.0, 1.0) if regions is None else regions[number]
        found[place] = Axis(before[place], after, scale, region)
    return found


def _vector(inputs: Sequence[Any], position: int) -> Expr | None:
    """An input, if it is there and has elements."""
    value = given(inputs, position)
    return None if value is None or 0 in known_dims(value) else value


def _regions(
    builder: relax.BlockBuilder, region: Expr | None, count: int
) -> list[tuple[Number, Number]] | None:
    if region is None:
        return None
    (size,) = known_dims(region)
    if size != 2 * count:
        raise ValueError(f"its roi has {size} numbers for {count} axes")
    array = constant(region)
    if array is not None:
        numbers: list[Number] = [float(each) for each in array.astype(np.float32)]
    else:
        vector = cast(builder, region, "float32")
        numbers = [Element(vector, place) for place in range(size)]
    return list(zip(numbers[:count], numbers[count:], strict=True))


def _by_scales(
    builder: relax.BlockBuilder, scales: Expr, extents: list[Expr], how: Resizing
) -> list[tuple[Expr, Number | None]]:
    """Extents and scales; a kernel finds those that are no fractions of small numbers."""
    # What align_corners means else, ONNX and ONNX Runtime see differently.
    whole = how.coordinates == "align_corners"
    factors = [_fraction(part) for part in known_parts(builder, scales)]
    found = sizes_by_scales(builder, scales, extents, whole) if None in factors else []
    pairs: list[tuple[Expr, Number | None]] = []
    for axis, (factor, extent) in enumerate(zip(factors, extents, strict=True)):
        if factor is None:
            pairs.append(found[axis])
            continue
        product = extent * index(factor.numerator)
        if whole:
            rest = tirx.floormod(product, index(factor.denominator))
            check(builder, tirx.EQ(rest, index(0)), "align_corners by scales to no whole sizes")
        after = simplified(tirx.floordiv(product, index(factor.denominator)))
        pairs.append((after, float(np.float32(float(factor)))))
    return pairs


def _fraction(scale: float | None) -> Fraction | None:
    """The scale as a fraction of small numbers that gives the sizes of the float32 product.

    The float32 of 21/5 is less than 21/5: 15 elements become 62, as in ONNX Runtime.
    """
    if scale is None or not 0 < scale < np.inf:
        return None
    factor, single = Fraction(scale).limit_denominator(LARGEST_DENOMINATOR), np.float32(scale)
    extents = np.arange(1, LARGEST_EXTENT)
    sizes = (extents.astype(np.float32) * single).astype(np.int64)
    same = np.array_equal(sizes, extents * factor.numerator // factor.denominator)
    return factor if same and np.float32(float(factor)) == single else None


def _by_sizes(
    builder: relax.BlockBuilder, sizes: Expr, extents: list[Expr], policy: str
) -> list[tuple[Expr, Number | None]]:
    """Extents, and scales where they do not follow from the extents."""
    parts = known_parts(builder, sizes) if policy == "stretch" else [None] * len(extents)
    found = sizes_as_asked(builder, sizes, extents, policy) if None in parts else []
    pairs: list[tuple[Expr, Number | None]] = []
    for axis, (part, extent) in enumerate(zip(parts, extents, strict=True)):
        if part is None:
            pairs.append(found[axis])
            continue
        after = index(part) if isinstance(part, int) else part
        pairs.append((after, 1.0 if same_size(extent, after) else None))
    return pairs
