"""ELU as TVM imports it from PyTorch becomes one R.where."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.activations import recognize_elu
from tests.relay_passes.graphs import Body, module, run

op, number = relax.op, relax.const
X = ((2, 6), "float32")


def imported(factor: float, last: relax.Expr | None = None) -> Body:
    def body(x: relax.Expr) -> relax.Expr:
        below = op.nn.relu(op.subtract(number(1.0), op.exp(x)))
        return op.add(op.multiply(number(factor), below), op.nn.relu(x if last is None else last))

    return body


def elu(alpha: float) -> IRModule:
    """The module that ELU becomes."""
    x, block = relax.Var("x0", relax.TensorType(*X)), relax.BlockBuilder()
    with block.function("main", [x]):
        with block.dataflow():
            below = block.emit(op.exp(x))
            negative = block.emit(op.less(x, number(0.0)))
            below = block.emit(op.subtract(below, number(1.0)))
            if alpha != 1.0:
                below = block.emit(op.multiply(below, number(alpha)))
            result = block.emit_output(op.where(negative, below, x))
        block.emit_func_output(result)
    return block.get()


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_an_imported_elu(alpha: float) -> None:
    found = recognize_elu()(module(imported(-alpha), X))
    assert_structural_equal(found, elu(alpha))
    x = np.array([[-100, -1, -0.5, -1e-3, 0, 0.5], [1, 80, 100, np.inf, -np.inf, np.nan]])
    x = x.astype(np.float32)
    wanted = np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)
    # Two roundings of numbers of at most one.
    np.testing.assert_allclose(run(found, [x])[0], wanted, atol=1.2e-7)


@pytest.mark.parametrize(
    "body", [imported(1.0), imported(-1.0, number(np.ones((2, 6), np.float32)))]
)
def test_other_sums_stay(body: Body) -> None:
    mod = module(body, X)
    assert_structural_equal(recognize_elu()(mod), mod)
