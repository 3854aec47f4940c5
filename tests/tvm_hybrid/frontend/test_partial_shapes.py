"""Sizes that are numbers in shapes that are open."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tvm_hybrid.frontend.load_graph import load_graph
from tvm_hybrid.frontend.propagate import propagate

from .models import f32, make_model

node = helper.make_node
COUNT = [
    node("Shape", ["x"], ["shape"]),
    node("Gather", ["shape", "first"], ["n"], axis=0),
]


@pytest.mark.parametrize("opset", [13, 17, 23])
@pytest.mark.parametrize(
    ("asked", "dims"),
    [((12, -1), (None, 12, None)), ((0, 6), (None, 8, 6)), ((2, 3, 8), (None, 2, 3, 8))],
)
def test_numbers_behind_an_open_size(
    opset: int, asked: tuple[int, ...], dims: tuple[int | None, ...]
) -> None:
    """Whether ONNX infers nothing or the rank."""
    nodes = [
        *COUNT,
        node("Concat", ["n", "asked"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"first": np.array([0], np.int64), "asked": np.array(asked, np.int64)}
    model = make_model(
        nodes, [f32("x", "n", 8, 6)], [f32("y", *[None] * len(dims))], constants, opset
    )
    graph = load_graph(model)
    propagate(graph)
    assert graph.dims("y") == dims
