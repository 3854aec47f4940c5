"""Quantised convolutions.

    QLinearConv(x, sx, zx, w, sw, zw, sy, zy, B)
        ->  QuantizeLinear(Conv(DequantizeLinear(x, sx, zx), DequantizeLinear(w, sw, zw),
                                DequantizeLinear(B, sx * sw)), sy, zy)

The float convolution rounds its sums: a result that lies within a rounding error of a tie can
differ by one from the integer sum.
"""

from __future__ import annotations

import onnx

from microkernels.errors import ModelError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, optional_input
from .quantized import (
    MICROSOFT,
    Quantized,
    channels_first,
    check_per_tensor,
    dequantize,
    known_shape,
    quantize,
    quantized_input,
    quantized_type,
)
from .registry import rewrites


@rewrites("QLinearConv")
@rewrites("QLinearConv", domain=MICROSOFT)
def qlinear_conv(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Conv between conversions; the weight's scale may be one per output channel."""
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    x, w = quantized_input(node, 0), quantized_input(node, 3)
    scale, zero_point, bias = node.input[6], node.input[7], optional_input(node, 8)
    check_per_tensor(node, graph, x.scale, x.zero_point, scale, zero_point)
    _check_channels(build, w)
    operands = [dequantize(build, w, axis=0)]
    if bias:
        product = build.add("Mul", build.reshape(x.scale, []), w.scale)
        operands.append(dequantize(build, Quantized(bias, product, ""), axis=0))
    last = attributes.pop("channels_last", 0)
    value = dequantize(build, x)
    if last:
        rank = len(known_shape(node, graph, x.value))
        result = channels_first(
            build, value, rank, lambda v: build.add("Conv", v, *operands, **attributes)
        )
    else:
        result = build.add("Conv", value, *operands, **attributes)
    elem_type = quantized_type(node, graph, zero_point)
    quantize(build, result, scale, zero_point, elem_type, node.output[0])
    return build.nodes


def _check_channels(build: NodeBuilder, w: Quantized) -> None:
    shape = known_shape(build.source, build.graph, w.value)
    for name in filter(None, (w.scale, w.zero_point)):
        found = build.graph.shape(name)
        if found not in (None, (), (1,), (shape[0],)):
            raise ModelError(
                f"{describe(build.source)}: {name!r} has the shape {found}; the convolution has "
                f"{shape[0]} output channels"
            )
