"""Static and dynamic MaxRoiPool compared with ONNX Runtime, and regions that read nothing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.guard import guarded
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

Sizes = tuple[int, int, int, int]  # images, height, width, regions


def model_of(image: list, regions: list, dtype: type = np.float32) -> onnx.ModelProto:
    """Bins of 3 x 2 elements, with coordinates scaled by a half."""
    build = OnnxBuilder(16)
    x, r = build.input("x", image, dtype), build.input("r", regions, dtype)
    node = build.node("MaxRoiPool", x, r, pooled_shape=[3, 2], spatial_scale=0.5)
    build.output(node, None, dtype)
    return build.model()


def feeds_of(sizes: Sizes) -> dict[str, np.ndarray]:
    """Regions inside, across the edges and outside, some reversed; halves are rounded."""
    images, height, width, count = sizes
    rng = np.random.default_rng(sizes)
    x = rng.normal(size=(images, 3, height, width))
    x[rng.random(x.shape) < 0.4] = -np.inf
    corners = rng.integers(-25, 125, (count, 4))
    first = rng.integers(0, images, (count, 1))
    regions = np.concatenate([first, corners], 1)
    return {"x": x.astype(np.float32), "r": regions.astype(np.float32)}


@pytest.mark.parametrize("threads", [1, 2])
def test_sizes_of_one_program(threads: int) -> None:
    model = model_of(["n", 3, "h", "w"], ["k", 5])
    session = tvm_hybrid.InferenceSession(model, num_threads=threads, records=[])
    peer = literal_session(model)
    assert [each.function for each in session.explain()] == ["max_roi_pool"]
    for sizes in ((2, 20, 17, 40), (1, 1, 1, 1), (2, 9, 16, 30), (3, 50, 60, 20), (1, 5, 7, 0)):
        feeds = feeds_of(sizes)
        (found,), (wanted,) = session.run(None, feeds), peer.run(None, feeds)
        np.testing.assert_array_equal(found, wanted)
    (found,) = session.run(None, {**feeds_of((1, 2, 2, 3)), "x": np.ones((1, 3, 0, 2), np.float32)})
    np.testing.assert_array_equal(found, np.zeros((3, 3, 3, 2)))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_types(dtype: type) -> None:
    feeds = {k: v.astype(dtype) for k, v in feeds_of((2, 12, 9, 30)).items()}
    single = {name: array.astype(np.float32) for name, array in feeds.items()}
    model = model_of(list(feeds["x"].shape), [30, 5], dtype)
    (found,) = tvm_hybrid.InferenceSession(model, num_threads=1, records=[]).run(None, feeds)
    (wanted,) = literal_session(model_of(list(feeds["x"].shape), [30, 5])).run(None, single)
    assert found.dtype == dtype
    lowest = np.finfo(np.float32).min
    finite = wanted != lowest
    np.testing.assert_array_equal(found[finite], wanted[finite].astype(dtype))
    assert (found[~finite] <= np.finfo(dtype).min).all()


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("width", [6, 16, 37])
def test_nothing_is_read_outside_of_the_image(width: int, at_end: bool) -> None:
    model = model_of(["n", 1, "h", "w"], ["k", 5])
    program = tvm_hybrid.compile(model, num_threads=1, records=[], keep_dynamic=True)
    x = guarded(np.ones((1, 1, 6, width), np.float32), at_end)
    corners = [[0, 0, 0, 8, 4], [0, 2 * width - 8, 6, 2 * width, 12]]
    (found,) = program.run({"x": x, "r": np.array(corners, np.float32)})
    np.testing.assert_array_equal(found.numpy(), np.ones((2, 1, 3, 2)))


@pytest.mark.parametrize("width", [6, 16, 37])
def test_special_numbers(width: int) -> None:
    """NaN is the largest, and a region of a missing image reads nothing."""
    model = model_of(["n", 1, "h", "w"], ["k", 5])
    session = tvm_hybrid.InferenceSession(model, num_threads=1, records=[])
    x = np.full((1, 1, 6, width), 99, np.float32)
    x[..., :6] = np.arange(36).reshape(6, 6)
    x[0, 0, 1, 4] = np.nan
    (found,) = session.run(None, {"x": x, "r": np.array([[0, 0, 0, 10, 10]], np.float32)})
    np.testing.assert_array_equal(found[0, 0], [[8, np.nan], [20, 23], [32, 35]])
    odd = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2**31, 7], np.float32)
    regions = odd[np.random.default_rng(0).integers(0, 7, (200, 5))]
    (found,) = session.run(None, {"x": np.ones((2, 1, 5, width), np.float32), "r": regions})
    assert np.isin(found, [0, 1]).all()
