"""Shapes computed from dynamic sizes: which of their entries are static."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tvm_hybrid.frontend import import_onnx

from .models import f32, make_model

node = helper.make_node
COUNT = [node("Shape", ["x"], ["shape"]), node("Gather", ["shape", "first"], ["n"], axis=0)]


def made(model: onnx.ModelProto) -> list[list[int | str]]:
    """Shapes of the results in the program."""
    found = import_onnx(model, keep_dynamic=True).mod["main"].ret_ty
    types = getattr(found, "fields", [found])
    return [[getattr(size, "value", str(size)) for size in each.shape.values] for each in types]


@pytest.mark.parametrize("opset", [13, 17, 23])
@pytest.mark.parametrize(
    ("asked", "shape"),
    [((12, -1), ["n", 12, 4]), ((0, 6), ["n", 8, 6]), ((2, 3, 8), ["n", 2, 3, 8])],
)
def test_numbers_behind_a_dynamic_size(
    opset: int, asked: tuple[int, ...], shape: list[int | str]
) -> None:
    """ONNX infers nothing or only the rank."""
    nodes = [
        *COUNT,
        node("Concat", ["n", "asked"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"first": np.array([0], np.int64), "asked": np.array(asked, np.int64)}
    output = f32("y", *[None] * len(shape))
    assert made(make_model(nodes, [f32("x", "n", 8, 6)], [output], constants, opset)) == [shape]


def test_sizes_that_follow_from_known_ones() -> None:
    nodes: list[onnx.NodeProto] = [
        *COUNT,
        node("Slice", ["shape", "one", "end"], ["m"]),
        node("Cast", ["m"], ["number"], to=TensorProto.INT32),
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
        "end": np.array([2], np.int64), "rest": np.array([4], np.int64),
        "divisor": np.array([4], np.int32),
    }  # fmt: skip
    outputs = [f32("y", None, None, None), f32("z", None, None)]
    model = make_model(nodes, [f32("x", "n", 24)], outputs, constants)
    assert made(model) == [["n", 4, 6], ["n", 24]]


@pytest.mark.parametrize(
    ("shape", "asked", "last"),
    [
        (("b", "n", 32), ("b", "n", 4, -1), 8),
        (("b", "n", 32), ("b", 4, 8, -1), "n"),
        (("b", "b", 32), ("b", 4, 8, -1), "b"),
    ],
)
def test_what_is_left_for_minus_one(
    shape: tuple[Any, ...], asked: tuple[Any, ...], last: int | str
) -> None:
    names = {name: place for place, name in enumerate(shape) if isinstance(name, str)}
    nodes = [node("Shape", ["x"], ["shape"])]
    parts, constants = [], {}
    for place, size in enumerate(asked):
        parts.append(f"part{place}")
        constants[f"c{place}"] = np.array([names.get(size, size)], np.int64)
        if size in names:
            nodes.append(node("Gather", ["shape", f"c{place}"], [parts[-1]], axis=0))
        else:
            nodes.append(node("Identity", [f"c{place}"], [parts[-1]]))
    nodes += [node("Concat", parts, ["target"], axis=0), node("Reshape", ["x", "target"], ["y"])]
    output = f32("y", *[None] * len(asked))
    ((*_, size),) = made(make_model(nodes, [f32("x", *shape)], [output], constants))
    assert size == last
