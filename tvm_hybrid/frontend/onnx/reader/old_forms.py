"""Updates nodes of opsets 1 to 6 to opset 7.

    Add(x, b: [C], broadcast=1, axis=1)    ->    Add(x, Unsqueeze(b, [1, 2]))    # x: [N, C, H, W]
    Cast(x, to="FLOAT")                    ->    Cast(x, to=1)
    Reshape(x, shape=[2, -1])              ->    Reshape(x, [2, -1])

ONNX's version converter refuses many of these operators. A node is updated when the types of its
inputs are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph.graph import Graph, describe, is_standard
from ..graph.node_builder import NodeBuilder, attributes_of, optional_input, with_attributes

OPSET = 7  # the opset of the updated nodes
CONCAT_NEEDS_AXIS = 4
EXACT_SELU = 6

_BROADCASTING = (
    *("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"),
)
_SELU = {"alpha": 1.6732, "gamma": 1.0507}  # old defaults; later opsets have more digits


def renewed(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The nodes of opset 7 that replace a node; None if the node is valid in opset 7.

    Raises
    ------
    ModelError
        The node is malformed.
    UnsupportedOperatorError
        The result depends on unknown values or ranks, or the node is for training.
    """
    if not is_standard(node):
        return None
    given = attributes_of(node)
    for names, attribute, form in _FORMS:
        if node.op_type in names and attribute in given:
            changed = form(node, given)
            return None if changed is None else [with_attributes(node, **changed)]
    if "consumed_inputs" in given:
        return [with_attributes(node, consumed_inputs=None)]
    if node.op_type in _BROADCASTING and {"broadcast", "axis"} & given.keys():
        return _broadcast(node, graph, given)
    if node.op_type == "Reshape" and "shape" in given:
        copy = with_attributes(node, shape=None)
        copy.input.append(NodeBuilder(graph, node).constant(given["shape"], np.int64))
        return [copy]
    if node.op_type == "Concat" and "axis" not in given and graph.old_opset < CONCAT_NEEDS_AXIS:
        return [with_attributes(node, axis=1)]
    if node.op_type == "Selu" and graph.old_opset < EXACT_SELU and not _SELU.keys() <= given.keys():
        return [with_attributes(node, **{**_SELU, **given})]
    if node.op_type == "Split" and len(node.input) > 1:
        sizes = _constant(node, graph, 1, "split")
        copy = with_attributes(node, split=[int(each) for each in sizes.ravel()])
        del copy.input[1:]
        return [copy]
    if node.op_type == "Tile" and len(node.input) > 2:
        return _tile(node, graph)
    if node.op_type == "PRelu":  # a vector has one slope for each channel
        rank, own = (_rank(node, graph, name) for name in node.input[:2])
        if own == 1 and rank > 2:
            return _with_sizes_behind(node, graph, own, rank - 2)
    return None


def _broadcast(node: onnx.NodeProto, graph: Graph, given: dict[str, Any]) -> list[onnx.NodeProto]:
    """Gives the second operand a size of 1 for each axis after its own axes."""
    plain = with_attributes(node, broadcast=None, axis=None)
    axis = given.get("axis")
    if axis is None or not given.get("broadcast"):
        return [plain]
    rank, own = (_rank(node, graph, name) for name in node.input[:2])
    behind = rank - axis % rank - own
    if behind < 0:
        raise ModelError(
            f"{describe(node)}: its input {node.input[1]!r} has {own} dimensions, which do not fit "
            f"behind axis {axis} of {rank}"
        )
    return _with_sizes_behind(plain, graph, own, behind)


def _with_sizes_behind(
    node: onnx.NodeProto, graph: Graph, own: int, count: int
) -> list[onnx.NodeProto]:
    """The node with axes of size 1 after the `own` axes of its second input."""
    if not count:
        return [node]
    build, copy = NodeBuilder(graph, node), with_attributes(node)
    axes = list(range(own, own + count))
    copy.input[1] = build.add("Unsqueeze", node.input[1], axes=axes)
    return [*build.nodes, copy]


def _rank(node: onnx.NodeProto, graph: Graph, name: str) -> int:
    dims = graph.dims(name)
    if dims is None:
        raise UnsupportedOperatorError(
            f"{describe(node)}: the rank of its input {name!r} is not known, by which its opset "
            "broadcasts; export the model again with opset 7 or newer"
        )
    return len(dims)


def _cast(node: onnx.NodeProto, given: dict[str, Any]) -> dict[str, Any] | None:
    if not isinstance(given["to"], str):
        return None
    try:
        return {"to": TensorProto.DataType.Value(given["to"])}
    except ValueError as error:
        raise ModelError(f"{describe(node)}: there is no data type {given['to']!r}") from error


def _upsample(node: onnx.NodeProto, given: dict[str, Any]) -> dict[str, Any]:
    if "width_scale" not in given:
        raise ModelError(f"{describe(node)} lacks its attribute 'width_scale'")
    scales = [1.0, 1.0, given["height_scale"], given["width_scale"]]
    mode = "linear" if given.get("mode") == "bilinear" else "nearest"
    return {"height_scale": None, "width_scale": None, "scales": scales, "mode": mode}


def _inference(node: onnx.NodeProto, given: dict[str, Any]) -> dict[str, Any]:
    if not given["is_test"]:
        raise UnsupportedOperatorError(
            f"{describe(node)}: it is for training (is_test=0); export the model for inference"
        )
    return {"is_test": None}


def _power(node: onnx.NodeProto, given: dict[str, Any]) -> dict[str, Any] | None:
    p = given["p"]
    if p != int(p):
        raise UnsupportedOperatorError(f"{describe(node)}: p is {p}; whole numbers are supported")
    return None if isinstance(p, int) else {"p": int(p)}


def _tile(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    times, axis = (_constant(node, graph, i + 1, name) for i, name in enumerate(("tiles", "axis")))
    repeats = np.ones(_rank(node, graph, node.input[0]), np.int64)
    repeats[int(axis.item())] = int(times.item())
    copy = with_attributes(node)
    copy.input[1:] = [NodeBuilder(graph, node).constant(repeats)]
    return [copy]


def _constant(node: onnx.NodeProto, graph: Graph, position: int, name: str) -> np.ndarray:
    value = graph.constants.get(optional_input(node, position))
    if value is None:
        raise UnsupportedOperatorError(
            f"{describe(node)}: its input {name!r} must be a constant in this opset"
        )
    return value


# A node with such an attribute has the old form; the function returns the changed attributes.
_FORMS: list[tuple[tuple[str, ...], str, Callable[..., dict[str, Any] | None]]] = [
    (("Gemm",), "broadcast", lambda *_: {"broadcast": None, "axis": None}),
    (("Cast",), "to", _cast),
    (("Pad",), "paddings", lambda _, given: {"paddings": None, "pads": given["paddings"]}),
    (("Upsample",), "height_scale", _upsample),
    (("BatchNormalization", "Dropout"), "is_test", _inference),
    (("GRU", "LSTM", "RNN"), "output_sequence", lambda *_: {"output_sequence": None}),
    (("GlobalLpPool", "LpPool"), "p", _power),
]
