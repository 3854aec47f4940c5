"""Softmax, LogSoftmax and Hardmax before opset 13, which work on all axes from one on.

Softmax(x: [2, 3, 4], axis=1)  ->  Reshape(Softmax(Reshape(x, [2, 12]), axis=-1), [2, 3, 4])

Along the last axis both forms mean the same, so folding and conversion need to know only one.
"""

from __future__ import annotations

import math

import onnx

from microkernels.errors import ShapeError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, known_shape
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
    last = axis % len(shape) == len(shape) - 1
    sizes = (0,) * len(shape) if last else known_shape(graph, node, node.input[0])
    flat_softmax(build, node.op_type, node.input[0], sizes, axis % len(shape), node.output[0])
    return build.nodes


def flat_softmax(
    build: NodeBuilder, name: str, value: str, shape: tuple[int, ...], axis: int, output: str = ""
) -> str:
    """The operator over all axes from `axis` on."""
    if axis == len(shape) - 1:
        return build.add(name, value, output=output, axis=-1)
    rows = build.reshape(value, [*shape[:axis], math.prod(shape[axis:])])
    return build.reshape(build.add(name, rows, axis=-1), shape, output=output)
