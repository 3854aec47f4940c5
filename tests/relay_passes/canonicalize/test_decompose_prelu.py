"""PReLU becomes arithmetic on any axis, for any slope, and keeps its values."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.activations import decompose_prelu
from tests.relay_passes.graphs import compiled, module

SHAPE = (2, 3, 4, 5)
X = (SHAPE, "float32")
SLOPES = {
    0: [0.1, 2.0],
    1: [-0.3, 1.0, 0.0],
    2: [0.5, 1.5, 0.0, -2.0],
    3: [0.1, 0.2, 0.3, 0.4, 0.5],
}


def slope(axis: int) -> np.ndarray:
    return np.array(SLOPES[axis], np.float32)


def test_values_on_every_axis() -> None:
    def body(x: relax.Expr, given: relax.Expr) -> list[relax.Expr]:
        known = [relax.op.nn.prelu(x, relax.const(slope(axis)), axis) for axis in SLOPES]
        shared = relax.op.nn.prelu(x, relax.const(np.array([0.25], np.float32)), 1)
        return [*known, shared, relax.op.nn.prelu(x, given, -3)]

    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    x[0, 0, 0, 0], x[0, 1, 1, :] = np.nan, 0.0
    slopes = [slope(axis) for axis in SLOPES] + [np.array([0.25], np.float32), slope(1)]
    mod = decompose_prelu()(module(body, X, ((3,), "float32")))
    assert "prelu" not in mod.script()
    for axis, values, got in zip(
        [0, 1, 2, 3, 3, 1], slopes, compiled(mod)(x, slope(1)), strict=True
    ):
        aligned = values.reshape(-1, *(1 for _ in range(3 - axis)))
        np.testing.assert_array_equal(got.numpy(), np.where(x < 0, x * aligned, x))


@pytest.mark.parametrize("axis", [0, 1])
def test_every_slope_is_a_choice(axis: int) -> None:
    def after(x: relax.Expr) -> relax.Expr:
        product = relax.op.multiply(x, relax.const(slope(axis).reshape(-1, *(1,) * (3 - axis))))
        return relax.op.where(relax.op.less(x, relax.const(0.0)), product, x)

    mod = module(lambda x: relax.op.nn.prelu(x, relax.const(slope(axis)), axis), X)
    assert_structural_equal(decompose_prelu()(mod), module(after, X))


def test_another_type_stays() -> None:
    half = relax.const(np.ones(3, np.float16))
    mod = module(lambda x: relax.op.nn.prelu(x, half, 1), (SHAPE, "float16"))
    assert_structural_equal(decompose_prelu()(mod), mod)
