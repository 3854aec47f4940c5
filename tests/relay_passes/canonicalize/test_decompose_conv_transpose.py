"""Transposed convolutions become ordinary ones, with any attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import IRModule, relax, tirx
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.decompose_conv_transpose import decompose_conv_transpose
from tests.relay_passes.graphs import constant, module, run

pytestmark = pytest.mark.turns

op = relax.op
F = "float32"
LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
# All phases at once, one by one, in groups, and with results cropped at both ends.
CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((4, 3, 4, 4), {"strides": [2, 2], "padding": [1, 1, 1, 1]}),
    ((4, 17, 3, 3), {"strides": [2, 2], "padding": [1, 1, 1, 1]}),
    ((4, 3, 3, 2), {"strides": [2, 3], "dilation": [2, 2], "groups": 2}),
    ((4, 1, 3, 3), {"strides": [2, 2], "padding": [1, 1, 1, 0], "groups": 4}),
    ((4, 3, 2, 1), {"strides": [3, 1], "padding": [3, 0, 1, 1], "output_padding": [2, 0]}),
]


def values(expr: relax.Expr) -> np.ndarray:
    return expr.value.numpy()


def rewritten(mod: IRModule) -> IRModule:
    return decompose_conv_transpose()(mod)


def as_matrix(weight: relax.Expr) -> relax.Expr:
    """[IC, OC, KH, KW] -> [IC, KH * KW * OC]"""
    array = values(weight)
    return relax.const(np.ascontiguousarray(array.transpose(0, 2, 3, 1).reshape(len(array), -1)))


def columns(weight: relax.Expr, tap: int) -> relax.Expr:
    """[IC, OC, KH, KW] -> [IC, KW * OC], for one line of taps."""
    array = values(weight)[:, :, tap].transpose(0, 2, 1)
    return relax.const(np.ascontiguousarray(array.reshape(len(array), -1)))


def test_windows_that_do_not_overlap_are_a_product() -> None:
    weight, bias = constant(8, 3, 2, 2), constant(1, 3, 1, 1, seed=1)
    before = module(
        lambda x: op.nn.relu(op.add(op.nn.conv2d_transpose(x, weight, strides=[2, 2]), bias)),
        ((1, 8, 5, 6), F),
    )

    def body(x: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit  # in this order
        rows = emit(op.permute_dims(x, [0, 2, 3, 1]))
        two = relax.const(np.tile(values(bias).reshape(-1), 2))
        lines = [emit(op.matmul(rows, columns(weight, tap))) for tap in range(2)]
        lines = [emit(op.add(y, two)) for y in lines]
        lines = [emit(op.nn.relu(y)) for y in lines]
        lines = [emit(op.reshape(y, (1, 5, 1, 6 * 6))) for y in lines]
        y = op.reshape(op.reshape(op.concat(lines, -2), (1, 1, 10 * 6 * 6)), (1, 10, 12, 3))
        return op.permute_dims(y, [0, 3, 1, 2])

    assert_structural_equal(rewritten(before), module(body, ((1, 8, 5, 6), F)))


def test_two_of_them_are_interleaved_once() -> None:
    first, second = constant(8, 3, 2, 2), constant(3, 1, 2, 2, seed=1)

    def given(x: relax.Expr) -> relax.Expr:
        y = op.nn.relu(op.nn.conv2d_transpose(x, first, strides=[2, 2]))
        return op.sigmoid(op.nn.conv2d_transpose(y, second, strides=[2, 2]))

    def wanted(x: relax.Expr) -> relax.Expr:
        y = op.nn.relu(op.matmul(op.permute_dims(x, [0, 2, 3, 1]), as_matrix(first)))
        four = np.kron(np.eye(4, dtype=F), values(as_matrix(second))) + 0  # no negative zeros
        y = op.sigmoid(op.matmul(y, relax.const(four)))
        y = op.reshape(y, (1, 5, 6, 2, 2, 2, 2, 1))
        y = op.reshape(op.permute_dims(y, [0, 1, 3, 5, 2, 4, 6, 7]), (1, 20, 24, 1))
        return op.permute_dims(y, [0, 3, 1, 2])

    x = ((1, 8, 5, 6), F)
    assert_structural_equal(rewritten(module(given, x)), module(wanted, x))


def test_two_of_many_channels_are_interleaved_once() -> None:
    first, second = constant(8, 3, 2, 2), constant(3, 5, 2, 2, seed=1)
    shift, bias = constant(3, 1, 1), constant(5, 1, 1)

    def given(x: relax.Expr) -> relax.Expr:
        y = op.nn.relu(op.add(op.nn.conv2d_transpose(x, first, strides=[2, 2]), shift))
        return op.add(op.nn.conv2d_transpose(y, second, strides=[2, 2]), bias)

    def wanted(x: relax.Expr) -> relax.Expr:
        y = op.matmul(op.permute_dims(x, [0, 2, 3, 1]), as_matrix(first))
        y = op.nn.relu(op.add(y, relax.const(np.tile(values(shift).reshape(-1), 4))))
        y = op.matmul(op.reshape(y, (1, 5, 6, 4, 3)), as_matrix(second))
        y = op.add(y, relax.const(np.tile(values(bias).reshape(-1), 4)))
        y = op.reshape(y, (1, 5, 6, 2, 2, 2, 2, 5))
        y = op.reshape(op.permute_dims(y, [0, 1, 3, 5, 2, 4, 6, 7]), (1, 20, 24, 5))
        return op.permute_dims(y, [0, 3, 1, 2])

    x = ((1, 8, 5, 6), F)
    assert_structural_equal(rewritten(module(given, x)), module(wanted, x))


def test_phases_apart_have_no_taps_in_vain() -> None:
    """3 x 3 taps at stride 2: phases of 2 x 2, 2 x 1, 1 x 2 and 1 x 1, without padded taps."""
    weight = constant(8, 32, 3, 3)
    before = module(
        lambda x: op.nn.conv2d_transpose(x, weight, strides=[2, 2], output_padding=[1, 1],
                                         padding=[1, 1, 1, 1]),
        ((1, 8, 5, 6), F),
    )  # fmt: skip
    taps = {0: [1], 1: [2, 0]}  # o + 1 = 2 q + phase: with an odd one taps 2 and 0 meet q - 1 and q

    def body(x: relax.Expr) -> relax.Expr:
        rows = op.permute_dims(x, [0, 2, 3, 1])
        array = values(weight).transpose(2, 3, 0, 1)
        parts = [
            op.nn.conv2d(
                rows,
                relax.const(np.ascontiguousarray(array[taps[r]][:, taps[c]])),
                padding=[0, 0, r, c],
                out_dtype=F,
                **LAST,
            )
            for r in range(2)
            for c in range(2)
        ]
        lines = [
            op.reshape(op.concat(parts[at : at + 2], -1), (1, 5, 1, 6 * 2 * 32)) for at in (0, 2)
        ]
        y = op.reshape(op.reshape(op.concat(lines, -2), (1, 1, 10 * 12 * 32)), (1, 10, 12, 32))
        return op.permute_dims(y, [0, 3, 1, 2])

    x = np.random.default_rng(0).standard_normal((1, 8, 5, 6)).astype(F)
    found, wanted = rewritten(before), module(body, ((1, 8, 5, 6), F))
    assert found.script().count("R.nn.conv2d(") == 3  # and a product
    assert found.script().count("R.matmul(") == 1
    # sums of K <= 32 products of magnitudes below 4 * 4, in different orders
    bound = 2 * 32 * np.finfo(np.float32).eps * 32 * 16
    assert np.abs(run(found, [x])[0] - run(wanted, [x])[0]).max() <= bound


def test_every_attribute() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        found = []
        for number, (shape, attributes) in enumerate(CASES):
            y = op.nn.conv2d_transpose(x, constant(*shape, seed=number), **attributes)
            bias = constant(shape[1] * attributes.get("groups", 1), 1, 1, seed=number + 50)
            found.append(op.nn.relu(op.add(bias, y)))
        return found

    mod = module(body, ((1, 4, 3, 4), F))
    after = rewritten(mod)
    assert "conv2d_transpose" not in after.script()
    x = np.random.default_rng(0).standard_normal((1, 4, 3, 4)).astype(F)
    for case, got, wanted in zip(CASES, run(after, [x]), run(mod, [x]), strict=True):
        assert got.shape == wanted.shape, case
        # sums of K <= 4 * 16 products of magnitudes below 4 * 4, in different orders
        bound = 2 * 64 * np.finfo(np.float32).eps * 64 * 16
        assert np.abs(got - wanted).max() <= bound, case


def test_one_and_three_axes() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        flat = op.reshape(x, (2, 4, 36))
        line = op.nn.conv1d_transpose(flat, constant(4, 3, 16), strides=[8], padding=[4, 4])
        solid = op.nn.conv3d_transpose(
            op.reshape(x, (2, 4, 3, 3, 4)),
            constant(4, 3, 2, 3, 3),
            strides=[2, 2, 1],
            padding=[0, 1, 1, 0, 1, 1],
            output_padding=[1, 0, 0],
        )
        return [line, solid]

    mod = module(body, ((2, 4, 6, 6), F))
    after = rewritten(mod)
    assert "d_transpose" not in after.script()
    x = np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(F)
    for got, wanted in zip(run(after, [x]), run(mod, [x]), strict=True):
        # sums of K <= 4 * 18 products of magnitudes below 4 * 4, in different orders
        assert np.abs(got - wanted).max() <= 2 * 72 * np.finfo(np.float32).eps * 72 * 16


def test_a_dequantised_weight_stays_8_bits_wide() -> None:
    """The inserted taps are zero points; scales repeat the channels' scales for every phase."""
    rng = np.random.default_rng(0)
    numbers = relax.const(rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8))
    scale = relax.const(rng.uniform(0.5, 1, 3).astype(F))
    zero = relax.const(np.array([3, -2, 0], np.int8))
    x = rng.standard_normal((1, 4, 5, 5)).astype(F)

    def body(x: relax.Expr) -> relax.Expr:
        weight = op.dequantize(numbers, scale, zero, axis=1)
        return op.nn.conv2d_transpose(x, weight, strides=[2, 2], groups=2)

    mod = module(body, ((1, 4, 5, 5), F))
    after = rewritten(mod)
    assert "conv2d_transpose" not in after.script() and "R.dequantize" in after.script()
    # sums of K <= 18 products of magnitudes below 4 * 130, in different orders
    bound = 2 * 18 * np.finfo(np.float32).eps * 18 * 520
    assert np.abs(run(after, [x])[0] - run(mod, [x])[0]).max() <= bound


