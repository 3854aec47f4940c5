"""Requantisation at many ties and limits, where rounding modes differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.onnx_reference.evaluate import evaluate

from .integer_checks import TARGETS, open_session

pytestmark = pytest.mark.turns

DTYPES = ("uint8", "int8")


def is_tie(steps: np.ndarray) -> np.ndarray:
    return steps - np.floor(steps) == 0.5


@pytest.mark.sampled
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_tie_of_a_product(dtype: str, rank: int, target: str) -> None:
    """256 x 5 times 5 x 64: covers every sum at 1/2, 1/4 and 1/8 of the result's step."""
    rng = np.random.default_rng(0)
    a = np.zeros((256, 5), np.uint8)
    a[:, 0], a[:, 1] = np.arange(256), 1
    b = np.zeros((5, 64), np.int8)
    b[0], b[1], b[2:] = 1, np.arange(-32, 32), rng.integers(-128, 127, (3, 64))
    limits = np.iinfo(dtype)
    for shift, zero in (1, 3), (2, limits.min), (3, limits.max):
        g = OnnxBuilder()
        scale, a_zero = g.constant(0.5, np.float32), g.constant(0, np.uint8)
        x = g.node("DequantizeLinear", g.input("a", a.shape, np.uint8), scale, a_zero)
        scales = g.constant(np.full(64, 0.25, np.float32) if rank == 2 else np.float32(0.25))
        zeros = g.constant(np.zeros(64 if rank == 2 else (), np.int8))
        w = g.node("DequantizeLinear", g.constant(b), scales, zeros, axis=1)
        y = g.node("MatMul", x, w)
        step = g.constant(0.125 * 2**shift, np.float32)
        g.output(g.node("QuantizeLinear", y, step, g.constant(zero, dtype)), (256, 64), dtype)
        model = g.model()
        session = open_session(model, 1, target)
        steps = (a.astype(int) @ b.astype(int)) / 2**shift
        wanted = np.clip(np.rint(steps) + int(zero), limits.min, limits.max)
        assert is_tie(steps).mean() >= 2.0 ** -(shift + 1)
        got = session.run(None, {"a": a})[0]
        np.testing.assert_array_equal(got, wanted.astype(dtype), strict=True)
        np.testing.assert_array_equal(evaluate(model, {"a": a})[0], got)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.5, 0.1, 1 / 3, 0.0078125, 3e-5, 1e10])
def test_quantize_linear_alone(dtype: str, scale: float) -> None:
    """x / scale must be a division: multiplying by 1 / scale fails at some of these ties."""
    limits = np.iinfo(dtype)
    halves = np.arange(-1200, 1201).astype(np.float32) / np.float32(2)
    step = np.float32(scale)
    x = halves * step
    x = np.concatenate(
        [np.nextafter(x, np.float32(-np.inf)), x, np.nextafter(x, np.float32(np.inf))]
    )
    x = np.concatenate([x, np.array([np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0], np.float32)])
    for zero in (limits.min, limits.max, 0, -7 if dtype == "int8" else 130):
        g = OnnxBuilder()
        y = g.node("QuantizeLinear", g.input("x", x.shape), *_parameters(g, step, zero, dtype))
        g.output(y, x.shape, dtype)
        model = g.model()
        session = tvm_hybrid.InferenceSession(model.SerializeToString(), num_threads=1)
        got, wanted = session.run(None, {"x": x})[0], evaluate(model, {"x": x})[0]
        np.testing.assert_array_equal(got, wanted, strict=True)
    assert is_tie(x[:-6] / step).sum() > 1000


def _parameters(g: OnnxBuilder, scale: Any, zero: Any, dtype: str) -> tuple[str, str]:
    return g.constant(scale, np.float32), g.constant(zero, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_per_axis(dtype: str) -> None:
    """QuantizeLinear and DequantizeLinear along each axis, counted from either end."""
    rng = np.random.default_rng(0)
    limits = np.iinfo(dtype)
    shape = (3, 5, 7)
    for axis in (0, 1, 2, -1, -2, -3):
        count = shape[axis]
        scale = rng.uniform(0.01, 0.1, count).astype(np.float32)
        zero = rng.integers(limits.min, limits.max, count, dtype, endpoint=True)
        g = OnnxBuilder()
        names = (g.constant(scale), g.constant(zero))
        q = g.node("QuantizeLinear", g.input("x", shape), *names, axis=axis)
        g.output(q, shape, dtype)
        g.output(g.node("DequantizeLinear", q, *names, axis=axis), shape)
        model = g.model()
        session = tvm_hybrid.InferenceSession(model.SerializeToString(), num_threads=1)
        spread = scale.reshape([-1 if i == axis % 3 else 1 for i in range(3)])
        for _ in range(20):
            x = (rng.integers(-300, 300, shape) / 2).astype(np.float32) * spread
            for got, wanted in zip(
                session.run(None, {"x": x}), evaluate(model, {"x": x}), strict=True
            ):
                np.testing.assert_array_equal(got, wanted, strict=True)
