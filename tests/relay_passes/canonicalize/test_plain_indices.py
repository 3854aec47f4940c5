"""Rows are taken by indices in the shape and type in which they come."""

from __future__ import annotations

import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.indices import plain_indices
from tests.relay_passes.graphs import module

op = relax.op
TABLE, TOKENS = ((10, 4), "float32"), ((2, 3), "int64")


def test_an_embedding_of_torch() -> None:
    def before(table: relax.Expr, tokens: relax.Expr) -> relax.Expr:
        flat = op.reshape(op.astype(tokens, "int32"), (6,))
        return op.reshape(op.take(table, flat, axis=0, mode="fast"), (2, 3, 4))

    def after(table: relax.Expr, tokens: relax.Expr) -> relax.Expr:
        taken = op.take(table, tokens, axis=0, mode="fast")
        return op.reshape(op.reshape(taken, (6, 4)), (2, 3, 4))

    found = plain_indices()(module(before, TABLE, TOKENS))
    assert_structural_equal(found, module(after, TABLE, TOKENS))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_casts_that_change_an_index_stay(dtype: str) -> None:
    def body(table: relax.Expr, tokens: relax.Expr) -> relax.Expr:
        return op.take(table, op.astype(op.astype(tokens, dtype), "int32"), axis=0)

    mod = module(body, TABLE, TOKENS)
    assert_structural_equal(plain_indices()(mod), mod)


def test_another_axis_stays() -> None:
    def body(table: relax.Expr, tokens: relax.Expr) -> relax.Expr:
        return op.take(table, op.reshape(tokens, (6,)), axis=1)

    mod = module(body, TABLE, TOKENS)
    assert_structural_equal(plain_indices()(mod), mod)
