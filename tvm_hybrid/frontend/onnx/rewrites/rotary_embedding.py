"""Rotary embeddings (arXiv 2104.09864, section 3.4.2) in standard operators.

RotaryEmbedding(x, position_ids, cos_cache, sin_cache)    of ONNX Runtime
RotaryEmbedding(x, cos_cache, sin_cache, position_ids)    of opset 23
    ->  Concat(x1 * cos - x2 * sin, x1 * sin + x2 * cos, the rest of x)

x1 and x2 are the halves of what is rotated of each head, or its even and odd elements if they are
interleaved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph.graph import Graph, describe
from ..graph.node_builder import (
    Extent,
    NodeBuilder,
    attributes_of,
    counted,
    extents_of,
    known,
    known_shape,
    optional_input,
    shape_text,
)
from .attention_parts import expect_shape, head_size, refuse
from .integer_matmul import BITS, dequantize_blocks, unpack
from .quantized import MICROSOFT, Quantized, check_per_tensor, dequantize
from .registry import rewrites


@dataclass(frozen=True)
class Rotation:
    """The cosines and sines of every position, and how elements pair up.

    Attributes
    ----------
    cos, sin : str
        Values [*rows, half].
    rows : tuple
        (batch or 1, length), which may be open.
    half : int
        Pairs that are rotated; elements of a head beyond 2 * half stay.
    interleaved : bool
        Whether elements 2 i and 2 i + 1 are a pair, and not i and half + i.
    """

    cos: str
    sin: str
    rows: tuple[Extent, Extent]
    half: int
    interleaved: bool


@rewrites("RotaryEmbedding", domain=MICROSOFT)
def contrib_rotary_embedding(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Positions are given for every token, or the first one."""
    attributes = attributes_of(node)
    if attributes.get("is_packed_batching"):
        raise refuse(node, "its attribute is_packed_batching is not supported")
    if attributes.get("scale", 1.0) != 1.0:
        raise refuse(node, "its attribute scale is not supported")
    build = NodeBuilder(graph, node)
    shape = extents_of(build, node.input[0])
    length = shape[1] if len(shape) == 3 else shape[-2]
    positions = node.input[1]
    found = extents_of(build, positions)
    rows: tuple[Extent, Extent] = (shape[0], length)
    if len(found) == 1:
        expect_shape(node, f"position_ids ({positions!r})", found, 1)
        numbers = build.reshape(counted(build, length), [1, length])
        positions, rows = build.add("Add", numbers, positions), (1, length)
    else:
        expect_shape(node, f"position_ids ({positions!r})", found, *rows)
    interleaved = bool(attributes.get("interleaved"))
    rotation = gathered(build, positions, rows, list(node.input[2:4]), interleaved)
    _rotate_node(build, shape, rotation)
    return build.nodes


