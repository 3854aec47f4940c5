"""Quantised matrix products as integer products, as ONNX Runtime computes them.

    QLinearMatMul(a, sa, za, b, sb, zb, sy, zy)
        ->  QuantizeLinear(Cast(MatMulInteger(a, b, za, zb)) * (sa * sb / sy), 1, zy)
    QGemm(A, sa, za, B, sb, zb, C, sy, zy, transA, transB, alpha)
        ->  QuantizeLinear(Cast(MatMulInteger(A', B', za, zb) + C) * (alpha * sa * sb / sy), 1, zy)

The product of the scales is one float32 number per tensor or column, computed in that order; where
the scales are constant it is a constant. Without sy the result of QGemm stays float.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, known_shape, optional_input
from .quantized import (
    MICROSOFT,
    Quantized,
    check_per_tensor,
    quantize,
    quantized_input,
    quantized_type,
)
from .registry import rewrites


@rewrites("QLinearMatMul")
def qlinear_matmul(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Integer product, one multiplication, QuantizeLinear."""
    build = NodeBuilder(graph, node)
    a, b = quantized_input(node, 0), quantized_input(node, 3)
    scale, zero_point = node.input[6], optional_input(node, 7)
    check_per_tensor(node, graph, scale, zero_point)
    product = integer_product(build, a, b)
    scales = build.add("Mul", factor_of(build, a.scale, rows=a.value), factor_of(build, b.scale))
    factor = build.add("Div", scales, factor_of(build, scale))
    value = build.add("Cast", product, to=TensorProto.FLOAT)
    requantize(build, build.add("Mul", value, factor), zero_point)
    return build.nodes


@rewrites("QGemm", domain=MICROSOFT)
def qgemm(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Integer product and sum, one multiplication, QuantizeLinear if there is an output scale."""
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    a, b = quantized_input(node, 0), quantized_input(node, 3)
    scale, zero_point = optional_input(node, 7), optional_input(node, 8)
    check_per_tensor(node, graph, a.scale, a.zero_point, scale, zero_point)
    if attributes.get("transA"):
        a = Quantized(build.add("Transpose", a.value, perm=[1, 0]), a.scale, a.zero_point)
    if attributes.get("transB"):
        b = Quantized(build.add("Transpose", b.value, perm=[1, 0]), b.scale, b.zero_point)
    total = integer_product(build, a, b)
    bias = optional_input(node, 6)
    if bias:
        total = build.add("Add", total, bias)
    factor = factor_of(build, a.scale)
    alpha = attributes.get("alpha", 1.0)
    if alpha != 1.0:
        factor = build.add("Mul", build.constant(alpha, np.float32), factor)
    factor = build.add("Mul", factor, factor_of(build, b.scale))
    value = build.add("Cast", total, to=TensorProto.FLOAT)
    if not scale:
        build.add("Mul", value, factor, output=node.output[0])
        return build.nodes
    factor = build.add("Div", factor, factor_of(build, scale))
    requantize(build, build.add("Mul", value, factor), zero_point)
    return build.nodes


def integer_product(build: NodeBuilder, a: Quantized, b: Quantized) -> str:
    """MatMulInteger; zero points that are absent are 0."""
    node, graph = build.source, build.graph
    shape, found = graph.shape(b.value), graph.shape(b.scale)
    if shape and found and math.prod(found) != 1:
        check_columns(node, b.scale, found, shape[-1])
    inputs = [a.value, b.value, a.zero_point, b.zero_point]
    while not inputs[-1]:
        inputs.pop()
    return build.add("MatMulInteger", *inputs)


def check_columns(node: onnx.NodeProto, name: str, shape: tuple[int, ...], columns: int) -> None:
    """Refuses a scale or zero point that is not one number for each column."""
    if shape[-1] != columns or any(size != 1 for size in shape[-2:-1]):
        raise ModelError(
            f"{describe(node)}: {name!r} has the shape {shape}; the product has {columns} columns"
        )


def factor_of(build: NodeBuilder, name: str, rows: str = "") -> str:
    """A scale in float32; of rank 0 if it is one number, a column if there is one for each row."""
    graph = build.graph
    shape, elem_type = graph.shape(name), graph.elem_type(name)
    if elem_type not in (0, TensorProto.FLOAT):
        name = build.add("Cast", name, to=TensorProto.FLOAT)
    if shape is None:
        return name
    if math.prod(shape) == 1:
        return build.reshape(name, [])
    if not rows or len(shape) != 1:
        return name
    operand = known_shape(graph, build.source, rows)
    if len(operand) < 2 or operand[-2] != shape[0]:
        raise ModelError(
            f"{describe(build.source)}: a scale of the shape {shape} does not fit its operand of "
            f"the shape {operand}"
        )
    return build.reshape(name, [shape[0], 1])


def requantize(build: NodeBuilder, value: str, zero_point: str) -> None:
    """QuantizeLinear with the scale 1, which makes the output of the builder's node."""
    node, graph = build.source, build.graph
    elem_type = quantized_type(node, graph, zero_point or node.input[0])
    one = build.constant(1, np.float32)
    quantize(build, value, one, zero_point, elem_type, node.output[0])
