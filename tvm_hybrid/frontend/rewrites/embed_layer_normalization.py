"""ONNX Runtime's EmbedLayerNormalization in standard operators.

EmbedLayerNormalization(ids, segment_ids, words, positions, segments, gamma, beta, mask, ...)
    ->  LayerNormalization(Gather(words, ids) + Gather(positions, ...) + Gather(segments, ...)),
        the number of ones in each row of the mask, and the sum that was normalised

TVM has a converter, but nothing that follows it would know its shapes.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from microkernels.errors import ModelError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, optional_input
from .attention_parts import known_shape, refuse
from .quantized import MICROSOFT
from .registry import rewrites


@rewrites("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Gathers, adds, normalises, counts."""
    attributes = attributes_of(node)
    build = NodeBuilder(graph, node)
    ids, segment_ids = node.input[0], optional_input(node, 1)
    shape = known_shape(graph, node, ids)
    if len(shape) != 2:
        raise ModelError(f"{describe(node)}: its input has the shape {shape}, not two axes")
    batch, length = shape
    positions = optional_input(node, 8)
    if not positions:
        positions = build.constant(np.arange(length, dtype=np.int64).reshape(1, length))
    total = build.add("Gather", node.input[2], ids, axis=0)
    total = build.add("Add", total, build.add("Gather", node.input[3], positions, axis=0))
    wanted = node.output[2] if len(node.output) > 2 else ""
    if segment_ids:
        segments = build.add("Gather", node.input[4], segment_ids, axis=0)
        total = build.add("Add", total, segments)
    build.add(
        "LayerNormalization",
        total,
        *node.input[5:7],
        output=node.output[0],
        axis=-1,
        epsilon=attributes.get("epsilon", 1e-12),
    )
    if wanted:
        build.add("Identity", total, output=wanted)
    if len(node.output) > 1 and node.output[1]:
        _count(build, optional_input(node, 7), batch, attributes.get("mask_index_type", 1))
    return build.nodes


def _count(build: NodeBuilder, mask: str, batch: int, kind: int) -> None:
    """mask_index: how many tokens each sequence has."""
    node = build.source
    output = node.output[1]
    if kind != 1:
        raise refuse(node, f"its attribute mask_index_type ({kind}) is not supported; 1 is")
    if not mask:
        build.add("Identity", build.constant(np.zeros(batch, np.int32)), output=output)
        return
    # Additions as products: ReduceSum has its axes in different places in different opsets.
    length = known_shape(build.graph, node, mask)[1]
    ones = build.constant(np.ones((length, 1), np.float32))
    if build.graph.elem_type(mask) != TensorProto.INT32:
        mask = build.add("Cast", mask, to=TensorProto.INT32)
    is_one = build.add("Equal", mask, build.constant(1, np.int32))
    counted = build.add("MatMul", build.add("Cast", is_one, to=TensorProto.FLOAT), ones)
    rows = build.add("Cast", counted, to=TensorProto.INT32)
    build.reshape(rows, [batch], output)
