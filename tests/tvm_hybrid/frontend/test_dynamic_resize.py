"""Resize of dynamic images with antialiasing, crops or computed sizes: one program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import FeedError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

pytestmark = pytest.mark.turns

CROP = "tf_crop_and_resize"
REGION = np.array([0.1, 0.2, 0.8, 1.1], np.float32)  # height and width
SIZES = [(1, 4, 8), (2, 7, 5), (1, 20, 16), (3, 1, 2)]  # batch, height and width
SCALES = {"halves": (0.5, 0.25), "up and down": (1.5, 0.75), "no fractions": (0.6137, 1.7123)}
Feeds = dict[str, np.ndarray]


@dataclass
class Form:
    """A Resize of x: [n, 2, h, w], or of other sizes.

    Attributes
    ----------
    to
        Result size: a name of SCALES, "another" image's size, "numbers", or computed from data.
    region
        "constant" or "input" if the form crops.
    """

    to: str
    region: str = ""
    shape: tuple[int | str, ...] = ("n", 2, "h", "w")
    dtype: type = np.float32

    def model(self, mode: str, **attributes: Any) -> onnx.ModelProto:
        build = OnnxBuilder(19)
        x = build.input("x", self.shape, self.dtype)
        region = build.constant(REGION) if self.region == "constant" else ""
        if self.region == "input":
            region = build.input("region", [4])
        if self.region:
            attributes |= {"coordinate_transformation_mode": CROP, "extrapolation_value": 7.0}
        if self.region or self.to in ("not_larger", "not_smaller"):
            attributes["axes"] = [2, 3]
            if self.to.startswith("not"):
                attributes["keep_aspect_ratio_policy"] = self.to
            sizes = self.last_two(build)
            given = [sizes] if self.to in SCALES else ["", sizes]
        elif self.to in SCALES or self.to == "scales of data":
            ones = build.constant([1, 1], np.float32)
            given = [build.node("Concat", ones, self.last_two(build), axis=0)]
        else:
            kept = build.node("Shape", x, end=2)
            given = ["", build.node("Concat", kept, self.last_two(build), axis=0)]
        result = build.node("Resize", x, region, *given, mode=mode, **attributes)
        build.output(result, None, self.dtype)
        return build.model()

    def last_two(self, build: OnnxBuilder) -> str:
        if self.to in SCALES:
            return build.constant(SCALES[self.to], np.float32)
        if self.to in ("numbers", "not_larger", "not_smaller"):
            return build.constant([3, 9], np.int64)
        if self.to == "another":
            return build.node("Shape", build.input("other", ["p", "q"]))
        kind = np.float32 if self.to == "scales of data" else np.int64
        data = build.input("data", [2, 100], kind)
        return build.node("ReduceMax", data, build.constant([1], np.int64), keepdims=0)

    def feeds(self, model: onnx.ModelProto, sizes: tuple[int, int, int]) -> Feeds:
        batch, height, width = sizes
        rng = np.random.default_rng(height)
        every: Feeds = {
            "x": (rng.random((batch, 2, height, width)) * 9).astype(self.dtype),
            "region": REGION,
            "other": np.zeros((5, 3), np.float32),
            "data": np.zeros((2, 100), np.int64),
        }
        every["data"][:, 42] = 5, 3
        if self.to == "scales of data":
            every["data"] = np.zeros((2, 100), np.float32)
            every["data"][:, 42] = 1.6, 0.7
        return {item.name: every[item.name] for item in model.graph.input}


def compare(form: Form, mode: str, **attributes: Any) -> None:
    """One program, compared with ONNX Runtime."""
    model = form.model(mode, **attributes)
    session, peer = tvm_hybrid.InferenceSession(model, num_threads=1), literal_session(model)
    assert len(session.programs) == 1
    for sizes in SIZES:
        if form.shape[2] != "h" and sizes != (2, 7, 5):
            continue
        feeds = form.feeds(model, sizes)
        (found,), (wanted,) = session.run(None, feeds), peer.run(None, feeds)
        assert found.shape == wanted.shape
        # Positions up to 20 are rounded three times in float32, weights once; numbers are up to 9,
        # and weights of two axes sum to at most 1.3.
        np.testing.assert_allclose(found, wanted, rtol=0, atol=9 * 1.3**2 * (3 * 20 + 8) * 2.0**-24)
    assert len(session.programs) == 1


@pytest.mark.sampled
@pytest.mark.parametrize("to", [*SCALES, "another", "numbers"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialiased(mode: str, to: str) -> None:
    compare(Form(to), mode, antialias=1)


@pytest.mark.sampled
@pytest.mark.parametrize("to", ["halves", "no fractions", "numbers", "sizes of data"])
def test_antialiased_images_of_known_extents(to: str) -> None:
    compare(Form(to, shape=("n", 2, 7, 5)), "cubic", antialias=1)


@pytest.mark.sampled
@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize(
    "coordinates", ["asymmetric", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners"]
)
def test_antialiased_by_other_coordinates(coordinates: str, exclude: int) -> None:
    form = {"coordinate_transformation_mode": coordinates, "exclude_outside": exclude}
    compare(Form("another"), "cubic", antialias=1, **form)


@pytest.mark.sampled
@pytest.mark.parametrize("to", ["up and down", "another", "no fractions"])
@pytest.mark.parametrize("region", ["constant", "input"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_cropped(mode: str, region: str, to: str) -> None:
    compare(Form(to, region), mode)


@pytest.mark.parametrize("shape", [("n", 2, 7, 5), (2, 2, 7, 5)])
def test_cropped_images_of_known_extents(shape: tuple[int | str, ...]) -> None:
    """The region is an input, also if every size is static."""
    compare(Form("numbers", "input", shape), "linear")


def test_a_region_of_all_axes() -> None:
    build = OnnxBuilder(19)
    x, region = build.input("x", ["n", 2, "h", "w"]), build.input("region", [8])
    sizes = build.constant([1, 2, 5, 3], np.int64)
    resized = {"mode": "linear", "coordinate_transformation_mode": CROP}
    build.output(build.node("Resize", x, region, "", sizes, **resized), None)
    model = build.model()
    session, peer = tvm_hybrid.InferenceSession(model, num_threads=1), literal_session(model)
    assert len(session.programs) == 1
    numbers = np.array([0, 0, *REGION[:2], 1, 1, *REGION[2:]], np.float32)
    for height, width in ((4, 8), (7, 5)):
        image = np.random.default_rng(height).random((1, 2, height, width), np.float32)
        feeds = {"x": image, "region": numbers}
        (found,), (wanted,) = session.run(None, feeds), peer.run(None, feeds)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=32 * 2.0**-24)


def test_cropped_and_antialiased() -> None:
    compare(Form("another", "input"), "linear", antialias=1)


@pytest.mark.sampled
@pytest.mark.parametrize("to", ["sizes of data", "scales of data", "not_larger", "not_smaller"])
@pytest.mark.parametrize(("mode", "antialias"), [("nearest", 0), ("linear", 0), ("linear", 1)])
def test_sizes_that_are_found(mode: str, antialias: int, to: str) -> None:
    compare(Form(to), mode, antialias=antialias)


def test_data_decide_the_size_of_a_known_image() -> None:
    compare(Form("sizes of data", shape=(2, 2, 7, 5)), "linear")


@pytest.mark.parametrize(("region", "antialias"), [("", 1), ("constant", 0)])
def test_results_are_those_of_static_sizes(region: str, antialias: int) -> None:
    form = Form("another", region)
    model = form.model("linear", antialias=antialias)
    feeds = form.feeds(model, (2, 7, 5))
    shapes = {name: array.shape for name, array in feeds.items()}
    static = tvm_hybrid.InferenceSession(model, shapes=shapes, num_threads=1)
    dynamic = tvm_hybrid.InferenceSession(model, num_threads=1)
    (found,), (wanted,) = dynamic.run(None, feeds), static.run(None, feeds)
    # Positions and weights are equal; sums have at most 16 products along each axis.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=9 * 32 * 2.0**-24)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_types_stay(dtype: type) -> None:
    form = Form("another", dtype=dtype)
    model = form.model("linear", antialias=1)
    feeds = form.feeds(model, (2, 7, 5))
    (found,) = tvm_hybrid.InferenceSession(model, num_threads=1).run(None, feeds)
    shapes = {name: array.shape for name, array in feeds.items()}
    static = tvm_hybrid.InferenceSession(model, shapes=shapes, num_threads=1)
    assert found.dtype == dtype
    # Weights are float32; numbers up to 9 are rounded once more at the end.
    bound = 9 * (2.0**-11 if dtype == np.float16 else 64 * 2.0**-24)
    np.testing.assert_allclose(found, static.run(None, feeds)[0], rtol=0, atol=bound)


@pytest.mark.parametrize("shape", [(1, 2, 5, 6), ("n", 2, "h", "w")])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_float16_is_resized_as_float32_is(mode: str, shape: tuple[int | str, ...]) -> None:
    build = OnnxBuilder(19)
    x = build.input("x", shape, np.float16)
    scales = build.constant([1, 1, 2, 2], np.float32)
    how = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    build.output(build.node("Resize", x, "", scales, **how), None, np.float16)
    program = tvm_hybrid.compile(build.model(), keep_dynamic=True, num_threads=1)
    assert any("resize2d" in each.op for each in program.explain())
    image = np.random.default_rng(0).standard_normal((1, 2, 5, 6)).astype(np.float16)
    (found,) = program.run(image)
    (wanted,) = literal_session(build.model()).run(None, {"x": image})
    # Numbers below 4: one rounding, and another one of ONNX Runtime's weights.
    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=4 * 2.0**-10)


def test_what_is_kept_stays_known() -> None:
    """Channels, and a batch shared with another image, stay known if data decide the extents."""
    for to in ("sizes of data", "scales of data"):
        (output,) = import_onnx(Form(to).model("linear"), keep_dynamic=True).outputs
        assert output.shape is not None and output.shape[:2] == ("n", 2)


@pytest.mark.parametrize("to", ["halves", "another", "no fractions"])
def test_no_images_and_no_elements(to: str) -> None:
    form = Form(to)
    model = form.model("linear", antialias=1)
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    (found,) = session.run(None, form.feeds(model, (0, 4, 8)))
    assert found.shape[0] == 0
    feeds = form.feeds(model, (1, 0, 8))
    if to == "another":  # 5 rows from none
        with pytest.raises(FeedError):
            session.run(None, feeds)
    else:
        assert session.run(None, feeds)[0].shape[2] == 0


def test_what_lies_outside_is_extrapolated_whatever_the_region_is() -> None:
    form = Form("another", "input")
    model = form.model("linear")
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    feeds = form.feeds(model, (1, 4, 8))
    for number in (np.nan, np.inf, -1e30, 1e30):
        feeds["region"] = np.array([number, 0, number, 1], np.float32)
        np.testing.assert_array_equal(session.run(None, feeds)[0], np.full((1, 2, 5, 3), 7.0))


@pytest.mark.parametrize(
    ("to", "values"),
    [("sizes of data", (-1, 3)), ("scales of data", (np.nan, 1)), ("scales of data", (1, 1e12))],
)
def test_sizes_that_make_no_sense_are_refused(to: str, values: tuple[float, float]) -> None:
    form = Form(to)
    model = form.model("nearest")
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    feeds = form.feeds(model, (1, 4, 8))
    feeds["data"][:] = np.array(values, feeds["data"].dtype)[:, None]
    with pytest.raises(FeedError):
        session.run(None, feeds)


def test_align_corners_wants_whole_sizes() -> None:
    model = Form("halves").model("linear", coordinate_transformation_mode="align_corners")
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    assert session.run(None, {"x": np.zeros((1, 2, 4, 8), np.float32)})[0].shape == (1, 2, 2, 2)
    with pytest.raises(FeedError):
        session.run(None, {"x": np.zeros((1, 2, 5, 8), np.float32)})


def test_a_region_of_too_few_numbers_is_refused() -> None:
    build = OnnxBuilder(19)
    x, region = build.input("x", ["n", 2, "h", "w"]), build.input("region", [4])
    scales = build.constant([1, 1, 2, 2], np.float32)
    build.output(build.node("Resize", x, region, scales, coordinate_transformation_mode=CROP), None)
    with pytest.raises(UnsupportedOperatorError, match="roi has 4 numbers for 4 axes"):
        import_onnx(build.model(), keep_dynamic=True)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [8, 9])
def test_upsample(opset: int, mode: str) -> None:
    build = OnnxBuilder(opset)
    x = build.input("x", ["n", 2, "h", "w"])
    if opset == 8:
        y = build.node("Upsample", x, mode=mode, scales=[1.0, 1.0, 2.0, 1.5])
    else:
        y = build.node("Upsample", x, build.constant([1, 1, 2, 1.5], np.float32), mode=mode)
    build.output(y, None)
    model = build.model()
    session, peer = tvm_hybrid.InferenceSession(model, num_threads=1), literal_session(model)
    assert len(session.programs) == 1
    for batch, height, width in SIZES:
        image = np.random.default_rng(height).random((batch, 2, height, width), np.float32)
        (found,), (wanted,) = session.run(None, {"x": image}), peer.run(None, {"x": image})
        np.testing.assert_allclose(found, wanted, rtol=0, atol=(3 * 40 + 8) * 2.0**-24)
