"""Group normalisations become layer normalisations of rows."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.normalizations import decompose_group_norm
from tests.relay_passes.graphs import constant, module, run

op = relax.op
X = ((2, 6, 4, 5), "float32")


def grouped(x: relax.Expr, gamma: relax.Expr, beta: relax.Expr) -> relax.Expr:
    """A normalisation of three groups."""
    return op.nn.group_norm(x, gamma, beta, 3, 1, [2, 3], 1e-3)


def rows(x: relax.Expr) -> relax.Expr:
    """Each group as a row."""
    ones, zeros = relax.const(np.ones(40, np.float32)), relax.const(np.zeros(40, np.float32))
    normal = op.nn.layer_norm(op.reshape(x, (2, 3, 40)), ones, zeros, [-1], 1e-3)
    return op.reshape(normal, X[0])


def test_rows_then_channels() -> None:
    gamma, beta = constant(6, seed=1), constant(6, seed=2)
    a, b = (relax.const(each.value.numpy().reshape(6, 1, 1)) for each in (gamma, beta))
    before = module(lambda x: grouped(x, gamma, beta), X)
    after = module(lambda x: op.add(op.multiply(rows(x), a), b), X)
    assert_structural_equal(decompose_group_norm()(before), after)
    x = np.random.default_rng(0).standard_normal(X[0]).astype(np.float32)
    # Sums of 40 numbers of at most a few units, each rounded some 40 times in either order.
    np.testing.assert_allclose(run(after, [x])[0], run(before, [x])[0], atol=1e-4)


def test_without_factors_and_terms() -> None:
    ones, zeros = relax.const(np.ones(6, np.float32)), relax.const(np.zeros(6, np.float32))
    before = module(lambda x: grouped(x, ones, zeros), X)
    assert_structural_equal(decompose_group_norm()(before), module(rows, X))


@pytest.mark.parametrize(
    ("channel", "axes", "dtype"),
    [(3, [1, 2], "float32"), (1, [3], "float32"), (1, [2, 3], "float16")],
)
def test_others_stay(channel: int, axes: list[int], dtype: str) -> None:
    shape = (2, 6, 4, 6)
    vector = ((6,), dtype)
    mod = module(
        lambda x, a, b: op.nn.group_norm(x, a, b, 3, channel, axes), (shape, dtype), vector, vector
    )
    assert_structural_equal(decompose_group_norm()(mod), mod)
