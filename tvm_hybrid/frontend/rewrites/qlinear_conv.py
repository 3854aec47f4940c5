"""Quantised convolutions as integer convolutions, as ONNX Runtime computes them.

    QLinearConv(x, sx, zx, w, sw, zw, sy, zy, B)
        ->  QuantizeLinear(Cast(ConvInteger(x, w, zx, zw) + B) * (sx * sw / sy), 1, zy)

The product of the scales is one float32 number for the tensor or for each output channel, computed
in that order; where the scales are constant it is a constant.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of, known_shape, optional_input
from .auto_pad import check_channels
from .integer_matmul import factor_of, requantize
from .quantized import (
    MICROSOFT,
    Quantized,
    channels_first,
    check_per_tensor,
    quantized_input,
    quantized_type,
)
from .registry import rewrites


@rewrites("QLinearConv")
@rewrites("QLinearConv", domain=MICROSOFT)
def qlinear_conv(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Integer convolution and sum, one multiplication, QuantizeLinear."""
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    x, w = quantized_input(node, 0), quantized_input(node, 3)
    scale, zero_point = node.input[6], optional_input(node, 7)
    check_per_tensor(node, graph, x.scale, x.zero_point, scale, zero_point)
    for q in (x, w):
        quantized_type(node, graph, q.value)
    shape = known_shape(graph, node, w.value)
    check_channels(node, graph, w.value, w.scale, w.zero_point)
    last = attributes.pop("channels_last", 0)
    rank = len(shape)

    def convolution(value: str) -> str:
        return _real_sums(build, Quantized(value, x.scale, x.zero_point), w, rank, attributes)

    scales = build.add("Mul", factor_of(build, x.scale), factor_of(build, w.scale))
    factor = build.add("Div", scales, factor_of(build, scale))
    if graph.shape(w.scale) == (shape[0],) and shape[0] > 1:
        factor = build.reshape(factor, [shape[0], *[1] * (rank - 2)])

    def scaled(value: str) -> str:
        return build.add("Mul", convolution(value), factor)

    real = channels_first(build, x.value, rank, scaled) if last else scaled(x.value)
    requantize(build, real, zero_point)
    return build.nodes


def _real_sums(
    build: NodeBuilder, x: Quantized, w: Quantized, rank: int, attributes: dict[str, Any]
) -> str:
    """The integer convolution with its bias, as float32."""
    node, graph = build.source, build.graph
    inputs = [x.value, w.value, x.zero_point, w.zero_point]
    while not inputs[-1]:
        inputs.pop()
    total = build.add("ConvInteger", *inputs, **attributes)
    bias = optional_input(node, 8)
    if bias:
        count = known_shape(graph, node, w.value)[0]
        total = build.add("Add", total, build.reshape(bias, [count, *[1] * (rank - 2)]))
    return build.add("Cast", total, to=TensorProto.FLOAT)