def test_what_is_needed_besides_is_interleaved_too() -> None:
    weight = constant(4, 3, 2, 2)

    def body(x: relax.Expr, other: relax.Expr) -> list[relax.Expr]:
        y = op.nn.conv2d_transpose(x, weight, strides=[2, 2])
        return [y, op.multiply(y, op.sigmoid(y)), op.add(y, other), op.max(op.nn.relu(y), axis=[1])]

    mod = module(body, ((1, 4, 3, 3), F), ((1, 3, 6, 6), F))
    after = rewritten(mod)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(F) for shape in ((1, 4, 3, 3), (1, 3, 6, 6))]
    for got, wanted in zip(run(after, arrays), run(mod, arrays), strict=True):
        # sums of 4 products of magnitudes below 16 in different orders, squared by x * sigmoid(x)
        assert np.abs(got - wanted).max() <= 2 * 4 * np.finfo(np.float32).eps * (4 * 16) * 2


def test_a_window_that_meets_nothing_stays() -> None:
    weight = constant(4, 3, 2, 2)
    attributes = {"strides": [2, 2], "padding": [2, 0, 0, 0], "output_padding": [1, 0]}
    mod = module(lambda x: op.nn.conv2d_transpose(x, weight, **attributes), ((1, 4, 1, 2), F))
    assert_structural_equal(rewritten(mod), mod)


