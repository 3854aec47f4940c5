"""Convolutions of 8-bit values, as ONNX Runtime computes them."""

from __future__ import annotations

import math
from typing import Any

import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError

from ..graph.graph import Graph, describe
from ..graph.node_builder import NodeBuilder, attributes_of, known_shape, optional_input
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


@rewrites("ConvInteger")
def conv_integer(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Refuses zero points that do not fit their operand."""
    for position in (0, 1):
        elem_type, name = graph.elem_type(node.input[position]), optional_input(node, 2 + position)
        if elem_type not in (0, TensorProto.UINT8, TensorProto.INT8):
            raise ModelError(f"{describe(node)}: {node.input[position]!r} is not uint8 or int8")
        if name and elem_type and graph.elem_type(name) not in (0, elem_type):
            raise ModelError(
                f"{describe(node)}: the zero point {name!r} has another type than the operand "
                f"{node.input[position]!r}"
            )
    check_per_tensor(node, graph, optional_input(node, 2))
    check_channels(node, graph, node.input[1], optional_input(node, 3))
    return None


def check_channels(node: onnx.NodeProto, graph: Graph, weight: str, *names: str) -> None:
    """Refuses a scale or zero point that is not one number, or one for each output channel."""
    shape = graph.shape(weight)
    for name in filter(None, names):
        found = graph.shape(name)
        if shape is None or found is None or math.prod(found) == 1 or found == (shape[0],):
            continue
        raise ModelError(
            f"{describe(node)}: {name!r} has the shape {found}; the convolution has "
            f"{shape[0]} output channels"
        )


@rewrites("QLinearConv")
@rewrites("QLinearConv", domain=MICROSOFT)
def qlinear_conv(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Quantised convolutions as integer convolutions, as ONNX Runtime computes them.

        QLinearConv(x, sx, zx, w, sw, zw, sy, zy, B)
            ->  QuantizeLinear(Cast(ConvInteger(x, w, zx, zw) + B) * (sx * sw / sy), 1, zy)

    The product of the scales is one float32 number for the tensor or for each output channel,
    computed in that order; where the scales are constant it is a constant.

    Integer convolution and sum, one multiplication, QuantizeLinear.
    """
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
