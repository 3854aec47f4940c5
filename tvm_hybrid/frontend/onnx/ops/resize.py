"""Resize and Upsample: R.image.resize2d where it computes the same, else taps along each axis.

    Resize(x, scales=[1, 1, 2, 2], mode=nearest)     ->    R.image.resize2d(x, ...)
    Resize(x, scales=[1, 1, 1.5, 1], mode=linear)    ->    R.take(x, i, 2) * w + R.take(x, j, 2) * v

TVM takes outputs / inputs for the scale, whatever the node says, and knows two axes of four.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ...expressions import (
    Attrs,
    Expr,
    Inputs,
    constant,
    dtype_of,
    known_dims,
    literal,
    normalize,
    number,
)
from ..data_sized.resize import open_resize
from ..data_sized.resize_taps import (
    FLOATS_IN_RELAX,
    Resizing,
    Taps,
    apply_taps,
    axis_taps,
    is_apart,
    rounded,
    widened,
)
from ..data_sized.sizes import is_open
from ..operators import operator

_IN_RELAX = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
_EPSILON = np.float32(1e-5)  # that TVM adds before it rounds down


@operator("Resize")
def _resize(inputs: Inputs, attrs: Attrs) -> Any:
    if len(inputs) == 2:  # opset 10, which knows one transformation
        how = _attributes(attrs, coordinates="asymmetric", rounding="simple")
        inputs = Inputs([inputs[0], None, inputs[1]])
    else:
        how = _attributes(attrs)
    # Other transformations ignore the region, whatever it is.
    places = (1, 2, 3) if how.coordinates == "tf_crop_and_resize" else (2, 3)
    read = {place: inputs[place] for place in places}
    computed = any(item is not None and constant(item) is None for item in read.values())
    if is_open(inputs[0]) or computed:
        return open_resize(inputs, attrs, how)
    dims = known_dims(inputs[0])
    arrays = [constant(read.get(place)) for place in (1, 2, 3)]
    region, factors, extents = (None if a is None or not a.size else a for a in arrays)
    if extents is not None:
        axes = _axes(attrs, len(dims))
        wanted = dict(zip(axes, map(int, extents), strict=True))
        shape = tuple(wanted.get(axis, extent) for axis, extent in enumerate(dims))
        return _emit_sizes(inputs[0], how, dims, shape, axes, attrs, region)
    if factors is None:
        raise ValueError("it has neither scales nor sizes")
    full, axes = np.ones(len(dims), np.float32), _axes(attrs, len(dims))
    if len(axes) != factors.size:
        raise ValueError(f"it has {factors.size} scales for {len(axes)} axes")
    full[axes] = factors
    return _emit(inputs[0], how, dims, full, _regions(region, attrs, len(dims)))


@operator("Upsample")
def _upsample(inputs: Inputs, attrs: Attrs) -> Any:
    how = _attributes(attrs, coordinates="asymmetric", rounding="floor")
    x, scales = inputs[0], attrs.get("scales")
    factors = literal(np.asarray(scales, np.float32)) if len(inputs) < 2 else inputs[1]
    numbers = constant(factors)
    if is_open(x) or numbers is None:
        return open_resize(Inputs([x, None, factors]), attrs, how)
    return _emit(x, how, known_dims(x), np.asarray(numbers, np.float32))


def _attributes(
    attrs: Attrs, coordinates: str = "half_pixel", rounding: str = "round_prefer_floor"
) -> Resizing:
    return Resizing(
        mode=attrs.get("mode", "nearest"),
        coordinates=attrs.get("coordinate_transformation_mode", coordinates),
        rounding=attrs.get("nearest_mode", rounding),
        cubic_a=float(attrs.get("cubic_coeff_a", -0.75)),
        exclude_outside=bool(attrs.get("exclude_outside", 0)),
        antialias=bool(attrs.get("antialias", 0)),
        extrapolation=float(attrs.get("extrapolation_value", 0.0)),
    )


def _axes(attrs: Attrs, rank: int) -> list[int]:
    return [int(axis) % rank for axis in attrs.get("axes", range(rank))]


def _regions(region: np.ndarray | None, attrs: Attrs, rank: int) -> np.ndarray:
    """Start and end along every axis, [rank, 2]."""
    full = np.tile(np.array([0.0, 1.0], np.float32), (rank, 1))
    if region is not None:
        axes = _axes(attrs, rank)
        if region.size != 2 * len(axes):
            raise ValueError(f"its roi has {region.size} numbers for {len(axes)} axes")
        full[axes] = region.reshape(2, -1).T
    return full


def _emit_sizes(
    x: Expr,
    how: Resizing,
    dims: tuple[int, ...],
    shape: tuple[int, ...],
    axes: list[int],
    attrs: Attrs,
    region: np.ndarray | None,
) -> Expr:
    """With sizes given: the scale is their ratio, or one ratio for all axes."""
    scales = np.array(shape, np.float32) / np.array(dims, np.float32)
    policy = attrs.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        one = (min if policy == "not_larger" else max)(float(scales[axis]) for axis in axes)
        scales[axes] = one
        shape = tuple(
            int(np.floor(one * extent + 0.5)) if axis in axes else extent
            for axis, extent in enumerate(dims)
        )
    return _emit(x, how, dims, scales, _regions(region, attrs, len(dims)), shape)


def _emit(
    x: Expr,
    how: Resizing,
    dims: tuple[int, ...],
    scales: np.ndarray,
    regions: np.ndarray | None = None,
    shape: tuple[int, ...] | None = None,
) -> Expr:
    """The resized value."""
    if len(scales) != len(dims):
        raise ValueError(f"it has {len(scales)} scales for {len(dims)} axes")
    if shape is None:
        exact = [float(np.float32(n) * s) for n, s in zip(dims, scales, strict=True)]
        shape = tuple(map(int, exact))
        if how.coordinates == "align_corners" and not np.allclose(shape, exact, rtol=1e-6, atol=0):
            raise ValueError(
                f"scales {scales.tolist()} of {dims} give no whole sizes; what align_corners means "
                "then, ONNX and ONNX Runtime see differently: give sizes instead of scales"
            )
    regions = _regions(None, {}, len(dims)) if regions is None else regions
    taps = [
        axis_taps(how, extent, outputs, float(scale), (float(region[0]), float(region[1])))
        for extent, outputs, scale, region in zip(dims, shape, scales, regions, strict=True)
    ]
    if all(axis.is_identity for axis in taps):
        return x
    dtype = dtype_of(x)
    if not all(axis.is_choice for axis in taps):
        x = widened(x)
    fast = _relax_form(how, dims, shape, scales, taps)
    if fast is not None and dtype in FLOATS_IN_RELAX:
        size = relax.ShapeExpr(list(shape[2:]))
        resized = normalize(relax.op.image.resize2d(x, size, layout="NCHW", **fast))
        return rounded(resized, dtype)
    for axis, tap in enumerate(taps):
        if not tap.is_identity:
            x = apply_taps(x, axis, tap, len(dims), is_apart(dtype))
    return _extrapolated(rounded(x, dtype), how, taps)


def _relax_form(
    how: Resizing,
    dims: tuple[int, ...],
    shape: tuple[int, ...],
    scales: np.ndarray,
    taps: list[Taps],
) -> dict[str, Any] | None:
    """Arguments with which R.image.resize2d computes the same; None if there are none."""
    if len(dims) != 4 or not taps[0].is_identity or not taps[1].is_identity or 1 in shape[2:]:
        return None
    method = {"method": _METHODS[how.mode], "cubic_alpha": how.cubic_a}
    if how.mode == "nearest":
        # Many attributes mean the same for whole factors; this one needs no arithmetic.
        for coordinates, rounding in (("asymmetric", "floor"), (how.coordinates, how.rounding)):
            if coordinates in _IN_RELAX and all(
                np.array_equal(_nearest_in_relax(coordinates, rounding, n, outputs), axis.index)
                for n, outputs, axis in zip(dims[2:], shape[2:], taps[2:], strict=True)
            ):
                return method | {
                    "coordinate_transformation_mode": coordinates,
                    "rounding_method": rounding,
                }
        return None
    exact = how.coordinates == "align_corners" or all(
        math.isclose(n * float(scale), outputs, rel_tol=1e-6)
        for n, scale, outputs in zip(dims, scales, shape, strict=True)
    )
    if not exact or how.exclude_outside or how.antialias or how.coordinates not in _IN_RELAX:
        return None
    return method | {"coordinate_transformation_mode": how.coordinates}


def _nearest_in_relax(coordinates: str, rounding: str, extent: int, outputs: int) -> np.ndarray:
    """The element that TVM takes for every output, [outputs, 1]."""
    shifted = {"floor": _EPSILON, "ceil": -_EPSILON}.get(rounding, np.float32(0))
    scale = np.float32(extent) / np.float32(outputs)
    x, half = np.arange(outputs, dtype=np.float32), np.float32(0.5)
    if coordinates == "align_corners":
        place = np.float32(extent - 1) / np.float32(outputs - 1) * x
    else:
        place = scale * x if coordinates == "asymmetric" else (x + half) * scale - half
    half_up = {"round_prefer_floor": -half, "round_prefer_ceil": half}.get(rounding, np.float32(0))
    upwards = rounding in ("ceil", "round_prefer_floor")
    index = (np.ceil if upwards else np.floor)(place + shifted + half_up)
    return np.clip(index.astype(np.int64), 0, extent - 1)[:, None]


def _extrapolated(x: Expr, how: Resizing, taps: list[Taps]) -> Expr:
    """With the extrapolation value where any axis lies outside."""
    inside = np.ones((), bool)
    for tap in taps:
        inside = inside[..., None] & tap.inside
    if inside.all():
        return x
    outside = number(x, how.extrapolation)
    return relax.op.where(literal(inside), x, outside)
