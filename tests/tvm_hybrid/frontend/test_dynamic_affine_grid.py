"""AffineGrid of dynamic sizes: one program, compared with ONNX's reference and static programs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.errors import FeedError, UnsupportedOperatorError

EXTENTS = {2: ["h", "w"], 3: ["d", "h", "w"]}
SIZES = [
    {"n": 1, "d": 2, "h": 3, "w": 4},
    {"n": 3, "d": 3, "h": 5, "w": 2},
    {"n": 0, "d": 2, "h": 2, "w": 2},
]


def grid_of(
    axes: int, corners: bool, known: bool = False, dtype: type = np.float32
) -> onnx.ModelProto:
    """A grid of an image's size, or a dynamic batch of grids with static extents."""
    build = OnnxBuilder(20)
    theta = build.input("theta", ["n", axes, axes + 1], dtype)
    image = build.input("image", ["n", 2, *EXTENTS[axes]])
    size = build.node("Shape", image)
    if known:
        numbers = build.constant([2, 3, 4, 5][: axes + 1], np.int64)
        size = build.node("Concat", build.node("Shape", image, end=1), numbers, axis=0)
    build.output(build.node("AffineGrid", theta, size, align_corners=int(corners)), None, dtype)
    return build.model()


def feeds_of(axes: int, sizes: dict[str, int], dtype: type = np.float32) -> dict[str, np.ndarray]:
    theta = np.random.default_rng(1).uniform(-1, 1, (sizes["n"], axes, axes + 1))
    extents = [sizes[name] for name in EXTENTS[axes]]
    return {"theta": theta.astype(dtype), "image": np.zeros((sizes["n"], 2, *extents), np.float32)}


@pytest.mark.sampled
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("axes", [2, 3])
def test_one_program_for_all_sizes(axes: int, corners: bool, known: bool) -> None:
    model = grid_of(axes, corners, known)
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    peer = ReferenceEvaluator(model)
    single = [] if corners and not known else [{"n": 2, "d": 1, "h": 1, "w": 4}]
    for sizes in SIZES + single:
        feeds = feeds_of(axes, sizes)
        (found,), (wanted,) = session.run(None, feeds), peer.run(None, feeds)
        assert found.shape == wanted.shape
        # Sums of four products of numbers up to 1, whose coordinates have three roundings.
        np.testing.assert_allclose(found, wanted, rtol=0, atol=4 * 5 * 2.0**-23)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("axes", [2, 3])
def test_results_are_those_of_static_sizes(axes: int, corners: bool, dtype: type) -> None:
    model, sizes = grid_of(axes, corners, dtype=dtype), SIZES[1]
    feeds = feeds_of(axes, sizes, dtype)
    shapes = {name: sizes[name] for name in ("n", *EXTENTS[axes])}
    static = tvm_hybrid.InferenceSession(model, shapes=shapes, num_threads=1)
    dynamic = tvm_hybrid.InferenceSession(model, num_threads=1)
    (found,), (wanted,) = dynamic.run(None, feeds), static.run(None, feeds)
    assert found.dtype == dtype
    # Products and sums are rounded together or separately.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=8 * np.finfo(dtype).eps)


def test_a_grid_that_is_sampled() -> None:
    """The grid's rank is static, and its batch is the image's."""
    build = OnnxBuilder(20)
    theta, image = build.input("theta", ["n", 2, 3]), build.input("image", ["n", 2, "h", "w"])
    grid = build.node("AffineGrid", theta, build.node("Shape", image))
    build.output(build.node("GridSample", image, grid), None)
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    assert len(session.programs) == 1
    same = np.array([[[1, 0, 0], [0, 1, 0]]] * 2, np.float32)
    pixels = np.random.default_rng(0).random((2, 2, 3, 5), np.float32)
    (found,) = session.run(None, {"theta": same, "image": pixels})
    # Positions are a few roundings off integers.
    np.testing.assert_allclose(found, pixels, rtol=0, atol=5 * 16 * 2.0**-23)


def test_a_single_element_has_no_two_corners() -> None:
    session = tvm_hybrid.InferenceSession(grid_of(2, True), num_threads=1)
    with pytest.raises(FeedError):
        session.run(None, feeds_of(2, {"n": 1, "h": 1, "w": 4}))


def test_a_theta_of_another_number_of_axes_is_refused() -> None:
    build = OnnxBuilder(20)
    theta, image = build.input("theta", ["n", 3, 4]), build.input("image", ["n", 2, "h", "w"])
    build.output(build.node("AffineGrid", theta, build.node("Shape", image)), None)
    with pytest.raises(UnsupportedOperatorError, match=r"AffineGrid.*for a grid of 2 axes"):
        tvm_hybrid.compile(build.model(), keep_dynamic=True)
