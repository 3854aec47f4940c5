"""QuantizeLinear and DequantizeLinear, checked; ONNX Runtime's own as the standard ones.

    DequantizeLinear(q, s, z, axis, block_size=b)    ->    DequantizeBlocks(q, s, z, axis, b)
    com.microsoft.QuantizeLinear(x, s, z)            ->    QuantizeLinear(x, s, z)

Scale and zero point must fit each other and the value: one each, one per index of an axis, or one
per block.
"""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..check_model import type_name
from ..graph import Graph, describe
from ..narrow_types import FLOATS, NARROW
from ..node_builder import NodeBuilder, attributes_of, optional_input
from .dequantize_blocks import dequantize_blocks
from .quantize_apart import dequantize_floats, quantize_apart
from .quantized import MICROSOFT
from .registry import rewrites

OTHER_SCALES = 19  # the first opset whose scale may be something else than float32
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_QUANTIZED = (TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16)


@rewrites("QuantizeLinear")
def quantize_linear(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Checks; writes what is rare in single operators."""
    attributes = attributes_of(node)
    zero_point = optional_input(node, 2)
    target = attributes.get("output_dtype", 0) or TensorProto.UINT8
    if zero_point:
        target = graph.narrow.get(zero_point, graph.elem_type(zero_point))
        if attributes.get("output_dtype", 0) not in (0, target):
            raise ModelError(
                f"{describe(node)}: output_dtype is {type_name(attributes['output_dtype'])}, the "
                f"zero point {zero_point!r} is {type_name(target)}"
            )
    if target not in (0, *_QUANTIZED, *NARROW - {TensorProto.FLOAT8E8M0}):
        raise UnsupportedOperatorError(
            f"{describe(node)}: quantising to {type_name(target)} is not supported"
        )
    precision = attributes.get("precision", 0)
    if precision not in (0, *_FLOATS, TensorProto.DOUBLE):
        raise ModelError(f"{describe(node)}: a precision of {type_name(precision)}")
    _check_parameters(node, graph)
    rare = target in NARROW or precision not in (0, TensorProto.FLOAT)
    if not rare and not attributes.get("block_size"):
        return None
    build = NodeBuilder(graph, node)
    quantize_apart(build, target)
    return build.nodes


@rewrites("DequantizeLinear")
def dequantize_linear(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Checks; writes blocks out."""
    attributes = attributes_of(node)
    q, scale, zero_point = node.input[0], node.input[1], optional_input(node, 2)
    elem_type = graph.elem_type(q)
    if elem_type not in (0, *_QUANTIZED, TensorProto.INT32):
        raise UnsupportedOperatorError(
            f"{describe(node)}: dequantising {type_name(elem_type)} is not supported"
        )
    same = graph.narrow.get(zero_point) == graph.narrow.get(q) or zero_point in graph.constants
    if zero_point and elem_type and not same:
        raise ModelError(f"{describe(node)}: {q!r} and {zero_point!r} are not of one type")
    if zero_point and elem_type and graph.elem_type(zero_point) not in (0, elem_type):
        raise ModelError(
            f"{describe(node)}: {q!r} is {type_name(elem_type)}, its zero point {zero_point!r} is "
            f"{type_name(graph.elem_type(zero_point))}"
        )
    offsets = graph.constants.get(zero_point)
    if elem_type == TensorProto.INT32 and offsets is not None and offsets.any():
        raise ModelError(f"{describe(node)}: the zero point of an int32 value must be 0")
    block = attributes.get("block_size", 0)
    _check_parameters(node, graph)
    if graph.narrow.get(q) in FLOATS:
        build = NodeBuilder(graph, node)
        dequantize_floats(build)
        return build.nodes
    if not block or graph.shape(scale) in ((), (1,)):
        return None
    build = NodeBuilder(graph, node)
    axis, output = attributes.get("axis", 1), node.output[0]
    if attributes.get("output_dtype", 0) in (0, graph.elem_type(scale)):
        dequantize_blocks(build, q, scale, zero_point, axis, block, output)
    else:
        value = dequantize_blocks(build, q, scale, zero_point, axis, block)
        build.add("Cast", value, to=attributes["output_dtype"], output=output)
    return build.nodes


@rewrites("QuantizeLinear", "DequantizeLinear", domain=MICROSOFT)
def contrib(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The standard operator; in models of older opsets, which have float32 only, between casts."""
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    x, scale, *zero_point = node.input
    elem_type = graph.elem_type(scale)
    narrow = graph.opset < OTHER_SCALES and elem_type not in (0, TensorProto.FLOAT)
    if not narrow:
        inputs = (x, scale, *zero_point)
        build.add(node.op_type, *inputs, output=node.output[0], **attributes)
        return build.nodes
    scale = build.add("Cast", scale, to=TensorProto.FLOAT)
    if node.op_type == "QuantizeLinear":
        x = build.add("Cast", x, to=TensorProto.FLOAT)
        build.add("QuantizeLinear", x, scale, *zero_point, output=node.output[0], **attributes)
    else:
        value = build.add("DequantizeLinear", x, scale, *zero_point, **attributes)
        build.add("Cast", value, output=node.output[0], to=elem_type)
    return build.nodes


def _check_parameters(node: onnx.NodeProto, graph: Graph) -> None:
    """Shapes of scale and zero point, and the scale's type."""
    attributes = attributes_of(node)
    scale, zero_point = node.input[1], optional_input(node, 2)
    elem_type = graph.elem_type(scale)
    if elem_type not in (0, *_FLOATS):
        raise ModelError(f"{describe(node)}: its scale {scale!r} is {type_name(elem_type)}")
    shape, found = graph.shape(node.input[0]), graph.shape(scale)
    if shape is None or found is None:
        return
    offsets = graph.shape(zero_point) if zero_point else None
    single = offsets is not None and math.prod(offsets) == math.prod(found) == 1
    if offsets not in (None, found) and not single:
        raise ModelError(
            f"{describe(node)}: its scale {scale!r} has the shape {found}, its zero point "
            f"{zero_point!r} the shape {offsets}"
        )
    if math.prod(found) == 1 and len(found) <= 1:
        return
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    if len(shape) == 1 and axis == 1:
        axis = 0
    if not -len(shape) <= axis < len(shape):
        raise ModelError(f"{describe(node)}: axis {axis} of a value of rank {len(shape)}")
    axis %= len(shape)
    wanted: tuple[int, ...] = (shape[axis],)
    if block > 0:
        wanted = (*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :])
    if block < 0 or found != wanted:
        raise ModelError(
            f"{describe(node)}: its scale {scale!r} has the shape {found}; a value of the shape "
            f"{shape} with axis {axis} needs {wanted}"
            + (f" in blocks of {block}" if block else " or one scale")
        )
