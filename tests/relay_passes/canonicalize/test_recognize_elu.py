"""ELU as TVM imports it from torch becomes one choice."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.recognize_elu import recognize_elu
from tests.relay_passes.graphs import Body, module, run

op, number = relax.op, relax.const
X = ((2, 6), "float32")


def imported(factor: float, last: relax.Expr | None = None) -> Body:
    def body(x: relax.Expr) -> relax.Expr:
        below = op.nn.relu(op.subtract(number(1.0), op.exp(x)))
        return op.add(op.multiply(number(factor), below), op.nn.relu(x if last is None else last))

    return body


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_an_imported_elu(alpha: float) -> None:
    def after(x: relax.Expr) -> relax.Expr:
        below = op.subtract(op.exp(x), number(1.0))
        if alpha != 1.0:
            below = op.multiply(below, number(alpha))
        return op.where(op.less(x, number(0.0)), below, x)

    found = recognize_elu()(module(imported(-alpha), X))
    assert_structural_equal(found, module(after, X))
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
