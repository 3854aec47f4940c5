"""A shape becomes a tensor by a kernel, whether it is written in the call or bound to a name."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from relay_passes.lower.legalize_operators import legalize_operators
from tests.relay_passes.graphs import module, run


@pytest.mark.parametrize("bound", [False, True])
def test_shape_to_tensor(bound: bool) -> None:
    builder, n = relax.BlockBuilder(), tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            shape: relax.Expr = relax.ShapeExpr([n * 2, 4])
            shape = builder.emit(shape) if bound else shape
            result = builder.emit_output(relax.op.shape_to_tensor(shape))
        builder.emit_func_output(result)
    program = tvm.compile(legalize_operators()(builder.get()), target="llvm")
    machine = relax.VirtualMachine(program, tvm.cpu())
    sizes = machine["main"](tvm.runtime.tensor(np.zeros((3, 4), np.float32)))
    assert sizes.numpy().tolist() == [6, 4]


@pytest.mark.parametrize("rows", [(1, 4), (3, 3), (2, 2)])
def test_sizes_that_may_be_1_are_looked_at_when_it_runs(rows: tuple[int, int]) -> None:
    given, wanted = rows
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")

    def body(x: relax.Expr, _: relax.Expr) -> relax.Expr:
        return relax.op.broadcast_to(x, relax.ShapeExpr([2, m, 3]))

    mod = module(body, ((n, 3), "float32"), ((m,), "float32"))  # type: ignore[arg-type]
    x = np.random.default_rng(0).standard_normal((given, 3)).astype(np.float32)
    (found,) = run(legalize_operators()(mod), [x, np.zeros(wanted, np.float32)])
    np.testing.assert_array_equal(found, np.broadcast_to(x, (2, wanted, 3)))
