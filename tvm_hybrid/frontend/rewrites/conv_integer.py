"""ConvInteger where it is a matrix product.

    ConvInteger(x: [N, C, H, W], w: [M, C, 1, 1], zx, zw), strides 1, no padding, one group
        ->  Transpose(Reshape(x, [N, C, H * W])), MatMulInteger(., w^T, zx, zw), and back

All else has a converter, which computes in int32.
"""

from __future__ import annotations

import math

import onnx

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of, optional_input
from .auto_pad import auto_pad
from .registry import rewrites


@rewrites("ConvInteger")
def conv_integer(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """A MatMulInteger with its second operand per output channel, or None."""
    attributes = attributes_of(node)
    shape, kernel = graph.shape(node.input[0]), graph.shape(node.input[1])
    if attributes.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        return auto_pad(node, graph)
    if shape is None or kernel is None or len(shape) != len(kernel) or len(shape) < 3:
        return None
    ones = attributes.get("strides", []) + list(kernel[2:])
    if set(ones) != {1} or any(attributes.get("pads", [])) or attributes.get("group", 1) != 1:
        return None
    build = NodeBuilder(graph, node)
    batch, channels, *spatial = shape
    pixels = build.reshape(node.input[0], [batch, channels, math.prod(spatial)])
    rows = build.add("Transpose", pixels, perm=[0, 2, 1])
    weight = build.reshape(node.input[1], kernel[:2])
    zero_points = [optional_input(node, 2), optional_input(node, 3)]
    while zero_points and not zero_points[-1]:
        zero_points.pop()
    columns = build.add("Transpose", weight, perm=[1, 0])
    product = build.add("MatMulInteger", rows, columns, *zero_points)
    planes = build.add("Transpose", product, perm=[0, 2, 1])
    build.reshape(planes, [batch, kernel[0], *spatial], output=node.output[0])
    return build.nodes
