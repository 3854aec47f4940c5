"""Activations in operators that every epilogue has.

Mish(x)               ->    x * (w / (w + 2)),  w = e * (e + 2),  e = exp(min(x, 20))
ThresholdedRelu(x)    ->    Where(x > alpha, x, 0)
Shrink(x)             ->    Where(x < -lambd, x + bias, Where(x > lambd, x - bias, 0))
Elu(x)                ->    Where(x < 0, alpha * (exp(x) - 1), x)
Selu(x)               ->    gamma * Elu(x)
Celu(x)               ->    Where(x < 0, alpha * (exp(x / alpha) - 1), x)

tanh(log(1 + e)) is ((1 + e)^2 - 1) / ((1 + e)^2 + 1): one exponential in place of three functions,
and small results are as accurate as others. From x = 20 on, w / (w + 2) is 1 in float32 (2 / w is
below 2^-24 from x = 9 on).
"""

from __future__ import annotations

import numpy as np
import onnx

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of
from .registry import rewrites

_MISH_END = 20.0
# The defaults of ONNX.
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


@rewrites("Mish")
def mish(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """With one exponential, for float32."""
    x = node.input[0]
    if graph.elem_type(x) != onnx.TensorProto.FLOAT:
        return None
    build = NodeBuilder(graph, node)
    two = build.constant(2, np.float32)
    e = build.add("Exp", build.add("Min", x, build.constant(_MISH_END, np.float32)))
    w = build.add("Mul", e, build.add("Add", e, two))
    build.add("Mul", x, build.add("Div", w, build.add("Add", w, two)), output=node.output[0])
    return build.nodes


@rewrites("Elu", "Selu", "Celu")
def exponential_linear(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """An exponential and a choice, of every type; positive x stay as they are, and NaN too."""
    x = node.input[0]
    if not graph.elem_type(x):
        return None
    build = NodeBuilder(graph, node)
    attributes = attributes_of(node)
    alpha = attributes.get("alpha", _SELU_ALPHA if node.op_type == "Selu" else 1.0)
    inner = x
    if node.op_type == "Celu" and alpha != 1.0:
        inner = build.add("Div", x, build.number(x, alpha))
    power = build.add("Exp", inner)
    negative = build.add("Less", x, build.number(x, 0))
    below = build.add("Sub", power, build.number(x, 1))
    if alpha != 1.0:
        below = build.add("Mul", below, build.number(x, alpha))
    if node.op_type != "Selu":
        build.add("Where", negative, below, x, output=node.output[0])
        return build.nodes
    value = build.add("Where", negative, below, x)
    gamma = build.number(x, attributes.get("gamma", _SELU_GAMMA))
    build.add("Mul", value, gamma, output=node.output[0])
    return build.nodes


@rewrites("ThresholdedRelu")
def thresholded_relu(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """A comparison and a choice."""
    x = node.input[0]
    if not graph.elem_type(x):
        return None
    build = NodeBuilder(graph, node)
    alpha = build.number(x, attributes_of(node).get("alpha", 1.0))
    build.add("Where", build.add("Greater", x, alpha), x, build.number(x, 0), output=node.output[0])
    return build.nodes


@rewrites("Shrink")
def shrink(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Two comparisons and two choices."""
    x = node.input[0]
    if graph.elem_type(x) != onnx.TensorProto.FLOAT:
        return None
    build = NodeBuilder(graph, node)
    attributes = attributes_of(node)
    bias, threshold = attributes.get("bias", 0.0), attributes.get("lambd", 0.5)
    low, high = build.number(x, -threshold), build.number(x, threshold)
    above = build.add("Sub", x, build.number(x, bias))
    below = build.add("Add", x, build.number(x, bias))
    upper = build.add("Where", build.add("Greater", x, high), above, build.number(x, 0))
    build.add("Where", build.add("Less", x, low), below, upper, output=node.output[0])
    return build.nodes
