"""Computed shapes vanish, constants fold, and nothing else changes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tvm_hybrid.errors import ShapeError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx
from tvm_hybrid.frontend.onnx.importer import to_relax
from tvm_hybrid.frontend.onnx.reader.load_graph import load_graph

from .models import compare, f32, i64, make_model, onnxruntime_run, operators, random


def test_computed_reshape() -> None:
    """Exporters write this chain for x.view(x.shape[0], -1)."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"], axis=0),
        node("Unsqueeze", ["batch", "axes"], ["first"]),
        node("Concat", ["first", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {
        "zero": np.array(0, np.int64),
        "axes": np.array([0], np.int64),
        "rest": np.array([-1], np.int64),
    }
    model = make_model(nodes, [f32("x", "n", 3, 4)], [f32("y", None, None)], constants)
    imported = compare(model, {"x": random(2, 3, 4)})
    assert operators(imported) == {"reshape": 1}


def test_mask_of_range_and_expand() -> None:
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Squeeze", ["shape"], ["length"]),
        node("Range", ["zero", "length", "one"], ["positions"]),
        node("Less", ["positions", "three"], ["near"]),
        node("ConstantOfShape", ["shape"], ["far_value"]),
        node("Where", ["near", "x", "far_value"], ["y"]),
    ]
    constants = {name: np.array(v, np.int64) for name, v in (("zero", 0), ("one", 1), ("three", 3))}
    model = make_model(nodes, [f32("x", "n")], [f32("y", "n")], constants)
    imported = compare(model, {"x": random(5)})
    assert operators(imported) == {"where": 1}


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        (helper.make_node("Identity", ["x"], ["h"]), {}),
        (helper.make_node("Dropout", ["x"], ["h", "mask"]), {}),
        (helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT), {}),
        (helper.make_node("Reshape", ["x", "c"], ["h"]), {"c": np.array([2, -1], np.int64)}),
        (helper.make_node("Expand", ["x", "c"], ["h"]), {"c": np.array([1, 3], np.int64)}),
        (helper.make_node("Pad", ["x", "c"], ["h"]), {"c": np.zeros(4, np.int64)}),
        (helper.make_node("Transpose", ["x"], ["h"], perm=[0, 1]), {}),
        (helper.make_node("Concat", ["x"], ["h"], axis=1), {}),
        (
            helper.make_node("Slice", ["x", "s", "e"], ["h"]),
            {"s": np.array([0], np.int64), "e": np.array([2**63 - 1], np.int64)},
        ),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else "",
)
def test_nodes_that_do_nothing_vanish(
    node: onnx.NodeProto, constants: dict[str, np.ndarray]
) -> None:
    nodes = [node, helper.make_node("Relu", ["h"], ["y"])]
    model = make_model(nodes, [f32("x", 2, 3)], [f32("y", 2, 3)], constants)
    imported = import_onnx(model)
    assert operators(imported) == {"nn.relu": 1}


@pytest.mark.parametrize("step", [1, -1])
def test_reversal_is_no_identity(step: int) -> None:
    names = {"s": [0 if step > 0 else -1], "e": [99 if step > 0 else -99], "a": [0], "t": [step]}
    constants = {key: np.array(value, np.int64) for key, value in names.items()}
    nodes = [helper.make_node("Slice", ["x", *constants], ["h"])]
    nodes.append(helper.make_node("Relu", ["h"], ["y"]))
    model = make_model(nodes, [f32("x", 4, 2)], [f32("y", 4, 2)], constants)
    x = random(4, 2)
    imported = compare(model, {"x": x}, [np.maximum(x[::step], 0)])
    assert (operators(imported) == {"nn.relu": 1}) == (step > 0)


def test_a_cast_to_another_type_is_no_identity() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.INT32),
        helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT),
    ]
    model = make_model(nodes, [f32("x", 3)], [f32("y", 3)])
    x = np.array([-1.5, 0.25, 7.75], np.float32)
    compare(model, {"x": x}, [np.trunc(x)])


def test_a_dropout_that_trains_is_no_identity() -> None:
    for training in (False, True):
        nodes = [
            helper.make_node("Dropout", ["x", "ratio", "training"], ["h"]),
            helper.make_node("Relu", ["h"], ["y"]),
        ]
        constants = {"ratio": np.array(0.5, np.float32), "training": np.array(training)}
        model = make_model(nodes, [f32("x", 3)], [f32("y", 3)], constants)
        if training:
            with pytest.raises(UnsupportedOperatorError, match="Dropout"):
                import_onnx(model)
        else:
            assert operators(import_onnx(model)) == {"nn.relu": 1}


