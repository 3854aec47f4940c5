"""What becomes of CastLike and of a Transpose, by what the graph knows of their inputs."""

from __future__ import annotations

import numpy as np
import onnx

from ..graph.graph import Graph
from ..graph.narrow_types import FLOATS
from ..graph.node_builder import NodeBuilder, attributes_of
from .registry import rewrites


@rewrites("CastLike")
def cast_like(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Replaces CastLike by Cast, once types are known.

    CastLike(x, like: int32)    ->    Cast(x, to=INT32)

    One Cast; a narrow type is that of the model.
    """
    like = node.input[1]
    elem_type = graph.narrow.get(like) or graph.elem_type(like)
    if not elem_type:
        return None
    build = NodeBuilder(graph, node)
    how = attributes_of(node)  # saturate and round_mode, as Cast has them
    build.add("Cast", node.input[0], output=node.output[0], to=elem_type, **how)
    return build.nodes


@rewrites("Transpose")
def transposed_blocks(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Blocks of a constant along another axis.

        Transpose(DequantizeLinear(w: int8 [N, K], ..., axis=1, block_size=32))
            ->  DequantizeLinear(constant w^T: int8 [K, N], ..., axis=0, block_size=32)

    Exporters quantise the weight of a linear layer as [N, K] and transpose the floats; products
    want the integers as [K, N].
    """
    source = graph.makers.get(node.input[0])
    if source is None or source.op_type != "DequantizeLinear":
        return None
    how = attributes_of(source)
    names = [name for name in source.input if name]
    arrays = [graph.constants[name] for name in names if name in graph.constants]
    bits = graph.narrow.get(names[0]) in FLOATS
    if not how.get("block_size") or bits or len(arrays) < len(names):
        return None
    rank = arrays[0].ndim
    if any(array.ndim != rank for array in arrays):
        return None
    order = list(attributes_of(node).get("perm") or range(rank)[::-1])
    build = NodeBuilder(graph, node)
    moved = [build.constant(np.ascontiguousarray(array.transpose(order))) for array in arrays]
    how["axis"] = order.index(how.get("axis", 1) % rank)
    build.add("DequantizeLinear", *moved, output=node.output[0], **how)
    return build.nodes
