"""Generic kernels keep sums of integers that overflow, where TVM's simplifier assumes none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from tests.tir_schedules.run_generic import run_guarded

Body = Callable[[relax.Expr, relax.Expr], relax.Expr]
Meaning = Callable[[np.ndarray, np.ndarray], np.ndarray]

# Each would become what is behind it.
CASES: dict[str, tuple[Body, Meaning]] = {
    "max(x, y) - x: max(0, y - x)": (
        lambda x, y: op.subtract(op.maximum(x, y), x),
        lambda x, y: np.maximum(x, y) - x,
    ),
    "y - min(x, y): max(y - x, 0)": (
        lambda x, y: op.subtract(y, op.minimum(x, y)),
        lambda x, y: y - np.minimum(x, y),
    ),
    "x + y > x: y > 0": (lambda x, y: op.greater(op.add(x, y), x), lambda x, y: x + y > x),
    "x * 2 < y * 2: x < y": (
        lambda x, y: op.less(op.add(x, x), op.add(y, y)),
        lambda x, y: x + x < y + y,
    ),
}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("name", CASES)
def test_sums_that_overflow_wrap(name: str, dtype: type[np.signedinteger]) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([[least, most, least, most, -1, 0, 5, least + 1] * 3], dtype)
    y = np.array([[most, least, -1, 1, 1, least, -7, most] * 3], dtype)
    body, meaning = CASES[name]
    result, schedule, _ = run_guarded(body, [x, y])
    assert schedule == "generic_injective"
    np.testing.assert_array_equal(result, meaning(x, y))
