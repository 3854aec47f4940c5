"""Interpolated integers of dynamic images have the bits that static sizes give.

Each product and each sum is rounded once, in tap order; the result is rounded half to even.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession
from tvm_hybrid.errors import FeedError
from tvm_hybrid.frontend.onnx.ops.resize_taps import Resizing, axis_taps

from .models import one_program
from .test_dynamic_resize import Form

pytestmark = pytest.mark.turns

# Extents before and after; `Form` of "another" image goes to these.
SIZES = [((17, 12), (11, 30)), ((1, 2), (5, 3)), ((33, 7), (12, 100)), ((9, 9), (9, 1))]
MODES = [("linear", 0), ("linear", 1), ("cubic", 0), ("cubic", 1)]


def image(*shape: int, dtype: type = np.uint8) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    return np.random.default_rng(shape[-1]).integers(limits.min, limits.max, shape, dtype)


def recomputed(x: NDArray[Any], how: Resizing, after: tuple[int, int]) -> NDArray[Any]:
    """The result in the floats of `resize_taps`, by single NumPy operations."""
    value = x.astype(np.float32 if x.itemsize <= 2 else np.float64)
    for axis, outputs in zip((2, 3), after, strict=True):
        extent = x.shape[axis]
        if extent != outputs:
            taps = axis_taps(how, extent, outputs, float(np.float32(outputs) / np.float32(extent)))
            shape = (-1, *[1] * (3 - axis))
            parts = [
                value.take(index, axis) * weight.astype(value.dtype).reshape(shape)
                for index, weight in zip(taps.index.T, taps.weight.T, strict=True)
            ]
            value = sum(parts[1:], start=parts[0])
    limits = np.iinfo(x.dtype)
    return np.rint(value).clip(limits.min, limits.max).astype(x.dtype)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32])
@pytest.mark.parametrize(("mode", "antialias"), MODES)
def test_to_the_extents_of_another(mode: str, antialias: int, dtype: type) -> None:
    session = one_program(Form("another", dtype=dtype).model(mode, antialias=antialias))
    how = Resizing(mode, antialias=bool(antialias))
    for before, after in SIZES:
        feeds = {"x": image(2, 2, *before, dtype=dtype), "other": np.zeros(after, np.float32)}
        (found,) = session.run(None, feeds)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, recomputed(feeds["x"], how, after))


FORMS: dict[str, tuple[Form, dict[str, Any]]] = {
    "fractions": (Form("up and down"), {}),
    "no fractions": (Form("no fractions"), {"mode": "cubic"}),
    "sizes of data": (Form("sizes of data"), {"antialias": 1}),
    "scales of data": (Form("scales of data"), {}),
    "one scale": (Form("not_larger"), {"antialias": 1}),
    "numbers": (Form("numbers"), {"exclude_outside": 1}),
    "cropped": (Form("another", "constant"), {}),
    "cropped, read": (Form("another", "input"), {}),
    "known extents": (Form("numbers", "input", ("n", 2, 7, 5)), {"mode": "cubic"}),
    "antialiased": (Form("halves"), {"antialias": 1}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", FORMS)
def test_results_are_those_of_static_sizes(name: str) -> None:
    form, attributes = FORMS[name]
    form.dtype = np.uint8
    model = form.model(**{"mode": "linear", **attributes})
    feeds = form.feeds(model, (2, 7, 5))
    feeds["x"] = image(2, 2, 7, 5)
    (found,) = one_program(model).run(None, feeds)
    # Regions and sizes that are data are inputs here, and constants in the static program.
    constants = {key: value for key, value in feeds.items() if key in ("region", "data")}
    known = with_constants(model, constants)
    shapes = {key: value.shape for key, value in feeds.items() if key not in constants}
    static = InferenceSession(known, shapes=shapes, num_threads=1)
    (wanted,) = static.run(None, {key: feeds[key] for key in shapes})
    np.testing.assert_array_equal(found, wanted)


def with_constants(model: onnx.ModelProto, values: dict[str, NDArray[Any]]) -> onnx.ModelProto:
    """The model with some inputs replaced by constants."""
    known = onnx.ModelProto.FromString(model.SerializeToString())
    left = [item for item in known.graph.input if item.name not in values]
    del known.graph.input[:]
    known.graph.input.extend(left)
    for name, value in values.items():
        known.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return known


@pytest.mark.parametrize(("scale", "mode"), [(0.25, "linear"), (0.02, "cubic")])
def test_filters_of_many_elements(scale: float, mode: str) -> None:
    """Unrolled sums, and sums that need a loop."""
    build = OnnxBuilder(19)
    x, scales = build.input("x", ["h", 4], np.uint8), build.constant([scale, 1], np.float32)
    build.output(build.node("Resize", x, "", scales, mode=mode, antialias=1), None, np.uint8)
    session, how = one_program(build.model()), Resizing(mode, antialias=True)
    for height in (100, 357):
        value = image(height, 4)
        taps = axis_taps(how, height, int(np.float32(height) * np.float32(scale)), scale)
        total = np.zeros((len(taps.index), 4), np.float32)
        for index, weight in zip(taps.index.T, taps.weight.T, strict=True):
            total += value[index].astype(np.float32) * weight[:, None]
        wanted = np.rint(total).clip(0, 255)
        np.testing.assert_array_equal(session.run(None, {"x": value})[0], wanted)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_rounding_is_that_of_onnx(mode: str) -> None:
    """Scales with exact weights and sums, and results halfway between two integers."""
    build = OnnxBuilder(19)
    x = build.input("x", ["n", 1, "h", "w"], np.uint8)
    scales = build.constant([1, 1, 1, 0.5], np.float32)
    build.output(build.node("Resize", x, "", scales, mode=mode), None, np.uint8)
    session, peer = one_program(build.model()), ReferenceEvaluator(build.model())
    for shape in ((1, 1, 5, 8), (2, 1, 3, 4), (1, 1, 1, 2)):
        feeds = {"x": image(*shape)}
        (found,), (wanted,) = session.run(None, feeds), peer.run(None, feeds)
        np.testing.assert_array_equal(found, wanted)


def test_no_images_and_no_elements() -> None:
    form = Form("another", dtype=np.uint8)
    session = one_program(form.model("linear", antialias=1))
    other = np.zeros((5, 3), np.float32)
    assert session.run(None, {"x": image(0, 2, 4, 8), "other": other})[0].shape == (0, 2, 5, 3)
    with pytest.raises(FeedError):
        session.run(None, {"x": image(1, 2, 0, 8), "other": other})


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("coordinates", "exclude"),
    [("half_pixel_symmetric", 1), ("align_corners", 0), ("half_pixel", 0)],
)
@pytest.mark.parametrize(("mode", "antialias"), MODES)
def test_weights_are_those_of_known_sizes(
    mode: str, antialias: int, coordinates: str, exclude: int
) -> None:
    """Images of one 1 and zeros give the weights in float64, exact to the last bit."""
    build = OnnxBuilder(19)
    x, other = build.input("x", ["h", "w"], np.float64), build.input("other", ["p"])
    sizes = build.node("Concat", build.node("Shape", other), build.node("Shape", x, start=1),
                       axis=0)  # fmt: skip
    form = {"coordinate_transformation_mode": coordinates, "exclude_outside": exclude}
    resized = build.node("Resize", x, "", "", sizes, mode=mode, antialias=antialias, **form)
    build.output(resized, None, np.float64)
    session = one_program(build.model())
    how = Resizing(mode, coordinates, exclude_outside=bool(exclude), antialias=bool(antialias))
    for extent in (1, 5, 17, 33, 100):
        for outputs in (1, 3, 20, 77, 150):
            scale = float(np.float32(outputs) / np.float32(extent))
            taps = axis_taps(how, extent, outputs, scale)
            wanted = np.zeros((outputs, extent))
            for index, weight in zip(taps.index.T, taps.weight.T, strict=True):
                wanted[np.arange(outputs), index] += weight
            feeds = {"x": np.eye(extent), "other": np.zeros(outputs, np.float32)}
            np.testing.assert_array_equal(session.run(None, feeds)[0], wanted)
