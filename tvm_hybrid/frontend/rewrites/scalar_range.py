"""Range of one-element vectors, which functions of ONNX itself give it, as one of scalars.

Range(start [1], limit [1], delta [])    ->    Range(Reshape(start), Reshape(limit), delta)
"""

from __future__ import annotations

import onnx

from ..graph import Graph
from ..node_builder import NodeBuilder
from .registry import rewrites


@rewrites("Range")
def scalar_range(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Reshapes what has one axis of one element."""
    shapes = [graph.shape(name) for name in node.input]
    if (1,) not in shapes:
        return None
    build = NodeBuilder(graph, node)
    scalars = [
        build.reshape(name, []) if shape == (1,) else name
        for name, shape in zip(node.input, shapes, strict=True)
    ]
    build.add("Range", *scalars, output=node.output[0])
    return build.nodes
