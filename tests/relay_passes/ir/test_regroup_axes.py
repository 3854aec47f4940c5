"""Split, permuted and joined axes keep their elements in any layout of input and result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

from relay_passes.ir.graph import DataflowGraph
from relay_passes.ir.strided_view import Regroup, match_regroup
from tests.relay_passes.graphs import module

op = relax.op
Shape = tuple[Any, ...]


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
            view = found.between(before, after)
            assert view is not None
            shape, order = view.reorder(view.apart)
            stored = x.transpose(before).reshape(shape).transpose(order)
            expected = wanted.transpose(after)
            np.testing.assert_array_equal(stored.reshape(expected.shape), expected)


def test_an_index_that_is_not_digits_is_none() -> None:
    crossing = regroup((2, 6, 4), (2, 8, 3), (0, 2, 1), (2, 3, 8))
    joining = regroup((2, 6, 4), (2, 2, 3, 4), (0, 2, 1, 3), (2, 8, 3))
    for found in (crossing, joining):
        assert found is not None
        assert found.between((0, 2, 1), (0, 1, 2)) is None


def test_other_operators_are_none() -> None:
    mod = module(
        lambda x: op.reshape(op.nn.relu(op.reshape(x, (6, 4))), (4, 6)), ((2, 12), "float32")
    )
    graph = DataflowGraph(mod["main"].body.blocks[0])
    assert [match_regroup(graph, position) for position in range(3)] == [None] * 3


def test_axes_of_dynamic_sizes() -> None:
    """A channel shuffle for any number and size of images; a dynamic axis is not guessed."""
    n, h = tirx.Var("n", "int64"), tirx.Var("h", "int64")
    found = regroup((n, 6, h, 5), (n, 2, 3, h, 5), (0, 2, 1, 3, 4), (n, 6, h, 5))
    assert found is not None
    view = found.between((0, 2, 3, 1), (0, 2, 3, 1))
    assert view is not None
    shape, order = view.reorder(view.apart)
    assert (shape[2:], order) == ([5, 2, 3], [0, 1, 2, 4, 3])
    other = regroup((n, 6, h, 5), (6, n, h, 5), (1, 0, 2, 3), (n, 6, h, 5))
    assert other is not None and other.between((0, 2, 3, 1), (0, 2, 3, 1)) is None
