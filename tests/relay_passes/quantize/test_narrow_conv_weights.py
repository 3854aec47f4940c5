"""Weights of integer convolutions become int8 without a zero point, or sums of int8 weights."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from relay_passes.quantize.integer_product import int8_parts, narrow_conv_weights
from tests.relay_passes.graphs import module
from tests.relay_passes.quantized import assert_becomes, assert_same_bits, assert_stays, constant

op = relax.op
X = ((1, 5, 5, 3), "int32")
RNG = np.random.default_rng(3)


def conv(x: relax.Expr, w: relax.Expr) -> relax.Expr:
    return op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32")


def widened(w: np.ndarray) -> relax.Expr:
    return op.astype(relax.const(w), "int32")


def test_zero_points_of_128_leave_one_weight() -> None:
    w = RNG.integers(0, 255, (3, 3, 3, 4), np.uint8, endpoint=True)
    before = module(lambda x: conv(x, op.subtract(widened(w), constant(128, "int32"))), X)
    after = module(lambda x: conv(x, widened((w.astype(np.int32) - 128).astype(np.int8))), X)
    assert_becomes(before, narrow_conv_weights(), after)


def test_a_weight_that_is_permuted_first() -> None:
    w = RNG.integers(100, 150, (4, 3, 3, 3), np.uint8)
    narrow = (w.transpose(2, 3, 1, 0).astype(np.int32) - 120).astype(np.int8)

    def body(x: relax.Expr) -> relax.Expr:
        centred = op.subtract(widened(w), constant(np.full((4, 1, 1, 1), 120), "int32"))
        return conv(x, op.permute_dims(centred, [2, 3, 1, 0]))

    after = module(lambda x: conv(x, widened(np.ascontiguousarray(narrow))), X)
    assert_becomes(module(body, X), narrow_conv_weights(), after)


@pytest.mark.parametrize("zero", [0, 77, 255])
def test_other_zero_points_give_a_sum(zero: int) -> None:
    w = RNG.integers(0, 255, (3, 3, 3, 4), np.uint8, endpoint=True)
    before = module(
        lambda x: conv(op.astype(x, "int32"), op.subtract(widened(w), constant(zero, "int32"))),
        (X[0], "uint8"),
    )
    assert_same_bits(before, narrow_conv_weights()(before))


def test_int8_weights_and_those_of_run_time_stay() -> None:
    w = RNG.integers(-128, 127, (3, 3, 3, 4), np.int8)
    assert_stays(module(lambda x: conv(x, widened(w)), X), narrow_conv_weights())
    assert_stays(module(conv, X, ((3, 3, 3, 4), "int32")), narrow_conv_weights())


@pytest.mark.parametrize(
    ("low", "high", "count"), [(0, 0, 1), (-128, 127, 1), (-129, 5, 2), (-255, 254, 2), (0, 255, 3)]
)
def test_parts_add_up(low: int, high: int, count: int) -> None:
    values = np.arange(low, high + 1)
    parts = int8_parts(values)
    assert len(parts) == count and all(part.dtype == np.int8 for part in parts)
    np.testing.assert_array_equal(sum(part.astype(int) for part in parts), values)
