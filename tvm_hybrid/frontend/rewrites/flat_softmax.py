"""Softmax, LogSoftmax and Hardmax before opset 13, which work on all axes from one on.

Softmax(x: [2, 3, 4], axis=1)  ->  Reshape(Softmax(Reshape(x, [2, 12]), axis=-1), [2, 3, 4])

Along the last axis both forms mean the same, so folding and conversion need to know only one.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import onnx

from microkernels.base.errors import ShapeError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, known_shape
from ..node_extents import extents_of, times
from .registry import rewrites

SOFTMAX_ALONG_AXIS = 13


@rewrites("Softmax", "LogSoftmax", "Hardmax")
def softmax_of_opset(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The operator along the last axis, unless it has that form already."""
    axis = attributes_of(node).get("axis", 1)
    if graph.opset >= SOFTMAX_ALONG_AXIS or axis == -1:
        return None
    shape: tuple[int | None, ...] | None = graph.dims(node.input[0])
    if shape is None:
        shape = known_shape(graph, node, node.input[0])
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(
            f"{describe(node)}: its axis {axis} is none of its input {node.input[0]!r} {shape}"
        )
    build = NodeBuilder(graph, node)
    first = axis % len(shape)
    known, behind = graph.shape(node.input[0]), [size for size in shape[first:] if size is not None]
    if first == len(shape) - 1 or known is not None:
        sizes = known or (0,) * len(shape)
        flat_softmax(build, node.op_type, node.input[0], sizes, first, node.output[0])
        return build.nodes
    if len(behind) < len(shape) - first:
        extents = extents_of(build, node.input[0])
        row = functools.reduce(lambda one, other: times(build, one, other), extents[first:])
        rows = build.reshape(node.input[0], [*extents[:first], row])
        build.reshape(build.add(node.op_type, rows, axis=-1), extents, output=node.output[0])
        return build.nodes
    # What stands before the axis is copied: it may be open.
    flat = build.constant([*[0] * first, math.prod(behind)], np.int64)
    rows = build.add("Reshape", node.input[0], flat)
    back = build.constant([*[0] * first, *behind], np.int64)
    build.add("Reshape", build.add(node.op_type, rows, axis=-1), back, output=node.output[0])
    return build.nodes


def flat_softmax(
    build: NodeBuilder, name: str, value: str, shape: tuple[int, ...], axis: int, output: str = ""
) -> str:
    """The operator over all axes from `axis` on."""
    if axis == len(shape) - 1:
        return build.add(name, value, output=output, axis=-1)
    rows = build.reshape(value, [*shape[:axis], math.prod(shape[axis:])])
    return build.reshape(build.add(name, rows, axis=-1), shape, output=output)
