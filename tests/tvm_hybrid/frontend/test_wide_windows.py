"""Pools whose window exceeds the image have one window, as in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.errors import ShapeError

pytestmark = pytest.mark.turns

X = np.random.default_rng(0).standard_normal((1, 2, 3, 4)).astype(np.float32)


def pool(op: str, sizes: tuple[int, int], outputs: int = 1, **attributes: Any) -> bytes:
    build = OnnxBuilder(18)
    build.input("x", X.shape)
    names = build.nodes(op, outputs, "x", **attributes)
    for name, dtype in zip(names, (np.float32, np.int64), strict=False):
        build.output(name, (1, 2, *sizes), dtype)
    return build.model().SerializeToString()


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize(
    ("sizes", "attributes"),
    [
        ((1, 1), {"kernel_shape": [7, 7], "strides": [7, 7]}),
        ((1, 3), {"kernel_shape": [5, 2], "strides": [3, 1]}),
        ((1, 1), {"kernel_shape": [5, 5], "strides": [3, 2], "pads": [1, 0, 0, 0]}),
        ((1, 1), {"kernel_shape": [4, 6], "strides": [2, 3], "auto_pad": "VALID"}),
    ],
)
@pytest.mark.parametrize("counted", [0, 1])
def test_one_window(
    op: str, sizes: tuple[int, int], attributes: dict[str, Any], counted: int
) -> None:
    if op == "AveragePool":
        attributes = {**attributes, "count_include_pad": counted}
    elif counted:
        attributes = {**attributes, "ceil_mode": 1}
    model = pool(op, sizes, **attributes)
    (found,) = tvm_hybrid.compile(model, num_threads=1).run(X)
    (wanted,) = onnxruntime.InferenceSession(model).run(None, {"x": X})
    assert found.numpy().shape == wanted.shape
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_places_of_its_maxima() -> None:
    model = pool("MaxPool", (1, 1), outputs=2, kernel_shape=[7, 7], strides=[7, 7])
    _, places = tvm_hybrid.compile(model, num_threads=1).run(X)
    wanted = onnxruntime.InferenceSession(model).run(None, {"x": X})[1]
    np.testing.assert_array_equal(places.numpy(), wanted)


def test_less_than_a_stride_may_be_missing() -> None:
    with pytest.raises(ShapeError, match="would have the shape"):
        tvm_hybrid.compile(pool("AveragePool", (1, 1), kernel_shape=[7, 7]), num_threads=1)
