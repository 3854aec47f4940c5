"""ONNX Runtime's EmbedLayerNormalization in standard operators.

EmbedLayerNormalization(ids, segment_ids, words, positions, segments, gamma, beta, mask, ...)
    ->  LayerNormalization(Gather(words, ids) + Gather(positions, ...) + Gather(segments, ...)),
        the number of ones in each row of the mask, and the sum that was normalised
QEmbedLayerNormalization(ids, segment_ids, words, positions, segments, gamma, beta, mask, ...)
    ->  the same with rows that are dequantised

TVM has a converter, but nothing that follows it would know its shapes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError

from ..graph import Graph, describe
from ..node_builder import Extent, NodeBuilder, attributes_of, optional_input
from ..node_extents import counted, extents_of, shape_text
from .attention_parts import refuse
from .quantized import MICROSOFT, Quantized, check_per_tensor, dequantize
from .registry import rewrites


@rewrites("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Gathers, adds, normalises, counts."""
    build = NodeBuilder(graph, node)

    def rows(position: int, indices: str) -> str:
        return build.add("Gather", node.input[position], indices, axis=0)

    _embed(build, rows, list(node.input[5:7]), optional_input(node, 8))
    return build.nodes


@rewrites("QEmbedLayerNormalization", domain=MICROSOFT)
def quantized_embed_layer_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The same of 8-bit tables, whose rows are dequantised once they are gathered."""
    build = NodeBuilder(graph, node)
    # Scales are inputs 8 to 12, zero points 13 to 17, of inputs 2 to 6.
    check_per_tensor(node, graph, *node.input[8:18])

    def value(position: int, name: str) -> str:
        scale, zero_point = node.input[position + 6], optional_input(node, position + 11)
        return dequantize(build, Quantized(name, scale, zero_point))

    def rows(position: int, indices: str) -> str:
        return value(position, build.add("Gather", node.input[position], indices, axis=0))

    _embed(build, rows, [value(position, node.input[position]) for position in (5, 6)], "")
    return build.nodes


def _embed(
    build: NodeBuilder, rows: Callable[[int, str], str], affine: list[str], positions: str
) -> None:
    """Writes the sum, its normalisation and the count.

    Parameters
    ----------
    rows
        (position of a table among the inputs, indices) -> the table's rows in float32.
    affine
        Gamma and beta.
    positions
        Indices of the table of positions; ``""`` for 0, 1, 2, ...
    """
    node = build.source
    attributes = attributes_of(node)
    ids, segment_ids = node.input[0], optional_input(node, 1)
    shape = extents_of(build, ids)
    if len(shape) != 2:
        raise ModelError(
            f"{describe(node)}: its input has the shape {shape_text(shape)}, not two axes"
        )
    batch, length = shape
    if not positions:
        positions = build.reshape(counted(build, length), [1, length])
    total = build.add("Add", rows(2, ids), rows(3, positions))
    if segment_ids:
        total = build.add("Add", total, rows(4, segment_ids))
    epsilon = attributes.get("epsilon", 1e-12)
    output = node.output[0]
    build.add("LayerNormalization", total, *affine, output=output, axis=-1, epsilon=epsilon)
    if len(node.output) > 2 and node.output[2]:
        build.add("Identity", total, output=node.output[2])
    if len(node.output) > 1 and node.output[1]:
        _count(build, optional_input(node, 7), batch, attributes.get("mask_index_type", 1))


def _count(build: NodeBuilder, mask: str, batch: Extent, kind: int) -> None:
    """mask_index: how many tokens each sequence has."""
    node = build.source
    output = node.output[1]
    if kind != 1:
        raise refuse(node, f"its attribute mask_index_type ({kind}) is not supported; 1 is")
    if not mask:
        build.add("Expand", build.constant(0, np.int32), build.shape([batch]), output=output)
        return
    # Additions as products: ReduceSum has its axes in different places in different opsets.
    one = build.constant(1, np.float32)
    ones = build.add("Expand", one, build.shape([extents_of(build, mask)[1], 1]))
    if build.graph.elem_type(mask) != TensorProto.INT32:
        mask = build.add("Cast", mask, to=TensorProto.INT32)
    is_one = build.add("Equal", mask, build.constant(1, np.int32))
    counted = build.add("MatMul", build.add("Cast", is_one, to=TensorProto.FLOAT), ones)
    rows = build.add("Cast", counted, to=TensorProto.INT32)
    build.reshape(rows, [batch], output)
