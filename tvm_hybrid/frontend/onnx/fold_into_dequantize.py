"""Views of a dequantised weight become views of the weight itself.

    Transpose(DequantizeLinear(w: int8 [N, K], s: [N], axis=0))
        ->  DequantizeLinear(constant w^T: int8 [K, N], s, axis=1)

Likewise Reshape, Flatten, Squeeze and Unsqueeze that leave the axis of the scale whole, and
DequantizeBlocks. Exporters quantise the weight of a linear layer as [N, K] and transpose the
floats; products want the integers as [K, N].
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper

from relay_passes.ir.axes import reshaped_axis

from .graph.graph import Graph, drop_dead_nodes
from .graph.node_builder import attributes_of, optional_input

_VIEWS = {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}
_SOURCES = {"DequantizeLinear", "DequantizeBlocks"}


def fold_into_dequantize(graph: Graph) -> None:
    """Folds in place; runs after propagation, which types every value."""
    sources: dict[str, onnx.NodeProto] = {}
    made: dict[tuple[str, str], str] = {}
    kept = []
    for node in graph.nodes:
        replacement = node
        source = sources.get(node.input[0]) if node.input else None
        if source is not None and (node.op_type == "Transpose" or node.op_type in _VIEWS):
            replacement = _viewed(node, source, graph, made) or node
        if replacement.op_type in _SOURCES and replacement.input[0] in graph.constants:
            sources[replacement.output[0]] = replacement
        kept.append(replacement)
    graph.nodes = kept
    drop_dead_nodes(graph)


def _viewed(
    node: onnx.NodeProto,
    source: onnx.NodeProto,
    graph: Graph,
    made: dict[tuple[str, str], str],
) -> onnx.NodeProto | None:
    """The dequantisation of the view, or None if its parameters cannot follow."""
    weight = graph.constants[source.input[0]]
    attributes = attributes_of(source)
    shape = graph.shape(node.output[0])
    if shape is None:
        return None
    blocked = source.op_type == "DequantizeBlocks"
    single = math.prod(graph.shape(source.input[1]) or ()) == 1
    axis = attributes.get("axis", 1) % max(weight.ndim, 1)
    if node.op_type == "Transpose":
        order = attributes_of(node).get("perm") or list(range(weight.ndim))[::-1]
        target = list(order).index(axis)
        text = f"transposed {order}"

        def view(array: np.ndarray) -> np.ndarray:
            return np.ascontiguousarray(array.transpose(order))

    elif blocked:
        return None
    else:
        found = None if single else reshaped_axis(weight.shape, shape, axis)
        if found is None and not single:
            return None
        target = found or 0
        text = f"reshaped {shape}"

        def view(array: np.ndarray) -> np.ndarray:
            return array.reshape(shape)

    def constant(name: str) -> str:
        if (name, text) not in made:
            made[name, text] = graph.fresh(f"{name}/{text}")
            graph.add_constant(made[name, text], view(graph.constants[name]))
        return made[name, text]

    parameters = [source.input[1], optional_input(source, 2)]
    if blocked:
        if any(name and name not in graph.constants for name in parameters):
            return None
        parameters = [constant(name) if name else "" for name in parameters]
    inputs = [constant(source.input[0]), *parameters]
    while not inputs[-1]:
        inputs.pop()
    kept = {key: value for key, value in attributes.items() if key != "axis"}
    if not single:
        kept["axis"] = target
    return helper.make_node(
        source.op_type, inputs, list(node.output), name=node.name, domain=source.domain, **kept
    )
