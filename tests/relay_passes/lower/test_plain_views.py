"""Reshapes of every kind get one name."""

from __future__ import annotations

from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.lower.legalize_shapes import plain_views
from tests.relay_passes.graphs import module

op = relax.op


def test_they_become_reshapes() -> None:
    def before(x: relax.Expr) -> list[relax.Expr]:
        return [op.squeeze(x, [0]), op.expand_dims(x, 1), op.flatten(x), op.reshape(x, (3, 2))]

    def after(x: relax.Expr) -> list[relax.Expr]:
        return [op.reshape(x, shape) for shape in ((2, 3), (1, 1, 2, 3), (6,), (3, 2))]

    x = ((1, 2, 3), "float32")
    assert_structural_equal(plain_views()(module(before, x)), module(after, x))
