"""Arithmetic with a neutral constant, which exporters leave behind.

    Mul(x, 1)   Div(x, 1)   Pow(x, 1)   Add(x, 0)   Sub(x, 0)    ->    Identity(x)

Only where the constant does not widen x. Formulas around it are recognised then, such as
x * sigmoid(1 * x).
"""

from __future__ import annotations

import numpy as np
import onnx

from ..graph import Graph
from ..node_builder import NodeBuilder
from .registry import rewrites

_NEUTRAL = {"Mul": 1, "Div": 1, "Pow": 1, "Add": 0, "Sub": 0}
_COMMUTATIVE = ("Mul", "Add")


@rewrites(*_NEUTRAL)
def neutral_operand(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """An Identity, or None."""
    if len(node.input) != 2:
        return None
    left, right = node.input
    pairs = [(left, right), (right, left)] if node.op_type in _COMMUTATIVE else [(left, right)]
    for value, constant in pairs:
        array, shape = graph.constants.get(constant), graph.shape(value)
        if array is None or shape is None or value in graph.constants or not array.size:
            continue
        number = _NEUTRAL[node.op_type]
        if array.flat[0] != number or not np.all(array == number):
            continue
        same_type = graph.elem_type(value) == graph.elem_type(constant)
        if same_type and _broadcasts(array.shape, shape):
            build = NodeBuilder(graph, node)
            build.add("Identity", value, output=node.output[0])
            return build.nodes
    return None


def _broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    aligned = full[len(full) - len(shape) :]
    return len(shape) <= len(full) and all(
        extent in (1, wanted) for extent, wanted in zip(shape, aligned, strict=True)
    )
