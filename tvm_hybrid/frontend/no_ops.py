"""Which nodes return their first input unchanged, as far as types and shapes are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from .graph import Graph, is_standard
from .node_builder import attributes_of, constant_or_attribute, optional_input

_Rule = Callable[[onnx.NodeProto, Graph], bool]


def is_no_op(node: onnx.NodeProto, graph: Graph) -> bool:
    """Whether the node's first output always equals its first input, in type and value."""
    if not is_standard(node) or not node.input or sum(map(bool, node.output)) != 1:
        return False
    rule = _RULES.get(node.op_type)
    return rule is not None and rule(node, graph)


def _same_elements(node: onnx.NodeProto, graph: Graph) -> bool:
    source, result = node.input[0], node.output[0]
    return (
        source in graph.types
        and result in graph.types
        and graph.elem_type(source) == graph.elem_type(result)
        and graph.narrow.get(source) == graph.narrow.get(result)
    )


def _same_type(node: onnx.NodeProto, graph: Graph) -> bool:
    shape = graph.shape(node.input[0])
    return (
        shape is not None and shape == graph.shape(node.output[0]) and _same_elements(node, graph)
    )


def _always(node: onnx.NodeProto, graph: Graph) -> bool:
    return True


def _inference_dropout(node: onnx.NodeProto, graph: Graph) -> bool:
    training = optional_input(node, 2)
    return not training or (training in graph.constants and not graph.constants[training].any())


def _single_input(node: onnx.NodeProto, graph: Graph) -> bool:
    return len(node.input) == 1


def _identity_permutation(node: onnx.NodeProto, graph: Graph) -> bool:
    order = attributes_of(node).get("perm")
    return order is not None and list(order) == list(range(len(order)))


def _pads_nothing(node: onnx.NodeProto, graph: Graph) -> bool:
    pads = constant_or_attribute(node, graph, 1, "pads")
    return pads is not None and not np.any(pads)


def _whole_slice(node: onnx.NodeProto, graph: Graph) -> bool:
    name = optional_input(node, 4)
    forward = not name or (name in graph.constants and bool((graph.constants[name] > 0).all()))
    return forward and _same_type(node, graph)


_RULES: dict[str, _Rule] = {
    "Identity": _always,
    "Dropout": _inference_dropout,
    "Cast": _same_elements,
    "Reshape": _same_type,
    "Flatten": _same_type,
    "Expand": _same_type,
    "Concat": _single_input,
    "Sum": _single_input,
    "Max": _single_input,
    "Min": _single_input,
    "Transpose": _identity_permutation,
    "Pad": _pads_nothing,
    "Slice": _whole_slice,
}
