"""Quantising in single operators: to narrow types, in blocks, and with another precision.

    QuantizeLinear(x, s, z: i4)      ->    Cast(Clip(Round(x / s) + z, -8, 7))
    QuantizeLinear(x, s, z: f8)      ->    EncodeFloat(x / s + z)
    DequantizeLinear(q: f8, s, z)    ->    (DecodeFloat(q) - z) * s

A parameter for each block of an axis is gathered so often as the block has elements.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from ..graph import Graph
from ..narrow_types import FLOATS, INTEGERS, stored_type
from ..node_builder import NodeBuilder, attributes_of, known_shape, optional_input
from .narrow_cast import decode_float, encode_float

_LIMITS = {
    **INTEGERS,
    TensorProto.UINT8: (0, 255),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT16: (0, 2**16 - 1),
    TensorProto.INT16: (-(2**15), 2**15 - 1),
}


def quantize_apart(build: NodeBuilder, target: int) -> None:
    """Writes the operators of a QuantizeLinear that gives values of type `target`."""
    node, graph = build.source, build.graph
    x, scale, zero_point = node.input[0], node.input[1], optional_input(node, 2)
    output, shape = node.output[0], known_shape(graph, node, node.input[0])
    precision = attributes_of(node).get("precision") or TensorProto.FLOAT
    wide, step = (build.add("Cast", name, to=precision) for name in (x, _along(build, scale)))
    value = build.add("Div", wide, step)
    if target in FLOATS:
        if _counts(graph, zero_point):
            value = build.add("Add", value, _decoded(build, zero_point))
        encode_float(build, value, shape, target, output)
        return
    value = build.add("Round", build.add("Cast", value, to=TensorProto.FLOAT))
    if _counts(graph, zero_point):
        offset = build.add("Cast", _along(build, zero_point), to=TensorProto.FLOAT)
        value = build.add("Add", value, offset)
    low, high = (build.constant(limit, np.float32) for limit in _LIMITS[target])
    value = build.add("Clip", value, low, high)
    build.add("Cast", value, output=output, to=stored_type(target))
    if target in INTEGERS:
        graph.narrow[output] = target


def dequantize_floats(build: NodeBuilder) -> None:
    """Writes the operators of a DequantizeLinear of floats of 4 or 8 bits."""
    node, graph = build.source, build.graph
    codes, scale, zero_point = node.input[0], node.input[1], optional_input(node, 2)
    value = decode_float(build, codes)
    if _counts(graph, zero_point):
        value = build.add("Sub", value, _decoded(build, zero_point))
    step = build.add("Cast", _along(build, scale), to=TensorProto.FLOAT)
    wanted = attributes_of(node).get("output_dtype") or graph.elem_type(scale)
    build.add("Cast", build.add("Mul", value, step), output=node.output[0], to=wanted)


def _counts(graph: Graph, zero_point: str) -> bool:
    """Whether a zero point is there and not known to be 0."""
    known = graph.constants.get(zero_point)
    return bool(zero_point) and (known is None or bool(known.any()))


def _decoded(build: NodeBuilder, zero_point: str) -> str:
    return _along(build, decode_float(build, zero_point), build.graph.shape(zero_point))


def _along(build: NodeBuilder, name: str, found: tuple[int, ...] | None = None) -> str:
    """A scale or zero point as it broadcasts: one, one for each index of an axis or of blocks."""
    node, graph = build.source, build.graph
    attributes, shape = attributes_of(node), known_shape(graph, node, node.input[0])
    found = known_shape(graph, node, name) if found is None else found
    if math.prod(found) == 1 and len(found) <= 1:
        return build.reshape(name, [])
    axis = 0 if len(shape) == 1 else attributes.get("axis", 1) % len(shape)
    block = attributes.get("block_size", 0)
    if block:
        places = build.constant(np.arange(shape[axis]) // block, np.int64)
        return build.add("Gather", name, places, axis=axis)
    return build.reshape(name, [-1 if place == axis else 1 for place in range(len(shape))])
