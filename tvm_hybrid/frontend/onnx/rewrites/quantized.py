"""What the rewrites of quantised operators share: a quantised value and the way to and from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph.graph import Graph, describe
from ..graph.node_builder import (
    AXES_BY_INPUT,
    NodeBuilder,
    attributes_of,
    known_shape,
    optional_input,
)
from .registry import rewrites

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Quantized:
    """An 8-bit value and what it stands for, (value - zero_point) * scale; all are value names.

    Parameters
    ----------
    zero_point
        ``""`` if it is 0.
    """

    value: str
    scale: str
    zero_point: str


def quantized_input(node: onnx.NodeProto, position: int) -> Quantized:
    """Three inputs in a row: value, scale, zero point."""
    return Quantized(*(optional_input(node, position + index) for index in range(3)))


def dequantize(build: NodeBuilder, q: Quantized, axis: int | None = None) -> str:
    """The float32 value of `q`; `axis` is that of scales per axis."""
    inputs = [q.value, q.scale, *([q.zero_point] if q.zero_point else [])]
    if axis is None:
        return build.add("DequantizeLinear", *inputs)
    return build.add("DequantizeLinear", *inputs, axis=axis)


def quantize(
    build: NodeBuilder, value: str, scale: str, zero_point: str, elem_type: int, output: str
) -> str:
    """`value` in the 8-bit type `elem_type`; a zero point of ``""`` is 0."""
    if not zero_point:
        dtype = helper.tensor_dtype_to_np_dtype(elem_type)
        zero_point = build.constant(np.zeros(()), dtype)
    return build.add("QuantizeLinear", value, scale, zero_point, output=output)


def around(
    node: onnx.NodeProto,
    graph: Graph,
    inputs: list[int],
    result: int,
    compute: Callable[[NodeBuilder, list[str]], str],
    rounds_last: bool = False,
) -> list[onnx.NodeProto]:
    """Replaces a quantised operator by the float one between DequantizeLinear and QuantizeLinear.

    Parameters
    ----------
    inputs
        Positions of the quantised inputs (each followed by its scale and zero point).
    result
        Position of the output's scale, which its zero point follows.
    compute
        (builder, float inputs) -> float result.
    rounds_last
        Whether the zero point is added before the result is rounded.
    """
    build = NodeBuilder(graph, node)
    values = [quantized_input(node, position) for position in inputs]
    for q in values:
        check_per_tensor(node, graph, q.scale, q.zero_point)
    scale, zero_point = node.input[result], optional_input(node, result + 1)
    check_per_tensor(node, graph, scale, zero_point)
    computed = compute(build, [dequantize(build, q) for q in values])
    elem_type = quantized_type(node, graph, zero_point or values[0].value)
    if rounds_last and zero_point:
        computed, zero_point = _with_odd_part(build, computed, scale, zero_point)
    quantize(build, computed, scale, zero_point, elem_type, node.output[0])
    return build.nodes


def _with_odd_part(build: NodeBuilder, value: str, scale: str, zero_point: str) -> tuple[str, str]:
    """A value and a zero point with which QuantizeLinear rounds x / scale + zero_point.

    QuantizeLinear adds the zero point to what is rounded, ties to even. That is the same where it
    is even; of an odd one, one step goes into the value. What is known at run time only goes there
    as a whole.
    """
    known = build.graph.constants.get(zero_point)
    if known is None:
        steps = build.add("Cast", zero_point, to=TensorProto.FLOAT)
        return build.add("Add", value, build.add("Mul", scale, steps)), ""
    if known.item() % 2 == 0:
        return value, zero_point
    return build.add("Add", value, scale), build.constant(known - known.dtype.type(1))


def quantized_type(node: onnx.NodeProto, graph: Graph, name: str) -> int:
    """The element type of a quantised value, which must be uint8 or int8."""
    elem_type = graph.elem_type(name)
    if elem_type not in (TensorProto.UINT8, TensorProto.INT8):
        raise UnsupportedOperatorError(
            f"{describe(node)}: {name!r} must be uint8 or int8 to be a quantised value"
        )
    return elem_type


def check_per_tensor(node: onnx.NodeProto, graph: Graph, *names: str) -> None:
    """Refuses a scale or zero point that is more than one number."""
    for name in filter(None, names):
        shape = graph.shape(name)
        if shape is not None and math.prod(shape) != 1:
            raise ModelError(
                f"{describe(node)}: {name!r} has the shape {shape}; this operator has one scale "
                "and one zero point for a whole tensor"
            )


def channels_first(build: NodeBuilder, value: str, rank: int, compute: Callable[[str], str]) -> str:
    """Computes on [N, C, ...] what is given, and is to be made, as [N, ..., C]."""
    forward, backward = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
    return build.add("Transpose", compute(build.add("Transpose", value, perm=forward)),
                     perm=backward)  # fmt: skip


# ONNX Runtime's quantised operators on elements: the float operator between conversions.
#
#     QLinearAdd(a, sa, za, b, sb, zb, sy, zy)
#         ->  QuantizeLinear(Add(DequantizeLinear(a, sa, za), DequantizeLinear(b, sb, zb)), sy, zy)
#
# Likewise QLinearMul, QLinearSigmoid, QLinearLeakyRelu, QLinearSoftmax, QLinearWhere,
# QLinearConcat. QLinearAdd and QLinearMul round after they added the zero point, the others before,
# as in ONNX Runtime. That multiplies by sa / sy where this multiplies by sa and divides by sy: a
# result that lies within a rounding error of a tie can differ by one.


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


_SOFTMAX_ALONG_AXIS = 13


@rewrites("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Softmax along one axis, or over all axes from one on in the old form."""
    attributes = attributes_of(node)
    shape = known_shape(graph, node, node.input[0])
    axis = attributes.get("axis", -1) % max(len(shape), 1)
    flat = attributes.get("opset", _SOFTMAX_ALONG_AXIS) < _SOFTMAX_ALONG_AXIS

    def softmax(build: NodeBuilder, values: list[str]) -> str:
        if not flat:
            return build.add("Softmax", values[0], axis=axis)
        rows = build.reshape(values[0], [*shape[:axis], math.prod(shape[axis:])])
        return build.reshape(build.add("Softmax", rows, axis=-1), shape)

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


# ONNX Runtime's quantised means: the float operator between conversions.
#
#     QLinearGlobalAveragePool(x, sx, zx, sy, zy)
#         ->  QuantizeLinear(GlobalAveragePool(DequantizeLinear(x, sx, zx)), sy, zy)
#
# Likewise QLinearAveragePool, which rounds after it added the zero point (as in ONNX Runtime, whose
# other means round before), and QLinearReduceMean. relay_passes/quantize/integer_mean.py makes the
# sum one of integers, as in ONNX Runtime; that multiplies it by another rounded factor, so that a
# mean that lies within a rounding error of a tie can differ by one.


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
