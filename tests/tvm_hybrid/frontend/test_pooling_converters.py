"""Indices of maxima, and the operators that write them and other windows back; as ONNX Runtime."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import tvm_hybrid
from tvm_hybrid.errors import FeedError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import f32, i64, make_model, onnxruntime_run, random, run_imported
from .test_values import NEWEST, declared, run

POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 11), {"kernel_shape": [3], "pads": [1, 1]}),
    ((2, 3, 9, 8), {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1]}),
    ((2, 3, 9, 8), {"kernel_shape": [3, 2], "strides": [2, 3], "storage_order": 1}),
    ((1, 2, 9, 8), {"kernel_shape": [2, 2], "dilations": [3, 2], "strides": [2, 1]}),
    ((1, 2, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 2, 9, 8), {"kernel_shape": [4, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 9, 8), {"kernel_shape": [4, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 5, 6, 4), {"kernel_shape": [2, 3, 2], "strides": [2, 1, 2]}),
    ((1, 2, 5, 6, 4), {"kernel_shape": [2, 3, 2], "storage_order": 1}),
]


def pools(x: NDArray, attributes: dict[str, Any]) -> onnx.ModelProto:
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], **attributes)
    _, code, _ = declared("x", x)
    unknown = [None] * x.ndim
    return make_model([node], [declared("x", x)], [("y", code, unknown), i64("i", *unknown)])


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8"])
@pytest.mark.parametrize(("shape", "attributes"), POOLS)
def test_places_of_maxima(shape: tuple[int, ...], attributes: dict[str, Any], dtype: str) -> None:
    """Many elements are equal: the first maximum in row-major order is selected."""
    x = np.random.default_rng(0).integers(0, 4, shape).astype(dtype)
    model = pools(x, attributes)
    results = run_imported(import_onnx(model), {"x": x})
    for got, wanted in zip(results, onnxruntime_run(model, {"x": x}), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_places_of_special_floats(dtype: str) -> None:
    """The first NaN counts as the maximum; -inf counts before padding."""
    x = np.array([[[1, np.nan, np.nan, 2, -np.inf, -np.inf, -np.inf, 0]]], dtype)
    model = pools(x, {"kernel_shape": [3], "strides": [3], "pads": [0, 1]})
    values, places = run(model, {"x": x})
    np.testing.assert_array_equal(values, [[[np.nan, 2, 0]]])
    np.testing.assert_array_equal(places, [[[1, 3, 7]]])
    lowest = np.full((1, 1, 4), -np.inf, dtype)
    _, places = run(pools(lowest, {"kernel_shape": [2], "strides": [2], "pads": [1, 1]}),
                    {"x": lowest})  # fmt: skip
    np.testing.assert_array_equal(places, [[[0, 1, 3]]])


def places(x: NDArray, window: dict[str, list[int]]) -> NDArray:
    """Index of the first NaN or else the first maximum of each window; -1 if it is empty."""
    rank = x.ndim - 2
    kernel, steps, apart = (window[name] for name in ("kernel_shape", "strides", "dilations"))
    pads = np.array(window["pads"]).reshape(2, rank)
    extents = np.array(x.shape[2:])
    reach = (np.array(kernel) - 1) * apart + 1
    found = np.full((*x.shape[:2], *((extents + pads.sum(0) - reach) // steps + 1)), -1)
    for at in np.ndindex(found.shape):
        best = -1
        for tap in np.ndindex(*kernel):
            here = np.array(at[2:]) * steps - pads[0] + np.array(tap) * apart
            if (here < 0).any() or (here >= extents).any():
                continue
            place = np.ravel_multi_index((*at[:2], *here), x.shape)
            value, known = x.flat[place], x.flat[best]
            if best < 0 or (not np.isnan(known) and (value > known or np.isnan(value))):
                best = int(place)
        found[at] = best
    return found


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
def test_one_kernel_finds_the_places(is_dynamic: bool) -> None:
    """Windows across all borders, with gaps, or of padding only; equal elements, NaN and -inf."""
    window = {"strides": [2, 3], "pads": [1, 1, 1, 1], "kernel_shape": [2, 2], "dilations": [2, 3]}
    shapes = [(2, 2, 5, 8), (1, 2, 2, 2), (1, 1, 9, 31)]
    for shape in shapes if not is_dynamic else [shapes]:
        sizes = ["n", "c", "height", "width"] if is_dynamic else shape
        node = helper.make_node("MaxPool", ["x"], ["y", "i"], **window)
        unknown = [None] * 4
        model = make_model([node], [f32("x", *sizes)], [f32("y", *unknown), i64("i", *unknown)])
        session = tvm_hybrid.InferenceSession(model, num_threads=1, records=[])
        for sizes in shapes if is_dynamic else [shape]:
            x = np.random.default_rng(0).integers(0, 4, sizes).astype(np.float32)
            x[x == 3] = np.random.default_rng(1).choice([np.nan, -np.inf, 3], (x == 3).sum())
            y, found = session.run(None, {"x": x})
            wanted = places(x, window)
            np.testing.assert_array_equal(found, wanted)
            inside = wanted >= 0
            np.testing.assert_array_equal(y[inside], x.flat[wanted[inside]])
        assert len(session.programs) == 1
        assert "max_pool_places" in [each.function for each in session.explain()]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("size", "pads", "extra"),
    [((7, 8), [0] * 4, 0), ((6, 7), [1, 0, 0, 1], 0), ((6, 7), [1, 0, 0, 1], 3)],
)
def test_pooling_and_back(size: tuple[int, int], pads: list[int], extra: int) -> None:
    """As in ONNX's reference, `output_shape` adds rows and columns at the end."""
    x = random(2, 3, *size)
    window = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": pads}
    back = ["y", "i", "s"] if extra else ["y", "i"]
    nodes = [
        helper.make_node("MaxPool", ["x"], ["y", "i"], **window),
        helper.make_node("MaxUnpool", back, ["z"], **window),
    ]
    shape = (2, 3, size[0] + extra, size[1] + extra)
    constants = {"s": np.array(shape)} if extra else {}
    model = make_model(nodes, [f32("x", *x.shape)], [f32("z", *shape)], constants)
    (got,) = run(model, {"x": x})
    values, places = onnxruntime_run(pools(x, window), {"x": x})
    wanted = np.zeros_like(x)
    wanted.reshape(-1)[places.ravel()] = values.ravel()
    np.testing.assert_array_equal(got, np.pad(wanted, [(0, 0), (0, 0), (0, extra), (0, extra)]))


