"""The axes of an image of open sizes that is resized: their extents, scales and regions.

sizes that are numbers or follow from others, scales that are fractions    ->    expressions
others: what data decide, one scale for all axes, 0.3137, 4.2              ->    sizes that a
                                                              kernel finds when the program runs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import te, tirx

from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE

from ...expressions import Attrs, Expr, Inputs, cast, constant, emit_te, known_dims
from .pads import known_parts
from .requests import check
from .resize_taps import TIE, Resizing
from .sizes import INDEX, dims_of, emit_kernel, index, put, same_size, simplified, sizes_in

LARGEST_DENOMINATOR = 64
LARGEST_EXTENT = 1 << 16  # of the extents that a fraction is tried on


def resized_axes(inputs: Inputs, attrs: Attrs, how: Resizing) -> list[Axis]:
    """All axes of inputs x, roi, scales and sizes, of which some are absent or empty.

    Raises
    ------
    ValueError
        There are more or fewer numbers than axes.
    """
    before = dims_of(inputs[0])
    places = [int(axis) % len(before) for axis in attrs.get("axes", range(len(before)))]
    cropped = how.coordinates == "tf_crop_and_resize"
    regions = _regions(_vector(inputs, 1), len(places)) if cropped else None
    extents = [before[place] for place in places]
    sizes, scales = _vector(inputs, 3), _vector(inputs, 2)
    wanted = scales if sizes is None else sizes
    if wanted is None:
        raise ValueError("it has neither scales nor sizes")
    if known_dims(wanted) != (len(places),):
        raise ValueError(f"it has {known_dims(wanted)} scales or sizes for {len(places)} axes")
    if sizes is None:
        pairs = _by_scales(wanted, extents, how)
    else:
        policy = attrs.get("keep_aspect_ratio_policy", "stretch")
        pairs = _by_sizes(wanted, extents, policy)
    found = [Axis(extent, extent) for extent in before]
    for number, (place, (after, scale)) in enumerate(zip(places, pairs, strict=True)):
        region = (0.0, 1.0) if regions is None else regions[number]
        found[place] = Axis(before[place], after, scale, region)
    return found


def _vector(inputs: Sequence[Any], position: int) -> Expr | None:
    """An input, if it is there and has elements."""
    value = inputs[position]
    return None if value is None or 0 in known_dims(value) else value


def _regions(region: Expr | None, count: int) -> list[tuple[Number, Number]] | None:
    if region is None:
        return None
    (size,) = known_dims(region)
    if size != 2 * count:
        raise ValueError(f"its roi has {size} numbers for {count} axes")
    array = constant(region)
    if array is not None:
        numbers: list[Number] = [float(each) for each in array.astype(np.float32)]
    else:
        vector = cast(region, "float32")
        numbers = [Element(vector, place) for place in range(size)]
    return list(zip(numbers[:count], numbers[count:], strict=True))


def _by_scales(
    scales: Expr, extents: list[Expr], how: Resizing
) -> list[tuple[Expr, Number | None]]:
    """Extents and scales; a kernel finds those that are no fractions of small numbers."""
    # What align_corners means else, ONNX and ONNX Runtime see differently.
    whole = how.coordinates == "align_corners"
    factors = [_fraction(part) for part in known_parts(scales)]
    found = sizes_by_scales(scales, extents, whole) if None in factors else []
    pairs: list[tuple[Expr, Number | None]] = []
    for axis, (factor, extent) in enumerate(zip(factors, extents, strict=True)):
        if factor is None:
            pairs.append(found[axis])
            continue
        product = extent * index(factor.numerator)
        if whole:
            rest = tirx.floormod(product, index(factor.denominator))
            check(tirx.EQ(rest, index(0)), "align_corners by scales to no whole sizes")
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


def _by_sizes(sizes: Expr, extents: list[Expr], policy: str) -> list[tuple[Expr, Number | None]]:
    """Extents, and scales where they do not follow from the extents."""
    parts = known_parts(sizes) if policy == "stretch" else [None] * len(extents)
    found = sizes_as_asked(sizes, extents, policy) if None in parts else []
    pairs: list[tuple[Expr, Number | None]] = []
    for axis, (part, extent) in enumerate(zip(parts, extents, strict=True)):
        if part is None:
            pairs.append(found[axis])
            continue
        after = index(part) if isinstance(part, int) else part
        pairs.append((after, 1.0 if same_size(extent, after) else None))
    return pairs


# Resizing along an axis of open extent: which elements an output is made of, and their weights.
#
# Tables that the program computes when it runs. `resize_taps` has the same for known sizes, and
# says where the formulas come from.


REACH = {"linear": 1, "cubic": 2}  # elements on each side
_OUTSIDE = 4.0  # elements from the edge, where a place is held that data decide


class Table:
    """Which elements an output along an axis is made of, and their weights."""

    def __init__(self, how: Resizing, axis: Axis) -> None:
        self.how, self.axis = how, axis
        if how.mode != "nearest" and how.mode not in REACH:
            raise ValueError(f"unknown mode {how.mode!r}")
        self.taps = 1 if how.mode == "nearest" else 2 * REACH[how.mode]

    def emit(self, what: str, tap: int = 0) -> Expr:
        """The int64 indices ("index") or the float32 weights ("weight") of a tap, of all outputs;
        or which of them lie "inside" of the input."""

        def compute(numbers: Numbers, _: list[Expr]) -> te.Tensor:
            def element(i: Expr) -> Expr:
                if what == "inside":
                    place = self._raw_place(i, numbers)
                    last = (numbers.extent - 1).astype("float32")
                    return tirx.all(place >= f32(0), place <= last)
                place = self.place(i, numbers)
                if self.how.mode == "nearest":
                    return held(self._nearest(place, numbers), numbers.extent)
                first = te.floor(place).astype("int64") - (REACH[self.how.mode] - 1)
                if what == "index":
                    return held(first + tap, numbers.extent)
                weights = [
                    weight_of(self.how, first + t, place, numbers.extent) for t in range(self.taps)
                ]
                return (weights[tap] / sum(weights[1:], start=weights[0])).astype("float32")

            return te.compute((numbers.outputs,), element, name=what)

        return emit_table(self.axis, what, compute)

    def place(self, i: Expr, numbers: Numbers) -> Expr:
        """Where an output lies in the input; near it at least, where data decide."""
        place = self._raw_place(i, numbers)
        if not any(isinstance(number, Element) for number in self.axis.region):
            return place
        # Also of NaN: it becomes an index.
        last = numbers.extent.astype("float32") + f32(_OUTSIDE)
        return te.max(te.min(place, last), f32(-_OUTSIDE))

    def _raw_place(self, i: Expr, numbers: Numbers) -> Expr:
        """`resize_taps` has the same for known sizes."""
        extent, outputs, scale = numbers.extent, numbers.outputs, numbers.scale
        x, half, zero = i.astype("float32"), f32(0.5), f32(0)
        last, last_output = (extent - 1).astype("float32"), (outputs - 1).astype("float32")
        steps = te.max(last_output, f32(1))
        centred = (x + half) / scale - half
        match self.how.coordinates:
            case "half_pixel":
                return centred
            case "half_pixel_symmetric":
                cut = outputs.astype("float32") / (scale * extent.astype("float32"))
                moved = extent.astype("float32") * half * (f32(1) - cut)
                wide = (x + half).astype("float64") / scale.astype("float64")
                return (moved.astype("float64") + wide - 0.5).astype("float32")
            case "pytorch_half_pixel":
                return tirx.Select(outputs > 1, centred, zero)
            case "align_corners":
                return tirx.Select(outputs > 1, x * last / steps, zero)
            case "asymmetric":
                return x / scale
            case "tf_half_pixel_for_nn":
                return tirx.Select(tirx.EQ(scale, f32(1)), x, (x + half) / scale)
            case "tf_crop_and_resize":
                start, end = numbers.start, numbers.end
                stretched = apart(start * last) + x * (end - start) * last / steps
                return tirx.Select(outputs > 1, stretched, half * (start + end) * last)
        raise ValueError(f"unknown coordinate_transformation_mode {self.how.coordinates!r}")

    def _nearest(self, place: Expr, numbers: Numbers) -> Expr:
        below = te.floor(place)
        beyond = place - below - f32(0.5)  # the middle between two elements
        match self.how.rounding:
            case "round_prefer_floor":
                return below.astype("int64") + (beyond > f32(TIE)).astype("int64")
            case "round_prefer_ceil":
                return below.astype("int64") + (beyond >= f32(-TIE)).astype("int64")
            case "floor":
                return te.floor(place).astype("int64")
            case "ceil":
                return te.ceil(place).astype("int64")
            case "simple":  # of opset 10 in ONNX Runtime
                shorter = numbers.outputs < numbers.extent
                return tirx.Select(shorter, te.ceil(place), te.floor(place)).astype("int64")
        raise ValueError(f"unknown nearest_mode {self.how.rounding!r}")


def weight_of(
    how: Resizing, at: Expr, place: Expr, extent: Expr, narrowed: Expr | None = None
) -> Expr:
    """Of an element, before all are divided by their sum; float64.

    Parameters
    ----------
    narrowed
        What distances are multiplied by, where a filter is widened.
    """
    d = te.abs(at.astype("float64") - place.astype("float64"))
    d = d if narrowed is None else apart(d * narrowed)
    one, zero = tirx.const(1, "float64"), tirx.const(0, "float64")
    if how.mode == "linear":
        weight = te.max(zero, one - d)
    else:
        a = how.cubic_a
        near = apart((apart((a + 2) * d) - (a + 3)) * d * d) + one
        far = apart((apart((apart(a * d) - 5 * a) * d) + 8 * a) * d) - 4 * a
        weight = tirx.Select(d <= one, near, tirx.Select(d < 2 * one, far, zero))
    if how.exclude_outside:
        inside = tirx.all(at >= index(0), at < extent)
        weight = tirx.Select(inside, weight, zero)
    return weight


def held(at: Expr, extent: Expr) -> Expr:
    """An index inside an axis."""
    return te.max(te.min(at, extent - 1), index(0))


# Sizes of a resized image that the program finds, and the scales that belong to them.
#
#     scales            int(extent * scale), in float32
#     sizes             as they are, and their quotients
#     one scale         the smallest or largest quotient, and int(extent * it + 0.5)
#
# Extents that make no sense are refused when the program runs.


MOST = 1 << 31  # elements; more would be taken for a mistake: memory has to hold them

# Whether it makes sense, the extent and the scale of an axis: of what is asked for, the axis and
# all extents.
Rule = Callable[[Expr, int, list[Expr]], tuple[Expr, Expr, Expr]]


def sizes_by_scales(scales: Expr, extents: list[Expr], whole: bool) -> list[tuple[Expr, Element]]:
    """Extents and scales of all axes.

    Parameters
    ----------
    whole
        Whether scales have to give whole sizes.
    """

    def rule(asked: Expr, axis: int, extents: list[Expr]) -> tuple[Expr, Expr, Expr]:
        exact = extents[axis].astype("float32") * asked[axis]
        fits = tirx.all(asked[axis] > f32(0), exact < f32(MOST))
        if whole:
            fits = tirx.all(fits, exact - te.floor(exact) <= exact * f32(1e-6))
        return fits, exact.astype(INDEX), asked[axis]

    return _found(cast(scales, "float32"), extents, rule)


def sizes_as_asked(sizes: Expr, extents: list[Expr], policy: str) -> list[tuple[Expr, Element]]:
    """Extents and scales of all axes, by keep_aspect_ratio_policy."""
    if policy not in ("stretch", "not_larger", "not_smaller"):
        raise ValueError(f"unknown keep_aspect_ratio_policy {policy!r}")

    def rule(asked: Expr, axis: int, extents: list[Expr]) -> tuple[Expr, Expr, Expr]:
        ratios = [
            asked[place].astype("float32") / te.max(extent, index(1)).astype("float32")
            for place, extent in enumerate(extents)
        ]
        fits = tirx.all(asked[axis] >= 0, asked[axis] < index(MOST))
        if policy == "stretch":
            return fits, asked[axis], ratios[axis]
        one = ratios[0]
        for ratio in ratios[1:]:
            one = (te.min if policy == "not_larger" else te.max)(one, ratio)
        exact = one.astype("float64") * extents[axis].astype("float64")
        exact = te.floor(exact + tirx.const(0.5, "float64"))
        fits = tirx.all(fits, exact < tirx.const(MOST, "float64"))
        return fits, exact.astype(INDEX), one

    return _found(cast(sizes, INDEX), extents, rule)


def _found(asked: Expr, extents: list[Expr], rule: Rule) -> list[tuple[Expr, Element]]:
    def body(ins: list[Expr], outs: list[Expr], *extents: Expr) -> None:
        (asked,), (sizes, scales) = ins, outs
        put(sizes, index(1))
        for axis in range(len(extents)):
            fits, size, scale = rule(asked, axis, list(extents))
            put(scales, scale, axis)
            put(sizes, tirx.if_then_else(fits, size, index(0)), axis + 1)
            # Not `if not fits`, which TVM takes for true of NaN's comparisons.
            put(sizes, tirx.Select(fits, sizes[0], index(0)))

    count = len(extents)
    results = [([count + 1], INDEX), ([count], "float32")]
    sizes, scales = emit_kernel("resized_sizes", [asked], results, body, extents)
    found = sizes_in(sizes)
    return [(size, Element(scales, axis)) for axis, size in enumerate(found)]


# What is known of one axis of an image that is resized, and the tables that a program makes of it.
#
# A scale and a region may be numbers or, where the program computes or reads them, elements of
# vectors.


@dataclass(frozen=True)
class Element:
    """A number that the program reads: one of a vector of float32."""

    vector: Expr
    position: int


Number = float | Element


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes
    ----------
    before, after : Expr
        Its extents.
    scale : Number, optional
        What is given; if nothing is, the quotient of the extents.
    region : tuple of Number
        Start and end of "tf_crop_and_resize", 0 to 1.
    """

    before: Expr
    after: Expr
    scale: Number | None = 1.0
    region: tuple[Number, Number] = (0.0, 1.0)

    @property
    def is_same(self) -> bool:
        """Whether every element stays as it is, and all do."""
        return same_size(self.before, self.after) and self.region == (0.0, 1.0)

    @property
    def is_whole(self) -> bool:
        """Whether it is stretched by a known whole factor."""
        return isinstance(self.scale, float) and self.scale.is_integer()

    @property
    def known(self) -> tuple[int, int, float, tuple[float, float]] | None:
        """Extents, scale and region, if all of them are numbers."""
        start, end = self.region
        if isinstance(start, Element) or isinstance(end, Element):
            return None
        if isinstance(self.scale, Element):
            return None
        if not isinstance(self.before, tirx.IntImm) or not isinstance(self.after, tirx.IntImm):
            return None
        before, after = int(self.before), int(self.after)
        ratio = float(np.float32(after) / np.float32(max(before, 1)))
        return before, after, ratio if self.scale is None else self.scale, (start, end)


