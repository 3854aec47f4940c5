"""Products of two dequantised tensors become integer products, exact to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.graph import op_name
from relay_passes.quantize.integer_product import integer_products
from relay_passes.quantize.move_quantization import lift_quantize, sink_dequantize
from tests.onnx_reference.arithmetic import matmul, quantized
from tests.relay_passes.graphs import module
from tests.relay_passes.quantized import (
    assert_becomes,
    assert_same_bits,
    assert_stays,
    constant,
    dequantize,
    inputs,
    operators,
    outputs,
    quantize,
    tidy,
)

op = relax.op
INTEGERS = ("uint8", "int8")
A = ((5, 6), "uint8")
W = np.random.default_rng(1).integers(-128, 127, (6, 4), np.int8, endpoint=True)
SCALES = np.asarray([0.1, 0.2, 0.7, 0.3], np.float32)


def widened(q: relax.Expr, zero: relax.Expr | None) -> relax.Expr:
    integers = op.astype(q, "int32")
    return integers if zero is None else op.subtract(integers, zero)


def scaled(a: relax.Expr, w: relax.Expr, scale: relax.Expr) -> relax.Expr:
    return op.multiply(op.astype(op.matmul(a, w, out_dtype="int32"), "float32"), scale)


def test_a_weight_with_one_scale() -> None:
    w = relax.const(W)
    before = module(lambda a: op.matmul(dequantize(a, 0.3, 7), dequantize(w, 0.2, 0, "int8")), A)
    scale = np.float32(0.3) * np.float32(0.2)
    after = module(
        lambda a: scaled(
            widened(a, constant(7, "int32")), op.astype(w, "int32"), relax.const(scale)
        ),
        A,
    )
    assert_becomes(before, integer_products()(), after)


def test_a_weight_with_scales_and_zero_points_of_columns() -> None:
    q = (W.shape, "int8")
    zeros = np.asarray([1, 0, -5, 2])
    before = module(
        lambda a, w: op.matmul(dequantize(a, 0.3, 0), dequantize(w, SCALES, zeros, "int8", 1)), A, q
    )
    after = module(
        lambda a, w: scaled(
            widened(a, None),
            widened(w, constant(zeros, "int32")),
            constant(np.float32(0.3) * SCALES, "float32"),
        ),
        A,
        q,
    )
    assert_becomes(before, integer_products()(), after)


def test_equal_scales_of_an_axis_are_one() -> None:
    """Equal scales along K count as one scale; different ones could not leave the sum."""
    before = module(
        lambda a, w: op.matmul(dequantize(a, [0.3] * 6, [7] * 6), dequantize(w, 0.2, 0, "int8")),
        A,
        (W.shape, "int8"),
    )
    after = module(
        lambda a, w: scaled(
            widened(a, constant(7, "int32")),
            widened(w, None),
            relax.const(np.float32(0.3) * np.float32(0.2)),
        ),
        A,
        (W.shape, "int8"),
    )
    assert_becomes(before, integer_products()(), after)


def test_a_bias_in_steps_of_the_scales_joins_the_sum() -> None:
    w, bias = relax.const(W), relax.const(np.asarray([5, -7, 1000, 3], np.int32))
    steps = np.float32(0.3) * SCALES

    def before(a: relax.Expr) -> relax.Expr:
        product = op.matmul(dequantize(a, 0.3, 7), dequantize(w, SCALES, [0] * 4, "int8", 1))
        return op.add(dequantize(bias, steps, [0] * 4, "int32", 0), product)

    def after(a: relax.Expr) -> relax.Expr:
        centred = widened(a, constant(7, "int32"))
        total = op.matmul(centred, op.astype(w, "int32"), out_dtype="int32")
        real = op.astype(op.add(total, bias), "float32")
        return op.multiply(real, relax.const(steps))

    assert_becomes(module(before, A), integer_products()(), module(after, A))


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_scales_and_zero_points_of_run_time(shape: tuple[int, ...]) -> None:
    w = relax.const(W)
    parameters = (A, (shape, "float32"), (shape, "uint8"))

    def number(x: relax.Expr) -> relax.Expr:
        return op.reshape(x, ()) if shape else x

    def before(a: relax.Expr, s: relax.Expr, z: relax.Expr) -> relax.Expr:
        weight = dequantize(w, SCALES, [0] * 4, "int8", 1)
        return op.matmul(op.dequantize(a, s, z, axis=-1), weight)

    def after(a: relax.Expr, s: relax.Expr, z: relax.Expr) -> relax.Expr:
        activation = widened(a, op.astype(number(z), "int32"))
        scale = op.multiply(number(s), constant(SCALES, "float32"))
        product = op.matmul(activation, op.astype(w, "int32"), out_dtype="int32")
        return op.multiply(op.astype(product, "float32"), scale)

    mod = integer_products()()(module(before, *parameters))
    assert operators(tidy(mod)) == operators(tidy(module(after, *parameters)))
    arrays = inputs(mod)
    a, s, z = arrays
    wanted = matmul(quantized(a, s, z), quantized(W, SCALES, np.zeros(4, np.int8), 1))
    np.testing.assert_array_equal(outputs(mod, arrays)[0], wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("a_type", INTEGERS)
@pytest.mark.parametrize("w_type", INTEGERS)
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_every_combination_bit_by_bit(
    a_type: str, w_type: str, per_column: bool, batched: bool
) -> None:
    """Zero points over the whole range; batches by batches as in attention."""
    rng = np.random.default_rng(7)
    rows, columns = (3, 2, 7, 19), ((3, 2) if batched else ()) + (19, 11)
    parameters: list[dict[str, Any]] = []
    for dtype, count in ((a_type, 1), (w_type, 11 if per_column else 1)):
        limits = np.iinfo(dtype)
        shape = (count,) if count > 1 else ()
        zero = rng.integers(limits.min, limits.max, shape, np.dtype(dtype), endpoint=True)
        parameters.append({"scale": rng.uniform(0.001, 1, shape).astype("f"), "zero": zero})
    first, second = parameters

    def body(a: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.matmul(
            dequantize(a, **first, dtype=a_type), dequantize(w, **second, dtype=w_type)
        )

    mod = integer_products()()(module(body, (rows, a_type), (columns, w_type)))
    arrays = inputs(mod)
    wanted = matmul(
        quantized(arrays[0], first["scale"], first["zero"]),
        quantized(arrays[1], second["scale"], second["zero"], -1),
    )
    assert operators(mod)["dequantize"] == 0
    np.testing.assert_array_equal(outputs(mod, arrays)[0], wanted)


ROWS = np.arange(1, 7) / 7
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "rows": ({"scale": ROWS[:5], "zero": 7, "axis": 0}, {"scale": 0.2, "zero": 0}, "first"),
    "the first's K": ({"scale": ROWS, "zero": 7, "axis": 1}, {"scale": 0.2, "zero": 0}, "first"),
    "the second's K": ({"scale": 0.3, "zero": 7}, {"scale": ROWS, "zero": 0, "axis": 0}, "second"),
    "zero points of K": (
        {"scale": 0.3, "zero": 7},
        {"scale": 0.2, "zero": np.arange(6), "axis": 0},
        "second",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_scales_inside_the_sum_stay(case: str) -> None:
    first, second, operand = REFUSED[case]
    before = module(
        lambda a, w: op.matmul(dequantize(a, **first), dequantize(w, **second, dtype="int8")),
        A,
        (W.shape, "int8"),
    )
    assert_stays(before, integer_products()())
    log: DecisionLog = []
    integer_products(log)()(before)
    assert [(decision.op, decision.taken) for decision in log] == [("matmul", False)]
    assert f"of the {operand} operand differs" in log[0].reason


def test_a_sum_beyond_32_bits_stays() -> None:
    """255 * 255 * 33026 > 2^31; with a constant weight of small values the sum fits."""
    depth = 33026
    parameters = (((1, depth), "uint8"), ((depth, 1), "uint8"))
    before = module(
        lambda a, w: op.matmul(dequantize(a, 0.3, 0), dequantize(w, 0.2, 0)), *parameters
    )
    assert_stays(before, integer_products()())
    small = constant(np.full((depth, 1), 3), "uint8")
    other = module(
        lambda a: op.matmul(dequantize(a, 0.3, 0), dequantize(small, 0.2, 0)), parameters[0]
    )
    mod = integer_products()()(other)
    assert operators(mod)["dequantize"] == 0
    row = np.full((1, depth), 255, np.uint8)
    wanted = np.float32(255 * 3 * depth) * (np.float32(0.3) * np.float32(0.2))
    np.testing.assert_array_equal(outputs(mod, [row])[0], wanted)


def test_a_vector_and_a_float_operand_stay() -> None:
    vector = module(
        lambda a, w: op.matmul(dequantize(a, 0.3, 7), dequantize(w, 0.2, 0)),
        ((6,), "uint8"),
        ((6, 4), "uint8"),
    )
    mixed = module(lambda a, x: op.matmul(dequantize(a, 0.3, 7), x), A, ((6, 4), "float32"))
    bias = module(
        lambda a, w: op.matmul(dequantize(a, 0.3, 7), dequantize(w, 0.2, 0, "int32")),
        A,
        ((6, 4), "int32"),
    )
    for mod in (vector, mixed, bias):
        assert_stays(mod, integer_products()())


def attention(q8: relax.Expr, k8: relax.Expr) -> relax.Expr:
    """Attention as a quantiser writes it: every operator between dequantize and quantize."""

    def heads(x: relax.Expr, order: list[int]) -> relax.Expr:
        return op.permute_dims(op.reshape(x, (2, 8, 3, 4)), order)

    def through(x: relax.Expr, scale: float, zero: int) -> relax.Expr:
        return dequantize(quantize(x, scale, zero), scale, zero)

    query = through(heads(op.add(dequantize(q8, 0.02, 120), BIAS), [0, 2, 1, 3]), 0.025, 121)
    key = through(heads(op.add(dequantize(k8, 0.03, 130), BIAS), [0, 2, 3, 1]), 0.035, 131)
    scores = op.nn.softmax(through(op.matmul(query, key), 0.05, 128))
    value = heads(dequantize(k8, 0.03, 130), [0, 2, 1, 3])
    mixed = through(op.matmul(through(scores, 1 / 255, 0), value), 0.03, 128)
    joined = op.reshape(op.permute_dims(mixed, [0, 2, 1, 3]), (2, 8, 12))
    return op.matmul(
        through(joined, 0.03, 128), dequantize(relax.const(PROJECTION), 0.01, 0, "int8")
    )


BIAS = constant(np.linspace(-1, 1, 12), "float32")
PROJECTION = np.random.default_rng(2).integers(-128, 127, (12, 5), np.int8, endpoint=True)


def test_attention_moves_and_multiplies_8_bit_integers() -> None:
    parameters = (((2, 8, 12), "uint8"), ((2, 8, 12), "uint8"))
    before = tidy(module(attention, *parameters))
    moved = tidy(lift_quantize()(sink_dequantize()(before)))
    assert_same_bits(before, moved)
    after = integer_products()()(moved)
    calls = [binding.value for binding in after["main"].body.blocks[0].bindings]
    types = {
        name: [str(call.ty.dtype) for call in calls if op_name(call) == f"relax.{name}"]
        for name in ("matmul", "permute_dims", "quantize")
    }
    assert types["matmul"] == ["int32"] * 3
    assert types["permute_dims"] == ["uint8"] * 4
    # The conversions around the permutation of the result cancelled.
    assert len(types["quantize"]) == 5
    assert operators(before)["quantize"] == 6