@rewrites("RotaryEmbedding")
def rotary_embedding(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Positions are given for every token, or its cosines and sines."""
    build = NodeBuilder(graph, node)
    attributes = attributes_of(node)
    interleaved = bool(attributes.get("interleaved"))
    shape = extents_of(build, node.input[0])
    length = shape[1] if len(shape) == 3 else shape[-2]
    positions, caches = optional_input(node, 3), list(node.input[1:3])
    if positions:
        rotation = gathered(build, positions, (shape[0], length), caches, interleaved)
    else:
        found = extents_of(build, caches[0])
        half = known(build, found[-1], "the columns of cos_cache")
        expect_shape(node, "cos_cache", found, shape[0], length, half)
        rotation = Rotation(caches[0], caches[1], (shape[0], length), half, interleaved)
    _rotate_node(build, shape, rotation)
    return build.nodes


def gathered(
    build: NodeBuilder,
    positions: str,
    rows: tuple[Extent, Extent],
    caches: list[str],
    interleaved: bool,
) -> Rotation:
    """The rows of the caches [positions, half] that belong to positions of the shape `rows`."""
    half = known(build, extents_of(build, caches[0])[-1], "the columns of cos_cache")
    cos, sin = (build.add("Gather", cache, positions, axis=0) for cache in caches)
    return Rotation(cos, sin, rows, half, interleaved)


def _rotate_node(build: NodeBuilder, shape: tuple[Extent, ...], rotation: Rotation) -> None:
    """x [batch, length, heads * size] or [batch, heads, length, size], rotated."""
    node = build.source
    attributes = attributes_of(node)
    rotated = attributes.get("rotary_embedding_dim", 0) or 0
    if rotated and rotated != 2 * rotation.half:
        raise ModelError(
            f"{describe(node)}: caches of {rotation.half} columns do not rotate {rotated} elements"
        )
    name, output = node.input[0], node.output[0]
    if len(shape) == 4:
        rotate(build, name, shape, rotation, heads_axis=1, output=output)
        return
    if len(shape) != 3:
        raise ModelError(f"{describe(node)}: its input has {len(shape)} axes, not 3 or 4")
    heads, columns = attributes.get("num_heads", 0), known(build, shape[2], "the columns of x")
    if not heads and rotated:
        raise ModelError(f"{describe(node)}: rotary_embedding_dim needs num_heads")
    size = head_size(node, "x", columns, heads) if heads else 2 * rotation.half
    apart = (*shape[:2], head_size(node, "x", columns, size), size)
    value = rotate(build, build.reshape(name, apart), apart, rotation, heads_axis=2)
    build.reshape(value, shape, output)


def rotate(
    build: NodeBuilder,
    value: str,
    shape: tuple[Extent, ...],
    rotation: Rotation,
    heads_axis: int,
    output: str = "",
) -> str:
    """A value of four axes, the last of which is a head, rotated.

    Parameters
    ----------
    heads_axis : int
        1 or 2: where the heads are; the other one is that of positions.
    """
    size, half = known(build, shape[3], "the size of a head"), rotation.half
    if 2 * half > size:
        raise ModelError(
            f"{describe(build.source)}: caches of {half} columns do not fit heads of {size}"
        )
    batch, length = rotation.rows
    single = [batch, 1, length] if heads_axis == 1 else [batch, length, 1]
    cos, sin = (build.reshape(each, [*single, half]) for each in (rotation.cos, rotation.sin))
    if rotation.interleaved:
        first, second = _slice(build, value, 0, 2 * half, 2), _slice(build, value, 1, 2 * half, 2)
    else:
        first, second = _slice(build, value, 0, half), _slice(build, value, half, 2 * half)
    real = build.add("Sub", build.add("Mul", first, cos), build.add("Mul", second, sin))
    imaginary = build.add("Add", build.add("Mul", first, sin), build.add("Mul", second, cos))
    whole = 2 * half == size
    end = output if whole else ""
    if rotation.interleaved:
        pairs = [build.reshape(each, [*shape[:3], half, 1]) for each in (real, imaginary)]
        rotated = build.reshape(build.add("Concat", *pairs, axis=4), [*shape[:3], 2 * half], end)
    else:
        rotated = build.add("Concat", real, imaginary, axis=3, output=end)
    if whole:
        return rotated
    rest = _slice(build, value, 2 * half, size)
    return build.add("Concat", rotated, rest, axis=3, output=output)


def _slice(build: NodeBuilder, value: str, begin: int, end: int, step: int = 1) -> str:
    """Elements of the last of four axes."""
    bounds = [build.constant([number], np.int64) for number in (begin, end, 3, step)]
    return build.add("Slice", value, *bounds)


# ONNX Runtime's EmbedLayerNormalization in standard operators.
#
# EmbedLayerNormalization(ids, segment_ids, words, positions, segments, gamma, beta, mask, ...)
#     ->  LayerNormalization(Gather(words, ids) + Gather(positions, ...) + Gather(segments, ...)),
#         the number of ones in each row of the mask, and the sum that was normalised
# QEmbedLayerNormalization(ids, segment_ids, words, positions, segments, gamma, beta, mask, ...)
#     ->  the same with rows that are dequantised
#
# TVM has a converter, but nothing that follows it would know its shapes.


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