def test_quantised_in_and_out() -> None:
    """A dequantised bias and the quantisation of the result move before the interleaving."""
    rng = np.random.default_rng(0)
    weight = relax.const(rng.integers(-127, 128, (4, 3, 2, 2)).astype(np.int8))
    scales = relax.const(rng.uniform(0.5, 1, 3).astype(F))
    bias = relax.const(rng.integers(-99, 99, (1, 3, 1, 1)).astype(np.int32))
    one, half, zero = relax.const(np.float32(1)), relax.const(np.float32(0.5)), relax.const(0)
    eight, nothing = relax.const(np.uint8(8)), relax.const(np.zeros(3, np.int8))

    def body(q: relax.Expr) -> relax.Expr:
        y = op.nn.conv2d_transpose(
            op.dequantize(q, one, eight), op.dequantize(weight, scales, nothing, 1), strides=[2, 2]
        )
        y = op.nn.relu(op.add(y, op.dequantize(bias, scales, zero, 1)))
        return op.quantize(y, half, eight, out_dtype="uint8")

    mod = module(body, ((1, 4, 3, 3), "uint8"))
    after = rewritten(mod)
    script = after.script()
    assert script.index("R.quantize") < script.index("R.concat")
    x = rng.integers(0, 256, (1, 4, 3, 3)).astype(np.uint8)
    # the same sums of four products in the same order
    np.testing.assert_array_equal(run(after, [x])[0], run(mod, [x])[0])


