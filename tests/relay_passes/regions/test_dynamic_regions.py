"""Dynamic quantisation around products: which kernel finds the range, and which ones read it."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule, ir, relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from relay_passes.ir.dynamic_quantize import emit_dynamic_quantize
from relay_passes.ir.functions import COMPOSITE, REGION
from relay_passes.regions.partition import partition, quantization_ranges
from tests.relay_passes.graphs import MACHINE, Body, module, operators, regions
from tests.relay_passes.quantized import constant, inputs, outputs
from tests.relay_passes.region_checks import assert_equal, kernel_outputs
from tir_schedules.core.region import Region, Tensor

pytestmark = pytest.mark.turns

op = relax.op
F, I32, U8, I8 = "float32", "int32", "uint8", "int8"
RNG = np.random.default_rng(0)
WEIGHTS = [relax.const(RNG.integers(-128, 128, (6, 4)).astype(np.int8)) for _ in range(3)]
SCALES = np.array([0.011, 0.02, 0.007, 0.03], np.float32)
X = ((5, 6), F)
ZERO = np.uint8(0)

JSON = Region(
    op="quantization_range", inputs=(Tensor((5, 6), F),), output=Tensor((2,), F)
).to_json()


def dynamic(x: relax.Expr) -> tuple[relax.Var, relax.Var, relax.Var]:
    """The chain: q, scale, zero point."""
    builder = relax.BlockBuilder.current()
    return emit_dynamic_quantize(builder, builder.emit(builder.normalize(x)))


def product(q: relax.Expr, zero: relax.Expr, w: relax.Expr) -> relax.Expr:
    left = op.subtract(op.astype(q, I32), op.astype(zero, I32))
    return op.matmul(left, op.astype(w, I32), out_dtype=I32)


def scaled(acc: relax.Expr, scale: relax.Expr) -> relax.Expr:
    return op.multiply(op.astype(acc, F), op.multiply(scale, relax.const(SCALES)))


def formed(mod: IRModule) -> IRModule:
    return ir.transform.Sequential([quantization_ranges(), partition(MACHINE.isa, [])])(mod)


def check(body: Body, *shapes: tuple[tuple[int, ...], str]) -> list[Region]:
    """The regions of a body, which compute what the body does, as do their kernels."""
    mod = module(body, *(shapes or (X,)))
    result = formed(mod)
    relax.analysis.well_formed(result)
    for factor in (1.0, 0.0, -1.0):
        arrays = inputs(mod)
        arrays[0] = np.abs(arrays[0]) * np.float32(factor) if factor < 1 else arrays[0]
        wanted = outputs(mod, arrays)
        assert_equal(outputs(result, arrays), wanted)
        assert_equal(kernel_outputs(mod, arrays), wanted)
    return regions(result)


def test_a_range_with_several_users_becomes_one_function() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((5, 6), F)):
            with R.dataflow():
                lv = R.max(x)
                lv1 = R.maximum(lv, R.const(0.0))
                lv2 = R.min(x)
                lv3 = R.minimum(lv2, R.const(0.0))
                lv4 = R.subtract(lv1, lv3)
                lv5 = R.divide(lv4, R.const(255.0))
                lv6 = R.equal(lv5, R.const(0.0))
                scale = R.where(lv6, R.const(1.0), lv5)
                lv8 = R.negative(lv3)
                zero = R.quantize(lv8, scale, R.const(ZERO, U8), out_dtype=U8)
                q = R.quantize(x, scale, zero, out_dtype=U8)
                gv = R.dequantize(q, scale, zero)
                R.output(gv)
            return gv

    @I.ir_module
    class After:
        @R.function(private=True)
        def fused_quantization_range(x: R.Tensor((5, 6), F)):
            R.func_attr({COMPOSITE: "tvm_hybrid.quantization_range", REGION: JSON})
            with R.dataflow():
                lv = R.max(x)
                lv1 = R.maximum(lv, R.const(0.0))
                lv2 = R.min(x)
                lv3 = R.minimum(lv2, R.const(0.0))
                lv4 = R.subtract(lv1, lv3)
                lv5 = R.divide(lv4, R.const(255.0))
                lv6 = R.equal(lv5, R.const(0.0))
                scale = R.where(lv6, R.const(1.0), lv5)
                lv8 = R.negative(lv3)
                zero = R.quantize(lv8, scale, R.const(ZERO, U8), out_dtype=U8)
                lv9 = R.astype(zero, F)
                lv10 = R.reshape(scale, (1,))
                lv11 = R.reshape(lv9, (1,))
                gv = R.concat((lv10, lv11), axis=0)
                R.output(gv)
            return gv

        @R.function
        def main(x: R.Tensor((5, 6), F)):
            cls = After
            with R.dataflow():
                both = cls.fused_quantization_range(x)
                lv = R.strided_slice(both, (0,), (0,), (1,))
                scale = R.reshape(lv, R.shape([]))
                lv1 = R.strided_slice(both, (0,), (1,), (2,))
                lv2 = R.reshape(lv1, R.shape([]))
                zero = R.astype(lv2, U8)
                q = R.quantize(x, scale, zero, out_dtype=U8)
                gv = R.dequantize(q, scale, zero)
                R.output(gv)
            return gv

    assert_structural_equal(quantization_ranges()(Before), After)


def test_one_product_finds_the_range_itself() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        q, scale, zero = dynamic(x)
        return op.nn.relu(scaled(product(q, zero, WEIGHTS[0]), scale))

    mod = module(body, X)
    assert_structural_equal(quantization_ranges()(mod), mod)
    (region,) = check(body)
    assert region.inputs == (Tensor((5, 6), F), Tensor((6, 4), I8, True))
    assert region.attrs == {"a_quantize": U8, "a_scale": "dynamic", "a_zero_point": "dynamic"}
    assert operators(region) == ["cast", "range", "multiply", "multiply", "relu"]


def test_the_scale_of_one_product_may_be_needed_elsewhere() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        q, scale, zero = dynamic(x)
        return [scaled(product(q, zero, WEIGHTS[0]), scale), scale, zero]

    (region,) = [region for region in check(body) if region.op == "matmul"]
    assert region.attrs["a_scale"] == "dynamic"


def test_several_products_read_one_range() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        q, scale, zero = dynamic(x)
        return [scaled(product(q, zero, w), scale) for w in WEIGHTS]

    found = check(body)
    assert [r.op for r in found] == ["quantization_range", "elementwise"] + 3 * ["matmul"]
    assert operators(found[1]) == ["item", "item", "quantize"]
    for region in found[2:]:
        assert region.inputs[0] == Tensor((5, 6), U8) and region.inputs[2] == Tensor((2,), F)
        assert region.attrs == {"a_zero_point": "range"}
        assert operators(region) == ["cast", "item", "multiply", "multiply"]
        assert region.operands[0] == Tensor((2,), F) or region.operands[1] == Tensor((2,), F)


def test_products_of_activations_read_ranges() -> None:
    """Both factors are quantised dynamically; the region reads the first one's range."""

    def body(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        a, a_scale, a_zero = dynamic(x)
        b, b_scale, _ = dynamic(y)
        acc = op.matmul(
            op.subtract(op.astype(a, I32), op.astype(a_zero, I32)),
            op.subtract(op.astype(b, I32), relax.const(128, I32)),
            out_dtype=I32,
        )
        return op.multiply(op.astype(acc, F), op.multiply(a_scale, b_scale))

    found = check(body, X, ((6, 4), F))
    (region,) = [region for region in found if region.op == "batch_matmul"]
    assert region.inputs[2] == Tensor((2,), F)
    assert (region.attrs["a_zero_point"], region.attrs["b_zero_point"]) == ("range", 128)


def test_a_reshaped_activation_is_quantised_before() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        q, scale, zero = dynamic(x)
        acc = product(op.reshape(q, (10, 3)), zero, constant(np.arange(12).reshape(3, 4), I8))
        return scaled(acc, scale)

    found = check(body)
    assert [r.op for r in found] == ["quantization_range", "elementwise", "matmul"]


def test_another_value_quantised_by_the_range_is_read_as_f32() -> None:
    def body(x: relax.Expr, y: relax.Expr) -> list[relax.Expr]:
        q, scale, zero = dynamic(x)
        other = op.quantize(y, scale, zero, axis=-1, out_dtype=U8)
        return [scaled(product(other, zero, WEIGHTS[0]), scale), q]

    (region,) = [region for region in check(body, X, X) if region.op == "matmul"]
    assert region.attrs == {"a_quantize": U8, "a_scale": "range", "a_zero_point": "range"}
    assert region.inputs[0] == Tensor((5, 6), F) and region.inputs[2] == Tensor((2,), F)


def test_another_value_quantised_by_a_range_that_a_kernel_finds_itself() -> None:
    """The range is not a tensor, so the other product is left to generic code."""

    def body(x: relax.Expr, y: relax.Expr) -> list[relax.Expr]:
        q, scale, zero = dynamic(x)
        other = op.quantize(y, scale, zero, axis=-1, out_dtype=U8)
        return [scaled(product(q, zero, WEIGHTS[0]), scale), product(other, zero, WEIGHTS[1])]

    (region,) = [region for region in check(body, X, X) if region.op == "matmul"]
    assert region.attrs["a_scale"] == "dynamic"


def test_a_value_quantised_with_the_scale_but_another_zero_point() -> None:
    """The kernel reads scale and zero point of a range, or quantises with neither."""

    def body(x: relax.Expr) -> list[relax.Expr]:
        q, scale, zero = dynamic(x)
        other = op.quantize(x, scale, relax.const(np.uint8(5)), axis=-1, out_dtype=U8)
        return [product(other, zero, WEIGHTS[0]), q]

    *_, region = check(body)
    assert region.attrs == {"a_zero_point": "range"} and region.inputs[0].dtype == U8


def test_the_number_of_a_range_in_another_type_is_no_number_of_it() -> None:
    """A zero point above 127 is another number in int8."""

    def body(x: relax.Expr) -> list[relax.Expr]:
        q, scale, zero = dynamic(x)
        signed = op.astype(zero, I8)
        other = op.quantize(x, scale, signed, axis=-1, out_dtype=I8)
        return [product(other, signed, WEIGHTS[0]), q]

    check(body)
