"""Recurrent layers whose values have the batch in front (layout=1), by transposes around them.

LSTM(X [batch, steps, input], ..., layout=1)
    ->  Transpose(X), LSTM, Transpose(Y [steps, directions, batch, hidden]), Transpose(Y_h)
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of, optional_input, with_attributes


def batch_first(
    node: onnx.NodeProto, graph: Graph, states: Sequence[int]
) -> list[onnx.NodeProto] | None:
    """The layer with the steps in front, or None if they are there already.

    Parameters
    ----------
    states
        The positions of the inputs with the initial states.
    """
    if not attributes_of(node).get("layout"):
        return None
    build = NodeBuilder(graph, node)
    layer = with_attributes(node, layout=None)
    for position in (0, *states):
        name = optional_input(node, position)
        if name:
            layer.input[position] = build.add("Transpose", name, perm=[1, 0, 2])
    outputs = [name and graph.fresh(name) for name in node.output]
    layer.output[:] = outputs
    build.nodes.append(layer)
    for position, (inner, outer) in enumerate(zip(outputs, node.output, strict=True)):
        if outer:
            order = [1, 0, 2] if position else [2, 0, 1, 3]
            build.add("Transpose", inner, output=outer, perm=order)
    return build.nodes
