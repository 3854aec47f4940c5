"""Sessions of ONNX Runtime: the literal one is exact for every byte product, on every CPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.onnx_builder import CONTRIB, OnnxBuilder
from tvm_hybrid.bench.peers.contestants import ContestantError
from tvm_hybrid.bench.peers.onnx_runtime import (
    literal_session,
    optimised_session,
    unsigned_products,
)

ROWS, DEPTH, COLUMNS = 8, 64, 5
Array = NDArray[Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def extreme(dtype: Any, *shape: int) -> Array:
    """Both ends of the range: two products of such bytes exceed 16 bits."""
    limits = np.iinfo(dtype)
    ends = [limits.max, limits.max, limits.max - 1, limits.min]
    return np.random.default_rng(0).choice(ends, shape).astype(dtype)


def requantized(sums: Array, scale: float, zero: int, dtype: Any) -> Array:
    limits = np.iinfo(dtype)
    steps = np.rint(sums.astype(np.float32) * np.float32(scale)) + zero
    return np.clip(steps, limits.min, limits.max).astype(dtype)


def product(
    form: str, a: Array, b: Array, constant: bool, zeros: bool
) -> tuple[onnx.ModelProto, dict[str, Array], Array]:
    """A model of one product, its inputs, and the result by NumPy; all scales are exact."""
    za, zb = (3, 0 if "Conv" in form else 2) if zeros else (0, 0)
    sums = (a.astype(int) - za) @ (b.astype(int) - zb)
    if "Conv" in form:
        a, b = a[:, :, None, None], np.ascontiguousarray(b.T)[:, :, None, None]
        sums = sums[:, :, None, None]
    g, feeds, middle = OnnxBuilder(), {"a": a}, int(a.dtype == np.uint8) * 128
    x = g.input("a", a.shape, a.dtype)
    if constant:
        w = g.constant(b)
    else:
        w, feeds["b"] = g.input("b", b.shape, b.dtype), b
    points = [g.constant(za, a.dtype), g.constant(zb, b.dtype)] if zeros else ["", ""]
    one, scale = g.constant(1.0, np.float32), g.constant(2.0**12, np.float32)
    if form.endswith("Integer"):
        y, wanted = g.node(form, x, w, *points), sums.astype(np.int32)
    elif form == "MatMulIntegerToFloat":
        y, wanted = g.node(form, x, w, one, one, *points, domain=CONTRIB), sums.astype(np.float32)
    else:
        operands = [x, one, points[0], w, one, points[1]]
        operands += ["", scale] if form == "QGemm" else [scale]
        domain = CONTRIB if form == "QGemm" else ""
        y = g.node(form, *operands, g.constant(middle, a.dtype), domain=domain)
        wanted = requantized(sums, 2.0**-12, middle, a.dtype)
    g.output(y, wanted.shape, wanted.dtype)
    return g.model(), feeds, wanted


INTEGER = ("MatMulInteger", "ConvInteger")
FORMS = (*INTEGER, "QLinearMatMul", "QLinearConv", "QGemm", "MatMulIntegerToFloat")


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_products_are_exact(form: str, constant: bool) -> None:
    for a_type in (np.uint8, np.int8):
        for b_type in (np.uint8, np.int8):
            if (a_type, b_type) == (np.int8, np.uint8) and form not in INTEGER:
                continue  # ONNX Runtime has no such kernels
            a, b = extreme(a_type, ROWS, DEPTH), extreme(b_type, DEPTH, COLUMNS)
            for zeros in (True, False) if form in INTEGER else (True,):
                model, feeds, wanted = product(form, a, b, constant, zeros)
                (got,) = literal_session(model).run(None, feeds)
                np.testing.assert_array_equal(got, wanted, f"{a_type}, {b_type}, {zeros}")


@pytest.mark.parametrize("zeros", [True, False])
def test_weights_of_what_is_quantised_inside(zeros: bool) -> None:
    """Dynamic quantisation with weights: x contains 0 to 255, so its scale is 1."""
    b, scales = extreme(np.int8, DEPTH, COLUMNS), 2.0 ** -np.arange(COLUMNS)
    x = np.arange(ROWS * DEPTH, dtype=np.float32).reshape(ROWS, DEPTH) % 256
    g = OnnxBuilder()
    weight = [g.input("x", x.shape), g.constant(b), g.constant(scales, np.float32)]
    points = np.arange(COLUMNS) if zeros else np.zeros(COLUMNS, int)
    weight += [g.constant(points, np.int8)] if zeros else []
    g.output(g.node("DynamicQuantizeMatMul", *weight, domain=CONTRIB), (ROWS, COLUMNS))
    (got,) = literal_session(g.model()).run(None, {"x": x})
    wanted = (x.astype(int) @ (b.astype(int) - points)).astype(np.float32) * scales
    np.testing.assert_array_equal(got, wanted)


def test_a_quantised_lstm() -> None:
    """Equals the LSTM of the dequantised weights; one step: the hidden state is quantised, too."""
    hidden = 8
    w, r = extreme(np.int8, 1, DEPTH, 4 * hidden), extreme(np.int8, 1, hidden, 4 * hidden)
    x = np.arange(DEPTH, dtype=np.float32).reshape(1, 1, DEPTH) * 4 + 3
    x[0, 0, 0] = 0
    scale = np.array([2.0**-20], np.float32)
    g = OnnxBuilder()
    given = g.input("x", x.shape)
    parameters = [g.constant(value) for value in (w, r)] + [""] * 5
    parameters += [g.constant(scale), g.constant(np.zeros(1, np.int8))] * 2
    quantized = g.node(
        "DynamicQuantizeLSTM", given, *parameters, domain=CONTRIB, hidden_size=hidden
    )
    real = [g.constant(value.transpose(0, 2, 1) * scale) for value in (w, r)]
    wanted = g.node("LSTM", given, *real, hidden_size=hidden)
    for name in (quantized, wanted):
        g.output(name, (1, 1, 1, hidden))
    got, exact = literal_session(g.model()).run(None, {"x": x})
    # 64 products of at most 255 * 127 * 2^-20, added in another order: 64 * 2 * 2^-24 of 2.
    np.testing.assert_allclose(got, exact, rtol=0, atol=64 * 2 * 2.0**-24 * 2)
    assert np.abs(exact).max() > 0.1


def test_quantised_attention() -> None:
    """Quantised attention equals attention of its dequantised operands."""
    heads, width = 2, 16
    x, w = extreme(np.uint8, 1, 3, width), extreme(np.int8, width, 3 * width)
    g = OnnxBuilder()
    given, weight = g.input("x", x.shape, np.uint8), g.constant(w)
    scales = [g.constant(2.0**-8, np.float32), g.constant(2.0**-7, np.float32)]
    zeros = [g.constant(5, np.uint8), g.constant(0, np.int8)]
    bias = g.constant(np.linspace(-1, 1, 3 * width), np.float32)
    operands = [given, weight, bias, *scales, "", *zeros]
    quantized = g.node("QAttention", *operands, domain=CONTRIB, num_heads=heads)
    floats = [
        g.node("DequantizeLinear", each, scale, zero)
        for each, scale, zero in zip((given, weight), scales, zeros, strict=True)
    ]
    wanted = g.node("Attention", *floats, bias, domain=CONTRIB, num_heads=heads)
    for name in (quantized, wanted):
        g.output(name, x.shape)
    got, exact = literal_session(g.model()).run(None, {"x": x})
    # Projections are 16 products of at most 1, and a bias: below 17, off by 17 * 17 * 2^-24. Scores
    # are 8 products of two of them over the root of 8: 17^2 * 8 / 2.8, off by 2 * 17 times that for
    # their operands, and so are logarithms of the softmax; values below 17 are scaled by it.
    bound = 17 * 2 * (2 * 17 * 8 / 8**0.5) * 17 * 17 * 2.0**-24
    assert np.abs(got - exact).max() <= bound < 0.1
    assert np.abs(exact).max() > 5


def test_only_mixed_products_are_rewritten() -> None:
    for a_type in (np.uint8, np.int8):
        same, _, _ = product("MatMulInteger", extreme(a_type, 2, 4), extreme(a_type, 4, 3), True, 1)
        assert unsigned_products(same) == same
    mixed, _, _ = product("MatMulInteger", extreme(np.uint8, 2, 4), extreme("i1", 4, 3), True, 1)
    kept = mixed.SerializeToString()
    (node,) = unsigned_products(mixed).graph.node
    assert list(node.input) == ["a", "c0/unsigned", "c1", "c2/unsigned"]
    assert mixed.SerializeToString() == kept


def test_optimised_products_are_exact_where_the_weight_is_constant() -> None:
    """Otherwise the benchmark's contestant would compute other results on CPUs without VNNI."""
    a = extreme(np.uint8, ROWS, DEPTH)
    for form in FORMS:
        model, feeds, wanted = product(form, a, extreme(np.int8, DEPTH, COLUMNS), True, True)
        (got,) = optimised_session(model.SerializeToString()).run(None, feeds)
        np.testing.assert_array_equal(got, wanted, form)


