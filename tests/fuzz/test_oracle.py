"""The oracle allows differences by rounding, and no others."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.onnx_builder import OnnxBuilder

from .comparing import difference
from .oracle import Expected, Oracle

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 64)).astype(np.float32)
W = RNG.standard_normal((64, 8)).astype(np.float32)


def expected(model: onnx.ModelProto, **options: str) -> Expected:
    return Oracle(model, {"x": X}, **options).outputs()[0]


def product(op: str = "Relu") -> onnx.ModelProto:
    g = OnnxBuilder()
    y = g.node(op, g.node("MatMul", g.input("x", X.shape), g.constant(W)))
    g.output(y, (6, 8))
    return g.model()


def test_any_order_of_a_sum_is_near_enough_and_a_wrong_sum_is_not() -> None:
    wanted = expected(product())
    order = RNG.permutation(64)
    sums = np.zeros((6, 8), np.float32)
    for k in order:
        sums += X[:, k : k + 1] * W[k]
    assert not difference(np.maximum(sums, 0), wanted, sums)
    without_one = np.maximum(sums - X[:, 5:6] * W[5], 0)
    assert "elements" in difference(without_one, wanted, sums)
    # A hundred thousandth of the sums of absolute values is the expected order of magnitude.
    assert 0 < wanted.tolerance.max() < 1e-4 * (np.abs(X) @ np.abs(W)).max()


def test_bfloat16_has_more_room() -> None:
    usual = expected(product()).tolerance
    rounded = expected(product(), precision="bf16").tolerance
    assert rounded.mean() > 100 * usual.mean()


def test_moved_values_must_be_equal() -> None:
    g = OnnxBuilder()
    y = g.node("Transpose", g.node("Neg", g.input("x", X.shape)), perm=[1, 0])
    g.output(y, (64, 6))
    wanted = expected(g.model())
    assert not wanted.tolerance.any() and wanted.signed
    assert not difference(-X.T, wanted, X.T)
    assert difference(np.nextafter(-X.T, np.float32(9)), wanted, X.T)


def test_the_sign_of_the_least_of_two_zeros_may_be_either() -> None:
    g = OnnxBuilder()
    zeros, ones = np.full((2,), -0.0, np.float32), np.ones((2,), np.float32)
    least = g.node("Min", g.constant(zeros), g.constant(-zeros))
    g.output(g.node("Div", g.constant(ones), least), (2,))
    wanted = expected(g.model())
    for infinite in (np.inf, -np.inf):
        assert not difference(np.full((2,), infinite, np.float32), wanted, zeros)


def test_integers_may_differ_next_to_ties_alone() -> None:
    g = OnnxBuilder()
    x = g.input("x", X.shape)
    y = g.node("Round", g.node("Mul", x, g.constant(np.float32(3))))
    g.output(g.node("Cast", y, to=onnx.TensorProto.INT32), X.shape, np.int32)
    near = X.copy()
    near[0, 0] = np.float32(1.5) / 3  # times three, a tie
    wanted = Oracle(g.model(), {"x": near}).outputs()[0]
    free = np.isinf(wanted.tolerance)
    assert free[0, 0] and free.mean() < 0.01
    right = np.rint(near * 3).astype(np.int32)
    assert not difference(right, wanted, right)
    right[1, 1] += 1
    assert difference(right, wanted, right)


def test_special_values_must_be_equal() -> None:
    wanted = expected(product("Identity"))
    right = (X @ W).astype(np.float32)
    for value in (np.nan, np.inf):
        wrong = right.copy()
        wrong[2, 3] = value
        assert "(2, 3)" in difference(wrong, wanted, right)
    assert "shape" in difference(right[:3], wanted, right)
    assert "type" in difference(right.astype(np.float64), wanted, right)


def test_exponentials_may_give_zero_for_the_smallest_numbers() -> None:
    g = OnnxBuilder()
    x = g.input("x", (2,))
    g.output(g.node("Div", g.node("Exp", x), g.constant(np.float32([1e-39, 1]))), (2,))
    feeds = {"x": np.float32([-89.8, 0.5])}
    wanted = Oracle(g.model(), feeds).outputs()[0]
    assert wanted.tolerance[0] > wanted.value[0] > 1 and wanted.tolerance[1] < 1e-3


def test_a_product_that_is_added_to_may_not_overflow() -> None:
    g = OnnxBuilder()
    x = g.input("x", (2,))
    product = g.node("Mul", x, g.constant(np.float32(4)))
    g.output(g.node("Sub", product, g.constant(np.float32(3e38))), (2,))
    feeds = {"x": np.float32([1e38, 3e38])}
    wanted = Oracle(g.model(), feeds).outputs()[0]
    assert np.isinf(wanted.value).all()
    assert np.isinf(wanted.tolerance).tolist() == [True, False]


def test_a_sum_that_may_overflow_on_the_way_is_not_compared() -> None:
    g = OnnxBuilder()
    x = g.input("x", (4, 3))
    g.output(g.node("MatMul", x, g.constant(np.ones((3, 1), np.float32))), (4, 1))
    rows = [[3e38, -3e38, 3e38], [3e38, -1e30, 1], [np.inf, 1, 1], [np.inf, -np.inf, 1]]
    wanted = Oracle(g.model(), {"x": np.float32(rows)}).outputs()[0]
    assert np.isinf(wanted.tolerance[:, 0]).tolist() == [True, False, False, False]


def test_bytes_of_bfloat16_operands_may_be_one_apart() -> None:
    g = OnnxBuilder()
    y = g.node("MatMul", g.input("x", X.shape), g.constant(W))
    scale, point = g.constant(np.float32(0.05)), g.constant(np.uint8(128))
    g.output(g.node("QuantizeLinear", y, scale, point), (6, 8), np.uint8)
    assert expected(g.model()).tolerance.mean() < 0.1
    assert expected(g.model(), precision="bf16").tolerance.min() >= 1


def scaled(op: str, by: float, *, constant: bool = True, relu: bool = False) -> onnx.ModelProto:
    """op(x @ ones, by), with x: [5, 3]; `by` is a constant or the input "by"."""
    g = OnnxBuilder()
    y = g.node("MatMul", g.input("x", (5, 3)), g.constant(np.ones((3, 1), np.float32)))
    number = g.constant(np.float32(by)) if constant else g.input("by", ())
    g.output(g.node(op, g.node("Relu", y) if relu else y, number), (5, 1))
    return g.model()


ROWS = np.float32(
    [[3e38, 3e38, 1], [np.inf, -3e38, 3e37], [np.inf, 1, 1], [np.inf, -np.inf, 1], [1, 2, 4]]
)


@pytest.mark.parametrize(
    ("op", "by", "free"),
    [
        ("Mul", 0.0, [0]),  # the sum overflows; the sum with weights 0 does not
        ("Mul", -10.0, [0, 1]),  # -3e38 * -10 overflows beside an infinite term
        ("Div", -0.1, [0, 1]),
        ("Div", 2.0, [0]),
        ("Add", 0.0, [0]),  # the sum overflows on the way in other orders
    ],
)
def test_a_constant_may_be_folded_into_the_weight(op: str, by: float, free: list[int]) -> None:
    wanted = Oracle(scaled(op, by), {"x": ROWS}).outputs()[0]
    assert np.flatnonzero(np.isinf(wanted.tolerance)).tolist() == free
    right = wanted.value.astype(np.float32)
    assert not difference(right, wanted, right)
    for row in set(range(5)).difference(free):
        wrong = right.copy()
        wrong[row] = np.nan if not np.isnan(right[row]) else 0
        assert "1 of 5 elements" in difference(wrong, wanted, right)


def test_only_a_constant_next_to_a_product_is_folded() -> None:
    for model, feeds in (
        (scaled("Mul", 0.0, constant=False), {"by": np.float32(0)}),
        (scaled("Mul", 0.0, relu=True), {}),
    ):
        wanted = Oracle(model, {"x": ROWS, **feeds}).outputs()[0]
        assert np.isnan(wanted.value[0]) and not wanted.tolerance[0]
    # Another reader of the sum needs it without the factor.
    model = scaled("Mul", 0.0)
    name = model.graph.node[0].output[0]
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, (5, 1)))
    wanted = Oracle(model, {"x": ROWS}).outputs()[0]
    assert np.isnan(wanted.value[0]) and not wanted.tolerance[0]
