"""Rows of tables of few bits."""

from __future__ import annotations

import numpy as np
import onnx

from microkernels.base.errors import UnsupportedOperatorError

from ..graph.graph import Graph, describe
from ..graph.node_builder import NodeBuilder, attributes_of, known_shape, optional_input
from .integer_matmul import BITS, dequantize_blocks, unpack
from .quantized import MICROSOFT
from .registry import rewrites


@rewrites("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """ONNX Runtime's lookup in a table of few bits.

        GatherBlockQuantized(table, indices, scales, zero_points, quantize_axis, gather_axis)
            ->  DequantizeBlocks(Gather(table, indices), Gather(scales, indices), ...)

    A packed table is unpacked to one number per byte. An index outside the table reads its last
    row, where ONNX Runtime gives zeros.

    Gathers rows of the table, its scales and its zero points alike.
    """
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    names = [node.input[0], node.input[2], optional_input(node, 3)]
    if any(name and name not in graph.constants for name in names):
        raise UnsupportedOperatorError(f"{describe(node)}: its table must be constant")
    arrays = [graph.constants[name] if name else None for name in names]
    table, scales, offsets = arrays
    bits = attributes.get("bits", 4)
    assert table is not None and scales is not None
    if names[0] not in graph.narrow:
        if table.dtype != np.uint8 or bits not in BITS:
            raise UnsupportedOperatorError(
                f"{describe(node)}: a table of {table.dtype} with {bits} bits is not supported"
            )
        table = unpack(table, bits)
        if offsets is None:
            offsets = np.full(scales.shape, 1 << (bits - 1), np.uint8)
        else:
            offsets = unpack(offsets, bits)[..., : scales.shape[-1]]
    axis = attributes.get("quantize_axis", 1) % table.ndim
    gather = attributes.get("gather_axis", 0) % table.ndim
    if axis == gather:
        raise UnsupportedOperatorError(f"{describe(node)}: it gathers along the blocks' axis")
    indices = known_shape(graph, node, node.input[1])

    def gathered(array: np.ndarray | None) -> str:
        if array is None:
            return ""
        name = build.add("Gather", build.constant(array), node.input[1], axis=gather)
        shape = (*array.shape[:gather], *indices, *array.shape[gather + 1 :])
        graph.declare(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), shape)
        return name

    moved = axis + len(indices) - 1 if axis > gather else axis
    parts = [gathered(array) for array in (table, scales, offsets)]
    block = attributes.get("block_size", 128)
    dequantize_blocks(build, parts[0], parts[1], parts[2], moved, block, node.output[0])
    return build.nodes