def test_integer_division_is_towards_zero() -> None:
    """A constant operand (folded by us) and a fed one (computed by TVM) give equal results."""
    a, b = np.array([-7, 7, -7, 7], np.int64), np.array([2, 2, -2, -2], np.int64)
    nodes = [
        helper.make_node("Div", ["a", "b"], ["q"]),
        helper.make_node("Div", ["x", "b"], ["r"]),
        helper.make_node("Add", ["q", "r"], ["y"]),
    ]
    model = make_model(nodes, [i64("x", 4)], [i64("y", 4)], {"a": a, "b": b})
    compare(model, {"x": a}, [np.array([-6, 6, 6, -6], np.int64)])


@pytest.mark.sampled
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [None, 0, 2])
def test_softmax_of_an_old_opset_works_on_all_axes_from_one_on(
    op_type: str, axis: int | None
) -> None:
    """A constant and a fed value give equal results."""
    x = random(2, 3, 4)
    attributes = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node(op_type, [name], [f"{name}/max"], **attributes) for name in ("x", "c")
    ]
    nodes.append(helper.make_node("Concat", ["x/max", "c/max"], ["y"], axis=0))
    model = make_model(nodes, [f32("x", 2, 3, 4)], [f32("y", 4, 3, 4)], {"c": x}, opset=11)
    imported = compare(model, {"x": x}, onnxruntime_run(model, {"x": x}))
    assert operators(imported)["concat"] == 1


def test_folding_by_the_opset_of_the_model() -> None:
    """Unsqueeze has its axes in an attribute before opset 13; an LSTM needs a shape from it."""
    nodes = [
        helper.make_node("Unsqueeze", ["n"], ["n1"], axes=[0]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"n": np.array(3, np.int64), "rest": np.array([-1], np.int64)}
    model = make_model(nodes, [f32("x", 2, 6)], [f32("y", 3, 4)], constants, opset=12)
    _, graph = to_relax(load_graph(model))
    assert [node.op_type for node in graph.nodes] == ["Reshape"]
    assert graph.shape("y") == (3, 4)


def test_gather_elements_with_smaller_indices() -> None:
    constants = {"d": np.arange(8, dtype=np.int64)[None], "i": np.array([[1, -1, 3]], np.int64)}
    nodes = [
        helper.make_node("GatherElements", ["d", "i"], ["g"], axis=1),
        helper.make_node("Add", ["g", "x"], ["y"]),
    ]
    model = make_model(nodes, [i64("x", 1, 3)], [i64("y", 1, 3)], constants)
    imported = compare(model, {"x": np.zeros((1, 3), np.int64)}, [np.array([[1, 7, 3]])])
    assert operators(imported) == {"add": 1}


def test_large_results_are_not_folded() -> None:
    """A broadcast weight stays a broadcast; a mask of a few bytes is precomputed."""
    nodes = [
        helper.make_node("Expand", ["w", "big"], ["b"]),
        helper.make_node("Expand", ["w", "small"], ["s"]),
        helper.make_node("Add", ["x", "b"], ["y"]),
        helper.make_node("Add", ["z", "s"], ["t"]),
    ]
    constants = {
        "w": np.ones((1, 8), np.float32),
        "big": np.array([65536, 8], np.int64),
        "small": np.array([2, 8], np.int64),
    }
    inputs = [f32("x", 65536, 8), f32("z", 2, 8)]
    model = make_model(nodes, inputs, [f32("y", 65536, 8), f32("t", 2, 8)], constants)
    _, graph = to_relax(load_graph(model))
    assert [node.op_type for node in graph.nodes] == ["Expand", "Add", "Add"]
    assert graph.constants["s"].shape == (2, 8)


def test_a_bomb_of_a_constant_is_refused() -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["c"], ["h"], name="bomb"),
        helper.make_node("Add", ["x", "h"], ["y"]),
    ]
    constants = {"c": np.array([2**30, 2**30], np.int64)}
    model = make_model(nodes, [f32("x", 1)], [f32("y", None, None)], constants)
    with pytest.raises(ShapeError, match="'bomb'"):
        import_onnx(model)


def test_random_operators_are_not_folded() -> None:
    """A folded random constant would be identical in every run."""
    nodes = [
        helper.make_node("RandomNormal", [], ["h"], shape=[2]),
        helper.make_node("Add", ["x", "h"], ["y"]),
    ]
    _, graph = to_relax(load_graph(make_model(nodes, [f32("x", 2)], [f32("y", 2)])))
    assert [node.op_type for node in graph.nodes] == ["RandomNormal", "Add"]


def test_dequantized_weights_stay_integers() -> None:
    """The low-precision passes need to see the integers."""
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    constants = {"q": np.ones((3, 2), np.int8), "s": np.array(0.5, np.float32)}
    model = make_model(nodes, [f32("x", 2, 3)], [f32("y", 2, 2)], constants)
    x = random(2, 3)
    wanted = x @ np.full((3, 2), 0.5, np.float32)
    assert operators(compare(model, {"x": x}, [wanted])) == {"dequantize": 1, "matmul": 1}