def test_unpooling_with_places_outside() -> None:
    """They write no foreign memory; negative ones count from the end; one kernel does it all."""
    node = helper.make_node("MaxUnpool", ["x", "i"], ["y"], kernel_shape=[2], strides=[2])
    model = make_model([node], [f32("x", 1, 1, 2), i64("i", 1, 1, 2)], [f32("y", 1, 1, 4)])
    session = tvm_hybrid.InferenceSession(model, num_threads=1, records=[])
    assert [each.function for each in session.explain()] == ["max_unpool"]
    x = np.array([[[5, 7]]], np.float32)
    for places, wanted in (
        ([2**40, -(2**40)], [7, 0, 0, 5]),
        ([-1, -3], [0, 7, 0, 5]),
        ([4, -5], [7, 0, 0, 5]),
    ):
        (found,) = session.run(None, {"x": x, "i": np.array([[places]])})
        np.testing.assert_array_equal(found, [[wanted]])


def test_what_does_not_fit_is_not_put_back() -> None:
    """Fewer indices than elements and empty images are refused before anything is read."""
    node = helper.make_node(
        "MaxUnpool", ["x", "i"], ["y"], kernel_shape=[2], strides=[2], pads=[1, 1]
    )
    unknown: list[Any] = [None] * 3
    model = make_model([node], [f32("x", "n", 1, "w"), i64("i", "n", 1, "v")], [f32("y", *unknown)])
    session = tvm_hybrid.InferenceSession(model, num_threads=1, records=[])
    x = np.array([[[5, 7, 6]]], np.float32)
    (found,) = session.run(None, {"x": x, "i": np.array([[[0, 2, 3]]])})
    np.testing.assert_array_equal(found, [[[5, 0, 7, 6]]])
    for elements, count in ((3, 2), (2, 3), (1, 1)):  # one element for an image of 1 * 2 - 2
        with pytest.raises(FeedError):
            session.run(None, {"x": x[..., :elements], "i": np.zeros((1, 1, count), np.int64)})
    assert session.run(None, {"x": x[:0, :, :1], "i": np.zeros((0, 1, 1), np.int64)})[0].size == 0


