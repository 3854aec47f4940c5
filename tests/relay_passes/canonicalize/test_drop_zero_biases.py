"""Biases of zeros after products vanish."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.products import drop_zero_biases
from tests.relay_passes.graphs import Body, constant, module

op = relax.op
X = ((1, 4, 5, 5), "float32")
KERNEL, WEIGHT = constant(6, 4, 3, 3), constant(5, 7)


def zeros(*shape: int) -> relax.Expr:
    return relax.const(np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            lambda x: op.nn.relu(op.add(op.nn.conv2d(x, KERNEL), zeros(1, 6, 1, 1))),
            lambda x: op.nn.relu(op.nn.conv2d(x, KERNEL)),
        ),
        (
            lambda x: op.nn.relu(op.add(zeros(7), op.matmul(x, WEIGHT))),
            lambda x: op.nn.relu(op.matmul(x, WEIGHT)),
        ),
    ],
)
def test_zeros_behind_a_product(before: Body, after: Body) -> None:
    assert_structural_equal(drop_zero_biases()(module(before, X)), module(after, X))


@pytest.mark.parametrize(
    "body",
    [
        lambda x: op.add(x, zeros(5)),  # -0.0 becomes 0.0
        lambda x: op.add(op.matmul(x, WEIGHT), constant(7)),
        lambda x: op.add(op.matmul(x, WEIGHT), zeros(3, 4, 5, 7)),  # repeats it
    ],
)
def test_other_sums_stay(body: Body) -> None:
    mod = module(body, X)
    assert_structural_equal(drop_zero_biases()(mod), mod)
