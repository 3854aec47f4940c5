"""Functions that compute sizes check their divisors; kernels stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule, ir, relax, tirx

import tvm_hybrid
from microkernels.base.errors import FeedError
from relay_passes.vm.checks import check_divisors

A, B, C = (tirx.Var(name, "int64") for name in "abc")


def function(value: tirx.Expr, host: bool = True) -> IRModule:
    """A function of three sizes that evaluates an expression."""
    made = tirx.PrimFunc([A, B, C], tirx.Evaluate(value))
    return IRModule({"sizes": made.with_attr("tirx.is_host_func", True) if host else made})


def checks(mod: IRModule) -> list[str]:
    """The conditions that a function checks."""
    body = mod["sizes"].body
    statements = body.seq if isinstance(body, tirx.SeqStmt) else [body]
    return [str(each.condition) for each in statements if isinstance(each, tirx.AssertStmt)]


def test_what_divides_is_checked_once_and_from_the_inside() -> None:
    inner = tirx.floordiv(B, C)
    made = check_divisors()(function(tirx.floordiv(A, inner) + tirx.floormod(A, C)))
    assert [each.split(" != ")[0].split("\n")[-1] for each in checks(made)] == ["c", "b // c"]


@pytest.mark.parametrize(
    ("value", "host"),
    [
        (tirx.floordiv(A, tirx.const(2, "int64")), True),
        (tirx.if_then_else(B > 0, tirx.floordiv(A, B), A), True),
        (tirx.floordiv(A, B), False),
    ],
)
def test_what_needs_no_check_stays(value: tirx.Expr, host: bool) -> None:
    mod = function(value, host)
    ir.assert_structural_equal(check_divisors()(mod), mod)


def test_a_slice_whose_step_is_a_size() -> None:
    builder, step = relax.BlockBuilder(), tirx.Var("step", "int64")
    x = relax.Var("x", relax.TensorType((8,), "float32"))
    y = relax.Var("y", relax.TensorType((1,), "int64"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            shape = builder.emit(relax.op.tensor_to_shape(y))
            builder.match_cast(shape, relax.ShapeType([step]))
            sliced = relax.op.strided_slice(x, [0], [0], [8], [step], assume_inbound=True)
            result = builder.emit_output(sliced)
        builder.emit_func_output(result)
    program = tvm_hybrid.compile(builder.get(), num_threads=1, records=[])
    values = np.arange(8, dtype=np.float32)
    for size in (1, 3, 9):
        (found,) = program.run(values, np.array([size]))
        assert found.numpy().tolist() == values[::size].tolist()
    with pytest.raises(FeedError, match="another one that is 0"):
        program.run(values, np.array([0]))
