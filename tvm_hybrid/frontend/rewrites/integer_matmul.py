"""Products of 8-bit values, and ONNX Runtime's that give floats.

MatMulInteger(a, b, za, zb)
    ->  itself, checked
MatMulIntegerToFloat(a, b, sa, sb, za, zb, bias)
    ->  Cast(MatMulInteger(a, b, za, zb)) * (sa * sb) + bias
DynamicQuantizeMatMul(x, b, sb, zb, bias)
    ->  a, sa, za = DynamicQuantizeLinear(x), then as above
"""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, optional_input
from .qlinear_matmul import check_columns, integer_product
from .quantized import MICROSOFT, Quantized, check_per_tensor
from .registry import rewrites


@rewrites("MatMulInteger")
def matmul_integer(node: onnx.NodeProto, graph: Graph) -> None:
    """Checks types and zero points; the converter takes every form."""
    shapes = [graph.shape(name) for name in node.input[:2]]
    for position in (0, 1):
        elem_type = graph.elem_type(node.input[position])
        if elem_type not in (0, TensorProto.UINT8, TensorProto.INT8):
            raise ModelError(f"{describe(node)}: {node.input[position]!r} is not uint8 or int8")
        name = optional_input(node, 2 + position)
        if not name:
            continue
        if elem_type and graph.elem_type(name) not in (0, elem_type):
            raise ModelError(
                f"{describe(node)}: the zero point {name!r} has another type than the operand "
                f"{node.input[position]!r}"
            )
        shape, found = shapes[position], graph.shape(name)
        if not shape or found is None or math.prod(found) == 1:
            continue
        if position == 1:
            check_columns(node, name, found, shape[-1])
        elif found not in ((*shape[-2:-1],), (*shape[:-1], 1)):
            raise ModelError(
                f"{describe(node)}: the zero point {name!r} has the shape {found}, the operand "
                f"{node.input[0]!r} has the shape {shape}; there is one for all or one for each row"
            )


@rewrites("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Product, factor, bias."""
    build = NodeBuilder(graph, node)
    a = Quantized(node.input[0], node.input[2], optional_input(node, 4))
    b = Quantized(node.input[1], node.input[3], optional_input(node, 5))
    check_per_tensor(node, graph, a.scale, a.zero_point)
    _scaled_product(build, a, b, optional_input(node, 6))
    return build.nodes


@rewrites("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Quantises the first operand, then as above."""
    build = NodeBuilder(graph, node)
    a = Quantized(*build.add_many("DynamicQuantizeLinear", node.input[0], outputs=["", "", ""]))
    b = Quantized(node.input[1], node.input[2], optional_input(node, 3))
    _scaled_product(build, a, b, optional_input(node, 4))
    return build.nodes


def _scaled_product(build: NodeBuilder, a: Quantized, b: Quantized, bias: str) -> None:
    output = build.source.output[0]
    wide = build.add("Cast", integer_product(build, a, b), to=TensorProto.FLOAT)
    scale = build.add("Mul", build.reshape(a.scale, []), b.scale)
    if not bias:
        build.add("Mul", wide, scale, output=output)
        return
    build.add("Add", build.add("Mul", wide, scale), bias, output=output)