@pytest.mark.parametrize("form", ["QLinearMatMul", "QLinearConv", "QGemm", "MatMulIntegerToFloat"])
def test_optimised_products_of_two_signed_operands_run(form: str) -> None:
    """With x64quantprecision, ONNX Runtime makes products of signed operands that it cannot run."""
    a, b = extreme(np.int8, ROWS, DEPTH), extreme(np.int8, DEPTH, COLUMNS)
    model, feeds, wanted = product(form, a, b, True, True)
    (got,) = optimised_session(model.SerializeToString()).run(None, feeds)
    np.testing.assert_array_equal(got, wanted)


def test_bfloat16_is_computed_in_float32() -> None:
    """Branches and constants of nodes are converted, too; the given model is unchanged."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(BFLOAT16) for shape in ((3, 8), (8, 5)))
    g = OnnxBuilder()
    product = g.node("MatMul", g.input("x", x.shape, BFLOAT16), g.constant(w))
    constant = g.node("Constant", value=numpy_helper.from_array(np.array([2], BFLOAT16)))
    doubled = g.node("Mul", product, constant)
    wide = g.node("Cast", doubled, to=onnx.TensorProto.FLOAT)
    again = g.node("Cast", wide, to=onnx.TensorProto.BFLOAT16)
    g.output(again, (3, 5), BFLOAT16)
    g.output(wide, (3, 5))
    model = g.model()
    kept = model.SerializeToString()
    narrow, result = literal_session(model).run(None, {"x": x})
    exact = 2 * (x.astype(np.float64) @ w.astype(np.float64))
    assert (narrow.dtype, result.dtype) == (BFLOAT16, np.float32)
    # 8 products, each exact, summed in float32.
    assert np.abs(result - exact).max() <= 8 * 2.0**-24 * np.abs(exact).max() * 4
    np.testing.assert_array_equal(narrow, result.astype(BFLOAT16))
    assert model.SerializeToString() == kept


def test_what_is_no_model() -> None:
    with pytest.raises(ContestantError, match="ONNX Runtime"):
        optimised_session(b"not a model")
    with pytest.raises(ContestantError, match="ONNX Runtime"):
        literal_session(onnx.ModelProto())
