"""QuantizeLinear and DequantizeLinear, checked; ONNX Runtime's own as the standard ones.

    DequantizeLinear(q, s, z, axis, block_size=b)    ->    DequantizeBlocks(q, s, z, axis, b)
    com.microsoft.QuantizeLinear(x, s, z)            ->    QuantizeLinear(x, s, z)

Scale and zero point must fit each other and the value: one each, one per index of an axis, or one
per block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph.graph import OWN_DOMAIN, Graph, describe
from ..graph.narrow_types import FLOATS, INTEGERS, NARROW, decode, encode, stored_type
from ..graph.node_builder import NodeBuilder, attributes_of, known_shape, optional_input
from ..reader.check_model import type_name
from .integer_matmul import dequantize_blocks
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


# Quantising in single operators: to narrow types, in blocks, and with another precision.
#
#     QuantizeLinear(x, s, z: i4)      ->    Cast(Clip(Round(x / s) + z, -8, 7))
#     QuantizeLinear(x, s, z: f8)      ->    EncodeFloat(x / s + z)
#     DequantizeLinear(q: f8, s, z)    ->    (DecodeFloat(q) - z) * s
#
# A parameter for each block of an axis is gathered so often as the block has elements.


_LIMITS = {
    **INTEGERS,
    TensorProto.UINT8: (0, 255),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT16: (0, 2**16 - 1),
    TensorProto.INT16: (-(2**15), 2**15 - 1),
}


def quantize_apart(build: NodeBuilder, target: int) -> None:
    """Writes the operators of a QuantizeLinear that gives values of type `target`."""
    node, graph = build.source, build.graph
    x, scale, zero_point = node.input[0], node.input[1], optional_input(node, 2)
    output, shape = node.output[0], known_shape(graph, node, node.input[0])
    precision = attributes_of(node).get("precision") or TensorProto.FLOAT
    wide, step = (build.add("Cast", name, to=precision) for name in (x, _along(build, scale)))
    value = build.add("Div", wide, step)
    if target in FLOATS:
        if _counts(graph, zero_point):
            value = build.add("Add", value, _decoded(build, zero_point))
        encode_float(build, value, shape, target, output)
        return
    value = build.add("Round", build.add("Cast", value, to=TensorProto.FLOAT))
    if _counts(graph, zero_point):
        offset = build.add("Cast", _along(build, zero_point), to=TensorProto.FLOAT)
        value = build.add("Add", value, offset)
    low, high = (build.constant(limit, np.float32) for limit in _LIMITS[target])
    value = build.add("Clip", value, low, high)
    build.add("Cast", value, output=output, to=stored_type(target))
    if target in INTEGERS:
        graph.narrow[output] = target


def dequantize_floats(build: NodeBuilder) -> None:
    """Writes the operators of a DequantizeLinear of floats of 4 or 8 bits."""
    node, graph = build.source, build.graph
    codes, scale, zero_point = node.input[0], node.input[1], optional_input(node, 2)
    value = decode_float(build, codes)
    if _counts(graph, zero_point):
        value = build.add("Sub", value, _decoded(build, zero_point))
    step = build.add("Cast", _along(build, scale), to=TensorProto.FLOAT)
    wanted = attributes_of(node).get("output_dtype") or graph.elem_type(scale)
    build.add("Cast", build.add("Mul", value, step), output=node.output[0], to=wanted)


def _counts(graph: Graph, zero_point: str) -> bool:
    """Whether a zero point is there and not known to be 0."""
    known = graph.constants.get(zero_point)
    return bool(zero_point) and (known is None or bool(known.any()))


def _decoded(build: NodeBuilder, zero_point: str) -> str:
    return _along(build, decode_float(build, zero_point), build.graph.shape(zero_point))


def _along(build: NodeBuilder, name: str, found: tuple[int, ...] | None = None) -> str:
    """A scale or zero point as it broadcasts: one, one for each index of an axis or of blocks."""
    node, graph = build.source, build.graph
    attributes, shape = attributes_of(node), known_shape(graph, node, node.input[0])
    found = known_shape(graph, node, name) if found is None else found
    if math.prod(found) == 1 and len(found) <= 1:
        return build.reshape(name, [])
    axis = 0 if len(shape) == 1 else attributes.get("axis", 1) % len(shape)
    block = attributes.get("block_size", 0)
    if block:
        places = build.constant(np.arange(shape[axis]) // block, np.int64)
        return build.add("Gather", name, places, axis=axis)
    return build.reshape(name, [-1 if place == axis else 1 for place in range(len(shape))])


# Cast to and from types of 2, 4 or 8 bits (narrow_types.py).
#
#     Cast(x: f8, to=f16)    ->    Cast(DecodeFloat(x), to=f16)
#     Cast(x: f16, to=f8)    ->    EncodeFloat(Cast(x, to=f32))
#     Cast(x: f32, to=i4)    ->    Cast(Mod(Cast(x, to=i32) + 8, 16) - 8, to=i8)
#
# Integers keep their low bits. float64 is rounded to float32 first, as in ml_dtypes.


@rewrites("Cast")
def narrow_cast(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """A narrow float as float32, then the result from that."""
    x, attributes = node.input[0], attributes_of(node)
    source, target = graph.narrow.get(x), attributes["to"]
    if source not in FLOATS and target not in NARROW:
        return None
    build, output = NodeBuilder(graph, node), node.output[0]
    if source == target:
        build.add("Identity", x, output=output)
        return build.nodes
    if source in FLOATS:
        x = decode_float(build, x)
    if target in FLOATS:
        encode_float(build, x, graph.dims(node.input[0]), target, output)
    elif target in INTEGERS:
        low = _low_bits(build, build.add("Cast", x, to=TensorProto.INT32), *INTEGERS[target])
        build.add("Cast", low, output=output, to=stored_type(target))
        graph.narrow[output] = target
    else:
        build.add("Cast", x, output=output, to=target)
    return build.nodes


def decode_float(build: NodeBuilder, codes: str) -> str:
    """A narrow float as float32."""
    graph, elem_type = build.graph, build.graph.narrow[codes]
    if codes in graph.constants:
        return build.constant(decode(graph.constants[codes], elem_type))
    value = build.add("DecodeFloat", codes, domain=OWN_DOMAIN, elem_type=elem_type)
    dims = graph.dims(codes)
    if dims is not None:
        graph.declare(value, TensorProto.FLOAT, dims)
    return value


def encode_float(
    build: NodeBuilder,
    value: str,
    dims: Sequence[int | None] | None,
    elem_type: int,
    output: str,
) -> None:
    """A value of any type as a narrow float, by the node's attributes saturate and round_mode.

    Parameters
    ----------
    dims
        The sizes of the value, None where one is open; None if its rank is not known.
    """
    graph, attributes = build.graph, attributes_of(build.source)
    saturate, round_mode = attributes.get("saturate", 1), attributes.get("round_mode", "up")
    graph.narrow[output] = elem_type
    if value in graph.constants:
        wide = graph.constants[value].astype(np.float32)
        codes = build.constant(encode(wide, elem_type, bool(saturate), round_mode))
        graph.narrow[codes] = elem_type
        build.add("Identity", codes, output=output)
        return
    build.add(
        "EncodeFloat",
        build.add("Cast", value, to=TensorProto.FLOAT),
        output=output,
        domain=OWN_DOMAIN,
        elem_type=elem_type,
        saturate=saturate,
        round_mode=round_mode,
    )
    if dims is not None:
        graph.declare(output, TensorProto.UINT8, dims)


def _low_bits(build: NodeBuilder, value: str, low: int, high: int) -> str:
    """An int32 wrapped to a range that is a power of two."""
    first, count = build.constant(low, np.int32), build.constant(high - low + 1, np.int32)
    wrapped = build.add("Mod", build.add("Sub", value, first), count)
    return build.add("Add", wrapped, first)


@rewrites("CastLike")
def cast_like(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Replaces CastLike by Cast, once types are known.

    CastLike(x, like: int32)    ->    Cast(x, to=INT32)

    One Cast; a narrow type is that of the model.
    """
    like = node.input[1]
    elem_type = graph.narrow.get(like) or graph.elem_type(like)
    if not elem_type:
        return None
    build = NodeBuilder(graph, node)
    how = attributes_of(node)  # saturate and round_mode, as Cast has them
    build.add("Cast", node.input[0], output=node.output[0], to=elem_type, **how)
    return build.nodes
