"""Operators in NumPy compared with ONNX Runtime, if ONNX's node tests check too little."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.frontend.onnx.reader.load_graph import read_dynamic_model
from tvm_hybrid.session.fast_start.background import NumpyModel

from ...frontend.test_weight_only import nbits_model

RNG = np.random.default_rng(0)


def both(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Results of NumPy and of ONNX Runtime."""
    found = NumpyModel(read_dynamic_model(model)).run(feeds, lambda: True)[0]
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return found, session.run(None, feeds)[0]


def one(op: str, x: np.ndarray, *weights: np.ndarray, **form: Any) -> onnx.ModelProto:
    build = OnnxBuilder()
    name = build.input("x", x.shape, x.dtype)
    build.output(build.node(op, name, *map(build.constant, weights), **form), None, x.dtype)
    return build.model()


WINDOWS: dict[str, dict[str, Any]] = {
    "strides": {"strides": [2, 3], "pads": [0, 1, 2, 1]},
    "dilations": {"dilations": [2, 1], "pads": [2, 1, 2, 1]},
    "same upper": {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    "same lower": {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
}


@pytest.mark.parametrize("form", WINDOWS.values(), ids=list(WINDOWS))
@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_convolutions(form: dict[str, Any], group: int) -> None:
    x = RNG.standard_normal((2, 8, 11, 9)).astype(np.float32)
    w = RNG.standard_normal((16, 8 // group, 3, 2)).astype(np.float32)
    found, expected = both(one("Conv", x, w, group=group, **form), {"x": x})
    # 48 products, summed in another order, of values below 16.
    np.testing.assert_allclose(found, expected, atol=48 * 2.0**-24 * 16 * 4)


def test_a_convolution_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_hybrid.session.fast_start.windows.BLOCK_BYTES", 1 << 12)
    x = RNG.standard_normal((1, 4, 17, 13)).astype(np.float32)
    w = RNG.standard_normal((3, 4, 3, 3)).astype(np.float32)
    found, expected = both(one("Conv", x, w), {"x": x})
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    "form",
    [
        {"strides": [2, 3], "pads": [0, 1, 1, 1], "output_padding": [1, 2]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [3, 3], "output_shape": [34, 26]},
        {"dilations": [2, 2], "group": 2},
    ],
    ids=["output padding", "same", "output shape", "groups"],
)
def test_transposed_convolutions(form: dict[str, Any]) -> None:
    x = RNG.standard_normal((2, 8, 11, 9)).astype(np.float32)
    w = RNG.standard_normal((8, 3, 3, 2)).astype(np.float32)
    found, expected = both(one("ConvTranspose", x, w, **form), {"x": x})
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_pools(op: str, include: int, ceil: int) -> None:
    x = RNG.standard_normal((1, 3, 10, 7)).astype(np.float32)
    form: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
    if op == "AveragePool":
        form["count_include_pad"] = include
    found, expected = both(one(op, x, ceil_mode=ceil, **form), {"x": x})
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero_points", ["none", "packed", "float"])
def test_weights_of_few_bits(bits: int, zero_points: str) -> None:
    model, weight = nbits_model(bits, 16, 40, zero_points, bias=False)
    x = RNG.standard_normal((2, 3, 40)).astype(np.float32)
    found = NumpyModel(read_dynamic_model(model)).run({"x": x}, lambda: True)[0]
    np.testing.assert_allclose(found, x.astype(np.float64) @ weight, rtol=1e-4, atol=1e-3)


def test_erf_is_as_exact_as_float32() -> None:
    x = np.linspace(-6, 6, 10**5, dtype=np.float32)
    found, expected = both(one("Erf", x), {"x": x})
    np.testing.assert_allclose(found, expected, atol=2.5e-7)


def test_resize_of_opset_10_takes_its_own_inputs() -> None:
    build = OnnxBuilder(opset=10)
    scales = build.constant(np.array([1, 1, 2, 2], np.float32))
    resized = build.node("Resize", build.input("x", [1, 1, 3, 4]), scales, mode="nearest")
    build.output(resized, [1, 1, 6, 8])
    x = RNG.standard_normal((1, 1, 3, 4)).astype(np.float32)
    found, expected = both(build.model(), {"x": x})
    np.testing.assert_array_equal(found, expected)
