"""Resizing along one axis: which elements each output element is made of, and their weights.

ONNX operators, "Resize": an output position x lies at a place of the input that depends on the
coordinate transformation; "nearest" takes one element there, "linear" two, "cubic" four (Keys,
"Cubic convolution interpolation for digital image processing", 1981), and antialiasing stretches
the filter by 1 / scale where that is more than 1. Places are computed in the types of ONNX Runtime
1.32: "nearest" depends on it. A place within 1e-6 of the middle between two elements is a tie.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ...expressions import Expr, cast, dtype_of, literal, normalize

TIE = 1e-6  # of ONNX Runtime: a scale in float32 puts places beside the middle


@dataclass(frozen=True)
class Resizing:
    """The attributes of one Resize node.

    Attributes
    ----------
    mode : str
        "nearest", "linear" or "cubic".
    coordinates : str
        The coordinate transformation.
    rounding : str
        Which element is the nearest; "simple" is that of opset 10 in ONNX Runtime, up where the
        axis becomes shorter and else down.
    cubic_a : float
        The coefficient of Keys's cubic.
    exclude_outside : bool
        Whether weights of elements outside are shared out among the others.
    antialias : bool
        Whether filters widen with 1 / scale where that is more than 1.
    extrapolation : float
        What lies outside, with "tf_crop_and_resize".
    """

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0


@dataclass(frozen=True)
class Taps:
    """What the elements of an axis are made of: sum over t of x[index[i, t]] * weight[i, t].

    Attributes
    ----------
    extent : int
        Elements of the axis before.
    index : ndarray of int64 [outputs, taps]
        Within the axis.
    weight : ndarray of float32 [outputs, taps]
        All 1 for "nearest".
    inside : ndarray of bool [outputs]
        False where the extrapolation value stands.
    """

    extent: int
    index: np.ndarray
    weight: np.ndarray
    inside: np.ndarray

    @property
    def is_identity(self) -> bool:
        """Whether every element stays as it is, and all do."""
        same = np.array_equal(self.index, np.arange(self.extent)[:, None])
        return same and bool(self.inside.all())

    @property
    def is_choice(self) -> bool:
        """Whether every element is one of the input."""
        return self.index.shape[1] == 1


def axis_taps(
    how: Resizing,
    extent: int,
    outputs: int,
    scale: float,
    roi: tuple[float, float] = (0.0, 1.0),
) -> Taps:
    """The taps of an axis.

    Parameters
    ----------
    extent, outputs
        Elements before and after.
    scale
        As given; `outputs` is the integer part of `extent * scale`, or sizes were given.
    roi
        Start and end of "tf_crop_and_resize", 0 to 1.
    """
    place = _places(how, extent, outputs, np.float32(scale), roi)
    cropped = how.coordinates == "tf_crop_and_resize"
    inside = (place >= 0) & (place <= extent - 1) if cropped else np.ones(outputs, bool)
    if how.mode == "nearest":
        simple = "ceil" if scale < 1 else "floor"
        rounding = simple if how.rounding == "simple" else how.rounding
        index = np.clip(_rounded(rounding, place), 0, extent - 1)[:, None]
        return Taps(extent, index, np.ones(index.shape, np.float32), inside)
    index, weight = _filter(how, place, min(float(scale), 1.0) if how.antialias else 1.0)
    if how.exclude_outside:
        weight = np.where((index >= 0) & (index < extent), weight, 0.0)
    # In this order, as a program does that makes tables of open sizes.
    weight /= functools.reduce(np.add, weight.T)[:, None]
    index = np.clip(index, 0, extent - 1)
    used = (weight != 0).any(0)
    return Taps(extent, index[:, used], weight[:, used].astype(np.float32), inside)


def _places(
    how: Resizing, extent: int, outputs: int, scale: np.float32, roi: tuple[float, float]
) -> np.ndarray:
    """Where the outputs lie in the input, float32."""
    x, half = np.arange(outputs, dtype=np.float32), np.float32(0.5)
    last, last_output = np.float32(extent - 1), np.float32(outputs - 1)
    start, end = np.float32(roi[0]), np.float32(roi[1])
    middle = np.zeros(outputs, np.float32)
    match how.coordinates:
        case "half_pixel":
            return (x + half) / scale - half
        case "half_pixel_symmetric":
            # The part of the last element that is cut off is taken from both ends.
            cut = np.float32(outputs) / (scale * np.float32(extent))
            moved = np.float64(np.float32(extent) * half * (1 - cut))
            return (moved + (x + np.float64(half)) / np.float64(scale) - half).astype(np.float32)
        case "pytorch_half_pixel":
            return (x + half) / scale - half if outputs > 1 else middle
        case "align_corners":
            return x * last / last_output if outputs > 1 else middle
        case "asymmetric":
            return x / scale
        case "tf_half_pixel_for_nn":
            return (x + half) / scale if scale != 1 else x
        case "tf_crop_and_resize":
            if outputs > 1:
                return start * last + x * (end - start) * last / last_output
            return middle + half * (start + end) * last
    raise ValueError(f"unknown coordinate_transformation_mode {how.coordinates!r}")


def _rounded(rounding: str, place: np.ndarray) -> np.ndarray:
    below = np.floor(place)
    beyond = place - below - np.float32(0.5)  # the middle between two elements; exact
    match rounding:
        case "round_prefer_floor":
            return (below + (beyond > np.float32(TIE))).astype(np.int64)
        case "round_prefer_ceil":
            return (below + (beyond >= np.float32(-TIE))).astype(np.int64)
        case "floor":
            return np.floor(place).astype(np.int64)
        case "ceil":
            return np.ceil(place).astype(np.int64)
    raise ValueError(f"unknown nearest_mode {rounding!r}")


def _filter(how: Resizing, place: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Elements and weights of a filter that is stretched by 1 / scale; their sum is not 1 yet."""
    kernels = {"linear": (1, _linear), "cubic": (2, _cubic)}
    if how.mode not in kernels:
        raise ValueError(f"unknown mode {how.mode!r}")
    radius, kernel = kernels[how.mode]
    reach = math.ceil(radius / scale)
    first = np.floor(place).astype(np.int64) - reach + 1
    index = first[:, None] + np.arange(2 * reach)
    distance = np.abs(index - place[:, None].astype(np.float64)) * scale
    return index, kernel(distance, how.cubic_a)


