"""Windows over dynamic images, and back: indices of maxima, MaxUnpool, Col2Im."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import FeedError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import one_program, random

pytestmark = pytest.mark.turns


def pooled(**window: Any) -> onnx.ModelProto:
    build = OnnxBuilder()
    x = build.input("x", ["n", 2, "height", "width"])
    values, places = build.nodes("MaxPool", 2, x, **window)
    build.output(values, None)
    build.output(places, None, np.int64)
    return build.model()


@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "storage_order": 1},
        {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ],
)
def test_places_of_maxima(window: dict[str, Any]) -> None:
    """Many elements are equal: the first maximum is selected."""
    model = pooled(**window)
    session, peer = one_program(model), literal_session(model)
    for shape in ((1, 2, 3, 3), (3, 2, 5, 6), (2, 2, 8, 3)):
        feeds = {"x": np.random.default_rng(0).integers(0, 4, shape).astype(np.float32)}
        for got, wanted in zip(session.run(None, feeds), peer.run(None, feeds), strict=True):
            np.testing.assert_array_equal(got, wanted)
    for empty in ((0, 2, 5, 6), (1, 2, 0, 6)):
        for got in session.run(None, {"x": np.zeros(empty, np.float32)}):
            assert got.size == 0


def test_padding_of_dynamic_extents_is_not_known() -> None:
    model = pooled(kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")
    with pytest.raises(UnsupportedOperatorError, match=r"MaxPool0.*depend on a dynamic extent"):
        import_onnx(model, keep_dynamic=True)


@pytest.mark.parametrize("asked", ["nothing", "the image", "two more"])
def test_pooling_and_back(asked: str) -> None:
    """The indices refer to an image without padding; `output_shape` adds at its end."""
    build, window = OnnxBuilder(), {"kernel_shape": [3, 2], "strides": [2, 2]}
    x = build.input("x", ["n", 2, "height", "width"])
    values, places = build.nodes("MaxPool", 2, x, **window)
    wanted_shape = []
    if asked != "nothing":
        shape, more = build.node("Shape", x), build.constant([0, 0, 2, 2], np.int64)
        wanted_shape = [build.node("Add", shape, more) if asked == "two more" else shape]
    build.output(build.node("MaxUnpool", values, places, *wanted_shape, **window), None)
    model = build.model()
    session, peer = one_program(model), literal_session(pooled(**window))
    for shape in ((1, 2, 3, 2), (3, 2, 5, 8), (1, 2, 9, 2)):
        value = random(*shape)
        maxima, at = peer.run(None, {"x": value})
        image = np.zeros_like(value)
        image.reshape(-1)[at.ravel()] = maxima.ravel()
        margin = 2 if asked == "two more" else 0
        image = np.pad(image, [(0, 0), (0, 0), (0, margin), (0, margin)])
        np.testing.assert_array_equal(session.run(None, {"x": value})[0], image)
        if asked == "nothing":
            (theirs,) = ReferenceEvaluator(model).run(None, {"x": value})
            np.testing.assert_array_equal(theirs, image)
    assert session.run(None, {"x": random(0, 2, 5, 8)})[0].size == 0


def test_an_image_is_not_extended_by_less_than_nothing() -> None:
    build = OnnxBuilder()
    x, places = build.input("x", ["n", 1, "w"]), build.input("places", ["n", 1, "w"], np.int64)
    wanted = build.node("Shape", build.input("image", ["n", 1, "v"]))
    window = {"kernel_shape": [2], "strides": [2]}
    build.output(build.node("MaxUnpool", x, places, wanted, **window), None)
    session = one_program(build.model())
    feeds: dict[str, NDArray[Any]] = {"x": random(2, 1, 3), "places": np.arange(6).reshape(2, 1, 3)}
    for extent in (6, 7):
        (found,) = session.run(None, {**feeds, "image": random(2, 1, extent)})
        assert found.shape == (2, 1, extent)
    with pytest.raises(FeedError):
        session.run(None, {**feeds, "image": random(2, 1, 5)})
    # Indices outside write no foreign memory.
    feeds["places"] = np.array([2**40, -(2**40)] * 3).reshape(2, 1, 3)
    session.run(None, {**feeds, "image": random(2, 1, 6)})


FOLDS: list[dict[str, list[int]]] = [
    {},
    {"strides": [2, 1], "pads": [1, 0, 0, 2], "dilations": [1, 2]},
]


@pytest.mark.sampled
@pytest.mark.parametrize("attributes", FOLDS)
@pytest.mark.parametrize("image", ["static", "dynamic"])
def test_windows_back_into_an_image(image: str, attributes: dict[str, list[int]]) -> None:
    build = OnnxBuilder(18)
    x = build.input("x", ["n", 12, "places"])
    if image == "static":
        shape = build.constant([5, 7], np.int64)
    else:
        shape = build.node("Shape", build.input("image", ["n", 1, "height", "width"]), start=2)
    build.output(build.node("Col2Im", x, shape, build.constant([3, 2], np.int64), **attributes),
                 None)  # fmt: skip
    model = build.model()
    session, peer = one_program(model), ReferenceEvaluator(model)
    for batch, height, width in ((1, 5, 7), (3, 5, 7), (1, 3, 3), (2, 8, 4)):
        if image == "static" and (height, width) != (5, 7):
            continue
        rows = height - 2 if not attributes else (height + 1 - 3) // 2 + 1
        columns = width - 1 if not attributes else width + 2 - 2
        # Integers, whose sums are exact.
        x_value = np.arange(batch * 12 * rows * columns, dtype=np.float32) % 17
        feeds = {"x": x_value.reshape(batch, 12, rows * columns)}
        if image == "dynamic":
            feeds["image"] = np.zeros((batch, 1, height, width), np.float32)
        (found,), (wanted,) = session.run(None, feeds), peer.run(None, feeds)
        np.testing.assert_array_equal(found, wanted)
    feeds["x"] = feeds["x"][:, :, 1:]
    with pytest.raises(FeedError):
        session.run(None, feeds)


def test_windows_back_whose_rows_are_not_known() -> None:
    build = OnnxBuilder(18)
    x, shape = build.input("x", [1, "rows", 4]), build.constant([2, 2], np.int64)
    build.output(build.node("Col2Im", x, shape, build.constant([1, 1], np.int64)), None)
    with pytest.raises(UnsupportedOperatorError, match=r"Col2Im0.*number of rows.* must"):
        import_onnx(build.model(), keep_dynamic=True)


def test_long_windows_over_a_signal_of_any_length() -> None:
    """Static lengths give a product that reads the windows in place, dynamic ones a convolution."""
    build = OnnxBuilder()
    filters = random(4, 1, 80)
    build.output(
        build.node("Conv", build.input("x", ["n", 1, "t"]), build.constant(filters), strides=[30]),
        None,
    )
    session = one_program(build.model())
    (decision,) = session.explain().taken
    assert decision.op == "conv1d"
    for n, t in ((1, 80), (2, 109), (1, 1000)):
        x = random(n, 1, t, seed=t)
        windows = np.lib.stride_tricks.sliding_window_view(x[:, 0], 80, axis=1)[:, ::30]
        wanted = np.einsum("nwk,ck->ncw", windows.astype(np.float64), filters[:, 0])
        # 80 products of normally distributed numbers: a sum of magnitudes below 200.
        error = 200 * 80 * np.finfo(np.float32).eps
        np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=0, atol=error)


def same_windows(mode: str) -> onnx.ModelProto:
    """Overlapping windows and windows with gaps, with strides over dynamic extents."""
    build = OnnxBuilder()
    x = build.input("x", ["n", 2, "height", "width"])
    y = build.node("Conv", x, build.constant(random(4, 2, 3, 1)), auto_pad=mode, strides=[2, 3])
    window: dict[str, Any] = {"auto_pad": mode, "kernel_shape": [3, 1]}
    build.output(build.node("MaxPool", y, strides=[2, 2], **window), None)
    build.output(build.node("MaxPool", x, strides=[1, 1], **window), None)
    return build.model()


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_padding_that_follows_from_dynamic_extents(mode: str) -> None:
    model = same_windows(mode)
    session, literal = one_program(model), literal_session(model)
    for n, height, width in ((1, 1, 1), (2, 6, 7), (1, 13, 8), (1, 16, 9)):
        feeds = {"x": random(n, 2, height, width, seed=height) - 2}  # padding with 0 would show
        wanted = literal.run(None, feeds)
        # Sums of 6 products of numbers below 8.
        error = 6 * 64 * np.finfo(np.float32).eps
        for mine, theirs in zip(session.run(None, feeds), wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=error)


def test_means_over_padding_of_dynamic_extents_are_refused() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 2, "t"])
    window = {"auto_pad": "SAME_UPPER", "kernel_shape": [3], "strides": [2]}
    build.output(build.node("AveragePool", x, **window), None)
    with pytest.raises(UnsupportedOperatorError, match="its padding depends on an extent"):
        import_onnx(build.model(), keep_dynamic=True)
    session = InferenceSession(build.model(), num_threads=1)
    assert session.run(None, {"x": np.ones((1, 2, 5), np.float32)})[0].shape == (1, 2, 3)
    assert "because AveragePool node" in session.explain().summary()
