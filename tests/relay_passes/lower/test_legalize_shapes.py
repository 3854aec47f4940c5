"""A shape becomes a tensor by a kernel, whether it is written in the call or bound to a name."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from relay_passes.lower.legalize_operators import legalize_operators


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