def _linear(distance: np.ndarray, _: float) -> np.ndarray:
    return np.maximum(0.0, 1.0 - distance)


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    d = distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


# Values while they are resized: the type they are computed in, and sums of taps along an axis.
#
# What becomes an integer is rounded after every product and every sum, in the order of the taps:
# ties depend on it. LLVM would make one instruction of a product and a sum here, and not there.


# Types in which weighted sums are computed; float64 for all others.
_COMPUTED_IN = dict.fromkeys(
    ("float16", "bfloat16", "float32", "int8", "uint8", "int16", "uint16"), "float32"
)
FLOATS_IN_RELAX = ("float32", "float16", "bfloat16")
"""Types that R.image.resize2d is right for, once they are widened."""


def widened(value: Expr) -> Expr:
    """A value in the type in which its weighted sums are computed."""
    return cast(value, _COMPUTED_IN.get(dtype_of(value), "float64"))


def rounded(value: Expr, dtype: str) -> Expr:
    """A value in the type that the result is to have: integers rounded to even, and saturated."""
    if dtype_of(value) == dtype or "float" in dtype:
        return cast(value, dtype)
    limits, wide = np.iinfo(dtype), np.dtype(dtype_of(value)).type
    low, high = wide(limits.min), wide(limits.max)
    if int(high) > limits.max:  # which the float cannot hold
        high = np.nextafter(high, wide(0))
    whole = normalize(relax.op.round(value))
    above = normalize(relax.op.maximum(whole, literal(np.array(low))))
    held = normalize(relax.op.minimum(above, literal(np.array(high))))
    return cast(held, dtype)


def is_apart(dtype: str) -> bool:
    """Whether products are rounded before they are added up, as an image of this type wants."""
    return "float" not in dtype


def weighed(part: Expr, weight: Expr, apart: bool) -> Expr:
    """The product of two values, rounded by itself if wanted."""
    product = normalize(relax.op.multiply(part, weight))
    if not apart:
        return product
    least = np.array(np.finfo(dtype_of(product)).min)
    return normalize(relax.op.maximum(product, literal(least)))


def apply_taps(x: Expr, axis: int, taps: Taps, rank: int, apart: bool) -> Expr:
    """A value resized along one axis."""
    total: Expr = None
    for index, weight in zip(taps.index.T, taps.weight.T, strict=True):
        part = normalize(relax.op.take(x, literal(index), axis, mode="clip"))
        if taps.is_choice:
            return part
        shaped = weight.reshape(-1, *(1 for _ in range(rank - 1 - axis))).astype(dtype_of(x))
        part = weighed(part, literal(shaped), apart)
        total = part if total is None else normalize(relax.op.add(total, part))
    return total
