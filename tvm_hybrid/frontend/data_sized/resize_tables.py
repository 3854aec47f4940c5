"""Resizing along an axis of open extent: which elements an output is made of, and their weights.

Tables that the program computes when it runs. `resize_taps` has the same for known sizes, and says
where the formulas come from.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol

from tvm import relax, te, tirx

from relay_passes.tvm_compat import OP_PATTERN, OPAQUE

from ..expressions import Expr
from .kernels import index

_REACH = {"linear": 1, "cubic": 2}  # elements on each side


class Resizing(Protocol):
    """What the attributes say."""

    @property
    def mode(self) -> str:
        """Such as "nearest"."""

    @property
    def coordinates(self) -> str:
        """The coordinate transformation mode."""

    @property
    def rounding(self) -> str:
        """The nearest mode."""

    @property
    def cubic_a(self) -> float:
        """The coefficient of Keys's cubic."""

    @property
    def exclude_outside(self) -> bool:
        """Whether weights of elements outside are shared out among the others."""

    @property
    def antialias(self) -> bool:
        """Whether filters widen."""


class Table:
    """Which elements an output along an axis is made of, and their weights.

    Places are computed in float32, as ONNX Runtime does.
    """

    def __init__(self, how: Resizing, extent: Expr, outputs: Expr, factor: Fraction | None) -> None:
        self._how, self._extent, self._outputs, self._factor = how, extent, outputs, factor
        if how.mode != "nearest" and how.mode not in _REACH:
            raise ValueError(f"unknown mode {how.mode!r}")
        self.taps = 1 if how.mode == "nearest" else 2 * _REACH[how.mode]

    def emit(self, builder: relax.BlockBuilder, what: str, tap: int) -> Expr:
        """The int64 indices or the float32 weights of a tap, of all outputs."""

        def compute(sizes: list[Expr]) -> te.Tensor:
            extent, outputs = sizes

            def element(i: Expr) -> Expr:
                place = self._place(i, extent, outputs)
                if self._how.mode == "nearest":
                    return _held(self._nearest(place, extent, outputs), extent)
                first = te.floor(place).astype("int64") - (_REACH[self._how.mode] - 1)
                if what == "index":
                    return _held(first + tap, extent)
                weights = [self._weight(first + t, place, extent) for t in range(self.taps)]
                return (weights[tap] / sum(weights[1:], start=weights[0])).astype("float32")

            return te.compute((outputs,), element, name=what)

        sizes = [self._extent, self._outputs]
        # By itself: in one kernel with what reads it, it would be computed for every element.
        return builder.emit_te(
            compute, sizes, primfunc_name_hint=f"resize_{what}", primfunc_attrs={OP_PATTERN: OPAQUE}
        )

    def _place(self, i: Expr, extent: Expr, outputs: Expr) -> Expr:
        """Where an output lies in the input; `resize_taps` has the same for known sizes."""
        x, half, zero = i.astype("float32"), _f32(0.5), _f32(0)
        scale = self._scale(extent, outputs)
        last, last_output = (extent - 1).astype("float32"), (outputs - 1).astype("float32")
        centred = (x + half) / scale - half
        match self._how.coordinates:
            case "half_pixel":
                return centred
            case "half_pixel_symmetric":
                cut = outputs.astype("float32") / (scale * extent.astype("float32"))
                moved = extent.astype("float32") * half * (_f32(1) - cut)
                return moved + (x + half) / scale - half
            case "pytorch_half_pixel":
                return tirx.Select(outputs > 1, centred, zero)
            case "align_corners":
                steps = te.max(last_output, _f32(1))
                return tirx.Select(outputs > 1, x * last / steps, zero)
            case "asymmetric":
                return x / scale
            case "tf_half_pixel_for_nn":
                return (x + half) / scale
        raise ValueError(f"unknown coordinate_transformation_mode {self._how.coordinates!r}")

    def _scale(self, extent: Expr, outputs: Expr) -> Expr:
        if self._factor is not None:
            return _f32(float(self._factor))
        return outputs.astype("float32") / te.max(extent, index(1)).astype("float32")

    def _nearest(self, place: Expr, extent: Expr, outputs: Expr) -> Expr:
        half = _f32(0.5)
        match self._how.rounding:
            case "round_prefer_floor":
                return te.ceil(place - half).astype("int64")
            case "round_prefer_ceil":
                return te.floor(place + half).astype("int64")
            case "floor":
                return te.floor(place).astype("int64")
            case "ceil":
                return te.ceil(place).astype("int64")
            case "simple":  # of opset 10 in ONNX Runtime
                shorter = outputs < extent
                return tirx.Select(shorter, te.ceil(place), te.floor(place)).astype("int64")
        raise ValueError(f"unknown nearest_mode {self._how.rounding!r}")

    def _weight(self, at: Expr, place: Expr, extent: Expr) -> Expr:
        """Of an element, before all are divided by their sum; float64."""
        d = te.abs(at.astype("float64") - place.astype("float64"))
        one, zero = tirx.const(1, "float64"), tirx.const(0, "float64")
        if self._how.mode == "linear":
            weight = te.max(zero, one - d)
        else:
            a = self._how.cubic_a
            near = ((a + 2) * d - (a + 3)) * d * d + one
            far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
            weight = tirx.Select(d <= one, near, tirx.Select(d < 2 * one, far, zero))
        if self._how.exclude_outside:
            inside = tirx.all(at >= index(0), at < extent)
            weight = tirx.Select(inside, weight, zero)
        return weight


def _f32(value: float) -> Expr:
    return tirx.const(value, "float32")


def _held(at: Expr, extent: Expr) -> Expr:
    return te.max(te.min(at, extent - 1), index(0))
