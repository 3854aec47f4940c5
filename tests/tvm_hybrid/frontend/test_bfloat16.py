"""Models in bfloat16: they import, and products are accumulated in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tvm_hybrid.frontend import import_onnx

from .models import Declaration, make_model, operators, random, run_imported

pytestmark = pytest.mark.turns

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EPSILON = 2.0**-8  # largest relative error of one rounding to bfloat16


def bf16(name: str, *dims: int | None) -> Declaration:
    """A bfloat16 input or output."""
    return name, TensorProto.BFLOAT16, dims


def values(*shape: int, seed: int = 0) -> NDArray[Any]:
    """Normal values in bfloat16."""
    return random(*shape, seed=seed).astype(BFLOAT16)


def run(model: onnx.ModelProto, feeds: dict[str, NDArray]) -> NDArray[np.float64]:
    """The bfloat16 output, widened."""
    imported = import_onnx(model)
    assert {item.dtype for item in (*imported.inputs, *imported.outputs)} == {"bfloat16"}
    (result,) = run_imported(imported, feeds)
    assert result.dtype == BFLOAT16
    return result.astype(np.float64)


def wide(*arrays: NDArray) -> Sequence[NDArray[np.float64]]:
    """The bfloat16 values as float64."""
    return [array.astype(np.float64) for array in arrays]


@pytest.mark.parametrize("constant", [True, False])
def test_matmul_rounds_once(constant: bool) -> None:
    """600 equal terms: a sum kept in bfloat16 would stop growing at 256."""
    a, b = np.ones((2, 600), BFLOAT16), np.ones((600, 3), BFLOAT16)
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    inputs = [bf16("a", 2, 600), *([] if constant else [bf16("b", 600, 3)])]
    model = make_model([node], inputs, [bf16("y", 2, 3)], {"b": b} if constant else {})
    feeds = {"a": a} if constant else {"a": a, "b": b}
    assert run(model, feeds).tolist() == [[600.0] * 3] * 2
    assert operators(import_onnx(model)) == {"matmul": 1, "astype": 1}


def test_gemm() -> None:
    a, b, c = values(4, 40), values(5, 40, seed=1), values(5, seed=2)
    node = helper.make_node("Gemm", ["a", "b", "c"], ["y"], transB=1)
    model = make_model([node], [bf16("a", 4, 40)], [bf16("y", 4, 5)], {"b": b, "c": c})
    left, right, bias = wide(a, b, c)
    # The error of the float32 sum is negligible beside one rounding of the result to bfloat16.
    wanted = left @ right.T + bias
    np.testing.assert_allclose(run(model, {"a": a}), wanted, rtol=EPSILON, atol=1e-5)


UNARY: dict[str, Callable[[NDArray], NDArray]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Neg": lambda x: -x,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Exp": np.exp,
    "Sqrt": np.sqrt,
}


@pytest.mark.parametrize("op_type", UNARY)
def test_unary(op_type: str) -> None:
    x = np.abs(values(50)) if op_type == "Sqrt" else values(50)
    model = make_model([helper.make_node(op_type, ["x"], ["y"])], [bf16("x", 50)], [bf16("y", 50)])
    # Computed in float32, rounded once.
    wanted = UNARY[op_type](x.astype(np.float64))
    np.testing.assert_allclose(run(model, {"x": x}), wanted, rtol=EPSILON, atol=0)


def test_a_clip_stays_one() -> None:
    nodes = [helper.make_node("Clip", ["x", "low", "high"], ["y"])]
    limits = {"low": np.array(-0.5, BFLOAT16), "high": np.array(0.75, BFLOAT16)}
    model = make_model(nodes, [bf16("x", 50)], [bf16("y", 50)], limits)
    assert operators(import_onnx(model)) == {"clip": 1}
    x = values(50)
    np.testing.assert_array_equal(run(model, {"x": x}), np.clip(*wide(x), -0.5, 0.75))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_resize_is_that_of_tvm(mode: str) -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode)
    scales = {"scales": np.array([1, 1, 2, 2], np.float32)}
    model = make_model([node], [bf16("x", 1, 2, 3, 4)], [bf16("y", 1, 2, 6, 8)], scales, opset=19)
    found = operators(import_onnx(model))
    assert found.pop("image.resize2d") == 1
    assert found == ({} if mode == "nearest" else {"astype": 2})
    x = values(1, 2, 3, 4)
    f32 = make_model(
        [node],
        [("x", TensorProto.FLOAT, (1, 2, 3, 4))],
        [("y", TensorProto.FLOAT, (1, 2, 6, 8))],
        scales,
        opset=19,
    )
    (wanted,) = run_imported(import_onnx(f32), {"x": x.astype(np.float32)})
    np.testing.assert_array_equal(run(model, {"x": x}), wanted.astype(BFLOAT16).astype(np.float64))


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "GlobalAveragePool"])
def test_sums_round_once(op_type: str) -> None:
    x = np.ones((1, 2, 600), BFLOAT16)
    extra: dict[str, Any] = {} if op_type == "GlobalAveragePool" else {"keepdims": 1}
    node = helper.make_node(op_type, ["x"], ["y"], **extra)
    inputs, outputs = [bf16("x", 1, 2, 600)], [bf16("y", None, None, None)]
    opset = 22 if op_type == "GlobalAveragePool" else 17  # the first opset that takes bfloat16
    model = make_model([node], inputs, outputs, opset=opset)
    wanted = 1200.0 if op_type == "ReduceSum" else 1.0
    assert set(run(model, {"x": x}).ravel().tolist()) == {wanted}


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
def test_binary(op_type: str) -> None:
    x, w = values(4, 50), values(50, seed=1)
    node = helper.make_node(op_type, ["x", "w"], ["y"])
    model = make_model([node], [bf16("x", 4, 50)], [bf16("y", 4, 50)], {"w": w})
    left, right = wide(x, w)
    operation = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[op_type]
    np.testing.assert_allclose(run(model, {"x": x}), operation(left, right), rtol=EPSILON, atol=0)


def test_shape_operators_keep_every_bit() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0, 2]),
        helper.make_node("Concat", ["b", "b"], ["y"], axis=2),
    ]
    constants = {"shape": np.array([2, 3, 4], np.int64)}
    model = make_model(nodes, [bf16("x", 6, 4)], [bf16("y", 3, 2, 8)], constants)
    x = values(6, 4)
    transposed = x.reshape(2, 3, 4).transpose(1, 0, 2).astype(np.float64)
    np.testing.assert_array_equal(run(model, {"x": x}), np.concatenate([transposed, transposed], 2))


def test_casts() -> None:
    """float32 -> bfloat16 rounds to nearest, ties to even; the way back is exact."""
    nodes = [helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
             helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT)]  # fmt: skip
    model = make_model(nodes, [("x", TensorProto.FLOAT, [64])], [("y", TensorProto.FLOAT, [64])])
    x = np.concatenate([random(60), [1 + EPSILON, 1 + 3 * EPSILON, 0.0, -0.0]]).astype(np.float32)
    (result,) = run_imported(import_onnx(model), {"x": x})
    np.testing.assert_array_equal(result, x.astype(BFLOAT16).astype(np.float32))


def test_a_layer() -> None:
    """MatMul, bias, gelu-like tail and normalisation in one model with constant weights."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["a"]),
        helper.make_node("Softmax", ["a"], ["p"], axis=-1),
        helper.make_node("LayerNormalization", ["p", "g", "b"], ["y"]),
    ]
    constants = {"w": values(32, 16), "b": values(16, seed=1), "g": values(16, seed=2)}
    model = make_model(nodes, [bf16("x", 4, 32)], [bf16("y", 4, 16)], constants)
    x = values(4, 32, seed=3)
    data, w, b, g = wide(x, *constants.values())
    a = data @ w + b
    p = np.exp(a - a.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    spread = np.sqrt(p.var(-1, keepdims=True) + 1e-5)
    wanted = (p - p.mean(-1, keepdims=True)) / spread * g + b
    # Logits of up to 20 rounded to bfloat16 change a probability by 20 * 2^-8 of itself; the
    # normalised value, of the order of 4, passes that on.
    np.testing.assert_allclose(run(model, {"x": x}), wanted, rtol=0, atol=4 * 20 * EPSILON)
