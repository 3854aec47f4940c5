"""Dimensions are replaced by numbers, and errors say what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tvm_hybrid.errors import ShapeError
from tvm_hybrid.frontend import import_onnx

from .models import f32, make_model


def two_inputs() -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["x", "y"], ["z"])]
    inputs = [f32("x", "batch", "seq", 4), f32("y", "batch", "seq", 4)]
    return make_model(nodes, inputs, [f32("z", "batch", "seq", 4)])


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": (2, 3, 4)},
        {"x": [2, 3, None]},
        {"batch": 2, "seq": 3},
        {"x": (2, 3, 4), "y": (2, 3, 4), "seq": 3},
        {"x": (np.int64(2), 3, 4)},
        {"batch": 2, "y": (None, 3, None)},
    ],
)
def test_shapes_by_input_or_by_dimension(shapes: dict[str, Any]) -> None:
    imported = import_onnx(two_inputs(), shapes)
    assert [(item.name, item.shape) for item in imported.inputs] == [
        ("x", (2, 3, 4)),
        ("y", (2, 3, 4)),
    ]
    assert imported.outputs[0].shape == (2, 3, 4)


@pytest.mark.parametrize("shapes", [{"x": (0, 3, 4)}, {"batch": 0, "seq": 3}])
def test_a_dimension_may_be_zero(shapes: dict[str, Any]) -> None:
    assert import_onnx(two_inputs(), shapes).outputs[0].shape == (0, 3, 4)


def test_fixed_shapes_need_no_values() -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], [f32("x", 5)], [f32("y", 5)])
    assert import_onnx(model).inputs[0].shape == (5,)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (None, ["'x'", "'batch'", "shapes={'x': (1, 1, 4)}", "shapes={'batch': 1}"]),
        ({"batch": 2}, ["'x'", "'seq'", "(2, 1, 4)"]),
        ({"x": (2, 3, 5)}, ["shapes['x'][2]", "5", "fixes dimension 2", "to 4"]),
        ({"x": (2, 3)}, ["shapes['x']", "2 dimensions", "has 3"]),
        ({"w": (2, 3, 4)}, ["'w'", "'x' [batch, seq, 4]", "'y'", "batch, seq"]),
        ({"x": (2, 3, 4), "y": (1, 3, 4)}, ["'batch'", "2 by the shape of 'x'", "1 by"]),
        ({"x": (2, 3, 4), "seq": 7}, ["'seq'", "3", "7"]),
        ({"batch": -1, "seq": 3}, ["shapes['batch']", "-1", "from 0"]),
        ({"x": (2, -3, 4)}, ["shapes['x'][1]", "-3"]),
        ({"x": (2, float("nan"), 4)}, ["shapes['x'][1]", "nan", "integer"]),
        ({"x": (2, 3.0, 4)}, ["shapes['x'][1]", "3.0", "integer"]),
        ({"x": (2, True, 4)}, ["shapes['x'][1]", "True"]),
        ({"x": (2, 2**40, 4)}, ["shapes['x'][1]", str(2**40)]),
        ({"x": (2**31 - 1, 2**31 - 1, 4)}, ["'x'", "too many elements"]),
        ({"x": (2**31 - 1, 0, 4), "y": (2**40, 0, 4)}, ["shapes['y'][0]"]),
        ({"x": "2x3x4"}, ["shapes['x']", "2x3x4", "tuple of 3 integers"]),
        ({"x": 2}, ["shapes['x']", "tuple"]),
        ({"batch": (2,), "seq": 3}, ["shapes['batch']", "(2,)"]),
        ({"batch": None, "seq": 3}, ["shapes['batch']", "None"]),
    ],
)
def test_bad_shapes(shapes: dict[str, Any] | None, words: list[str]) -> None:
    with pytest.raises(ShapeError) as caught:
        import_onnx(two_inputs(), shapes)
    for word in words:
        assert word in str(caught.value)


def test_nameless_dimensions_are_independent() -> None:
    nodes = [helper.make_node("MatMul", ["x", "y"], ["z"])]
    model = make_model(nodes, [f32("x", "?", "?"), f32("y", None, None)], [f32("z", None, None)])
    imported = import_onnx(model, {"x": (2, 3), "y": (3, 5)})
    assert imported.outputs[0].shape == (2, 5)
    with pytest.raises(ShapeError, match="dimension 0 has no value"):
        import_onnx(model, {"x": (2, 3)})


def test_shapes_that_do_not_fit_the_operators() -> None:
    nodes = [helper.make_node("MatMul", ["x", "y"], ["z"], name="product")]
    model = make_model(nodes, [f32("x", "a", "b"), f32("y", "c", "d")], [f32("z", None, None)])
    with pytest.raises(ShapeError, match="MatMul node 'product'"):
        import_onnx(model, {"x": (2, 3), "y": (4, 5)})


def test_unknown_rank() -> None:
    item = ("x", onnx.TensorProto.FLOAT, None)
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], [item], [f32("y", None)])
    assert import_onnx(model, {"x": (2, 3)}).outputs[0].shape == (2, 3)
    with pytest.raises(ShapeError, match="'x' \\(of unknown rank\\)"):
        import_onnx(model)


def test_initializers_are_no_inputs() -> None:
    """Old models list their weights among the inputs."""
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    model = make_model(
        nodes, [f32("x", 2), f32("w", 2)], [f32("y", 2)], {"w": np.ones(2, np.float32)}
    )
    assert [item.name for item in import_onnx(model).inputs] == ["x"]
    with pytest.raises(ShapeError, match="'w', which is an initializer"):
        import_onnx(model, {"w": (2,)})
