"""ONNX Runtime's quantised operators on elements: the float operator between conversions.

    QLinearAdd(a, sa, za, b, sb, zb, sy, zy)
        ->  QuantizeLinear(Add(DequantizeLinear(a, sa, za), DequantizeLinear(b, sb, zb)), sy, zy)

Likewise QLinearMul, QLinearSigmoid, QLinearLeakyRelu, QLinearSoftmax, QLinearWhere, QLinearConcat.
QLinearAdd and QLinearMul round after they added the zero point, the others before, as in ONNX
Runtime. That multiplies by sa / sy where this multiplies by sa and divides by sy: a result that
lies within a rounding error of a tie can differ by one.
"""

from __future__ import annotations

import onnx

from microkernels.base.errors import ModelError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, known_shape, optional_input
from .flat_softmax import SOFTMAX_ALONG_AXIS, flat_softmax
from .quantized import (
    MICROSOFT,
    Quantized,
    around,
    check_per_tensor,
    dequantize,
    quantize,
    quantized_input,
    quantized_type,
)
from .registry import rewrites


@rewrites("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Add or Mul."""
    name = node.op_type.removeprefix("QLinear")
    return around(
        node, graph, [0, 3], 6, lambda build, values: build.add(name, *values), rounds_last=True
    )


@rewrites("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_unary(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Sigmoid or LeakyRelu."""
    name = node.op_type.removeprefix("QLinear")
    attributes = attributes_of(node)
    return around(node, graph, [0], 3, lambda build, values: build.add(name, *values, **attributes))


@rewrites("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Softmax along one axis, or over all axes from one on in the old form."""
    attributes = attributes_of(node)
    shape = known_shape(graph, node, node.input[0])
    axis = attributes.get("axis", -1) % max(len(shape), 1)
    flat = attributes.get("opset", SOFTMAX_ALONG_AXIS) < SOFTMAX_ALONG_AXIS

    def softmax(build: NodeBuilder, values: list[str]) -> str:
        if flat:
            return flat_softmax(build, "Softmax", values[0], shape, axis)
        return build.add("Softmax", values[0], axis=axis)

    return around(node, graph, [0], 3, softmax)


@rewrites("QLinearWhere", domain=MICROSOFT)
def qlinear_where(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Both sides in the output's scale, then Where of 8-bit values."""
    build = NodeBuilder(graph, node)
    scale, zero_point = node.input[7], optional_input(node, 8)
    sides = [_requantized(build, quantized_input(node, i), scale, zero_point) for i in (1, 4)]
    build.add("Where", node.input[0], *sides, output=node.output[0])
    return build.nodes


@rewrites("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """All parts in the output's scale, then Concat of 8-bit values."""
    if len(node.input) < 5 or (len(node.input) - 2) % 3:
        raise ModelError(f"{describe(node)} has {len(node.input)} inputs; it has 2 and 3 per part")
    build = NodeBuilder(graph, node)
    parts = [
        _requantized(build, quantized_input(node, position), node.input[0], node.input[1])
        for position in range(2, len(node.input), 3)
    ]
    build.add("Concat", *parts, output=node.output[0], axis=attributes_of(node)["axis"])
    return build.nodes


def _requantized(build: NodeBuilder, q: Quantized, scale: str, zero_point: str) -> str:
    """A value in another scale and zero point; itself if they are the same constants."""
    node, graph = build.source, build.graph
    check_per_tensor(node, graph, q.scale, q.zero_point, scale, zero_point)
    pairs = ((q.scale, scale), (q.zero_point, zero_point))
    if all(_same(graph, left, right) for left, right in pairs):
        return q.value
    elem_type = quantized_type(node, graph, zero_point or q.value)
    return quantize(build, dequantize(build, q), scale, zero_point, elem_type, "")


def _same(graph: Graph, left: str, right: str) -> bool:
    """Whether two names stand for the same number and type."""
    if left == right:
        return True
    arrays = [graph.constants.get(name) for name in (left, right)]
    if arrays[0] is None or arrays[1] is None:
        return False
    same_type = arrays[0].dtype == arrays[1].dtype
    return same_type and bool((arrays[0].ravel() == arrays[1].ravel()).all())
