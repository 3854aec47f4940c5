"""Which operators form a region, and which do not."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from microkernels.base.errors import CompileError
from relay_passes.ir.functions import COMPOSITE, REGION
from relay_passes.regions.partition import partition
from tests.relay_passes.graphs import (
    MACHINE,
    constant,
    module,
    operators,
    partitioned,
    regions,
    run,
)
from tir_schedules.core.region import EpilogueOp, Region, Tensor

op = relax.op
F = "float32"
ZERO = relax.const(0.0)
WEIGHT = relax.const(np.random.default_rng(0).integers(-128, 128, (8, 8)).astype(np.int8))

JSON = Region(
    op="matmul",
    inputs=(Tensor((2, 4), F), Tensor((4, 3), F, True)),
    operands=(Tensor((3,), F),),
    output=Tensor((2, 3), F),
    epilogue=(EpilogueOp("add", (0, 1)), EpilogueOp("relu", (2,))),
).to_json()


def test_matmul_bias_relu_becomes_one_function() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 4), F), w: R.Tensor((4, 3), F), b: R.Tensor((3,), F)):
            with R.dataflow():
                lv = R.matmul(x, w)
                lv1 = R.add(lv, b)
                gv = R.nn.relu(lv1)
                R.output(gv)
            return gv

    @I.ir_module
    class After:
        @R.function(private=True)
        def fused_matmul(p0: R.Tensor((2, 4), F), p1: R.Tensor((4, 3), F), p2: R.Tensor((3,), F)):
            R.func_attr({COMPOSITE: "tvm_hybrid.matmul", REGION: JSON})
            with R.dataflow():
                lv = R.matmul(p0, p1)
                lv1 = R.add(lv, p2)
                lv2 = R.nn.relu(lv1)
                gv: R.Tensor((2, 3), F) = lv2
                R.output(gv)
            return gv

        @R.function
        def main(x: R.Tensor((2, 4), F), w: R.Tensor((4, 3), F), b: R.Tensor((3,), F)):
            cls = After
            with R.dataflow():
                gv = cls.fused_matmul(x, w, b)
                R.output(gv)
            return gv

    bind = relax.transform.BindParams(
        "main", {"w": np.ones((4, 3), np.float32), "b": np.ones(3, np.float32)}
    )
    assert_structural_equal(partition(MACHINE.isa, [])(bind(Before)), bind(After))


def test_a_graph_of_operators_that_uses_a_value_twice_is_taken_whole() -> None:
    def gelu(x):
        y = op.add(op.matmul(x, constant(8, 8)), constant(8))
        inner = op.add(op.erf(op.divide(y, relax.const(1.4142135))), relax.const(1.0))
        return op.multiply(op.multiply(y, inner), relax.const(0.5))

    mod, _ = partitioned(module(gelu, ((4, 8), F)))
    (region,) = regions(mod)
    assert operators(region) == ["add", "divide", "erf", "add", "multiply", "multiply"]
    assert len(region.operands) == 1


def test_a_value_that_is_needed_elsewhere_ends_the_region() -> None:
    def two_outputs(x):
        y = op.nn.relu(op.matmul(x, constant(8, 8)))
        return [y, op.tanh(y)]

    mod, _ = partitioned(module(two_outputs, ((4, 8), F)))
    (region,) = regions(mod)
    assert operators(region) == ["relu"]


def test_a_residual_that_is_computed_later_is_an_operand() -> None:
    def branches(x):
        first = op.matmul(x, constant(8, 8))
        second = op.matmul(x, constant(8, 8, seed=1))
        return op.multiply(op.nn.silu(first), second)

    mod, _ = partitioned(module(branches, ((4, 8), F)))
    found = regions(mod)
    assert sorted(map(operators, found)) == [[], ["silu", "multiply"]]


def test_an_operand_that_depends_on_the_region_is_no_operand() -> None:
    def loop_like(x):
        y = op.matmul(x, constant(8, 8))
        total = op.sum(y, axis=[1], keepdims=True)
        return op.divide(y, total)

    mod, _ = partitioned(module(loop_like, ((4, 8), F)))
    (region,) = regions(mod)
    assert operators(region) == []


def test_reshapes_of_leading_dimensions_are_passed_through() -> None:
    def reshaped(x, residual):
        y = op.add(op.matmul(op.reshape(x, (6, 8)), constant(8, 5)), constant(5))
        return op.add(op.reshape(y, (2, 3, 5)), residual)

    mod, _ = partitioned(module(reshaped, ((2, 3, 8), F), ((2, 3, 5), F)))
    (region,) = regions(mod)
    assert operators(region) == ["add", "add"]
    assert region.output.shape == (2, 3, 5)


def test_an_operand_from_before_a_reshape_is_reshaped_too() -> None:
    def reshaped(x, residual):
        y = op.add(op.matmul(x, constant(8, 5)), residual)
        return op.nn.relu(op.reshape(y, (2, 3, 5)))

    mod, _ = partitioned(module(reshaped, ((6, 8), F), ((6, 5), F)))
    (region,) = regions(mod)
    assert region.operands == (Tensor((2, 3, 5), F),)


def test_a_reshape_that_cuts_rows_ends_the_region() -> None:
    def reshaped(x):
        return op.nn.relu(op.reshape(op.matmul(x, constant(8, 6)), (4, 2, 3)))

    mod, _ = partitioned(module(reshaped, ((4, 8), F)))
    assert [operators(region) for region in regions(mod)] == [[]]


def test_head_permutations_disappear_into_batch_matmul() -> None:
    def attention(q, k, v):
        q = op.permute_dims(q, (0, 2, 1, 3))
        k = op.permute_dims(k, (0, 2, 3, 1))
        v = op.permute_dims(v, (0, 2, 1, 3))
        scores = op.multiply(op.matmul(q, k), relax.const(0.25))
        return op.permute_dims(op.matmul(scores, v), (0, 2, 1, 3))

    heads = ((1, 6, 2, 4), F)
    mod, _ = partitioned(module(attention, heads, heads, heads))
    scores, context = regions(mod)
    assert scores.attrs == {"a_axes": (0, 2, 1, 3), "b_axes": (0, 2, 3, 1)}
    assert operators(scores) == ["multiply"]
    assert context.attrs["out_axes"] == (0, 2, 1, 3)
    assert "permute_dims" not in mod["main"].script()


def test_a_permutation_that_another_region_stored_is_read_as_stored() -> None:
    """Both products could take the permutation; the second must not read the tensor before."""

    def body(x):
        y = op.permute_dims(op.matmul(x, op.permute_dims(x, [0, 2, 1])), [1, 0, 2])
        return op.matmul(y, op.permute_dims(y, [0, 2, 1]))

    mod, _ = partitioned(module(body, ((2, 6, 16), F)))
    relax.analysis.well_formed(mod)
    first, second = regions(mod)
    assert first.output.shape == (2, 6, 6) and "out_axes" in first.attrs
    assert [tensor.shape for tensor in second.inputs] == [(6, 2, 6)] * 2
    assert (second.attrs["a_axes"], second.attrs["b_axes"]) == ((0, 1, 2), (0, 2, 1))


def test_a_cast_that_another_region_stored_is_not_read_through() -> None:
    def body(x):
        total = op.matmul(op.astype(x, "int32"), op.astype(WEIGHT, "int32"), out_dtype="int32")
        return op.matmul(op.astype(total, F), constant(8, 8))

    mod, _ = partitioned(module(body, ((4, 8), "uint8")))
    relax.analysis.well_formed(mod)
    first, second = regions(mod)
    assert (first.output.dtype, second.inputs[0].dtype) == (F, F)


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        (lambda y: op.clip(y, 0, 6), ["minimum", "maximum"]),
        (lambda y: op.nn.leakyrelu(y, 0.1), ["leaky_relu"]),
        (
            lambda y: op.where(op.less(y, relax.const(0.0)), op.multiply(y, constant(8)), y),
            ["leaky_relu"],
        ),
        (lambda y: op.power(y, relax.const(2.0)), ["square"]),
        (lambda y: op.power(y, relax.const(0.5)), ["sqrt", "less", "abs", "where"]),
        (lambda y: op.power(y, relax.const(-0.5)), ["rsqrt", "less", "abs", "where"]),
        (
            lambda y: op.where(op.greater(y, relax.const(0.0)), y, relax.const(1.0)),
            ["greater", "where"],
        ),
    ],
    ids=["clip", "leakyrelu", "prelu", "power", "root", "inverse root", "where"],
)
def test_operators_with_attributes_are_spelt_in_steps(body, steps) -> None:
    mod, _ = partitioned(module(lambda x: body(op.matmul(x, constant(8, 8))), ((4, 8), F)))
    (region,) = regions(mod)
    assert operators(region) == steps


def test_zeros_of_both_signs_are_two_numbers() -> None:
    def body(x):
        positive = op.maximum(op.matmul(x, constant(8, 8)), relax.const(0.0))
        return op.divide(op.add(positive, positive), relax.const(-0.0))

    mod, _ = partitioned(module(body, ((4, 8), F)))
    (region,) = regions(mod)
    numbers = [repr(step.value) for step in region.epilogue if step.op == "constant"]
    assert numbers == ["0.0", "-0.0"]


def test_operators_that_are_not_fusible_stay_outside() -> None:
    for body in (
        lambda y: op.power(y, relax.const(3.7)),
        lambda y: op.add(op.permute_dims(y), constant(8, 4)),
    ):
        mod, _ = partitioned(module(lambda x, b=body: b(op.matmul(x, constant(8, 8))), ((4, 8), F)))
        assert [operators(region) for region in regions(mod)] == [[]]


def test_casts_before_and_after_are_taken() -> None:
    def body(x):
        product = op.add(op.matmul(op.astype(x, F), constant(8, 8)), constant(8))
        return op.multiply(op.astype(product, "int32"), relax.const(3, "int32"))

    mod, _ = partitioned(module(body, ((4, 8), "int64")))
    (region,) = regions(mod)
    assert region.inputs[0].dtype == "int64" and region.output.dtype == "int32"
    assert operators(region) == ["add", "cast"]


def test_strict_refuses_to_leave_what_a_template_is_for() -> None:
    mod = module(lambda x: op.matmul(x, constant(8)), ((4, 8), F))
    with pytest.raises(CompileError, match=r"strict: no template takes matmul.*is a vector"):
        partition(MACHINE.isa, [], strict=True)(mod)
    taken = module(lambda x: op.matmul(x, constant(8, 8)), ((4, 8), F))
    partition(MACHINE.isa, [], strict=True)(taken)


def test_what_is_left_has_a_reason() -> None:
    def body(x):
        return op.matmul(x, constant(8))

    mod, decisions = partitioned(module(body, ((4, 8), F)))
    assert regions(mod) == []
    assert [(d.op, d.taken, d.reason) for d in decisions] == [
        ("matmul", False, "an operand is a vector")
    ]


def test_partitioning_twice_changes_nothing() -> None:
    mod, _ = partitioned(module(lambda x: op.matmul(x, constant(8, 8)), ((4, 8), F)))
    assert_structural_equal(partition(MACHINE.isa, [])(mod), mod)


def test_the_functions_mean_what_the_operators_meant() -> None:
    def body(x, residual):
        y = op.add(op.matmul(op.reshape(x, (6, 8)), constant(8, 5)), constant(5))
        return op.nn.gelu(op.add(op.reshape(y, (2, 3, 5)), residual))

    mod = module(body, ((2, 3, 8), F), ((2, 3, 5), F))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(F) for s in ((2, 3, 8), (2, 3, 5))]
    # TVM compiles both from the same scalar operators: equal to the bit.
    np.testing.assert_array_equal(run(mod, arrays)[0], run(partitioned(mod)[0], arrays)[0])
