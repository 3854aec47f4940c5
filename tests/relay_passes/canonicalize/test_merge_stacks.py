"""Stacked tensors that are read side by side are concatenated side by side."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.concatenations import merge_stacks
from tests.relay_passes.graphs import module, run

op = relax.op
PIECES = [((5, 1, 2, 4), "float32")] * 2


def stacked(
    *pieces: relax.Expr, axes: tuple[int, ...] = (0, 2, 1, 3), shape: tuple[int, ...] = (5, 2, 8)
) -> relax.Expr:
    stack = op.concat(relax.Tuple(list(pieces)), axis=1)
    return op.reshape(op.permute_dims(stack, list(axes)), shape)


def test_two_directions() -> None:
    before = module(stacked, *PIECES)
    after = module(
        lambda a, b: op.concat(
            relax.Tuple([op.reshape(a, (5, 2, 4)), op.reshape(b, (5, 2, 4))]), axis=2
        ),
        *PIECES,
    )
    merged = merge_stacks()(before)
    assert_structural_equal(relax.transform.DeadCodeElimination()(merged), after)
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape).astype(np.float32) for shape, _ in PIECES]
    np.testing.assert_array_equal(run(merged, values)[0], run(before, values)[0])


@pytest.mark.parametrize(
    ("axes", "shape"),
    [((0, 2, 1, 3), (5, 4, 4)), ((0, 2, 3, 1), (5, 2, 8)), ((2, 0, 1, 3), (2, 5, 8))],
    ids=["other axes merge", "the pieces are last", "other axes move"],
)
def test_others_stay(axes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    mod = module(lambda *pieces: stacked(*pieces, axes=axes, shape=shape), *PIECES)
    assert_structural_equal(merge_stacks()(mod), mod)


def test_pieces_of_two_rows_stay() -> None:
    mod = module(
        lambda *pieces: stacked(*pieces, shape=(5, 2, 16)), *[((5, 2, 2, 4), "float32")] * 2
    )
    assert_structural_equal(merge_stacks()(mod), mod)
