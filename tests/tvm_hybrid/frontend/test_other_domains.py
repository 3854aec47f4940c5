"""Operators of ai.onnx.ml compared with ONNX Runtime, and optimisers with their formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from tvm_hybrid.errors import ModelError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import onnxruntime_run, random
from .test_values import declared, run

pytestmark = pytest.mark.turns

FEATURES = "ai.onnx.ml"
TRAINING = "ai.onnx.preview.training"


def model_of(
    op: str, domain: str, version: int, feeds: dict[str, NDArray], outputs: dict[str, NDArray],
    **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    """One node in a model that imports only the node's domain."""
    node = helper.make_node(op, list(feeds), list(outputs), domain=domain, **attributes)
    given = [helper.make_tensor_value_info(*declared(k, v)) for k, v in feeds.items()]
    made = [helper.make_tensor_value_info(*declared(k, v)) for k, v in outputs.items()]
    graph = helper.make_graph([node], "graph", given, made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, version)],
                             ir_version=10)  # fmt: skip


FLOATS = np.array([[1.5, np.nan, 2, -1], [0, 1e9, 1.5, -0.0]], np.float32)
INTEGERS = np.array([[3, 1, 2], [1, 7, -4]])
ENCODERS: list[tuple[NDArray, type, dict[str, Any]]] = [
    (INTEGERS, np.float32, {"keys_int64s": [1, 3, -4], "values_floats": [0.5, 1.5, 2.5]}),
    (INTEGERS, np.int64, {"keys_int64s": [1, 2], "values_int64s": [10, 20]}),
    (INTEGERS, np.int64, {"keys_int64s": [7], "values_int64s": [5], "default_int64": 9}),
    (FLOATS, np.int64, {"keys_floats": [1.5, 0.0], "values_int64s": [1, 3]}),
    (FLOATS, np.float32, {"keys_floats": [2.0], "values_floats": [np.nan], "default_float": -2.5}),
]


@pytest.mark.parametrize(("x", "made", "attributes"), ENCODERS)
def test_label_encoder(x: NDArray, made: type, attributes: dict[str, Any]) -> None:
    model = model_of("LabelEncoder", FEATURES, 2, {"x": x}, {"y": x.astype(made)}, **attributes)
    (got,), (wanted,) = run(model, {"x": x}), onnxruntime_run(model, {"x": x})
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


def test_a_key_that_is_nan() -> None:
    """A NaN key matches, as ONNX says; ONNX Runtime does not find it."""
    y = np.zeros(FLOATS.shape, np.int64)
    model = model_of("LabelEncoder", FEATURES, 2, {"x": FLOATS}, {"y": y},
                     keys_floats=[1.5, np.nan], values_int64s=[1, 2])  # fmt: skip
    np.testing.assert_array_equal(run(model, {"x": FLOATS})[0], [[1, 2, -1, -1], [-1, -1, 1, -1]])


def test_label_encoder_of_tensors() -> None:
    x = np.array([4, 5, 6], np.int16)
    tables = {
        "keys_tensor": onnx.numpy_helper.from_array(np.array([6, 4], np.int16)),
        "values_tensor": onnx.numpy_helper.from_array(np.array([0.25, 0.5])),
        "default_tensor": onnx.numpy_helper.from_array(np.array([-1.0])),
    }
    y = np.zeros(3)
    (got,) = run(model_of("LabelEncoder", FEATURES, 4, {"x": x}, {"y": y}, **tables), {"x": x})
    np.testing.assert_array_equal(got, [0.5, -1, 0.25])


def test_labels_of_texts_are_refused() -> None:
    x = np.zeros(3, np.int64)
    model = model_of("LabelEncoder", FEATURES, 2, {"x": x}, {"y": x},
                     keys_int64s=[1], values_strings=["a"])  # fmt: skip
    with pytest.raises(UnsupportedOperatorError, match="values that are no numbers"):
        import_onnx(model)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_features(shape: tuple[int, ...]) -> None:
    """Features are extracted and compared."""
    x = random(*shape)
    feeds = {"x": x, "i": np.array([3, 0, 3])}
    y = np.zeros((*(shape[:-1] or (1,)), 3), np.float32)
    for model, given in (
        (model_of("ArrayFeatureExtractor", FEATURES, 1, feeds, {"y": y}), feeds),
        (model_of("Binarizer", FEATURES, 1, {"x": x}, {"y": x}, threshold=0.25), {"x": x}),
    ):
        np.testing.assert_array_equal(run(model, given), onnxruntime_run(model, given))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("numbers", [4, 1])
