"""Checks of sizes come first in their block, unless the sizes depend on data."""

from __future__ import annotations

from typing import Any

from tvm import IRModule, relax, tirx
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.functions import checks_first

op = relax.op
N = tirx.Var("n", "int64")


def main(first: bool, wanted: int | Any = 1) -> IRModule:
    """main: a check of an input's size between two operators, or before both."""
    x = relax.Var("x", relax.TensorType((N, 4), "float32"))
    builder = relax.BlockBuilder()

    def check() -> None:
        flag = tirx.Select(N <= 512, tirx.const(1, "int64"), tirx.const(0, "int64"))
        builder.match_cast(builder.emit(relax.ShapeExpr([flag])), relax.ShapeType([wanted]))

    with builder.function("main", [x]):
        with builder.dataflow():
            if first:
                check()
            value = builder.emit(op.nn.relu(x))
            if not first:
                check()
            out = builder.emit_output(op.exp(value))
        builder.emit_func_output(out)
    return builder.get()


def moved(mod: IRModule) -> IRModule:
    return relax.transform.Normalize()(checks_first()(mod))


def test_a_check_of_an_inputs_size_moves_before_all_operators() -> None:
    assert_structural_equal(moved(main(first=False)), main(first=True))
    assert_structural_equal(moved(main(first=True)), main(first=True))


def test_a_size_may_be_compared_with_another_one() -> None:
    half = tirx.floordiv(N, 2) + 1
    assert_structural_equal(moved(main(first=False, wanted=half)), main(True, half))


def test_sizes_that_data_decide_are_checked_where_they_are_known() -> None:
    x = relax.Var("x", relax.TensorType((1,), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            shape = builder.emit(op.tensor_to_shape(builder.emit(op.abs(x))))
            builder.match_cast(shape, relax.ShapeType([N]))
            flag = tirx.Select(N <= 512, tirx.const(1, "int64"), tirx.const(0, "int64"))
            builder.match_cast(builder.emit(relax.ShapeExpr([flag])), relax.ShapeType([1]))
            out = builder.emit_output(op.zeros(relax.ShapeExpr([N]), "float32"))
        builder.emit_func_output(out)
    mod = builder.get()
    assert_structural_equal(moved(mod), mod)
