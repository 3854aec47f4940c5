"""A take at one constant index becomes a slice."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.indices import slice_takes
from tests.relay_passes.graphs import constant, module

op = relax.op
X = ((3, 4, 5), "float32")


@pytest.mark.parametrize(
    ("axis", "shape", "result"),
    [(0, (), (4, 5)), (1, (), (3, 5)), (-1, (), (3, 4)), (1, (1,), (3, 1, 5))],
)
def test_one_index(axis: int, shape: tuple[int, ...], result: tuple[int, ...]) -> None:
    index = relax.const(np.full(shape, 2, "int64"))
    before = module(lambda x: op.take(x, index, axis=axis, mode="clip"), X)
    after = module(lambda x: op.reshape(op.strided_slice(x, [axis % 3], [2], [3]), result), X)
    assert_structural_equal(slice_takes()(before), after)


@pytest.mark.parametrize(
    "index", [np.array([0, 2]), np.array(3), np.array(-1)], ids=["two", "outside", "from the end"]
)
def test_other_indices_stay(index: np.ndarray) -> None:
    mod = module(lambda x: op.take(x, relax.const(index), axis=0, mode="clip"), X)
    assert_structural_equal(slice_takes()(mod), mod)


def test_indices_that_are_known_when_it_runs_stay() -> None:
    mod = module(lambda x, i: op.take(x, i, axis=0, mode="clip"), X, ((), "int64"))
    assert_structural_equal(slice_takes()(mod), mod)


def test_a_table_stays() -> None:
    mod = module(lambda i: op.take(constant(5, 4), i, axis=0, mode="clip"), ((), "int64"))
    assert_structural_equal(slice_takes()(mod), mod)
