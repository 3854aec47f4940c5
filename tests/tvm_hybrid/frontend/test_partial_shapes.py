"""Sizes that are numbers in shapes that are open."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tvm_hybrid.frontend.onnx.partial_shapes import left
from tvm_hybrid.frontend.onnx.propagate import propagate
from tvm_hybrid.frontend.onnx.reader.load_graph import load_graph

from .models import f32, make_model

node = helper.make_node
COUNT = [
    node("Shape", ["x"], ["shape"]),
    node("Gather", ["shape", "first"], ["n"], axis=0),
]


@pytest.mark.parametrize("opset", [13, 17, 23])
@pytest.mark.parametrize(
    ("asked", "dims"),
    [((12, -1), (None, 12, 4)), ((0, 6), (None, 8, 6)), ((2, 3, 8), (None, 2, 3, 8))],
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


@pytest.mark.parametrize(
    ("columns", "divisor", "known"),
    [(24, np.array([4], np.int64), 6), (7, np.array([2], np.float32), None)],
)
def test_sizes_that_follow_from_known_ones(
    columns: int, divisor: np.ndarray, known: int | None
) -> None:
    """Integers are divided as they are; of other numbers nothing is concluded."""
    kind = helper.np_dtype_to_tensor_dtype(divisor.dtype)
    nodes: list[onnx.NodeProto] = [
        *COUNT,
        node("Slice", ["shape", "one", "end"], ["m"]),
        node("Cast", ["m"], ["number"], to=kind),
        node("Div", ["number", "divisor"], ["part"]),
        node("Mul", ["part", "divisor"], ["all"]),
        node("Cast", ["part"], ["size"], to=TensorProto.INT64),
        node("Cast", ["all"], ["columns"], to=TensorProto.INT64),
        node("Concat", ["n", "rest", "size"], ["apart"], axis=0),
        node("Concat", ["n", "columns"], ["together"], axis=0),
        node("ConstantOfShape", ["apart"], ["y"]),
        node("ConstantOfShape", ["together"], ["z"]),
    ]
    constants = {
        "first": np.array([0], np.int64), "one": np.array([1], np.int64),
        "end": np.array([2], np.int64), "rest": np.array([4], np.int64), "divisor": divisor,
    }  # fmt: skip
    outputs = [f32("y", None, None, None), f32("z", None, None)]
    graph = load_graph(make_model(nodes, [f32("x", "n", columns)], outputs, constants))
    propagate(graph)
    assert graph.dims("y") == (None, 4, known)
    assert graph.dims("z") == (None, columns if known else None)


@pytest.mark.parametrize(
    ("shape", "asked", "last"),
    [
        (("b", "n", 32), ("b", "n", 4, -1), 8),
        (("b", "n", 32), ("b", 4, 8, -1), "n"),
        (("b", "n", 32), ("b", 4, -1), None),
        (("b", "n", 32), ("n", "n", 4, -1), None),
        (("b", "b", 32), ("b", 4, 8, -1), "b"),
        (("b", None, 32), ("b", 4, -1), None),
        (("b", "n", 32), ("b", "n", 5, -1), None),
    ],
)
def test_what_is_left_for_minus_one(
    shape: tuple[Any, ...], asked: tuple[Any, ...], last: int | str | None
) -> None:
    assert left(shape, asked[:-1]) == last
