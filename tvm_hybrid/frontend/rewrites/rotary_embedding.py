"""Rotary embeddings (arXiv 2104.09864, section 3.4.2) in standard operators.

RotaryEmbedding(x, position_ids, cos_cache, sin_cache)    of ONNX Runtime
RotaryEmbedding(x, cos_cache, sin_cache, position_ids)    of opset 23
    ->  Concat(x1 * cos - x2 * sin, x1 * sin + x2 * cos, the rest of x)

x1 and x2 are the halves of what is rotated of each head, or its even and odd elements if they are
interleaved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from microkernels.base.errors import ModelError

from ..graph import Graph, describe
from ..node_builder import Extent, NodeBuilder, attributes_of, optional_input
from ..node_extents import counted, extents_of, known
from .attention_parts import expect_shape, head_size, refuse
from .quantized import MICROSOFT
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