def test_scaler(dtype: str, numbers: int) -> None:
    x = (random(3, 4) * np.float32(5)).astype(dtype)
    offset, scale = random(numbers, seed=1).tolist(), random(numbers, seed=2).tolist()
    y = np.zeros((3, 4), np.float32)
    model = model_of("Scaler", FEATURES, 1, {"x": x}, {"y": y}, offset=offset, scale=scale)
    (got,) = run(model, {"x": x})
    wanted = (x - np.float64(offset)) * np.float64(scale)
    # Roundings of x, the difference and the product, for values up to 100.
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=0, atol=3 * 2.0**-24 * 100)


def momentum(r: Any, t: int, x: Any, g: Any, v: Any, mode: str) -> tuple[Any, Any]:
    slope = 0.1 * x + g
    mean = 0.9 * v + (0.5 if t > 0 else 1) * slope
    return x - r * (mean if mode == "standard" else slope + 0.9 * mean), mean


def adagrad(r: Any, t: int, x: Any, g: Any, h: Any) -> tuple[Any, Any]:
    slope = 0.1 * x + g
    squares = h + slope**2
    return x - r / (1 + t * 0.25) * slope / (np.sqrt(squares) + 1e-3), squares


def adam(r: Any, t: int, x: Any, g: Any, v: Any, h: Any) -> tuple[Any, Any, Any]:
    slope = 0.1 * x + g
    mean, squares = 0.875 * v + 0.125 * slope, 0.75 * h + 0.25 * slope**2
    rate = r * np.sqrt(1 - 0.75**t) / (1 - 0.875**t) if t else r
    return 0.5 * (x - rate * mean / (np.sqrt(squares) + 1e-3)), mean, squares


STEPS: list[tuple[str, int, Callable[..., Any], dict[str, Any]]] = [
    ("Momentum", 3, lambda *x: momentum(*x, "standard"),
     {"alpha": 0.9, "beta": 0.5, "mode": "standard"}),
    ("Momentum", 3, lambda *x: momentum(*x, "nesterov"),
     {"alpha": 0.9, "beta": 0.5, "mode": "nesterov"}),
    ("Adagrad", 3, adagrad, {"decay_factor": 0.25, "epsilon": 1e-3}),
    ("Adam", 4, adam,
     {"alpha": 0.875, "beta": 0.75, "epsilon": 1e-3, "norm_coefficient_post": 0.5}),
]  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize(("op", "roles", "formula", "attributes"), STEPS)
def test_steps(
    op: str, roles: int, formula: Callable[..., Any], attributes: dict[str, Any]
) -> None:
    """Two tensors of two types in one node, in the first step and later."""
    feeds: dict[str, NDArray] = {"r": np.array(0.125, np.float32), "t": np.array(0)}
    for role in range(roles):
        for place, (shape, dtype) in enumerate((((2, 3), "float32"), ((4,), "float64"))):
            array = np.abs(random(*shape, seed=2 * role + place)).astype(dtype)
            feeds[f"i{role}{place}"] = array
    outputs = {
        f"o{role}{place}": feeds[f"i{role}{place}"] for role in range(roles - 1) for place in (0, 1)
    }
    model = model_of(op, TRAINING, 1, feeds, outputs, norm_coefficient=0.1, **attributes)
    for count in (0, 3):
        feeds["t"] = np.array(count)
        got = run(model, feeds)
        for place in (0, 1):
            tensors = [feeds[f"i{role}{place}"].astype(np.float64) for role in range(roles)]
            for found, exact in zip(got[place::2], formula(0.125, count, *tensors), strict=True):
                # A dozen roundings of values up to 10; attributes are float32.
                np.testing.assert_allclose(found, exact, rtol=0, atol=12 * 2.0**-24 * 10)


def test_standard_operators_need_their_opset() -> None:
    x = np.zeros(3, np.float32)
    model = model_of("Relu", "", 1, {"x": x}, {"y": x})
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid(FEATURES, 1))
    with pytest.raises(ModelError, match="opset_import"):
        import_onnx(model)
