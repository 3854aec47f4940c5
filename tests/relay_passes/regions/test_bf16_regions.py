"""Regions of bfloat16 products: what they round inside, and what they store."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from microkernels.isa import isa_named
from relay_passes.ir.functions import COMPOSITE, REGION
from relay_passes.regions.partition import partition
from tests.relay_passes.graphs import Body, module, operators, regions, run
from tests.relay_passes.region_checks import assert_equal
from tir_schedules.core.region import Region, Tensor
from tvm_hybrid.runtime.feeds import BFLOAT16

op = relax.op
F, B = "float32", "bfloat16"
ISA = isa_named("avx512_bf16")
X = ((5, 6), F)
RNG = np.random.default_rng(0)
WEIGHTS = [relax.const(RNG.standard_normal((6, 4)).astype(BFLOAT16)) for _ in range(2)]


def narrow(x: relax.Expr) -> relax.Expr:
    return op.astype(x, B)


def product(a: relax.Expr, b: relax.Expr = WEIGHTS[0]) -> relax.Expr:
    return op.matmul(a, b, out_dtype=F)


def check(body: Body, *shapes: tuple[tuple[int, ...], str]) -> list[Region]:
    """The regions of a body, in order; their functions must compute what the body does."""
    mod = module(body, *shapes)
    result = partition(ISA, [])(mod)
    relax.analysis.well_formed(result)
    arrays = [RNG.standard_normal(shape).astype(F) for shape, _ in shapes]
    assert_equal(run(result, arrays), run(mod, arrays))
    return regions(result)


JSON = Region(
    op="matmul", inputs=(Tensor((5, 6), F), Tensor((6, 4), B, True)), output=Tensor((5, 4), F)
).to_json()


def test_an_activation_is_rounded_by_its_product() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((5, 6), F), w: R.Tensor((6, 4), B)):
            with R.dataflow():
                lv = R.astype(x, B)
                gv = R.matmul(lv, w, out_dtype=F)
                R.output(gv)
            return gv

    @I.ir_module
    class After:
        @R.function(private=True)
        def fused_matmul(p0: R.Tensor((5, 6), F), p1: R.Tensor((6, 4), B)):
            R.func_attr({COMPOSITE: "tvm_hybrid.matmul", REGION: JSON})
            with R.dataflow():
                lv = R.astype(p0, B)
                lv1 = R.matmul(lv, p1, out_dtype=F)
                gv: R.Tensor((5, 4), F) = lv1
                R.output(gv)
            return gv

        @R.function
        def main(x: R.Tensor((5, 6), F), w: R.Tensor((6, 4), B)):
            cls = After
            with R.dataflow():
                gv = cls.fused_matmul(x, w)
                R.output(gv)
            return gv

    bind = relax.transform.BindParams("main", {"w": WEIGHTS[0].value})
    assert_structural_equal(partition(ISA, [])(bind(Before)), bind(After))


def test_a_value_for_several_products_is_rounded_once() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        return [product(narrow(x), w) for w in WEIGHTS]

    found = check(body, X)
    assert [region.op for region in found] == ["elementwise", "matmul", "matmul"]
    assert found[0].output.dtype == B and operators(found[0]) == ["cast"]
    assert [region.inputs[0].dtype for region in found[1:]] == [B, B]


def test_a_rounded_output_is_read_as_it_is() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        rounded = narrow(x)
        return [product(rounded), op.astype(rounded, F)]

    (region,) = [region for region in check(body, X) if region.op == "matmul"]
    assert region.inputs[0].dtype == B


HEADS = (1, 7, 2, 5)


@pytest.mark.parametrize(
    "operand",
    [
        lambda x, axes: narrow(op.permute_dims(x, axes)),
        lambda x, axes: op.permute_dims(narrow(x), axes),
    ],
    ids=["after", "before"],
)
def test_activations_are_rounded_before_and_after_permutations(
    operand: Callable[..., relax.Expr],
) -> None:
    def scores(q: relax.Expr, k: relax.Expr) -> relax.Expr:
        return product(operand(q, (0, 2, 1, 3)), operand(k, (0, 2, 3, 1)))

    (region,) = check(scores, (HEADS, F), (HEADS, F))
    assert region.inputs == (Tensor(HEADS, F),) * 2
    assert region.attrs == {"rounded": B, "a_axes": (0, 2, 1, 3), "b_axes": (0, 2, 3, 1)}


def test_an_activation_is_read_as_f32_and_the_other_as_bfloat16() -> None:
    def body(x: relax.Expr, y: relax.Expr) -> list[relax.Expr]:
        shared = narrow(y)
        return [product(narrow(x), op.permute_dims(shared)), op.astype(shared, F)]

    (region,) = [r for r in check(body, X, ((4, 6), F)) if r.op == "batch_matmul"]
    assert [tensor.dtype for tensor in region.inputs] == [F, B]
    assert region.attrs["b_axes"] == (1, 0)


def test_rounding_stays_in_the_epilogue() -> None:
    """Only bfloat16 tensors pass between layers of bfloat16."""
    square = [relax.const(RNG.standard_normal((6, 6)).astype(BFLOAT16)) for _ in range(2)]
    bias = relax.const(RNG.standard_normal(6).astype(BFLOAT16))

    def layer(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        total = op.add(op.astype(narrow(product(x, w)), F), op.astype(bias, F))
        return narrow(op.nn.relu(total))

    def body(x: relax.Expr) -> list[relax.Expr]:
        first = layer(narrow(x), square[0])
        second = layer(first, square[1])
        return [op.astype(second, F), op.astype(first, F)]

    first, second, *rest = check(body, X)
    assert first.output.dtype == second.inputs[0].dtype == B
    assert operators(first) == ["cast", "cast", "add", "relu", "cast"]
    assert all(region.op == "elementwise" for region in rest)


def test_rounding_for_the_next_product_is_left_to_it() -> None:
    other = relax.const(RNG.standard_normal((4, 3)).astype(BFLOAT16))

    def body(x: relax.Expr) -> relax.Expr:
        return product(narrow(op.nn.relu(product(narrow(x)))), other)

    first, second = check(body, X)
    assert operators(first)[0] == "relu"
    assert second.inputs[0].dtype == first.output.dtype


def test_a_residual_that_is_stored_as_bfloat16() -> None:
    """The product that adds the residual widens it in registers."""

    def body(x: relax.Expr, y: relax.Expr) -> list[relax.Expr]:
        stored = narrow(op.nn.relu(y))
        return [op.add(product(x), op.astype(stored, F)), stored]

    _, region = sorted(check(body, X, ((5, 4), F)), key=lambda region: region.op)
    assert region.op == "matmul" and operators(region) == ["cast", "add"]
    assert [tensor.dtype for tensor in region.operands] == [B]