@pytest.mark.parametrize("channels", [3, 17])
def test_images_of_any_size(channels: int) -> None:
    batch, width = tirx.Var("batch", "int64"), tirx.Var("width", "int64")
    half = (width - 1) // 2 + 1
    first, second = constant(8, channels, 2, 2), constant(channels, 2, 3, 3, seed=1)
    bias = constant(1, channels, 1, 1, seed=2)

    def body(x: relax.Expr, _: relax.Expr) -> relax.Expr:
        normal = relax.BlockBuilder.current().normalize
        once = normal(op.nn.conv2d_transpose(x, first, strides=[2, 2]))
        once = normal(op.nn.relu(normal(op.add(once, bias))))
        return op.nn.conv2d_transpose(once, second, strides=[3, 3])

    before = module(body, ((batch, 8, half, 4), F), ((width,), F))  # type: ignore[arg-type]
    after = rewritten(before)
    assert "conv2d_transpose" not in after.script()
    rng = np.random.default_rng(0)
    for images, columns in ((1, 5), (2, 8), (1, 1)):
        shape = (images, 8, (columns - 1) // 2 + 1, 4)
        arrays = [rng.standard_normal(shape).astype(F), np.zeros(columns, F)]
        (found,), (wanted,) = run(after, arrays), run(before, arrays)
        assert found.shape == wanted.shape
        # Sums of 8 products, then sums over all channels, in another order.
        bound = 2 * (8 + channels) * np.finfo(F).eps
        assert np.abs(found - wanted).max() <= bound * np.abs(wanted).max()


@pytest.mark.parametrize(("rows", "products"), [(5, 2), (tirx.Var("rows", "int64"), 1)])
def test_phases_of_any_size_are_one_product(rows: int | tirx.Var, products: int) -> None:
    """Parts of static extents are written in place, those of dynamic ones would be copied."""
    weight = constant(32, 32, 2, 2)

    def body(x: relax.Expr) -> relax.Expr:
        return op.nn.conv2d_transpose(x, weight, strides=[2, 2])

    after = rewritten(module(body, ((1, 32, rows, 4), F)))  # type: ignore[arg-type]
    assert after.script().count("R.matmul") == products


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kernel", "padding"), [(4, [1, 1]), (3, [0, 1]), (3, [0, 0]), (5, [2, 2])]
)
def test_windows_that_overlap_over_images_of_any_size(kernel: int, padding: list[int]) -> None:
    width = tirx.Var("width", "int64")
    weight = constant(8, 3, kernel, kernel)

    def body(x: relax.Expr) -> relax.Expr:
        return op.nn.conv2d_transpose(x, weight, strides=[2, 2], padding=padding)

    before = module(body, ((1, 8, width, 4), F))  # type: ignore[arg-type]
    after = rewritten(before)
    assert "conv2d_transpose" not in after.script()
    assert_structural_equal(after["main"].ret_ty, before["main"].ret_ty, map_free_vars=True)
    for columns in (1, 2, 7):
        x = np.random.default_rng(0).standard_normal((1, 8, columns, 4)).astype(F)
        (found,), (wanted,) = run(after, [x]), run(before, [x])
        # Sums of up to 8 times 9 products in another order.
        assert np.abs(found - wanted).max() <= 2 * 72 * np.finfo(F).eps * np.abs(wanted).max()
