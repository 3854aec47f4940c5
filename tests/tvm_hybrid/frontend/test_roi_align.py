"""RoiAlign: means and maxima; an attribute or the region's size sets the number of samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder

from .models import f32, make_model, onnxruntime_run, random
from .test_values import declared, run

REGIONS = np.array([[1, 2, 7.5, 6], [0, 0, 3, 9], [-3, -2, 20, 20], [4, 4, 4, 4]], np.float32)
"""Regions inside, beyond the edges, and without extent."""


@pytest.mark.sampled
@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("channels", [3, 17])
def test_all_forms(channels: int, ratio: int, mode: str, opset: int) -> None:
    """The scale is applied before the half-pixel shift."""
    feeds = {"x": random(2, channels, 10, 10), "r": REGIONS, "b": np.array([0, 1, 1, 0])}
    node = helper.make_node("RoiAlign", list(feeds), ["y"], mode=mode, sampling_ratio=ratio,
                            spatial_scale=0.5, output_height=3, output_width=2)  # fmt: skip
    inputs = [declared(name, array) for name, array in feeds.items()]
    model = make_model([node], inputs, [f32("y", 4, channels, 3, 2)], opset=opset)
    # Means of up to 24 samples of 4 products of values up to 4: 100 roundings of 6e-8 of them.
    np.testing.assert_allclose(
        run(model, feeds)[0], onnxruntime_run(model, feeds)[0], rtol=1e-5, atol=2.4e-5
    )
    bad = {**feeds, "r": np.full((4, 4), np.nan, np.float32), "b": np.array([9, -9, 2**31, 0])}
    assert np.isfinite(run(model, bad)[0]).all()  # reads nothing from outside


def dynamic(mode: str, **attributes: Any) -> onnx.ModelProto:
    """RoiAlign of dynamic images with four channels, and dynamically many regions."""
    build = OnnxBuilder(16)
    x = build.input("x", ["n", 4, "h", "w"])
    regions = build.input("r", ["count", 4])
    places = build.input("b", ["count"], np.int64)
    y = build.node("RoiAlign", x, regions, places, mode=mode, output_height=2, output_width=3,
                   **attributes)  # fmt: skip
    build.output(y, None)
    return build.model()


def sampled(x: NDArray[np.float32], region: tuple[float, ...], bins: tuple[int, int],
            ratio: int) -> list[list[NDArray[np.float64]]]:  # fmt: skip
    """Weighted pixels of each bin by definition, [samples, 4, channels]."""
    left, top, right, bottom = (edge - 0.5 for edge in region)
    sides = []
    for first, last, count in zip((top, left), (bottom, right), bins, strict=True):
        size = (last - first) / count
        samples = ratio or int(np.ceil(size))
        sides.append([
            [first + (number + (step + 0.5) / samples) * size for step in range(samples)]
            for number in range(count)
        ])  # fmt: skip
    return [[_of_bin(x, rows, columns) for columns in sides[1]] for rows in sides[0]]


def _of_bin(x: NDArray[np.float32], rows: list[float], columns: list[float]) -> NDArray[np.float64]:
    found = []
    for place in np.stack(np.meshgrid(rows, columns, indexing="ij"), -1).reshape(-1, 2):
        extents = np.array(x.shape[1:])
        if (place < -1).any() or (place > extents).any():
            found.append(np.zeros((4, len(x))))
            continue
        held = np.clip(place, 0, extents - 1)
        low = np.floor(held).astype(int)
        high, share = np.minimum(low + 1, extents - 1), held - low
        found.append(np.stack([
            x[:, (low, high)[i][0], (low, high)[j][1]].astype(np.float64)
            * (1 - share[0], share[0])[i] * (1 - share[1], share[1])[j]
            for i in (0, 1) for j in (0, 1)
        ]))  # fmt: skip
    return np.stack(found)


@pytest.mark.parametrize(("mode", "ratio"), [("avg", 0), ("max", 2)])
def test_one_kernel_for_all_sizes_with_channels_last(mode: str, ratio: int) -> None:
    session = tvm_hybrid.InferenceSession(dynamic(mode, sampling_ratio=ratio), num_threads=1)
    kernels = [each.kernel for each in session.explain()]
    assert kernels == ["generic_transpose", "generic_serial", "generic_transpose"]
    regions = np.array([[1, 2, 7, 6], [-4, -3, 12, 9], [3, 3, 3.5, 8]], np.float32)
    for shape in ((1, 4, 9, 7), (2, 4, 5, 16)):
        x = random(*shape)
        batch = np.arange(3) % shape[0]
        (got,) = session.run(None, {"x": x, "r": regions, "b": batch})
        for number, region in enumerate(regions):
            bins = sampled(x[batch[number]], tuple(region), (2, 3), ratio)
            reduced = np.array([
                [each.sum(1).mean(0) if mode == "avg" else each.max((0, 1)) for each in row]
                for row in bins
            ])  # fmt: skip
            # Positions up to 20, with 24 bits; slopes up to 8 along two axes.
            np.testing.assert_allclose(got[number], reduced.transpose(2, 0, 1), rtol=0, atol=4e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_samples_outside_take_nothing_from_the_image(mode: str) -> None:
    session = tvm_hybrid.InferenceSession(dynamic(mode, sampling_ratio=2), num_threads=1)
    x = np.full((1, 4, 3, 3), -np.inf, np.float32)
    feeds = {"x": x, "r": np.array([[20, 20, 30, 30]], np.float32), "b": np.array([0])}
    assert (session.run(None, feeds)[0] == 0).all()
    empty = {**feeds, "x": x[:, :, :0], "r": np.zeros((1, 4), np.float32)}
    assert (session.run(None, empty)[0] == 0).all()
    assert (session.run(None, {**feeds, "x": x[:0]})[0] == 0).all()


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_without_samples(mode: str) -> None:
    session = tvm_hybrid.InferenceSession(dynamic(mode), num_threads=1)
    regions = np.array([[5, 5, 2, 2], [1, 1, 1, 1], [np.nan] * 4, [0, 0, np.inf, 1]], np.float32)
    feeds = {"x": random(1, 4, 6, 6), "r": regions, "b": np.zeros(4, np.int64)}
    assert (session.run(None, feeds)[0] == 0).all()
