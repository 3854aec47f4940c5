"""Resizing along one axis: which elements each output element is made of, and their weights.

ONNX operators, "Resize": an output position x lies at a place of the input that depends on the
coordinate transformation; "nearest" takes one element there, "linear" two, "cubic" four (Keys,
"Cubic convolution interpolation for digital image processing", 1981), and antialiasing stretches
the filter by 1 / scale where that is more than 1. Places are computed in the types of ONNX Runtime
1.32: "nearest" depends on it. A place within 1e-6 of the middle between two elements is a tie.

Formulas stand here once: of NumPy's arrays if sizes are known, else of the expressions of a kernel
that computes the tables when the program runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from tvm import te, tirx

from ...expressions import Expr, cast, literal
from ..graph.kernels import emit_alone
from ..graph.sizes import index, same_size

TIE = 1e-6  # of ONNX Runtime: a scale in float32 puts places beside the middle
REACH = {"linear": 1, "cubic": 2}  # elements on each side
_OUTSIDE = 4.0  # elements from the edge, where a place is held that data decide


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
"""What formulas use of NumPy, for the expressions of a kernel."""


@dataclass(frozen=True)
class Numbers:
    """The numbers of an axis in formulas; scale and region are float32."""

    extent: Any
    outputs: Any
    scale: Any
    start: Any
    end: Any


def _place(how: Resizing, i: Any, of: Numbers, m: Any) -> Any:
    """Where an output lies in the input, float32; `m` is NumPy or `KERNEL`."""
    x, half, zero = m.float32(i), m.float32(0.5), m.float32(0)
    last, steps = m.float32(of.extent - 1), m.maximum(m.float32(of.outputs - 1), m.float32(1))
    centred = (x + half) / of.scale - half
    match how.coordinates:
        case "half_pixel":
            return centred
        case "half_pixel_symmetric":
            # The part of the last element that is cut off is taken from both ends.
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
    raise ValueError(f"unknown coordinate_transformation_mode {how.coordinates!r}")


def _nearest(how: Resizing, place: Any, of: Numbers, m: Any) -> Any:
    """The element that is nearest to a place."""
    below = m.floor(place)
    beyond = place - below - m.float32(0.5)  # the middle between two elements; exact
    match how.rounding:
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
    raise ValueError(f"unknown nearest_mode {how.rounding!r}")


def _weight(how: Resizing, at: Any, place: Any, of: Numbers, m: Any, is_widened: bool) -> Any:
    """Of an element, before all are divided by their sum; float64."""
    d = m.abs(m.float64(at) - m.float64(place))
    d = apart(d * narrowed(of, m), m) if is_widened else d
    one, zero = m.float64(1), m.float64(0)
    if how.mode == "linear":
        weight = m.maximum(zero, one - d)
    else:
        a = how.cubic_a
        near = apart((apart((a + 2) * d, m) - (a + 3)) * d * d, m) + one
        far = apart((apart((apart(a * d, m) - 5 * a) * d, m) + 8 * a) * d, m) - 4 * a
        weight = m.where(d <= one, near, m.where(d < 2 * one, far, zero))
    if how.exclude_outside:
        weight = m.where(m.logical_and(at >= 0, at < of.extent), weight, zero)
    return weight


def narrowed(of: Numbers, m: Any) -> Any:
    """What distances are multiplied by, where filters widen."""
    return m.float64(m.minimum(of.scale, m.float32(1)))


def held(at: Any, extent: Any, m: Any) -> Any:
    """An index inside an axis."""
    return m.maximum(m.minimum(at, extent - 1), m.int64(0))


def apart(product: Any, m: Any = KERNEL) -> Any:
    """A product that is rounded before it is added to: LLVM would make both one instruction."""
    return product if m is np else te.max(product, tirx.min_value(str(product.ty.dtype)))


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


def axis_taps(
    how: Resizing, extent: int, outputs: int, scale: float, region: tuple[float, float] = (0.0, 1.0)
) -> Taps:
    """The taps of an axis.

    Parameters
    ----------
    extent, outputs
        Elements before and after.
    scale
        As given; `outputs` is the integer part of `extent * scale`, or sizes were given.
    region
        Start and end of "tf_crop_and_resize", 0 to 1.
    """
    of = Numbers(extent, outputs, *map(np.float32, (scale, *region)))
    place = _place(how, np.arange(outputs), of, np)
    cropped = how.coordinates == "tf_crop_and_resize"
    inside = (place >= 0) & (place <= extent - 1) if cropped else np.ones(outputs, bool)
    if how.mode == "nearest":
        at = held(_nearest(how, place, of, np), extent, np)[:, None]
        return Taps(extent, at, np.ones(at.shape, np.float32), inside)
    reach = math.ceil(REACH[how.mode] / (min(scale, 1.0) if how.antialias else 1.0))
    first = np.floor(place).astype(np.int64) - reach + 1
    at = first[:, None] + np.arange(2 * reach)
    weight = _weight(how, at, place[:, None], of, np, how.antialias)
    # In this order, as a program does that makes tables of open sizes.
    weight /= functools.reduce(np.add, weight.T)[:, None]
    used = (weight != 0).any(0)
    return Taps(extent, held(at, extent, np)[:, used], weight[:, used].astype(np.float32), inside)


@dataclass(frozen=True)
class Element:
    """A number that the program reads: one of a vector of float32."""

    vector: Expr
    position: int


Number = float | Element


@dataclass(frozen=True)
class Axis:
    """One axis of an image. A scale and a region may be numbers, or found when the program runs.

    Attributes
    ----------
    how : Resizing
    before, after : Expr
        Its extents.
    scale : Number, optional
        What is given; if nothing is, the quotient of the extents.
    region : tuple of Number
        Start and end of "tf_crop_and_resize", 0 to 1.
    """

    how: Resizing
    before: Expr
    after: Expr
    scale: Number | None = 1.0
    region: tuple[Number, Number] = (0.0, 1.0)

    @functools.cached_property
    def taps(self) -> Taps | None:
        """Its taps, if all numbers are known."""
        (start, end), scale = self.region, self.scale
        if isinstance(start, Element) or isinstance(end, Element) or isinstance(scale, Element):
            return None
        if not isinstance(self.before, tirx.IntImm) or not isinstance(self.after, tirx.IntImm):
            return None
        before, after = int(self.before), int(self.after)
        ratio = float(np.float32(after) / np.float32(max(before, 1)))
        return axis_taps(self.how, before, after, ratio if scale is None else scale, (start, end))

    @property
    def is_same(self) -> bool:
        """Whether every element stays as it is, and all do."""
        if self.taps is not None:
            return self.taps.is_identity
        return same_size(self.before, self.after) and self.region == (0.0, 1.0)

    @property
    def is_choice(self) -> bool:
        """Whether every element is one of the input."""
        nearest = self.how.mode == "nearest"
        return nearest or (self.taps is not None and self.taps.index.shape[1] == 1)

    @property
    def is_whole(self) -> bool:
        """Whether it is stretched by a known whole factor."""
        return isinstance(self.scale, float) and self.scale.is_integer()

    @property
    def is_quotient(self) -> bool:
        """Whether the scale of an axis of known extents is their quotient."""
        before, after, scale = int(self.before), int(self.after), self.scale
        return isinstance(scale, float) and math.isclose(before * scale, after, rel_tol=1e-6)

    @property
    def wants_filter(self) -> bool:
        """Whether filters of an open axis are or may be wider than without antialiasing, or a
        region is read."""
        if self.taps is not None or self.how.mode == "nearest":
            return False
        widened = self.how.antialias and not (isinstance(self.scale, float) and self.scale >= 1)
        return widened or any(isinstance(number, Element) for number in self.region)

    def tables(self, dtype: str) -> list[tuple[Expr, Expr | None]]:
        """The index and the weight of each tap, of all outputs; no weight if it is a choice."""
        if self.is_choice:
            chosen = self._table("index") if self.taps is None else literal(self.taps.index[:, 0])
            return [(chosen, None)]
        if self.taps is not None:
            columns = zip(self.taps.index.T, self.taps.weight.T, strict=True)
            return [(literal(at), literal(weight.astype(dtype))) for at, weight in columns]
        taps = range(2 * REACH[self.how.mode])
        places = [self._table("index", tap) for tap in taps]
        return [(at, cast(self._table("weight", tap), dtype)) for tap, at in enumerate(places)]

    def inside(self) -> Expr:
        """Which outputs lie inside of the input."""
        return self._table("inside") if self.taps is None else literal(self.taps.inside)

    def place(self, i: Expr, of: Numbers) -> Expr:
        """Where an output lies in the input, in a kernel; near it at least, where data decide."""
        place = _place(self.how, i, of, KERNEL)
        if not any(isinstance(number, Element) for number in self.region):
            return place
        # Also of NaN: it becomes an index.
        last = of.extent.astype("float32") + KERNEL.float32(_OUTSIDE)
        return te.max(te.min(place, last), KERNEL.float32(-_OUTSIDE))

    def weight(self, at: Expr, place: Expr, of: Numbers, is_widened: bool = False) -> Expr:
        """The weight of an element in a kernel, before all are divided by their sum."""
        return _weight(self.how, at, place, of, KERNEL, is_widened)

    def _table(self, what: str, tap: int = 0) -> Expr:
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
            weights = [self.weight(first + t, place, of) for t in range(2 * reach)]
            return (weights[tap] / sum(weights[1:], start=weights[0])).astype("float32")

        def compute(of: Numbers) -> te.Tensor:
            return te.compute((of.outputs,), lambda i: element(i, of), name=what)

        return self.emit(what, compute)

    def emit(self, name: str, compute: Callable[..., te.Tensor], *others: Expr) -> Expr:
        """A table that the program computes of the numbers of the axis, and of more sizes."""
        vectors = [n.vector for n in (self.scale, *self.region) if isinstance(n, Element)]

        def kernel(extents: list[Expr], vectors: list[te.Tensor], others: list[Expr]) -> te.Tensor:
            extent, outputs = extents
            waiting = iter(vectors)

            def read(number: Number | None) -> Expr:
                if isinstance(number, Element):
                    return next(waiting)(index(number.position))
                if number is None:
                    least = te.max(extent, index(1)).astype("float32")
                    return outputs.astype("float32") / least
                return KERNEL.float32(number)

            numbers = map(read, (self.scale, *self.region))
            return compute(Numbers(extent, outputs, *numbers), *others)

        extents = [self.before, self.after]
        return emit_alone(f"resize_{name}", kernel, extents, vectors, list(others))