@dataclass(frozen=True)
class Numbers:
    """The numbers of an axis in a kernel; scale and region are float32."""

    extent: Expr
    outputs: Expr
    scale: Expr
    start: Expr
    end: Expr


def emit_table(
    axis: Axis,
    name: str,
    compute: Callable[[Numbers, list[Expr]], te.Tensor],
    others: list[Expr] | None = None,
) -> Expr:
    """A table that the program computes.

    Parameters
    ----------
    compute
        Gets the axis's numbers, and the others.
    others
        More sizes.
    """
    numbers = [axis.scale, *axis.region]
    vectors = [each.vector for each in numbers if isinstance(each, Element)]

    def kernel(extents: list[Expr], vectors: list[te.Tensor], others: list[Expr]) -> te.Tensor:
        extent, outputs = extents
        waiting = iter(vectors)

        def read(number: Number) -> Expr:
            if isinstance(number, Element):
                return next(waiting)(index(number.position))
            return f32(number)

        scale = _quotient(extent, outputs) if axis.scale is None else read(axis.scale)
        start, end = map(read, axis.region)
        return compute(Numbers(extent, outputs, scale, start, end), others)

    # By itself: in one kernel with what reads it, it would be computed for every element.
    return emit_te(
        kernel,
        [axis.before, axis.after],
        vectors,
        others or [],
        primfunc_name_hint=f"resize_{name}",
        primfunc_attrs={OP_PATTERN: OPAQUE},
    )


def f32(value: float) -> Expr:
    """A constant."""
    return tirx.const(value, "float32")


def apart(product: Expr) -> Expr:
    """A product that is rounded before it is added to: LLVM would make both one instruction."""
    return te.max(product, tirx.min_value(str(product.ty.dtype)))


def _quotient(extent: Expr, outputs: Expr) -> Expr:
    return outputs.astype("float32") / te.max(extent, index(1)).astype("float32")
