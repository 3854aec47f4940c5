"""What the rewrites of quantised operators share: a quantised value and the way to and from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, optional_input

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
