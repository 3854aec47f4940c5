"""CenterCropPad and Pad of dynamic axes: one program with ONNX Runtime's bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import FeedError
from tvm_hybrid.frontend import import_onnx

X = ["n", 3, "w"]
# n, w and the sizes of another input.
SIZES = [(1, 1, 3, 2), (7, 6, 2, 9), (5, 4, 5, 4), (4, 3, 7, 2), (0, 3, 2, 5), (2, 3, 0, 4)]


def whole(build: OnnxBuilder, *values: int) -> str:
    return build.constant(values, np.int64)


def half_of(build: OnnxBuilder, x: str) -> str:
    return build.node("Div", build.node("Shape", x, start=2), whole(build, 2))


def cropped(build: OnnxBuilder, x: str, other: str, case: str) -> str:
    match case:
        case "numbers":
            return build.node("CenterCropPad", x, whole(build, 5, 4), axes=[0, 2])
        case "all axes":
            return build.node("CenterCropPad", x, whole(build, 4, 2, 5))
        case "another":
            return build.node("CenterCropPad", x, build.node("Shape", other), axes=[0, -1])
        case "half":
            return build.node("CenterCropPad", x, half_of(build, x), axes=[2])
        case "known axis":
            return build.node("CenterCropPad", x, whole(build, 6), axes=[1])
    raise AssertionError(case)


SHAPES = {
    "numbers": (5, 3, 4),
    "all axes": (4, 2, 5),
    "another": ("p", 3, "q"),
    "half": ("n", 3, "w // 2"),
    "known axis": ("n", 6, "w"),
}


def one_program(
    body: Callable[[OnnxBuilder, str, str], str], dtype: type = np.float32
) -> tuple[tvm_hybrid.InferenceSession, OnnxBuilder]:
    build = OnnxBuilder(19)
    x, other = build.input("x", X, dtype), build.input("other", ["p", "q"])
    build.output(body(build, x, other), None, dtype)
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    assert len(session.programs) == 1
    return session, build


def feeds_of(sizes: tuple[int, ...], dtype: type = np.float32) -> dict[str, np.ndarray]:
    n, w, p, q = sizes
    x = np.random.default_rng(n).integers(-99, 99, (n, 3, w)).astype(dtype)
    return {"x": x, "other": np.zeros((p, q), np.float32)}


@pytest.mark.sampled
@pytest.mark.parametrize("case", SHAPES)
def test_crops_and_pads_around_the_middle(case: str) -> None:
    session, build = one_program(lambda build, x, other: cropped(build, x, other, case))
    peer = literal_session(build.model())
    for sizes in SIZES:
        feeds = feeds_of(sizes)
        np.testing.assert_array_equal(session.run(None, feeds)[0], peer.run(None, feeds)[0])


@pytest.mark.sampled
@pytest.mark.parametrize("case", SHAPES)
def test_the_shape_of_a_crop_is_what_is_asked_for(case: str) -> None:
    _, build = one_program(lambda build, x, other: cropped(build, x, other, case))
    assert import_onnx(build.model(), keep_dynamic=True).outputs[0].shape == SHAPES[case]


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.float16])
def test_types_stay(dtype: type) -> None:
    session, build = one_program(
        lambda build, x, _: build.node("CenterCropPad", x, whole(build, 5, 4), axes=[0, 2]), dtype
    )
    for sizes in SIZES[:2]:
        feeds = feeds_of(sizes, dtype)
        (found,) = session.run(None, feeds)
        known = tvm_hybrid.InferenceSession(
            build.model(), shapes={key: value.shape for key, value in feeds.items()}, num_threads=1
        )
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, known.run(None, feeds)[0])


def test_dynamic_axes_are_cropped_by_numbers() -> None:
    session, build = one_program(
        lambda build, x, _: build.node(
            "Pad", x, whole(build, -1, 0, 2, 0, 1, -3), build.constant(7, np.float32)
        )
    )
    peer = literal_session(build.model())
    for sizes in ((1, 3, 1, 1), (4, 8, 1, 1)):
        feeds = feeds_of(sizes)
        np.testing.assert_array_equal(session.run(None, feeds)[0], peer.run(None, feeds)[0])
    with pytest.raises(FeedError):
        session.run(None, feeds_of((4, 2, 1, 1)))


def test_amounts_follow_from_sizes() -> None:
    """The padding completes a multiple of four."""

    def padded(build: OnnxBuilder, x: str, _: str) -> str:
        width, four = build.node("Shape", x, start=2), whole(build, 4)
        up = build.node("Div", build.node("Add", width, whole(build, 3)), four)
        lacking = build.node("Sub", build.node("Mul", up, four), width)
        amounts = build.node("Concat", whole(build, 1), lacking, axis=0)
        return build.node("Pad", x, amounts, "", whole(build, 2))

    session, build = one_program(padded)
    peer = literal_session(build.model())
    for sizes in ((1, 1, 1, 1), (2, 4, 1, 1), (3, 6, 1, 1)):
        feeds = feeds_of(sizes)
        np.testing.assert_array_equal(session.run(None, feeds)[0], peer.run(None, feeds)[0])
