"""Consecutive permutations become one."""

from __future__ import annotations

import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.views import compose_views
from tests.relay_passes.graphs import Body, module

op = relax.op
X = ((4, 8, 64), "float32")


def operand(x: relax.Expr) -> relax.Expr:
    """An operand of an einsum as torch.export writes it."""
    y = op.permute_dims(op.expand_dims(x, [3]), [0, 1, 3, 2])
    return op.reshape(op.permute_dims(y, [1, 0, 3, 2]), (8, 4, 64))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (operand, lambda x: op.permute_dims(x, [1, 0, 2])),
        (
            lambda x: op.permute_dims(op.permute_dims(x, [1, 0, 2]), [2, 1, 0]),
            lambda x: op.permute_dims(x, [2, 0, 1]),
        ),
        (
            lambda x: op.expand_dims(op.permute_dims(op.permute_dims(x, [1, 0, 2]), [2, 1, 0]), 0),
            lambda x: op.reshape(op.permute_dims(x, [2, 0, 1]), (1, 64, 4, 8)),
        ),
        (
            lambda x: op.nn.relu(op.permute_dims(op.permute_dims(x, [2, 0, 1]), [1, 2, 0])),
            op.nn.relu,
        ),
    ],
)
def test_views_in_a_row(before: Body, after: Body) -> None:
    assert_structural_equal(compose_views()(module(before, X)), module(after, X))


def twice(x: relax.Expr) -> list[relax.Expr]:
    y = op.permute_dims(x, [1, 0, 2])
    return [op.nn.relu(y), op.permute_dims(y, [2, 1, 0])]


@pytest.mark.parametrize(
    "body",
    [
        twice,
        lambda x: op.reshape(op.expand_dims(x, [3]), (4, 1, 8, 64)),  # drop_views does it
        lambda x: op.permute_dims(op.reshape(x, (32, 64)), [1, 0]),
        lambda x: op.expand_dims(op.permute_dims(x, [1, 0, 2]), 0),
    ],
)
def test_what_stays(body: Body) -> None:
    mod = module(body, X)
    assert_structural_equal(compose_views()(mod), mod)