FOLDS: list[tuple[list[int], list[int], dict[str, list[int]]]] = [
    ([5, 5], [1, 5], {}),
    ([7, 6], [3, 2], {"strides": [2, 3], "pads": [1, 0, 1, 2]}),
    ([8, 9], [2, 3], {"dilations": [3, 2], "strides": [2, 1], "pads": [2, 1, 0, 1]}),
    ([9], [4], {"strides": [2]}),
    ([4, 5, 6], [2, 3, 2], {"strides": [1, 2, 2], "dilations": [2, 1, 1]}),
]


@pytest.mark.parametrize(("image", "block", "attributes"), FOLDS)
def test_windows_back_into_an_image(
    image: list[int], block: list[int], attributes: dict[str, list[int]]
) -> None:
    check_fold(image, block, attributes, "float32")


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint64"])
def test_windows_of_all_types(dtype: str) -> None:
    check_fold(*FOLDS[1], dtype)


def check_fold(
    image: list[int], block: list[int], attributes: dict[str, list[int]], dtype: str
) -> None:
    """Integers whose sums every type holds."""
    rank = len(image)
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads = np.array(attributes.get("pads", [0, 0] * rank)).reshape(2, rank)
    windows = [
        (image[axis] + pads[:, axis].sum() - dilations[axis] * (block[axis] - 1) - 1)
        // strides[axis]
        + 1
        for axis in range(rank)
    ]
    shape = (2, 3 * math.prod(block), math.prod(windows))
    x = np.random.default_rng(0).integers(0, 10, shape).astype(np.dtype(dtype))
    node = helper.make_node("Col2Im", ["x", "s", "b"], ["y"], **attributes)
    constants = {"s": np.array(image), "b": np.array(block)}
    y = np.zeros((2, 3, *image), x.dtype)
    model = make_model([node], [declared("x", x)], [declared("y", y)], constants, NEWEST)
    model.ir_version = onnx.IR_VERSION
    (got,) = run(model, {"x": x})
    padded = np.zeros((2, 3, *(np.array(image) + pads.sum(0))), np.int64)
    blocks = x.astype(np.int64).reshape(2, 3, *block, *windows)
    for step in np.ndindex(*block):
        cut = tuple(
            slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)
            for at, dilation, count, stride in zip(step, dilations, windows, strides, strict=True)
        )
        padded[(slice(None), slice(None), *cut)] += blocks[(slice(None), slice(None), *step)]
    inner = tuple(slice(pads[0, axis], pads[0, axis] + image[axis]) for axis in range(rank))
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, padded[(slice(None), slice(None), *inner)].astype(x.dtype))


def test_blocks_that_do_not_fit() -> None:
    node = helper.make_node("Col2Im", ["x", "s", "b"], ["y"])
    constants = {"s": np.array([5, 5]), "b": np.array([2, 2])}
    model = make_model([node], [f32("x", 1, 8, 15)], [f32("y", 1, 2, 5, 5)], constants, 18)
    with pytest.raises(UnsupportedOperatorError, match="are not blocks"):
        import_onnx(model)
