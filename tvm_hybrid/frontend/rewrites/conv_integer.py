"""Checks ConvInteger and makes its padding explicit. The converter takes every form."""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError

from ..graph import Graph, describe
from ..node_builder import attributes_of, optional_input
from .auto_pad import auto_pad
from .quantized import check_per_tensor
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
    if attributes_of(node).get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        return auto_pad(node, graph)
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
