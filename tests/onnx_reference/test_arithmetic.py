"""The reference compared with onnx's own, and with exact arithmetic at ties and limits."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from tests.onnx_builder import OnnxBuilder

from .arithmetic import Array, dynamic_quantize, integer_product, quantize, quantized
from .evaluate import evaluate

BYTES = (np.uint8, np.int8)
seeds = st.integers(0, 2**32 - 1)


def random_bytes(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("dtype", BYTES)
@given(seeds)
def test_quantize_agrees_with_fractions(dtype: Any, seed: int) -> None:
    """At ties of x / scale, between ties and far outside; scales are powers of two: exact."""
    rng = np.random.default_rng(seed)
    scale = np.float32(2.0 ** rng.integers(-8, 4))
    zero = random_bytes(rng, dtype)
    x = (rng.integers(-600, 600, 200) / 2 * scale).astype(np.float32)
    limits = np.iinfo(dtype)
    for got, value in zip(quantize(x, scale, zero), x, strict=True):
        steps = round(Fraction(float(value)) / Fraction(float(scale)))  # half to even
        assert got == max(limits.min, min(limits.max, steps + int(zero)))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@given(seeds)
def test_quantize_and_dequantize_agree_with_onnx(dtype: Any, axis: int | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = () if axis is None else (4 + axis % 2,)
    g = OnnxBuilder(19)
    x = g.input("x", (4, 5))
    scale = g.constant(rng.uniform(0.01, 0.2, count), np.float32)
    zero = g.constant(random_bytes(rng, dtype, *count))
    q = g.node("QuantizeLinear", x, scale, zero, axis=1 if axis is None else axis)
    y = g.node("DequantizeLinear", q, scale, zero, axis=1 if axis is None else axis)
    g.output(q, (4, 5), dtype)
    g.output(y, (4, 5))
    agree(g, {"x": rng.normal(0, 10, (4, 5)).astype(np.float32)})


def agree(g: OnnxBuilder, feeds: dict[str, Array]) -> None:
    """Asserts that the bits equal those of onnx's reference evaluator."""
    model = g.model()
    for ours, theirs in zip(
        evaluate(model, feeds), ReferenceEvaluator(model).run(None, feeds), strict=True
    ):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_quantize_without_zero_point_gives_uint8() -> None:
    g = OnnxBuilder()
    y = g.node("QuantizeLinear", g.input("x", (3,)), g.constant(0.5, np.float32))
    g.output(y, (3,), np.uint8)
    agree(g, {"x": np.array([-1, 0.75, 1e9], np.float32)})


