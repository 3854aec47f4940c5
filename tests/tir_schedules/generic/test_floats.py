"""Generic kernels keep NaN and infinities, which TVM's simplifier would fold away."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from tests.tir_schedules.run_generic import run_guarded

X = np.array([[np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, 3e38, -2, 1, 2.5] * 2], np.float32)
Y = np.roll(X, 3)
Body = Callable[[relax.Expr, relax.Expr], relax.Expr]


# Fused into one kernel, each would be folded: to 0, to y, to true, to y <= x.
CASES: dict[str, tuple[Body, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "(x + y) - (x + y)": (
        lambda x, y: op.subtract(op.add(x, y), op.add(x, y)),
        lambda x, y: x + y - (x + y),
    ),
    "(x + y) - x": (lambda x, y: op.subtract(op.add(x, y), x), lambda x, y: x + y - x),
    "x + y == x + y": (
        lambda x, y: op.equal(op.add(x, y), op.add(x, y)),
        lambda x, y: x + y == x + y,
    ),
    "not x < y": (lambda x, y: op.logical_not(op.less(x, y)), lambda x, y: ~(x < y)),
    "max(x, y)": (lambda x, y: op.maximum(op.abs(x), y), lambda x, y: np.maximum(np.abs(x), y)),
    "min(x + y, 1)": (
        lambda x, y: op.minimum(op.add(x, y), relax.const(1.0)),
        lambda x, y: np.minimum(x + y, 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_number_stays_none(name: str) -> None:
    body, meaning = CASES[name]
    with np.errstate(all="ignore"):
        expected = meaning(X, Y)
    result, schedule, _ = run_guarded(body, [X, Y])
    assert schedule == "generic_injective"
    np.testing.assert_array_equal(result, expected)
