"""A row of a flipped tensor is read directly from the tensor."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.indices import slice_flips, slice_takes
from tests.relay_passes.graphs import module, run

op = relax.op
X = ((3, 4, 5), "float32")


@pytest.mark.parametrize(("axis", "begin", "row"), [(0, 0, 2), (1, 1, 2), (-1, 4, 0), (1, -1, 0)])
def test_one_row(axis: int, begin: int, row: int) -> None:
    end = begin + 1 if begin + 1 else 4
    before = module(lambda x: op.strided_slice(op.flip(x, axis), [axis], [begin], [end]), X)
    after = module(lambda x: op.strided_slice(x, [axis % 3], [row], [row + 1]), X)
    sliced = slice_flips()(before)
    x = np.random.default_rng(0).standard_normal(X[0]).astype(np.float32)
    np.testing.assert_array_equal(run(sliced, [x])[0], run(before, [x])[0])
    assert_structural_equal(relax.transform.DeadCodeElimination()(sliced), after)


@pytest.mark.parametrize(("axis", "end"), [(0, 2), (1, 1)], ids=["two rows", "another axis"])
def test_others_stay(axis: int, end: int) -> None:
    mod = module(lambda x: op.strided_slice(op.flip(x, 0), [axis], [0], [end]), X)
    assert_structural_equal(slice_flips()(mod), mod)


def test_rows_by_index() -> None:
    """x.flip(0)[1] as torch.export writes it."""
    index = relax.const(1, "int64")
    before = module(lambda x: op.take(op.flip(x, 0), index, axis=0, mode="fast"), X)
    after = slice_flips()(slice_takes()(before))
    assert "strided_slice(x0, (0,), (1,), (2,)" in after.script()
