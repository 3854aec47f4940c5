"""ONNX Runtime's product with a weight of few bits, unpacked to one number per byte.

    MatMulNBits(x, B: uint8 [N, K / b, b * bits / 8], scales: [N, K / b], zero_points, bias)
        ->  MatMul(x, DequantizeBlocks(weight: int8 [K, N], scales^T, zero_points^T)) + bias

Without zero points the middle of the range stands for 0: the weight is stored as the difference
from it. Whatever accuracy_level permits, x is multiplied as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, optional_input
from .dequantize_blocks import dequantize_blocks
from .quantized import MICROSOFT
from .registry import rewrites

BITS = (2, 4, 8)


@rewrites("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Unpacks the weight; MatMul with its dequantised blocks."""
    attributes = attributes_of(node)
    bits, block = attributes.get("bits", 4), attributes["block_size"]
    columns, depth = attributes["N"], attributes["K"]
    if bits not in BITS or block < 1 or block * bits % 8:
        raise UnsupportedOperatorError(f"{describe(node)}: {bits} bits in blocks of {block}")
    if optional_input(node, 4):
        raise UnsupportedOperatorError(
            f"{describe(node)}: g_idx (rows in another order) is not supported; quantise without it"
        )
    if attributes.get("weight_prepacked", 0):
        raise UnsupportedOperatorError(f"{describe(node)}: its weight is packed for a GPU")
    blocks = -(-depth // block)
    build = NodeBuilder(graph, node)
    packed = _constant(node, graph, 1, (columns, blocks, block * bits // 8))
    weight = unpack(packed, bits).reshape(columns, blocks * block)[:, :depth]
    scales = _constant(node, graph, 2, (columns, blocks))
    offsets = _offsets(node, graph, columns, blocks, bits)
    middle = 1 << (bits - 1)
    if offsets is None or (offsets == middle).all():
        weight, offsets = (weight.astype(np.int16) - middle).astype(np.int8), None
    # int8 or uint8 [K, N], which the product reads by rows.
    q = build.constant(np.ascontiguousarray(weight.T))
    zero_point = "" if offsets is None else build.constant(np.ascontiguousarray(offsets.T))
    scale = build.constant(np.ascontiguousarray(scales.T))
    value = dequantize_blocks(build, q, scale, zero_point, 0, block)
    bias = optional_input(node, 5)
    if not bias:
        build.add("MatMul", node.input[0], value, output=node.output[0])
        return build.nodes
    product = build.add("MatMul", node.input[0], value)
    build.add("Add", product, bias, output=node.output[0])
    return build.nodes


def unpack(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Numbers of 2, 4 or 8 bits along the last axis, the lowest bits of each byte first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], packed.shape[-1] * len(shifts))


def _offsets(
    node: onnx.NodeProto, graph: Graph, columns: int, blocks: int, bits: int
) -> NDArray[Any] | None:
    """Zero points ``[N, blocks]``: packed ones as uint8, float ones as they are."""
    if not optional_input(node, 3):
        return None
    per_row = -(-blocks * bits // 8)
    array = graph.constants.get(node.input[3])
    if array is not None and array.dtype == np.uint8:
        packed = _constant(node, graph, 3, (columns, per_row))
        return unpack(packed, bits)[:, :blocks]
    return _constant(node, graph, 3, (columns, blocks))


def _constant(
    node: onnx.NodeProto, graph: Graph, position: int, shape: tuple[int, ...]
) -> NDArray[Any]:
    """The array of a constant input; older models store scales and zero points flat."""
    name = node.input[position]
    array = graph.constants.get(name)
    if array is None:
        raise UnsupportedOperatorError(f"{describe(node)}: {name!r} must be a constant")
    if array.shape != shape and array.shape != (int(np.prod(shape)),):
        raise ModelError(
            f"{describe(node)}: {name!r} has the shape {array.shape}; its attributes ask for "
            f"{shape}"
        )
    return array.reshape(shape)
