"""Convolutions of two dequantised tensors become integer convolutions, exact to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.ir import assert_structural_equal

from relay_passes.ir.decisions import DecisionLog
from relay_passes.quantize.integer_product import integer_products
from tests.onnx_reference.arithmetic import quantized, scaled
from tests.onnx_reference.convolution import integer_conv as wanted_sums
from tests.relay_passes.graphs import module
from tests.relay_passes.quantized import (
    assert_becomes,
    assert_stays,
    constant,
    dequantize,
    inputs,
    operators,
    outputs,
)

op = relax.op
RNG = np.random.default_rng(1)
X = ((1, 6, 7, 3), "uint8")
W = RNG.integers(-128, 127, (3, 3, 3, 5), np.int8, endpoint=True)
SCALES = np.asarray([0.1, 0.2, 0.7, 0.3, 0.6], np.float32)
STEPS = np.float32(0.3) * SCALES
BIAS = RNG.integers(-9000, 9000, 5).astype(np.int32)


def conv2d(x: relax.Expr, w: relax.Expr, dtype: str = "float32", **attrs: Any) -> relax.Expr:
    """A convolution in channels-last layout, padded unevenly."""
    attrs = {"strides": [2, 1], "padding": [1, 0, 1, 2], **attrs}
    return op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO", out_dtype=dtype, **attrs)


def factors(x: relax.Expr) -> relax.Expr:
    """The f32 convolution of a dequantised tensor and a weight with scales per channel."""
    return conv2d(dequantize(x, 0.3, 7), dequantize(relax.const(W), SCALES, [0] * 5, "int8", 3))


def sums(x: relax.Expr, w: np.ndarray = W, zero: int = 7) -> relax.Expr:
    """The integer convolution, which gives int32 sums."""
    centred = op.subtract(op.astype(x, "int32"), constant(zero, "int32"))
    return conv2d(centred, op.astype(relax.const(w), "int32"), "int32")


def real(total: relax.Expr, scale: np.ndarray | np.float32 = STEPS) -> relax.Expr:
    return op.multiply(op.astype(total, "float32"), relax.const(scale))


def biased(bias: relax.Expr) -> Callable[[relax.Expr], relax.Expr]:
    return lambda x: op.add(factors(x), bias)


def test_a_convolution_of_integers() -> None:
    assert_becomes(module(factors, X), integer_products()(), module(lambda x: real(sums(x)), X))


@pytest.mark.parametrize(("dtype", "zero"), [("int8", 0), ("uint8", 128)])
def test_a_weight_that_is_no_constant(dtype: str, zero: int) -> None:
    """A weight minus its zero point must fit in int8 for every value of its type."""

    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return conv2d(dequantize(x, 0.3, 7), dequantize(w, SCALES, [zero] * 5, dtype, 3))

    def wanted(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        centred = op.subtract(op.astype(x, "int32"), constant(7, "int32"))
        if zero:
            w = op.astype(op.subtract(op.astype(w, "int32"), constant(zero, "int32")), "int8")
        return real(conv2d(centred, op.astype(w, "int32"), "int32"))

    weight = (W.shape, dtype)
    assert_becomes(module(body, X, weight), integer_products()(), module(wanted, X, weight))


def test_any_number_of_images() -> None:
    x = ((tirx.Var("batch", "int64"), 6, 7, 3), "uint8")
    after = module(lambda x: real(sums(x)), x)
    assert_structural_equal(integer_products()()(module(factors, x)), after)


@pytest.mark.parametrize("shape", [(5,), (1, 1, 1, 5)], ids=str)
def test_a_bias_in_steps_of_the_scales_joins_the_sum(shape: tuple[int, ...]) -> None:
    bias = dequantize(constant(BIAS.reshape(shape), "int32"), STEPS, [0] * 5, "int32", -1)
    after = module(lambda x: real(op.add(sums(x), relax.const(BIAS))), X)
    assert_becomes(module(biased(bias), X), integer_products()(), after)


OTHER_BIASES: dict[str, Callable[[], relax.Expr]] = {
    "float": lambda: constant(STEPS * BIAS, "float32"),
    "another scale": lambda: dequantize(
        constant(BIAS, "int32"), np.nextafter(STEPS, np.float32(1)), [0] * 5, "int32", 0
    ),
    "a zero point": lambda: dequantize(constant(BIAS, "int32"), STEPS, [1] * 5, "int32", 0),
    "too large": lambda: dequantize(
        constant([0, 0, 2**31 - 1000, 0, 0], "int32"), STEPS, [0] * 5, "int32", 0
    ),
}


@pytest.mark.parametrize("case", OTHER_BIASES)
def test_another_bias_is_added_in_f32(case: str) -> None:
    bias = OTHER_BIASES[case]()
    after = module(lambda x: op.add(real(sums(x)), bias), X)
    assert_becomes(module(biased(bias), X), integer_products()(), after)


def test_a_product_that_is_needed_without_its_bias() -> None:
    bias = dequantize(constant(BIAS, "int32"), STEPS, [0] * 5, "int32", 0)

    def both(x: relax.Expr) -> list[relax.Expr]:
        product = factors(x)
        return [op.add(product, bias), op.exp(product)]

    def after(x: relax.Expr) -> list[relax.Expr]:
        product = real(sums(x))
        return [op.add(product, bias), op.exp(product)]

    assert_becomes(module(both, X), integer_products()(), module(after, X))


def test_a_weight_beyond_int8_is_a_sum() -> None:
    """uint8 minus a zero point is -30..225, so two int8 weights add up to it."""
    w = RNG.integers(0, 255, W.shape, np.uint8, endpoint=True)
    wide = w.astype(np.int32) - 30
    first = np.clip(wide, -128, 127)
    before = module(lambda x: conv2d(dequantize(x, 0.3, 7), dequantize(relax.const(w), 0.2, 30)), X)
    after = module(
        lambda x: real(
            op.add(sums(x, first.astype(np.int8)), sums(x, (wide - first).astype(np.int8))),
            np.float32(0.3) * np.float32(0.2),
        ),
        X,
    )
    assert_becomes(before, integer_products()(), after)


REFUSED: dict[str, tuple[Callable[[relax.Expr], relax.Expr], str]] = {
    "scales of x": (
        lambda x: conv2d(
            dequantize(x, [0.1, 0.2, 0.3], [0] * 3), dequantize(relax.const(W), 0.2, 0, "int8")
        ),
        "of the first operand differs",
    ),
    "scales of inputs": (
        lambda x: conv2d(
            dequantize(x, 0.1, 0), dequantize(relax.const(W), SCALES[:3], [0] * 3, "int8", 2)
        ),
        "of the weight differs along another axis",
    ),
    "a weight of run time": (
        lambda x: conv2d(
            dequantize(x, 0.1, 0), dequantize(op.strided_slice(x, [1, 2], [0, 0], [3, 3]), 1, 0)
        ),
        "the weight is not a constant",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_stays(case: str) -> None:
    body, reason = REFUSED[case]
    before = module(body, ((3, 6, 7, 3), "uint8"))
    assert_stays(before, integer_products()())
    log: DecisionLog = []
    integer_products(log)()(before)
    assert [(decision.op, decision.taken) for decision in log] == [("conv2d", False)]
    assert reason in log[0].reason


def test_a_sum_beyond_32_bits_stays() -> None:
    """255 * 127 * 66313 > 2^31; with a constant weight of small values the sum fits."""
    x = ((1, 1, 1, 66313), "uint8")
    for value, left in ((127, 1), (3, 0)):
        w = constant(np.full((1, 1, 66313, 1), value), "int8")
        before = module(
            lambda x, w=w: op.nn.conv2d(
                dequantize(x, 0.3, 0), dequantize(w, 0.2, 0, "int8"),
                data_layout="NHWC", kernel_layout="HWIO",
            ), x
        )  # fmt: skip
        assert operators(integer_products()()(before))["dequantize"] == 2 * left


FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one axis": ((2, 9, 4), (3, 4, 5), {"padding": [2, 1], "dilation": [2]}),
    "three axes": ((1, 4, 5, 4, 2), (2, 3, 2, 2, 3), {"strides": [1, 2, 1], "padding": [1] * 6}),
    "depthwise": ((1, 6, 5, 4), (3, 3, 1, 4), {"groups": 4, "padding": [1] * 4}),
    "groups": ((2, 5, 5, 6), (2, 3, 3, 8), {"groups": 2, "strides": [1, 2]}),
}
LAYOUTS = {3: ("NWC", "WIO"), 4: ("NHWC", "HWIO"), 5: ("NDHWC", "DHWIO")}
OPERATORS = {3: op.nn.conv1d, 4: op.nn.conv2d, 5: op.nn.conv3d}


@pytest.mark.sampled
@pytest.mark.parametrize(("x_type", "w_type"), [("uint8", "int8"), ("int8", "uint8")])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_bit_by_bit(form: str, x_type: str, w_type: str) -> None:
    """Zero points over the whole range, those of the weight per channel; with a bias."""
    x_shape, w_shape, attrs = FORMS[form]
    rng = np.random.default_rng(7)
    count, rank = w_shape[-1], len(x_shape)
    limits = np.iinfo(w_type)
    w = rng.integers(limits.min, limits.max, w_shape, w_type, endpoint=True)
    zeros = rng.integers(limits.min, limits.max, count, w_type, endpoint=True)
    steps = rng.uniform(0.001, 1, count).astype("f")
    bias = rng.integers(-5000, 5000, count).astype(np.int32)
    x_step, x_zero = np.float32(0.07), np.iinfo(x_type).max - 50
    data, kernel = LAYOUTS[rank]

    def body(x: relax.Expr) -> relax.Expr:
        weight = dequantize(relax.const(w), steps, zeros, w_type, rank - 1)
        result = OPERATORS[rank](
            dequantize(x, x_step, x_zero, x_type),
            weight,
            data_layout=data,
            kernel_layout=kernel,
            **attrs,
        )
        parameters = x_step * steps, [0] * count
        return op.add(result, dequantize(relax.const(bias), *parameters, "int32", 0))

    mod = integer_products()()(module(body, (x_shape, x_type)))
    assert operators(mod)["dequantize"] == 0
    (x,) = inputs(mod)
    factors = quantized(x, x_step, np.array(x_zero, x_type)), quantized(w, steps, zeros, -1)
    total = wanted_sums(factors[0].centred, factors[1].centred, **attrs)
    wanted = scaled(total, *factors, quantized(bias, x_step * steps, np.zeros(count, np.int32), 0))
    np.testing.assert_array_equal(outputs(mod, [x])[0], wanted)


def test_channels_first() -> None:
    w = np.ascontiguousarray(W.transpose(3, 2, 0, 1))

    def body(x: relax.Expr) -> relax.Expr:
        weight = dequantize(relax.const(w), SCALES, [0] * 5, "int8", 0)
        bias = dequantize(constant(BIAS.reshape(5, 1, 1), "int32"), STEPS, [0] * 5, "int32", 0)
        return op.add(op.nn.conv2d(dequantize(x, 0.3, 7), weight, padding=[1, 1]), bias)

    mod = integer_products()()(module(body, ((2, 3, 6, 7), "uint8")))
    (x,) = inputs(mod)
    total = wanted_sums(x.transpose(0, 2, 3, 1).astype(np.int64) - 7, W, padding=[1] * 4) + BIAS
    wanted = (total.astype(np.float32) * STEPS).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(outputs(mod, [x])[0], wanted)


def test_a_transposed_convolution() -> None:
    """Each value times the weight is added to its window of the result."""
    x, w = RNG.integers(0, 255, (1, 2, 3, 3), np.uint8), W[:2, :2, :2].transpose(2, 3, 0, 1)
    assert w.shape == (2, 5, 2, 2)

    def body(x: relax.Expr) -> relax.Expr:
        weight = dequantize(relax.const(np.ascontiguousarray(w)), SCALES, [0] * 5, "int8", 1)
        return op.nn.conv2d_transpose(dequantize(x, 0.3, 7), weight, strides=[2, 2])

    mod = integer_products()()(module(body, (x.shape, "uint8")))
    assert operators(mod)["dequantize"] == 0
    total = np.einsum("nchw,coij->nohiwj", x.astype(np.int32) - 7, w.astype(np.int32))
    wanted = total.reshape(1, 5, 6, 6).astype(np.float32) * STEPS.reshape(-1, 1, 1)
    np.testing.assert_array_equal(outputs(mod, [x])[0], wanted)
