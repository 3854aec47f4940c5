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

import functools
import math

import numpy as np
import onnx
from onnx import helper

from microkernels.base.errors import ShapeError

from ..graph.graph import Graph, describe
from ..graph.node_builder import (
    NodeBuilder,
    attributes_of,
    extents_of,
    known_shape,
    optional_input,
    times,
)
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


@rewrites("HardSigmoid", "HardSwish")
def hard_activation(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Hard-sigmoid and hard-swish in operators that fold and fuse.

    HardSigmoid(x)    ->    Clip(Add(Mul(x, alpha), beta), 0, 1)
    HardSwish(x)      ->    Mul(x, Clip(Add(Mul(x, 1 / 6), 0.5), 0, 1))

    relay_passes/canonicalize/fold_factors.py gives a convolution the factor and the term of a
    HardSigmoid behind it.

    Three or four operators, once the type is known.
    """
    x = node.input[0]
    if not graph.elem_type(x):
        return None
    build = NodeBuilder(graph, node)
    attributes = attributes_of(node)
    swish = node.op_type == "HardSwish"
    alpha = 1 / 6 if swish else attributes.get("alpha", 0.2)
    beta = 0.5 if swish else attributes.get("beta", 0.5)
    line = build.add("Add", build.add("Mul", x, build.number(x, alpha)), build.number(x, beta))
    if not swish:
        build.clip(line, x, 0.0, 1.0, output=node.output[0])
        return build.nodes
    build.add("Mul", x, build.clip(line, x, 0.0, 1.0), output=node.output[0])
    return build.nodes


# ONNX Runtime's fused activations in standard operators.
#
# Gelu(x)           ->  Gelu(x)                            (the standard one has the same meaning)
# BiasGelu(x, b)    ->  Gelu(Add(x, b))
# FastGelu(x, b)    ->  Gelu(Add(x, b), approximate=tanh)
# QuickGelu(x, a)   ->  Mul(x, Sigmoid(Mul(x, a)))


@rewrites("Gelu", "BiasGelu", "FastGelu", domain="com.microsoft")
def contrib_gelu(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The standard Gelu, after the bias."""
    build = NodeBuilder(graph, node)
    value, bias = node.input[0], optional_input(node, 1)
    if bias:
        value = build.add("Add", value, bias)
    form = "tanh" if node.op_type == "FastGelu" else "none"
    build.add("Gelu", value, output=node.output[0], approximate=form)
    return build.nodes


@rewrites("QuickGelu", domain="com.microsoft")
def quick_gelu(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """x * sigmoid(alpha * x)."""
    build = NodeBuilder(graph, node)
    dtype = helper.tensor_dtype_to_np_dtype(graph.elem_type(node.input[0]) or 1)
    # The default is ONNX Runtime's.
    alpha = build.constant(np.array(attributes_of(node).get("alpha", 1.702), dtype))
    gate = build.add("Sigmoid", build.add("Mul", node.input[0], alpha))
    build.add("Mul", node.input[0], gate, output=node.output[0])
    return build.nodes


# Softmax, LogSoftmax and Hardmax before opset 13, which work on all axes from one on.
#
# Softmax(x: [2, 3, 4], axis=1)  ->  Reshape(Softmax(Reshape(x, [2, 12]), axis=-1), [2, 3, 4])
#
# Along the last axis both forms mean the same, so folding and conversion need to know only one.


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
