"""ONNX Runtime's quantised means: the float operator between conversions.

    QLinearGlobalAveragePool(x, sx, zx, sy, zy)
        ->  QuantizeLinear(GlobalAveragePool(DequantizeLinear(x, sx, zx)), sy, zy)

Likewise QLinearAveragePool, which rounds after it added the zero point (as in ONNX Runtime, whose
other means round before), and QLinearReduceMean. relay_passes/quantize/integer_mean.py makes the
sum one of integers, as in ONNX Runtime; that multiplies it by another rounded factor, so that a
mean that lies within a rounding error of a tie can differ by one.
"""

from __future__ import annotations

import numpy as np
import onnx

from ..graph import Graph
from ..node_builder import AXES_BY_INPUT, NodeBuilder, attributes_of, known_shape
from .quantized import MICROSOFT, around, channels_first
from .registry import rewrites


@rewrites("QLinearGlobalAveragePool", "QLinearAveragePool", domain=MICROSOFT)
def qlinear_pool(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The pooling, between transpositions if the channels are last."""
    name = node.op_type.removeprefix("QLinear")
    attributes = attributes_of(node)
    last = attributes.pop("channels_last", 0)

    def pool(build: NodeBuilder, values: list[str]) -> str:
        if not last:
            return build.add(name, *values, **attributes)
        rank = len(known_shape(graph, node, node.input[0]))
        return channels_first(
            build, values[0], rank, lambda value: build.add(name, value, **attributes)
        )

    return around(node, graph, [0], 3, pool, rounds_last=name == "AveragePool")


@rewrites("QLinearReduceMean", domain=MICROSOFT)
def qlinear_reduce_mean(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """ReduceMean in the form of the model's opset."""
    attributes = attributes_of(node)
    keep = attributes.get("keepdims", 1)

    def mean(build: NodeBuilder, values: list[str]) -> str:
        if graph.opset < AXES_BY_INPUT:
            return build.add("ReduceMean", values[0], axes=attributes["axes"], keepdims=keep)
        axes = build.constant(attributes["axes"], np.int64)
        return build.add("ReduceMean", values[0], axes, keepdims=keep)

    return around(node, graph, [0], 3, mean)
