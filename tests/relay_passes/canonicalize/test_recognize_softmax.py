"""Softmax written as exp, sum and division is recognised."""

from __future__ import annotations

import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.softmax import recognize_softmax
from tests.relay_passes.graphs import Body, module
from tests.relay_passes.quantized import assert_stays

op = relax.op
X = ((2, 3, 8), "float32")


def written_out(x: relax.Expr, axis: int, of_max: int | None = None) -> relax.Expr:
    largest = op.max(x, [axis if of_max is None else of_max], keepdims=True)
    powers = op.exp(op.subtract(x, largest))
    return op.divide(powers, op.sum(powers, [axis], keepdims=True))


def by_the_sum_of_another(x: relax.Expr) -> relax.Expr:
    def powers(x: relax.Expr) -> relax.Expr:
        return op.exp(op.subtract(x, op.max(x, [2], keepdims=True)))

    return op.divide(powers(x), op.sum(powers(op.negative(x)), [2], keepdims=True))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax(axis: int) -> None:
    before = module(lambda x: written_out(x, axis), X)
    after = module(lambda x: op.nn.softmax(x, axis % 3), X)
    assert_structural_equal(recognize_softmax()(before), after)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: written_out(x, 1, of_max=2),
        lambda x: op.divide(op.exp(x), op.sum(op.exp(x), [2], keepdims=True)),
        lambda x: op.divide(x, op.sum(x, [2], keepdims=True)),
        by_the_sum_of_another,
    ],
)
def test_others_stay(body: Body) -> None:
    assert_stays(module(body, X), recognize_softmax())
