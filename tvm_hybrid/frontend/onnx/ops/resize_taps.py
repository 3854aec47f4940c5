"""Resizing along one axis: the input elements of each output element, and their weights.

ONNX operators, "Resize": an output position x maps to a position in the input by the coordinate
transformation; "nearest" takes one element there, "linear" two, "cubic" four (Keys, "Cubic
convolution interpolation for digital image processing", 1981), and antialiasing stretches the
filter by 1 / scale if that is more than 1. Positions are computed in the types of ONNX Runtime
1.32, as "nearest" depends on them. A position within 1e-6 of the middle of two elements is a tie.

Each formula is written once: for NumPy's arrays if sizes are known, else for the expressions of a
kernel that computes the tables at run time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from tvm import te, tirx

from ...expressions import Expr, cast, literal
from ..graph.kernels import emit_alone
from ..graph.sizes import index, plain, same_size

TIE = 1e-6  # from ONNX Runtime, because a float32 scale moves positions off the middle
REACH = {"linear": 1, "cubic": 2}  # elements on each side
_OUTSIDE = 4.0  # positions that depend on data are clipped to this distance from the edge


class Resizing(NamedTuple):
    """The attributes of one Resize node.

    Attributes
    ----------
    mode : str
        "nearest", "linear" or "cubic".
    coordinate_transformation_mode : str
        The coordinate transformation.
    nearest_mode : str
        Which element is nearest; "simple" is ONNX Runtime's rule for opset 10: up if the axis
        becomes shorter, else down.
    cubic_coeff_a : float
        The coefficient of Keys's cubic.
    exclude_outside : int
        Whether the weights of elements outside are distributed over the others.
    antialias : int
        Whether filters widen by 1 / scale if that is more than 1.
    extrapolation_value : float
        The value outside the input, with "tf_crop_and_resize".
    """

    mode: str = "nearest"
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    antialias: int = 0
    extrapolation_value: float = 0.0


def _number(dtype: str, value: Any) -> Expr:
    return tirx.const(value, dtype) if isinstance(value, int | float) else value.astype(dtype)


KERNEL: Any = SimpleNamespace(
    abs=te.abs,
    ceil=te.ceil,
    equal=tirx.EQ,
    floor=te.floor,
    logical_and=tirx.all,
    maximum=te.max,
    minimum=te.min,
    where=tirx.Select,
    **{dtype: functools.partial(_number, dtype) for dtype in ("float32", "float64", "int64")},
)
"""The functions of NumPy that formulas use, for the expressions of a kernel."""


class Numbers(NamedTuple):
    """The numbers of an axis in formulas; scale and region are float32."""

    extent: Any
    outputs: Any
    scale: Any
    start: Any
    end: Any


def _place(how: Resizing, i: Any, of: Numbers, m: Any) -> Any:
    """The position in the input of an output element, float32; `m` is NumPy or `KERNEL`."""
    x, half, zero = m.float32(i), m.float32(0.5), m.float32(0)
    last, steps = m.float32(of.extent - 1), m.maximum(m.float32(of.outputs - 1), m.float32(1))
    centred = (x + half) / of.scale - half
    match how.coordinate_transformation_mode:
        case "half_pixel":
            return centred
        case "half_pixel_symmetric":
            # The cut-off part of the last element is distributed over both ends.
            cut = m.float32(of.outputs) / (of.scale * m.float32(of.extent))
            moved = m.float32(of.extent) * half * (m.float32(1) - cut)
            wide = m.float64(x + half) / m.float64(of.scale)
            return m.float32(m.float64(moved) + wide - m.float64(0.5))
        case "pytorch_half_pixel":
            return m.where(of.outputs > 1, centred, zero)
        case "align_corners":
            return m.where(of.outputs > 1, x * last / steps, zero)
        case "asymmetric":
            return x / of.scale
        case "tf_half_pixel_for_nn":
            return m.where(m.equal(of.scale, m.float32(1)), x, (x + half) / of.scale)
        case "tf_crop_and_resize":
            stretched = apart(of.start * last, m) + x * (of.end - of.start) * last / steps
            return m.where(of.outputs > 1, stretched, half * (of.start + of.end) * last)
        case other:
            raise ValueError(f"unknown coordinate_transformation_mode {other!r}")


def _nearest(how: Resizing, place: Any, of: Numbers, m: Any) -> Any:
    """The element that is nearest to a position."""
    below = m.floor(place)
    beyond = place - below - m.float32(0.5)  # distance from the middle of two elements; exact
    match how.nearest_mode:
        case "round_prefer_floor":
            return m.int64(below) + m.int64(beyond > m.float32(TIE))
        case "round_prefer_ceil":
            return m.int64(below) + m.int64(beyond >= m.float32(-TIE))
        case "floor":
            return m.int64(below)
        case "ceil":
            return m.int64(m.ceil(place))
        case "simple":
            return m.int64(m.where(of.outputs < of.extent, m.ceil(place), below))
    raise ValueError(f"unknown nearest_mode {how.nearest_mode!r}")


def weight(how: Resizing, at: Any, place: Any, of: Numbers, m: Any, is_widened: int = 0) -> Any:
    """The weight of an element before normalisation, float64."""
    d = m.abs(m.float64(at) - m.float64(place))
    d = apart(d * narrowed(of, m), m) if is_widened else d
    one, zero = m.float64(1), m.float64(0)
    if how.mode == "linear":
        found = m.maximum(zero, one - d)
    else:
        a = how.cubic_coeff_a
        near = apart((apart((a + 2) * d, m) - (a + 3)) * d * d, m) + one
        far = apart((apart((apart(a * d, m) - 5 * a) * d, m) + 8 * a) * d, m) - 4 * a
        found = m.where(d <= one, near, m.where(d < 2 * one, far, zero))
    if how.exclude_outside:
        found = m.where(m.logical_and(at >= 0, at < of.extent), found, zero)
    return found


def narrowed(of: Numbers, m: Any) -> Any:
    """The factor of distances when filters widen."""
    return m.float64(m.minimum(of.scale, m.float32(1)))


def held(at: Any, extent: Any, m: Any) -> Any:
    """Clips an index to an axis."""
    return m.maximum(m.minimum(at, extent - 1), m.int64(0))


def apart(product: Any, m: Any = KERNEL) -> Any:
    """Keeps LLVM from fusing a product and a later sum into one instruction, which rounds once."""
    return product if m is np else te.max(product, tirx.min_value(str(product.ty.dtype)))


@dataclass(frozen=True)
class Taps:
    """The taps of an axis: element i is the sum over t of x[index[i, t]] * weight[i, t].

    Attributes
    ----------
    extent : int
        Elements of the input's axis.
    index : ndarray of int64 [outputs, taps]
        Clipped to the axis.
    weight : ndarray of float32 [outputs, taps]
        All 1 for "nearest".
    inside : ndarray of bool [outputs]
        False where the result is the extrapolation value.
    """

    extent: int
    index: np.ndarray
    weight: np.ndarray
    inside: np.ndarray

    @property
    def is_identity(self) -> bool:
        """Whether the output equals the input."""
        same = np.array_equal(self.index, np.arange(self.extent)[:, None])
        return same and bool(self.inside.all())


def axis_taps(
    how: Resizing, extent: int, outputs: int, scale: float, region: Sequence[Any] = (0.0, 1.0)
) -> Taps:
    """The taps of an axis.

    Parameters
    ----------
    extent, outputs
        Elements of the input's and the output's axis.
    scale
        The given scale; `outputs` is the integer part of `extent * scale`, or sizes were given.
    region
        Start and end for "tf_crop_and_resize", 0 to 1.
    """
    of = Numbers(extent, outputs, *map(np.float32, (scale, *region)))
    place = _place(how, np.arange(outputs), of, np)
    cropped = how.coordinate_transformation_mode == "tf_crop_and_resize"
    inside = (place >= 0) & (place <= extent - 1) if cropped else np.ones(outputs, bool)
    if how.mode == "nearest":
        at = held(_nearest(how, place, of, np), extent, np)[:, None]
        return Taps(extent, at, np.ones(at.shape, np.float32), inside)
    reach = math.ceil(REACH[how.mode] / (min(scale, 1.0) if how.antialias else 1.0))
    first = np.floor(place).astype(np.int64) - reach + 1
    at = first[:, None] + np.arange(2 * reach)
    shares = weight(how, at, place[:, None], of, np, how.antialias)
    # Added in the order of the program that computes tables of dynamic sizes.
    shares /= functools.reduce(np.add, shares.T)[:, None]
    used = (shares != 0).any(0)
    return Taps(extent, held(at, extent, np)[:, used], shares[:, used].astype(np.float32), inside)


class Element(NamedTuple):
    """A number that the program reads at run time: one element of a vector of float32."""

    vector: Expr
    position: int


Number = float | Element


@dataclass(frozen=True)
class Axis:
    """One axis of an image; scale and region are numbers, or read at run time.

    Attributes
    ----------
    how : Resizing
    before, after : Expr
        Extents of the input and the output.
    scale : Number, optional
        The given scale; None for the quotient of the extents.
    region : tuple of Number
        Start and end for "tf_crop_and_resize", 0 to 1.
    """

    how: Resizing
    before: Expr
    after: Expr
    scale: Number | None = 1.0
    region: tuple[Number, Number] = (0.0, 1.0)

    @functools.cached_property
    def taps(self) -> Taps | None:
        """The taps if all numbers are known at import, else None."""
        before, after = plain((self.before, self.after))
        if self.vectors or not isinstance(before, int) or not isinstance(after, int):
            return None
        scale: Any = self.scale
        if scale is None:
            scale = float(np.float32(after) / np.float32(max(before, 1)))
        return axis_taps(self.how, before, after, scale, self.region)

    @property
    def vectors(self) -> list[Expr]:
        """The tensors that the scale and the region are read from at run time."""
        return [n.vector for n in (self.scale, *self.region) if isinstance(n, Element)]

    @property
    def is_same(self) -> bool:
        """Whether resizing changes nothing along this axis."""
        if self.taps is not None:
            return self.taps.is_identity
        return same_size(self.before, self.after) and self.region == (0.0, 1.0)

    @property
    def is_choice(self) -> bool:
        """Whether every output element is an input element."""
        nearest = self.how.mode == "nearest"
        return nearest or (self.taps is not None and self.taps.index.shape[1] == 1)

    @property
    def is_whole(self) -> bool:
        """Whether the scale is a known integer."""
        return isinstance(self.scale, float) and self.scale.is_integer()

    @property
    def is_quotient(self) -> bool:
        """Whether the scale is the quotient of the extents, which must be static."""
        before, after, scale = int(self.before), int(self.after), self.scale
        return isinstance(scale, float) and math.isclose(before * scale, after, rel_tol=1e-6)

    @property
    def wants_filter(self) -> bool:
        """Whether a dynamic axis needs filters that may be wider than without antialiasing, or has
        a region that is read at run time."""
        if self.taps is not None or self.how.mode == "nearest":
            return False
        widened = self.how.antialias and not (isinstance(self.scale, float) and self.scale >= 1)
        return widened or any(isinstance(number, Element) for number in self.region)

    def tables(self, dtype: str) -> list[tuple[Expr, Expr | None]]:
        """The index and weight of each tap, for all outputs; no weight if `is_choice`."""
        if self.is_choice:
            return [(self.table("index"), None)]
        taps = self.taps.index.shape[1] if self.taps is not None else 2 * REACH[self.how.mode]
        places = [self.table("index", tap) for tap in range(taps)]
        return [(at, cast(self.table("weight", tap), dtype)) for tap, at in enumerate(places)]

    def place(self, i: Expr, of: Numbers) -> Expr:
        """The position of an output in the input, in a kernel; clipped if it depends on data."""
        place = _place(self.how, i, of, KERNEL)
        if not any(isinstance(number, Element) for number in self.region):
            return place
        # The clipping also turns NaN into an index.
        last = of.extent.astype("float32") + KERNEL.float32(_OUTSIDE)
        return te.max(te.min(place, last), KERNEL.float32(-_OUTSIDE))

    def table(self, what: str, tap: int = 0) -> Expr:
        """A table over all outputs: "index" or "weight" of a tap, or "inside" of the input."""
        if self.taps is not None:
            array = getattr(self.taps, what)
            return literal(array[:, tap] if array.ndim > 1 else array)

        def element(i: Expr, of: Numbers) -> Expr:
            if what == "inside":
                place = _place(self.how, i, of, KERNEL)
                last = (of.extent - 1).astype("float32")
                return tirx.all(place >= KERNEL.float32(0), place <= last)
            place = self.place(i, of)
            if self.how.mode == "nearest":
                return held(_nearest(self.how, place, of, KERNEL), of.extent, KERNEL)
            reach = REACH[self.how.mode]
            first = te.floor(place).astype("int64") - (reach - 1)
            if what == "index":
                return held(first + tap, of.extent, KERNEL)
            at = (first + t for t in range(2 * reach))
            weights = [weight(self.how, each, place, of, KERNEL) for each in at]
            return (weights[tap] / sum(weights[1:], start=weights[0])).astype("float32")

        def compute(of: Numbers) -> te.Tensor:
            return te.compute((of.outputs,), lambda i: element(i, of), name=what)

        return self.emit(what, compute)

    def emit(self, name: str, compute: Callable[..., te.Tensor], *others: Expr) -> Expr:
        """Emits a table that the program computes from the axis's numbers and other sizes."""

        def kernel(extents: list[Expr], vectors: list[te.Tensor], others: list[Expr]) -> te.Tensor:
            waiting = iter(vectors)

            def read(number: Number | None) -> Expr:
                if isinstance(number, Element):
                    return next(waiting)(index(number.position))
                if number is None:
                    least = te.max(extents[0], index(1)).astype("float32")
                    return extents[1].astype("float32") / least
                return KERNEL.float32(number)

            return compute(Numbers(*extents, *map(read, (self.scale, *self.region))), *others)

        extents = [self.before, self.after]
        return emit_alone(f"resize_{name}", kernel, extents, self.vectors, list(others))
