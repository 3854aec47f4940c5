"""Inputs whose values the importer needs are found, and named in the error."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_hybrid
from tests.tvm_hybrid.frontend.models import f32, i64, make_model, run_imported
from tvm_hybrid.errors import FeedError, InputValueError
from tvm_hybrid.frontend import import_onnx
from tvm_hybrid.frontend.onnx.graph.parameters import MOST_ELEMENTS, PARAMETERS

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def sliced(inputs: list[Any], *before: onnx.NodeProto) -> onnx.ModelProto:
    """x[start:end]; `before` computes start and end if they are no inputs."""
    node = helper.make_node("Slice", ["x", "start", "end"], ["y"])
    return make_model([*before, node], [f32("x", 3, 4), *inputs], [f32("y", None, 4)])


def node(op: str, *inputs: str, to: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [to], **attributes)


def needed(model: onnx.ModelProto, **known: Any) -> tuple[str, ...]:
    """Names of the inputs in the error."""
    with pytest.raises(InputValueError) as caught:
        import_onnx(model, values=known)
    return caught.value.inputs


def test_the_message_names_node_input_and_what_to_give() -> None:
    model = sliced([i64("start", 1), i64("end", 1)])
    message = (
        r"Slice node that makes 'y': the value of its input 'start' must be known.*graph input "
        r"'start'; give values, .*values=\{'start': \[1\], 'end': \[1\]\}, or .*InferenceSession"
    )
    with pytest.raises(InputValueError, match=message):
        import_onnx(model)
    assert needed(model, start=[0]) == ("end",)
    imported = import_onnx(model, values={"start": [0], "end": np.array([2])})
    assert [info.name for info in imported.inputs] == ["x"]
    assert [str(value) for value in imported.values] == ["start=[0]", "end=[2]"]
    np.testing.assert_array_equal(run_imported(imported, {"x": X})[0], X[:2])


def test_a_value_is_followed_to_all_inputs_that_it_is_computed_from() -> None:
    steps = [
        node("Identity", "a", to="start"),
        node("Shape", "x", to="shape"),
        node("Slice", "shape", "zero", "one", to="rows"),
        node("Add", "b", "c", to="sum"),
        node("Min", "rows", "sum", to="end"),
    ]
    model = sliced([i64(name, 1) for name in "abc"], *steps)
    for name, value in (("zero", [0]), ("one", [1])):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    assert needed(model) == ("a", "b", "c")
    assert needed(model, a=[1]) == ("b", "c")
    imported = import_onnx(model, values={"a": [1], "b": [1], "c": [7]})
    np.testing.assert_array_equal(run_imported(imported, {"x": X})[0], X[1:3])


def test_captured_values_and_functions_are_seen_through() -> None:
    branch = [
        helper.make_graph([node(op, "a", "a", to=op)], op, [], [onnx.ValueInfoProto(name=op)])
        for op in ("Add", "Mul")
    ]
    steps = [
        node("If", "flag", to="end", then_branch=branch[0], else_branch=branch[1]),
        node("Sub", "a", "a", to="start"),
    ]
    model = sliced([i64("a", 1), ("flag", TensorProto.BOOL, [])], *steps)
    assert needed(model) == ("a", "flag")
    assert needed(model, flag=True) == ("a",)
    imported = import_onnx(model, values={"a": [1], "flag": True})
    np.testing.assert_array_equal(run_imported(imported, {"x": X})[0], X[:2])

    wide = helper.make_graph(
        [node("Concat", "x", "x", to="wide", axis=1)], "w", [], [onnx.ValueInfoProto(name="wide")]
    )
    same = helper.make_graph(
        [node("Neg", "x", to="same")], "s", [], [onnx.ValueInfoProto(name="same")]
    )
    inputs = [f32("x", 3, 4), ("flag", TensorProto.BOOL, [])]
    outputs = [f32("y", None, None)]
    choice = node("If", "flag", to="y", then_branch=wide, else_branch=same)
    model = make_model([choice], inputs, outputs)
    assert needed(model) == ("flag",)
    for flag, wanted in ((True, np.concatenate([X, X], axis=1)), (False, -X)):
        imported = import_onnx(model, values={"flag": flag})
        np.testing.assert_array_equal(run_imported(imported, {"x": X})[0], wanted)

    crop = helper.make_node("CenterCropPad", ["x", "shape"], ["y"])
    model = make_model([crop], [f32("x", 3, 4), i64("shape", 2)], [f32("y", None, None)], opset=18)
    assert needed(model) == ("shape",)
    imported = import_onnx(model, values={"shape": [1, 6]})
    wanted = np.pad(X[1:2], ((0, 0), (1, 1)))
    np.testing.assert_array_equal(run_imported(imported, {"x": X})[0], wanted)


def test_a_branch_for_other_shapes_asks_for_its_condition() -> None:
    """One branch multiplies rows of four, the other one rows of six."""
    arrays = {size: np.full((size, 2), size, np.float32) for size in (4, 6)}
    four, six = (
        helper.make_graph(
            [node("MatMul", "x", "w", to="z"), node("Neg", "z", to="r")],
            f"rows of {size}",
            [],
            [onnx.ValueInfoProto(name="r")],
            [onnx.numpy_helper.from_array(weight, "w")],
        )
        for size, weight in arrays.items()
    )
    steps = [
        node("Equal", "rate", "rate_of_four", to="flag"),
        node("If", "flag", to="y", then_branch=four, else_branch=six),
    ]
    rate = ("rate", TensorProto.INT64, [])
    model = make_model(steps, [f32("x", "n", "width"), rate], [f32("y", None, None)])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(4), "rate_of_four"))
    with pytest.raises(InputValueError, match="If node") as caught:
        import_onnx(model, shapes={"n": 3, "width": 4})
    assert caught.value.inputs == ("rate",)
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    for size, weight in arrays.items():
        x = np.ones((3, size), np.float32)
        (y,) = session.run(None, {"x": x, "rate": np.array(size)})
        np.testing.assert_array_equal(y, -(x @ weight))
    assert [program.shapes["x"] for program in session.programs] == [("n", 4), ("n", 6)]
    with pytest.raises(FeedError, match=r"expected x: float32\[n, 4\]"):
        session.run(None, {"x": np.ones((3, 6), np.float32), "rate": np.array(4)})


@pytest.mark.parametrize("shape", [(MOST_ELEMENTS + 1,), (2, 3)], ids=str)
def test_matrices_and_long_vectors_hold_data_whose_values_are_not_asked_for(
    shape: tuple[int, ...],
) -> None:
    steps = [
        node("ReduceMax", "data", to="most", keepdims=0),
        node("Unsqueeze", "most", "zero", to="end"),
        node("Sub", "end", "end", to="start"),
    ]
    model = sliced([i64("data", MOST_ELEMENTS)], *steps)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zero"))
    assert needed(model) == ("data",)
    model.graph.input[1].CopyFrom(helper.make_tensor_value_info("data", TensorProto.INT64, shape))
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    for end in (2, 1):
        (found,) = session.run(None, {"x": X, "data": np.full(shape, end)})
        np.testing.assert_array_equal(found, X[:end])
    assert len(session.programs) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"end": [1], "no": 1}, "values names 'no'; the model's inputs are 'x', 'start', 'end'"),
        ({"end": [1, 2]}, r"values\['end'\] is no value of end: int64\[1\].*got end: int64\[2\]"),
        ({"end": [0.5]}, r"values\['end'\] is no value of end: int64\[1\].*float64"),
        ({"end": [[1], [1, 2]]}, r"values\['end'\] is no value"),
        ({"end": None}, r"values\['end'\] is no value.*NoneType"),
        ({"end": np.array([1], np.int32)}, r"values\['end'\] is no value.*int32"),
    ],
)
def test_values_that_the_model_excludes_are_refused(values: dict, message: str) -> None:
    model = sliced([i64("start", 1), i64("end", 1)])
    with pytest.raises(InputValueError, match=message):
        import_onnx(model, values={"start": [0], **values})


def test_a_value_gives_its_input_a_shape() -> None:
    shape = helper.make_node("Reshape", ["x", "shape"], ["y"])
    model = make_model([shape], [f32("x", "n"), i64("shape", "rank")], [f32("y")])
    imported = import_onnx(model, {"n": 12}, {"shape": [3, -1]})
    np.testing.assert_array_equal(run_imported(imported, {"x": X.ravel()})[0], X)
    with pytest.raises(InputValueError, match=r"has the shape \(2,\), but shapes\['shape'\] is"):
        import_onnx(model, {"n": 12, "shape": (3,)}, {"shape": [3, -1]})


def test_positions_are_those_of_operators() -> None:
    for op, positions in PARAMETERS.items():
        if onnx.defs.has(op):  # others belong to ONNX Runtime
            assert max(positions) < onnx.defs.get_schema(op).max_input, op
