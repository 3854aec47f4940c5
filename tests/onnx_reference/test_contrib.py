"""The reference of com.microsoft's operators against ONNX Runtime, which defines them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx_builder import CONTRIB, OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

from .arithmetic import Array
from .evaluate import evaluate
from .test_arithmetic import BYTES, random_bytes

SHAPE = (8, 16)


def ort(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    return literal_session(model).run(None, feeds)[0]


def assert_one_step_apart_at_most(model: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    """ONNX Runtime's order of float operations may give another integer at ties, which is rare."""
    ours, theirs = evaluate(model, feeds)[0], ort(model, feeds)
    assert ours.dtype == theirs.dtype
    apart = np.abs(ours.astype(int) - theirs.astype(int))
    assert apart.max() <= 1 and (apart > 0).mean() < 0.02


def parameters(g: OnnxBuilder, rng: np.random.Generator, dtype: Any, scale: float) -> list[str]:
    return [g.constant(scale, np.float32), g.constant(random_bytes(rng, dtype))]


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_qlinear_binary(op: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    g = OnnxBuilder()
    inputs: list[str] = []
    for name, scale in ("a", 0.013), ("b", 0.031):
        inputs += [g.input(name, SHAPE, dtype), *parameters(g, rng, dtype, scale)]
    y = g.node(op, *inputs, *parameters(g, rng, dtype, 0.047), domain=CONTRIB)
    g.output(y, SHAPE, dtype)
    feeds = {name: random_bytes(rng, dtype, *SHAPE) for name in "ab"}
    assert_one_step_apart_at_most(g.model(), feeds)


@pytest.mark.parametrize("dtype", BYTES)
def test_qlinear_leaky_relu(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    g = OnnxBuilder()
    both = [*parameters(g, rng, dtype, 0.013), *parameters(g, rng, dtype, 0.0091)]
    x = g.input("x", SHAPE, dtype)
    g.output(g.node("QLinearLeakyRelu", x, *both, domain=CONTRIB, alpha=0.2), SHAPE, dtype)
    assert_one_step_apart_at_most(g.model(), {"x": random_bytes(rng, dtype, *SHAPE)})


@pytest.mark.parametrize("dtype", BYTES)
def test_qlinear_concat(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    g = OnnxBuilder()
    inputs = parameters(g, rng, dtype, 0.047)
    for name, scale in ("a", 0.013), ("b", 0.031):
        inputs += [g.input(name, SHAPE, dtype), *parameters(g, rng, dtype, scale)]
    g.output(g.node("QLinearConcat", *inputs, domain=CONTRIB, axis=1), (8, 32), dtype)
    feeds = {name: random_bytes(rng, dtype, *SHAPE) for name in "ab"}
    assert_one_step_apart_at_most(g.model(), feeds)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("b_type", BYTES)
def test_qgemm(b_type: Any, columns: bool) -> None:
    rng = np.random.default_rng(0)
    g = OnnxBuilder()
    count = (5,) if columns else ()
    a = [g.input("a", SHAPE, np.uint8), *parameters(g, rng, np.uint8, 0.013)]
    scale = g.constant(rng.uniform(0.005, 0.02, count), np.float32)
    b = [g.constant(random_bytes(rng, b_type, 5, 16)), scale]
    b += [g.constant(random_bytes(rng, b_type, *count))]
    bias = g.constant(rng.integers(-10000, 10000, 5), np.int32)
    y = parameters(g, rng, np.uint8, 0.19)
    g.output(g.node("QGemm", *a, *b, bias, *y, domain=CONTRIB, transB=1), (8, 5), np.uint8)
    assert_one_step_apart_at_most(g.model(), {"a": random_bytes(rng, np.uint8, *SHAPE)})


@pytest.mark.parametrize("b_type", BYTES)
def test_dynamic_quantize_matmul(b_type: Any) -> None:
    rng = np.random.default_rng(0)
    g = OnnxBuilder()
    b = [g.constant(random_bytes(rng, b_type, 16, 5)), g.constant(rng.uniform(0.01, 0.1, 5), "f4")]
    b += [g.constant(random_bytes(rng, b_type, 5)), g.constant(rng.normal(size=5), "f4")]
    g.output(g.node("DynamicQuantizeMatMul", g.input("a", SHAPE), *b, domain=CONTRIB), (8, 5))
    model, feeds = g.model(), {"a": rng.normal(size=SHAPE).astype(np.float32)}
    ours, theirs = evaluate(model, feeds)[0], ort(model, feeds)
    # Both round the sum, the factor, the product and the addition of the bias, in different orders.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=4 * 2.0**-24 * np.abs(theirs).max() * 2)


@pytest.mark.parametrize("a_type", BYTES)
def test_matmul_integer_to_float(a_type: Any) -> None:
    rng = np.random.default_rng(0)
    g = OnnxBuilder()
    b = g.constant(random_bytes(rng, np.int8, 16, 5))
    scales = [g.constant(0.013, np.float32), g.constant(rng.uniform(0.01, 0.1, 5), np.float32)]
    zeros = [g.constant(random_bytes(rng, a_type)), g.constant(random_bytes(rng, np.int8, 5))]
    bias = g.constant(rng.normal(size=5), np.float32)
    a = g.input("a", SHAPE, a_type)
    g.output(g.node("MatMulIntegerToFloat", a, b, *scales, *zeros, bias, domain=CONTRIB), (8, 5))
    model, feeds = g.model(), {"a": random_bytes(rng, a_type, *SHAPE)}
    ours, theirs = evaluate(model, feeds)[0], ort(model, feeds)
    # The roundings of the test above apply here, too.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=4 * 2.0**-24 * np.abs(theirs).max() * 2)
