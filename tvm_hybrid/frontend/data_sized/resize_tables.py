"""Resizing along an axis of open extent: which elements an output is made of, and their weights.

Tables that the program computes when it runs. `resize_taps` has the same for known sizes, and says
where the formulas come from.
"""

from __future__ import annotations

from tvm import relax, te, tirx

from ..expressions import Expr
from ..resize_taps import TIE, Resizing
from .kernels import index
from .resize_axis import Axis, Element, Numbers, apart, emit_table, f32

REACH = {"linear": 1, "cubic": 2}  # elements on each side
_OUTSIDE = 4.0  # elements from the edge, where a place is held that data decide


class Table:
    """Which elements an output along an axis is made of, and their weights."""

    def __init__(self, how: Resizing, axis: Axis) -> None:
        self.how, self.axis = how, axis
        if how.mode != "nearest" and how.mode not in REACH:
            raise ValueError(f"unknown mode {how.mode!r}")
        self.taps = 1 if how.mode == "nearest" else 2 * REACH[how.mode]

    def emit(self, builder: relax.BlockBuilder, what: str, tap: int = 0) -> Expr:
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

        return emit_table(builder, self.axis, what, compute)

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
