"""Transposed convolutions whose weights are parameters: operators rearrange the weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.decompose_conv_transpose import decompose_conv_transpose
from tests.relay_passes.graphs import module, run
from tests.relay_passes.quantized import assert_stays, inputs, operators

op = relax.op
F = "float32"
X, W, B = ((1, 8, 5, 6), F), ((8, 3, 2, 2), F), ((3,), F)


def test_a_product_by_the_weight_as_a_matrix() -> None:
    def given(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
        y = op.nn.conv2d_transpose(x, w, strides=[2, 2], data_layout="NHWC", kernel_layout="IOHW")
        return op.nn.relu(op.add(y, b))

    def wanted(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit  # in this order

        def line(first: int) -> relax.Expr:
            taps = op.take(
                op.reshape(w, (1, 8, 3, 4)),
                relax.const(np.array([first, first + 1], np.int32)),
                axis=3,
                mode="clip",
            )
            columns = op.permute_dims(op.reshape(taps, (1, 8, 3, 1, 2)), [3, 1, 0, 4, 2])
            return emit(op.matmul(x, op.reshape(columns, (8, 6))))

        lines = [line(0), line(2)]
        rows = op.broadcast_to(op.reshape(b, (1, 1, 3)), (1, 2, 3))
        two = emit(op.reshape(rows, (6,)))
        lines = [emit(op.add(y, two)) for y in lines]
        lines = [emit(op.nn.relu(y)) for y in lines]
        lines = [emit(op.reshape(y, (1, 5, 1, 6 * 6))) for y in lines]
        y = op.reshape(op.concat(lines, -2), (1, 1, 10 * 6 * 6))
        return op.reshape(y, (1, 10, 12, 3))

    last = ((1, 5, 6, 8), F)
    after = decompose_conv_transpose()(module(given, last, W, B))
    assert_structural_equal(
        relax.transform.EliminateCommonSubexpr()(after), module(wanted, last, W, B)
    )


@pytest.mark.parametrize(
    ("weight", "attributes"),
    [
        ((8, 3, 4, 4), {"strides": [2, 2], "padding": [1, 1, 1, 1]}),
        ((8, 17, 3, 3), {"strides": [2, 2], "padding": [1, 1, 1, 0]}),
        ((8, 3, 3, 2), {"strides": [2, 3], "dilation": [2, 2], "groups": 2}),
        ((8, 1, 3, 3), {"strides": [2, 2], "padding": [1, 1, 1, 0], "groups": 8}),
    ],
)
def test_the_same_bits_as_with_a_constant(
    weight: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    """Phases computed apart or together, with groups; the bias moves before the phases."""
    channels = weight[1] * attributes.get("groups", 1)

    def body(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
        y = op.nn.conv2d_transpose(x, w, **attributes)
        return op.nn.relu(op.add(y, op.reshape(b, (1, channels, 1, 1))))

    mod = module(body, X, (weight, F), ((channels,), F))
    x, w, b = inputs(mod)
    bound = relax.transform.BindParams("main", {"x1": w, "x2": b})(mod)
    after = decompose_conv_transpose()(mod)
    assert operators(after)["nn.conv2d_transpose"] == 0
    (got,) = run(after, [x, w, b])
    (wanted,) = run(decompose_conv_transpose()(bound), [x])
    np.testing.assert_array_equal(got, wanted)
    (direct,) = run(mod, [x, w, b])
    np.testing.assert_allclose(got, direct, rtol=1e-5, atol=1e-4)


def quantised(dtype: str, zero: relax.Expr) -> IRModule:
    """A transposed convolution whose quantised weight and scales per channel are parameters."""

    def body(x: relax.Expr, w: relax.Expr, scale: relax.Expr) -> relax.Expr:
        real = op.dequantize(w, scale, zero, axis=1)
        return op.nn.conv2d_transpose(x, real, strides=[2, 2], padding=[1, 1, 1, 1])

    return module(body, X, ((8, 17, 3, 3), dtype), ((17,), F))


@pytest.mark.parametrize(("dtype", "zero"), [("int8", 0), ("uint8", 128), ("uint8", 3)])
def test_a_dequantised_weight_stays_8_bits_wide(dtype: str, zero: int) -> None:
    """The weight is padded with its zero point."""
    mod = quantised(dtype, relax.const(zero, dtype))
    after = decompose_conv_transpose()(mod)
    text = after["main"].script()
    assert f'dtype="{dtype}") = R.take(' in text and "R.nn.conv2d_transpose" not in text
    (got,), (wanted,) = run(after, inputs(mod)), run(mod, inputs(mod))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-3 * np.abs(wanted).max())


def test_zero_points_that_differ_stay() -> None:
    assert_stays(
        quantised("uint8", relax.const(np.arange(17, dtype=np.uint8))), decompose_conv_transpose()
    )
