"""Regions of integer products: what they read, what they quantise inside, what they store."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from relay_passes.ir.functions import COMPOSITE, REGION, is_region_function
from relay_passes.ir.graph import op_name
from relay_passes.regions.partition import partition
from tests.relay_passes.graphs import MACHINE, Body, module, operators, partitioned, regions
from tests.relay_passes.quantized import constant, dequantize, inputs, outputs, quantize
from tests.relay_passes.region_checks import assert_equal, kernel_outputs
from tir_schedules.core.region import EpilogueOp, Region, Tensor

pytestmark = pytest.mark.turns

op = relax.op
F, I32, U8, I8 = "float32", "int32", "uint8", "int8"
RNG = np.random.default_rng(0)
W = relax.const(RNG.integers(-128, 128, (6, 4)).astype(np.int8))
SCALES = np.array([0.011, 0.02, 0.007, 0.03], np.float32)
X, Q = ((5, 6), F), ((5, 6), U8)


def product(
    q: relax.Expr, w: relax.Expr = W, zero: ArrayLike = 0, w_zero: ArrayLike = 0
) -> relax.Expr:
    """(q - zero) (w - w_zero) in int32; a zero point of 0 has no subtraction."""
    factors = [
        op.subtract(op.astype(x, I32), constant(z, I32)) if np.any(z) else op.astype(x, I32)
        for x, z in ((q, zero), (w, w_zero))
    ]
    return op.matmul(*factors, out_dtype=I32)


def scaled(acc: relax.Expr, scale: ArrayLike = SCALES) -> relax.Expr:
    return op.multiply(op.astype(acc, F), constant(scale, F))


def check(body: Body, *shapes: tuple[tuple[int, ...], str]) -> list[Region]:
    """The regions of a body in order, which compute what the body does, as do their kernels."""
    mod = module(body, *shapes)
    result, _ = partitioned(mod)
    relax.analysis.well_formed(result)
    arrays = inputs(mod)
    wanted = outputs(mod, arrays)
    assert_equal(outputs(result, arrays), wanted)
    assert_equal(kernel_outputs(mod, arrays), wanted)
    return regions(result)


def left(mod: IRModule) -> list[str]:
    """Operators of main outside regions."""
    names = [
        op_name(binding.value) for block in mod["main"].body.blocks for binding in block.bindings
    ]
    return [name.removeprefix("relax.") for name in names if name]


JSON = Region(
    op="matmul",
    inputs=(Tensor((2, 4), U8), Tensor((4, 3), I8, True)),
    operands=(Tensor((3,), F),),
    output=Tensor((2, 3), F),
    attrs={"a_zero_point": 3},
    epilogue=(EpilogueOp("cast", (0,)), EpilogueOp("multiply", (2, 1))),
).to_json()


def test_a_product_with_its_scale_becomes_one_function() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(q: R.Tensor((2, 4), U8), w: R.Tensor((4, 3), I8), s: R.Tensor((3,), F)):
            with R.dataflow():
                lv = R.astype(q, I32)
                lv1 = R.subtract(lv, R.const(3, I32))
                lv2 = R.astype(w, I32)
                lv3 = R.matmul(lv1, lv2, out_dtype=I32)
                lv4 = R.astype(lv3, F)
                gv = R.multiply(lv4, s)
                R.output(gv)
            return gv

    @I.ir_module
    class After:
        @R.function(private=True)
        def fused_matmul(p0: R.Tensor((2, 4), U8), p1: R.Tensor((4, 3), I8), p2: R.Tensor((3,), F)):
            R.func_attr({COMPOSITE: "tvm_hybrid.matmul", REGION: JSON})
            with R.dataflow():
                lv = R.astype(p0, I32)
                lv1 = R.subtract(lv, R.const(3, I32))
                lv2 = R.astype(p1, I32)
                lv3 = R.matmul(lv1, lv2, out_dtype=I32)
                lv4 = R.astype(lv3, F)
                lv5 = R.multiply(lv4, p2)
                gv: R.Tensor((2, 3), F) = lv5
                R.output(gv)
            return gv

        @R.function
        def main(q: R.Tensor((2, 4), U8), w: R.Tensor((4, 3), I8), s: R.Tensor((3,), F)):
            cls = After
            with R.dataflow():
                gv = cls.fused_matmul(q, w, s)
                R.output(gv)
            return gv

    weights = {"w": np.ones((4, 3), np.int8), "s": np.ones(3, np.float32)}
    bind = relax.transform.BindParams("main", weights)
    assert_structural_equal(partition(MACHINE.isa, [])(bind(Before)), bind(After))


def test_a_product_of_8_bit_tensors_needs_no_casts() -> None:
    """TVM multiplies 8-bit tensors itself: out_dtype alone says that sums are int32."""
    (region,) = check(lambda q: op.matmul(q, W, out_dtype=I32), Q)
    assert region.op == "matmul"
    assert region.inputs == (Tensor((5, 6), U8), Tensor((6, 4), I8, True))
    (region,) = check(lambda a, b: op.matmul(a, b, out_dtype=I32), Q, ((6, 4), I8))
    assert region.op == "batch_matmul"
    assert [tensor.dtype for tensor in region.inputs] == [U8, I8]
    (region,) = check(lambda a, b: op.matmul(op.astype(a, I32), b, out_dtype=I32), Q, ((6, 4), I8))
    assert [tensor.dtype for tensor in region.inputs] == [U8, I8]


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(4,), (1, 4)], ids=str)
@pytest.mark.parametrize(
    ("zero", "w_zero", "attrs"),
    [
        (0, 0, {}),
        (3, 0, {"a_zero_point": 3}),
        (0, -2, {"b_zero_point": -2}),
        (0, [7, 7, 7, 7], {"b_zero_point": 7}),
        (200, [1, 0, -5, 2], {"a_zero_point": 200, "b_zero_point": "input"}),
    ],
    ids=str,
)
def test_zero_points(
    zero: int, w_zero: int | list[int], attrs: dict[str, Any], shape: tuple[int, ...]
) -> None:
    columns = np.reshape(w_zero, shape) if isinstance(w_zero, list) else w_zero
    (region,) = check(lambda q: scaled(product(q, zero=zero, w_zero=columns)), Q)
    assert region.attrs == attrs
    further = (Tensor((4,), I32, True),) if "input" in attrs.values() else ()
    assert region.inputs == (Tensor((5, 6), U8), Tensor((6, 4), I8, True), *further)


def test_a_zero_point_at_run_time() -> None:
    def body(q: relax.Expr, zero: relax.Expr) -> relax.Expr:
        left = op.subtract(op.astype(q, I32), op.astype(zero, I32))
        return op.matmul(left, op.astype(W, I32), out_dtype=I32)

    (region,) = check(body, ((5, 6), I8), ((), I8))
    assert region.attrs == {"a_zero_point": "input"}
    assert region.inputs[2:] == (Tensor((), I8),)


@pytest.mark.parametrize(
    "body",
    [
        lambda q, z: op.matmul(op.subtract(op.astype(q, I32), z), op.astype(W, I32)),
        lambda q, z: op.matmul(
            op.subtract(op.astype(q, I32), constant(np.arange(6), I32)), op.astype(W, I32)
        ),
        lambda q, z: op.matmul(op.astype(q, I32), constant(np.ones((6, 4)), I32)),
        lambda q, z: op.matmul(op.astype(op.astype(q, "int16"), I32), op.astype(W, I32)),
    ],
    ids=["int32 at run time", "for every k", "int32 weight", "int16"],
)
def test_products_that_no_kernel_has_are_left_with_a_reason(body: Body) -> None:
    mod = module(body, Q, ((), I32))
    result, decisions = partitioned(mod)
    assert regions(result) == []
    assert [d.reason for d in decisions] == ["no kernel supports its zero point or integer type"]
    arrays = inputs(mod)
    arrays[1] = np.array(3, np.int32)
    assert_equal(outputs(result, arrays), outputs(mod, arrays))


def test_activations_are_read_through_permutations() -> None:
    def scores(q: relax.Expr, k: relax.Expr) -> relax.Expr:
        q, k = op.permute_dims(q, (0, 2, 1, 3)), op.permute_dims(k, (0, 2, 3, 1))
        return product(q, k, 128, 121)

    heads = (1, 7, 2, 5)
    (region,) = check(scores, (heads, U8), (heads, U8))
    assert region.op == "batch_matmul" and region.inputs == (Tensor(heads, U8),) * 2
    assert region.attrs == {
        "a_axes": (0, 2, 1, 3),
        "b_axes": (0, 2, 3, 1),
        "a_zero_point": 128,
        "b_zero_point": 121,
    }


def test_what_is_quantised_for_one_product_is_read_as_f32() -> None:
    for dtype, zero in [(U8, 131), (I8, -4), (U8, 0)]:
        (region,) = check(
            lambda x, d=dtype, z=zero: scaled(product(quantize(x, 0.05, z, d), zero=z)), X
        )
        assert region.inputs[0] == Tensor((5, 6), F)
        wanted = {"a_quantize": dtype, "a_scale": float(np.float32(0.05))}
        assert region.attrs == wanted | ({"a_zero_point": zero} if zero else {})


def test_what_is_computed_from_8_bits_is_stored_in_8_bits() -> None:
    """8-bit inputs give 8-bit results; f32 between kernels would be four times as many bytes."""

    def body(q: relax.Expr, row: relax.Expr) -> relax.Expr:
        gated = op.multiply(dequantize(q, 0.02, 7), row)
        return scaled(product(quantize(gated, 0.03, 5), zero=5))

    elementwise, matmul = sorted(check(body, Q, ((1, 6), F)), key=lambda region: region.op)
    assert elementwise.op == "elementwise" and elementwise.output.dtype == U8
    assert matmul.inputs[0].dtype == U8 and "a_quantize" not in matmul.attrs


def test_what_others_read_as_f32_is_quantised_from_it() -> None:
    def body(q: relax.Expr, row: relax.Expr) -> list[relax.Expr]:
        gated = op.multiply(dequantize(q, 0.02, 7), row)
        return [scaled(product(quantize(gated, 0.03, 5), zero=5)), op.max(gated)]

    (matmul,) = [each for each in check(body, Q, ((1, 6), F)) if each.op == "matmul"]
    assert matmul.inputs[0].dtype == F and matmul.attrs["a_quantize"] == U8


def test_what_is_quantised_for_several_is_quantised_once() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        q = quantize(x, 0.05, 131)
        other = constant(np.arange(24).reshape(6, 4), I8)
        return [product(q, zero=131), product(q, other, 131)]

    found = check(body, X)
    assert [region.op for region in found] == ["elementwise", "matmul", "matmul"]
    assert operators(found[0]) == ["quantize"] and found[0].output.dtype == U8
    assert [region.inputs[0].dtype for region in found] == [F, U8, U8]


@pytest.mark.sampled
@pytest.mark.parametrize(
    "body",
    [
        lambda x: product(quantize(x, 0.05, 131), zero=130),
        lambda x: product(quantize(x, 2.0**-110, 0)),
        lambda x: product(quantize(x, np.arange(1, 7) / 50, np.zeros(6))),
        lambda x: (lambda q: [product(q, zero=131), q])(quantize(x, 0.05, 131)),
    ],
    ids=["another zero point", "a tiny scale", "scales of columns", "an output"],
)
def test_what_the_kernel_may_not_quantise(body: Body) -> None:
    *_, region = [region for region in check(body, X) if region.op == "matmul"]
    assert region.inputs[0].dtype == U8 and "a_quantize" not in region.attrs


def test_a_bias_is_added_to_the_integers() -> None:
    bias = constant([-3000, 5, 0, 77777], I32)
    (region,) = check(lambda q: scaled(op.add(product(q, zero=9), bias)), Q)
    assert region.operands[0] == Tensor((4,), I32)
    assert [(step.op, step.dtype) for step in region.epilogue] == [
        ("add", I32),
        ("cast", F),
        ("multiply", F),
    ]


def test_a_residual_is_read_as_8_bit_integers() -> None:
    def body(q: relax.Expr, residual: relax.Expr) -> relax.Expr:
        real = op.add(scaled(product(q, zero=9)), dequantize(residual, 0.3, -7, I8))
        return quantize(real, 1.3, 120)

    (region,) = check(body, Q, ((5, 4), I8))
    assert operators(region) == ["cast", "multiply", "dequantize", "add", "quantize"]
    assert Tensor((5, 4), I8) in region.operands and region.output == Tensor((5, 4), U8)


def test_a_residual_that_another_region_dequantises_is_read_as_f32() -> None:
    """Only the dequantised value leaves the first region."""

    def body(q: relax.Expr, p: relax.Expr) -> list[relax.Expr]:
        real = dequantize(quantize(scaled(product(q, zero=9)), 1.3, 120), 1.3, 120)
        return [op.nn.relu(op.add(real, scaled(product(p, zero=3)))), real]

    found = check(body, Q, Q)
    assert sorted(map(operators, found)) == [
        ["cast", "multiply", "add", "relu"],
        ["cast", "multiply", "quantize", "dequantize"],
    ]


def test_one_weight_packed_for_two_zero_points() -> None:
    """The terms packed after a weight depend on the zero point of the other factor."""
    first, last = check(lambda q, p: [product(q, zero=9), product(p, zero=3)], Q, Q)
    assert first.inputs == last.inputs and first.attrs != last.attrs


def test_quantising_and_dequantising_again_stays_inside() -> None:
    def body(q: relax.Expr) -> relax.Expr:
        fake = dequantize(quantize(scaled(product(q, zero=9)), 0.4, 100), 0.4, 100)
        return op.nn.relu(op.add(fake, constant(SCALES, F)))

    (region,) = check(body, Q)
    wanted = ["cast", "multiply", "quantize", "dequantize", "add", "relu"]
    assert operators(region) == wanted and region.output.dtype == F


def test_quantising_behind_a_reshape() -> None:
    def body(q: relax.Expr) -> relax.Expr:
        real = scaled(product(op.reshape(q, (6, 6)), zero=9))
        return quantize(op.reshape(real, (2, 3, 4)), 0.4, 100)

    (region,) = check(body, ((2, 3, 6), U8))
    assert region.output == Tensor((2, 3, 4), U8)
    assert operators(region) == ["cast", "multiply", "quantize"]


def test_scales_of_columns_quantise_and_dequantise() -> None:
    def body(q: relax.Expr, residual: relax.Expr) -> relax.Expr:
        zeros = np.array([3, 0, 9, 255])
        real = op.add(scaled(product(q)), dequantize(residual, SCALES, zeros, U8, 1))
        return quantize(real, SCALES * 20, zeros, U8, 1)

    (region,) = check(body, Q, ((5, 4), U8))
    assert "quantize" in operators(region) and "dequantize" in operators(region)


def test_the_beginning_of_the_next_product_is_left_to_it() -> None:
    """If the first region took the cast to int32, the next kernel would read no 8-bit tensor."""
    second = constant(RNG.integers(-128, 128, (4, 3)), I8)

    def body(q: relax.Expr) -> relax.Expr:
        inner = quantize(scaled(product(q, zero=9)), 0.9, 100)
        return scaled(product(inner, second, zero=100), 0.5)

    first, last = check(body, Q)
    assert operators(first) == ["cast", "multiply", "quantize"] and first.output.dtype == U8
    assert last.inputs[0] == Tensor((5, 4), U8) and last.attrs == {"a_zero_point": 100}


def test_both_sides_of_a_quantised_value_with_two_products() -> None:
    second = constant(RNG.integers(-128, 128, (4, 3)), I8)
    third = constant(RNG.integers(-128, 128, (4, 3)), I8)

    def body(q: relax.Expr) -> relax.Expr:
        inner = quantize(scaled(product(q, zero=9)), 0.9, 100)
        one = scaled(product(inner, second, 100), 0.5)
        return op.add(one, scaled(product(inner, third, 100), 0.25))

    found = check(body, Q)
    assert len(found) == 3
    assert sorted(map(operators, found)) == [
        ["cast", "multiply"],
        ["cast", "multiply", "add"],
        ["cast", "multiply", "quantize"],
    ]


def test_a_softmax_is_quantised_in_its_region() -> None:
    mod = module(lambda x: quantize(op.nn.softmax(x), 1 / 255, 0), X)
    result, _ = partitioned(mod)
    (region,) = regions(result)
    assert (region.op, operators(region)) == ("softmax", ["quantize"])
    assert region.output == Tensor((5, 6), U8)


def test_conversions_that_stand_alone_are_elementwise() -> None:
    def body(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return quantize(op.add(dequantize(a, 0.2, 3), dequantize(b, 0.1, 7, I8)), 0.3, 50)

    (region,) = check(body, Q, ((5, 6), I8))
    assert region.op == "elementwise"
    assert operators(region) == ["dequantize", "dequantize", "add", "quantize"]
    assert left(partitioned(module(body, Q, ((5, 6), I8)))[0]) == []


def test_partitioning_twice_changes_nothing() -> None:
    mod, _ = partitioned(module(lambda x: scaled(product(quantize(x, 0.1, 3), zero=3)), X))
    assert any(is_region_function(function) for _, function in mod.functions_items())
    assert_structural_equal(partition(MACHINE.isa, [])(mod), mod)