@given(seeds)
def test_dynamic_quantize_agrees_with_onnx(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = sorted(rng.normal(0, 5, 2))
    g = OnnxBuilder()
    outputs = g.nodes("DynamicQuantizeLinear", 3, g.input("x", (3, 7)))
    for name, shape, dtype in zip(
        outputs, [(3, 7), (), ()], [np.uint8, np.float32, np.uint8], strict=True
    ):
        g.output(name, shape, dtype)
    agree(g, {"x": rng.uniform(low, high, (3, 7)).astype(np.float32)})


def test_dynamic_quantize_of_constants() -> None:
    q, scale, zero = dynamic_quantize(np.zeros((2, 3), np.float32))
    assert (scale, zero) == (1, 0) and not q.any()
    q, scale, zero = dynamic_quantize(np.full((2, 3), 51, np.float32))
    assert (scale, zero) == (np.float32(0.2), 0) and (q == 255).all()
    q, scale, zero = dynamic_quantize(np.full((2, 3), -51, np.float32))
    assert (scale, zero) == (np.float32(0.2), 255) and (q == 0).all()


@pytest.mark.parametrize("a_type", BYTES)
@pytest.mark.parametrize("b_type", BYTES)
@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_matmul_integer_agrees_with_onnx(a_type: Any, b_type: Any, zeros: int) -> None:
    rng = np.random.default_rng(zeros)
    g = OnnxBuilder()
    operands = [g.input("a", (2, 4, 9), a_type), g.constant(random_bytes(rng, b_type, 9, 5))]
    a_zero = g.constant(random_bytes(rng, a_type)) if zeros & 1 else ""
    b_zero = g.constant(random_bytes(rng, b_type, 5)) if zeros & 2 else ""
    g.output(g.node("MatMulInteger", *operands, a_zero, b_zero), (2, 4, 5), np.int32)
    agree(g, {"a": random_bytes(rng, a_type, 2, 4, 9)})


@pytest.mark.parametrize("a_type", BYTES)
@pytest.mark.parametrize("b_type", BYTES)
def test_products_are_exact_at_the_limits(a_type: Any, b_type: Any) -> None:
    for a in np.iinfo(a_type).min, np.iinfo(a_type).max:
        for b in np.iinfo(b_type).min, np.iinfo(b_type).max:
            got = integer_product(np.full((2, 1021), a), np.full((1021, 3), b))
            assert (got == 1021 * a * b).all()
    with pytest.raises(AssertionError, match="leaves int32"):
        integer_product(np.full((1, 70000), 255), np.full((70000, 1), 255))


def assert_equal_but_near_ties(ours: Array, theirs: Array, steps: Array) -> None:
    """One step apart at most, and only where `steps`, in float64, is within 5e-5 of a tie.

    Other implementations compute the factor a_scale * b_scale / y_scale first: three roundings of
    2^-24 relative, of values up to 2^8 steps: 3 * 2^-16 = 4.6e-5 of a step.
    """
    apart = np.abs(ours.astype(int) - theirs.astype(int))
    assert apart.max() <= 1
    distance = np.abs(steps - np.floor(steps) - 0.5)
    assert (distance[apart > 0] < 5e-5).all()


@pytest.mark.parametrize("a_type", BYTES)
@pytest.mark.parametrize("b_type", BYTES)
@given(seeds)
def test_qlinear_matmul_agrees_with_onnx_but_near_ties(a_type: Any, b_type: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = random_bytes(rng, a_type, 6, 11), random_bytes(rng, b_type, 11, 7)
    a_scale, b_scale, scale = (np.float32(item) for item in rng.uniform(0.01, 1.0, 3))
    scale *= np.float32(100)
    a_zero, b_zero = random_bytes(rng, a_type), random_bytes(rng, b_type)
    zero = random_bytes(rng, a_type)
    g = OnnxBuilder()
    constants = [g.constant(item) for item in (a_scale, a_zero, b, b_scale, b_zero, scale, zero)]
    y = g.node("QLinearMatMul", g.input("a", (6, 11), a_type), *constants)
    g.output(y, (6, 7), a_type)
    model, feeds = g.model(), {"a": a}
    centred = quantized(a, a_scale, a_zero).centred @ quantized(b, b_scale, b_zero).centred
    steps = centred * (float(a_scale) * float(b_scale) / float(scale))
    theirs = ReferenceEvaluator(model).run(None, feeds)[0]
    assert_equal_but_near_ties(evaluate(model, feeds)[0], theirs, steps)


def test_a_product_of_dequantised_values_is_an_integer_product() -> None:
    """Compared with exact arithmetic: rounds once each for the sum, the scale and their product."""
    rng = np.random.default_rng(0)
    a, b = random_bytes(rng, np.uint8, 5, 700), random_bytes(rng, np.int8, 700, 6)
    scales = rng.uniform(0.001, 0.1, 6).astype(np.float32)
    g = OnnxBuilder()
    x = g.node("DequantizeLinear", g.input("a", (5, 700), np.uint8), *_parameters(g, 0.37, 3))
    w = g.constant(b.T.copy())
    w = g.node("DequantizeLinear", w, g.constant(scales), g.constant(np.zeros(6, np.int8)), axis=0)
    y = g.node("MatMul", x, g.node("Transpose", w, perm=(1, 0)))
    g.output(y, (5, 6))
    got = evaluate(g.model(), {"a": a})[0]
    total = (a.astype(int) - 3) @ b.astype(int)
    factors = np.float32(0.37) * scales
    np.testing.assert_array_equal(got, total.astype(np.float32) * factors)
    exact = total * (float(np.float32(0.37)) * scales.astype(np.float64))
    np.testing.assert_allclose(got, exact, rtol=3 * 2.0**-24)


def _parameters(g: OnnxBuilder, scale: float, zero: int) -> tuple[str, str]:
    return g.constant(scale, np.float32), g.constant(zero, np.uint8)


def test_rearranged_values_stay_integers() -> None:
    """Transpose, Reshape, Slice, Flatten, Squeeze and Unsqueeze match onnx's results."""
    rng = np.random.default_rng(0)
    g = OnnxBuilder(19)
    y = g.node("DequantizeLinear", g.input("a", (2, 3, 8), np.uint8), *_parameters(g, 0.1, 9))
    y = g.node("Transpose", y, perm=(1, 0, 2))
    y = g.node("Reshape", y, g.constant([0, -1]))
    y = g.node("Slice", y, *(g.constant([i]) for i in (2, 11, 1)))
    y = g.node("Unsqueeze", y, g.constant([1]))
    y = g.node("Squeeze", y, g.constant([1]))
    g.output(g.node("Flatten", y, axis=0), (1, 27))
    agree(g, {"a": random_bytes(rng, np.uint8, 2, 3, 8)})
