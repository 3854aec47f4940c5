"""Replaces CastLike by Cast, once types are known.

CastLike(x, like: int32)    ->    Cast(x, to=INT32)
"""

from __future__ import annotations

import onnx

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of
from .registry import rewrites


@rewrites("CastLike")
def cast_like(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """One Cast; a narrow type is that of the model."""
    like = node.input[1]
    elem_type = graph.narrow.get(like) or graph.elem_type(like)
    if not elem_type:
        return None
    build = NodeBuilder(graph, node)
    how = attributes_of(node)  # saturate and round_mode, as Cast has them
    build.add("Cast", node.input[0], output=node.output[0], to=elem_type, **how)
    return build.nodes
