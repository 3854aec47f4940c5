"""Forms of recurrent layers that are written as others.

LSTM(X [batch, steps, input], ..., layout=1)
    ->  Transpose(X), LSTM, Transpose(Y [steps, directions, batch, hidden]), Transpose(Y_h)
GRU(X, W, R, direction="bidirectional", activations=["Sigmoid", "Tanh", "HardSigmoid", "Tanh"])
    ->  GRU(X, W[:1], R[:1], direction="forward"), GRU(X, W[1:], R[1:], direction="reverse"),
        Concat of their results
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of, optional_input, with_attributes
from .recurrent_activations import Activation

SHARED_INPUTS = (0, 4)
"""X and the sequences' lengths; all other inputs have an axis of directions in front."""


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


def one_direction_each(
    node: onnx.NodeProto, graph: Graph, activations: Sequence[Activation]
) -> list[onnx.NodeProto] | None:
    """A layer for each direction, or None if all directions have the same functions.

    Parameters
    ----------
    activations
        The functions of all directions, one direction after the other.
    """
    half = len(activations) // 2
    both = attributes_of(node).get("direction") == "bidirectional"
    if not both or list(activations[:half]) == list(activations[half:]):
        return None
    build = NodeBuilder(graph, node)
    parts = [
        [name, name] if position in SHARED_INPUTS or not name else build.split(name, [1, 1], axis=0)
        for position, name in enumerate(node.input)
    ]
    made = []
    for side, direction in enumerate(("forward", "reverse")):
        functions = activations[side * half : (side + 1) * half]
        lists = {
            f"activation_{key}": [
                each.parameters[key] for each in functions if key in each.parameters
            ]
            for key in ("alpha", "beta")
        }
        layer = with_attributes(
            node,
            direction=direction,
            activations=[each.name for each in functions],
            **{key: numbers or None for key, numbers in lists.items()},
        )
        layer.input[:] = [part[side] for part in parts]
        layer.output[:] = [name and graph.fresh(name) for name in node.output]
        build.nodes.append(layer)
        made.append(layer)
    for position, name in enumerate(node.output):
        if name:
            of_sides = [layer.output[position] for layer in made]
            build.add("Concat", *of_sides, output=name, axis=0 if position else 1)
    return build.nodes
