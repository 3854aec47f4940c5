"""Split, permuted and joined axes: in any layout of both ends the same elements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tvm import relax

from relay_passes.ir.graph import DataflowGraph
from relay_passes.ir.regroup_axes import Regroup, match_regroup
from tests.relay_passes.graphs import module

op = relax.op
Shape = tuple[int, ...]


def regroup(source: Shape, parts: Shape, axes: Shape, result: Shape) -> Regroup | None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.reshape(op.permute_dims(op.reshape(x, parts), axes), result)

    mod = module(body, (source, "float32"))
    return match_regroup(DataflowGraph(mod["main"].body.blocks[0]), 2)


@pytest.mark.parametrize(
    "source, parts, axes, result",
    [
        pytest.param((2, 6, 3, 5), (2, 2, 3, 3, 5), (0, 2, 1, 3, 4), (2, 6, 3, 5), id="shuffle"),
        pytest.param(
            (1, 8, 3, 5), (1, 2, 2, 2, 3, 5), (0, 3, 4, 1, 5, 2), (1, 2, 6, 10), id="to space"
        ),
        pytest.param(
            (1, 2, 6, 10), (1, 2, 3, 2, 5, 2), (0, 3, 5, 1, 2, 4), (1, 8, 3, 5), id="to depth"
        ),
        pytest.param((1, 4, 1, 5), (1, 2, 2, 1, 5), (0, 2, 1, 3, 4), (1, 4, 1, 5), id="units"),
    ],
)
def test_other_layouts_of_the_ends(source: Shape, parts: Shape, axes: Shape, result: Shape) -> None:
    found = regroup(source, parts, axes, result)
    assert found is not None
    x = np.arange(math.prod(source)).reshape(source)
    wanted = x.reshape(parts).transpose(axes).reshape(result)
    for before in ((0, 1, 2, 3), (0, 2, 3, 1)):
        for after in ((0, 1, 2, 3), (0, 2, 3, 1)):
            shape, order = found.between(before, after)
            stored = x.transpose(before).reshape(shape).transpose(order)
            expected = wanted.transpose(after)
            np.testing.assert_array_equal(stored.reshape(expected.shape), expected)


def test_a_part_of_two_axes_is_none() -> None:
    assert regroup((2, 6, 4), (2, 8, 3), (0, 2, 1), (2, 3, 8)) is None
    assert regroup((2, 6, 4), (2, 2, 3, 4), (0, 2, 1, 3), (2, 12, 2)) is None
