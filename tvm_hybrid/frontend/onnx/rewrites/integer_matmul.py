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
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph.graph import OWN_DOMAIN, Graph, describe
from ..graph.node_builder import NodeBuilder, attributes_of, known_shape, optional_input
from .quantized import (
    MICROSOFT,
    Quantized,
    check_per_tensor,
    quantize,
    quantized_input,
    quantized_type,
)
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


@rewrites("FusedMatMul", "TransposeMatMul", domain="com.microsoft")
def fused_matmul(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """ONNX Runtime's FusedMatMul in standard operators.

    FusedMatMul(a, b, transA, transB, alpha)    ->    Mul(MatMul(a or Transpose(a), ...), alpha)

    Writes the transposes and the factor out.
    """
    attributes = attributes_of(node)
    if attributes.get("transBatchA") or attributes.get("transBatchB"):
        raise UnsupportedOperatorError(f"{describe(node)}: transBatchA/transBatchB is unsupported")
    build = NodeBuilder(graph, node)
    operands = []
    for name, flag in zip(node.input, ("transA", "transB"), strict=True):
        operands.append(_transposed(build, node, name) if attributes.get(flag) else name)
    alpha = attributes.get("alpha", 1.0)
    if alpha == 1.0:
        build.add("MatMul", *operands, output=node.output[0])
    else:
        dtype = helper.tensor_dtype_to_np_dtype(graph.elem_type(node.input[0]) or 1)
        product = build.add("MatMul", *operands)
        build.add("Mul", product, build.constant(np.array(alpha, dtype)), output=node.output[0])
    return build.nodes


def _transposed(build: NodeBuilder, node: onnx.NodeProto, name: str) -> str:
    shape = build.graph.shape(name)
    if shape is None:
        raise UnsupportedOperatorError(f"{describe(node)}: the rank of input {name!r} is unknown")
    if len(shape) < 2:  # ONNX Runtime ignores the flag for vectors
        return name
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    return build.add("Transpose", name, perm=order)


@rewrites("Gemm")
def gemm(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Gemm without attributes: factors and transposes go into constants where there are some.

    Gemm(a, W, c, alpha=2, beta=0.5, transB=1)    ->    Gemm(a, constant 2*W^T, constant c/2)

    What is not constant is written out as Transpose and Mul.

    Applies alpha to b, beta to c and the transposes; None if there is nothing to apply.
    """
    attributes = attributes_of(node)
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    if not node.attribute or not graph.elem_type(node.input[0]):
        return None
    build = NodeBuilder(graph, node)
    dtype = helper.tensor_dtype_to_np_dtype(graph.elem_type(node.input[0]))

    def scaled(name: str, factor: float) -> str:
        return build.add("Mul", name, build.constant(np.array(factor, dtype)))

    a, b, c = node.input[0], node.input[1], optional_input(node, 2)
    if attributes.get("transA"):
        a = build.add("Transpose", a, perm=[1, 0])
    if attributes.get("transB"):
        b = build.add("Transpose", b, perm=[1, 0])
    if alpha != 1.0 and node.input[1] in graph.constants:
        b = scaled(b, alpha)
    elif alpha != 1.0:
        a = scaled(a, alpha)
    if c and beta == 0.0:
        c = ""
    elif c and beta != 1.0:
        c = scaled(c, beta)
    build.add("Gemm", *((a, b, c) if c else (a, b)), output=node.output[0])
    return build.nodes


# ONNX Runtime's product with a weight of few bits, unpacked to one number per byte.
#
#     MatMulNBits(x, B: uint8 [N, K / b, b * bits / 8], scales: [N, K / b], zero_points, bias)
#         ->  MatMul(x, DequantizeBlocks(weight: int8 [K, N], scales^T, zero_points^T)) + bias
#
# Without zero points the middle of the range stands for 0: the weight is stored as the difference
# from it. Whatever accuracy_level permits, x is multiplied as it is.


BITS = (2, 4, 8)


@rewrites("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Unpacks the weight; MatMul with its dequantised blocks."""
    attributes = attributes_of(node)
    bits, block = attributes.get("bits", 4), attributes["block_size"]
    columns, depth = attributes["N"], attributes["K"]
    if bits not in BITS or block < 1 or block * bits % 8:
        raise UnsupportedOperatorError(f"{describe(node)}: {bits} bits in blocks of {block}")
    if optional_input(node, 4):
        raise UnsupportedOperatorError(
            f"{describe(node)}: g_idx (rows in another order) is not supported; quantise without it"
        )
    if attributes.get("weight_prepacked", 0):
        raise UnsupportedOperatorError(f"{describe(node)}: its weight is packed for a GPU")
    blocks = -(-depth // block)
    build = NodeBuilder(graph, node)
    packed = _constant(node, graph, 1, (columns, blocks, block * bits // 8))
    weight = unpack(packed, bits).reshape(columns, blocks * block)[:, :depth]
    scales = _constant(node, graph, 2, (columns, blocks))
    offsets = _offsets(node, graph, columns, blocks, bits)
    middle = 1 << (bits - 1)
    if offsets is None or (offsets == middle).all():
        weight, offsets = (weight.astype(np.int16) - middle).astype(np.int8), None
    # int8 or uint8 [K, N], which the product reads by rows.
    q = build.constant(np.ascontiguousarray(weight.T))
    zero_point = "" if offsets is None else build.constant(np.ascontiguousarray(offsets.T))
    scale = build.constant(np.ascontiguousarray(scales.T))
    value = dequantize_blocks(build, q, scale, zero_point, 0, block)
    bias = optional_input(node, 5)
    if not bias:
        build.add("MatMul", node.input[0], value, output=node.output[0])
        return build.nodes
    product = build.add("MatMul", node.input[0], value)
    build.add("Add", product, bias, output=node.output[0])
    return build.nodes


def unpack(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Numbers of 2, 4 or 8 bits along the last axis, the lowest bits of each byte first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], packed.shape[-1] * len(shifts))


def _offsets(
    node: onnx.NodeProto, graph: Graph, columns: int, blocks: int, bits: int
) -> NDArray[Any] | None:
    """Zero points ``[N, blocks]``: packed ones as uint8, float ones as they are."""
    if not optional_input(node, 3):
        return None
    per_row = -(-blocks * bits // 8)
    array = graph.constants.get(node.input[3])
    if array is not None and array.dtype == np.uint8:
        packed = _constant(node, graph, 3, (columns, per_row))
        return unpack(packed, bits)[:, :blocks]
    return _constant(node, graph, 3, (columns, blocks))


def _constant(
    node: onnx.NodeProto, graph: Graph, position: int, shape: tuple[int, ...]
) -> NDArray[Any]:
    """The array of a constant input; older models store scales and zero points flat."""
    name = node.input[position]
    array = graph.constants.get(name)
    if array is None:
        raise UnsupportedOperatorError(f"{describe(node)}: {name!r} must be a constant")
    if array.shape != shape and array.shape != (int(np.prod(shape)),):
        raise ModelError(
            f"{describe(node)}: {name!r} has the shape {array.shape}; its attributes ask for "
            f"{shape}"
        )
    return array.reshape(shape)


# Quantised matrix products as integer products, as ONNX Runtime computes them.
#
#     QLinearMatMul(a, sa, za, b, sb, zb, sy, zy)
#         ->  QuantizeLinear(Cast(MatMulInteger(a, b, za, zb)) * (sa * sb / sy), 1, zy)
#     QGemm(A, sa, za, B, sb, zb, C, sy, zy, transA, transB, alpha)
#         ->  QuantizeLinear(Cast(MatMulInteger(A', B', za, zb) + C) * (alpha * sa * sb / sy), 1,
#         zy)
#
# The product of the scales is one float32 number per tensor or column, computed in that order;
# where the scales are constant it is a constant. Without sy the result of QGemm stays float.


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


def dequantize_blocks(
    build: NodeBuilder,
    q: str,
    scale: str,
    zero_point: str,
    axis: int,
    block: int,
    output: str = "",
) -> str:
    """DequantizeBlocks: the front end's own operator for values with one scale per block of an
    axis.

        DequantizeBlocks(q: [K, N], scale: [K / b, N], zero_point: [K / b, N], axis=0, block_size=b)
            =   (q - zero_point) * scale, each repeated b times along the axis

    Like DequantizeLinear of opset 21, but for every opset, with zero points that may be floats, and
    never computed ahead: weights stay as small as they are.

    Writes one; the result has the type of the scale.

    Parameters
    ----------
    zero_point
        ``""`` if it is 0.
    axis
        Of the blocks; the last block may be short.
    """
    graph = build.graph
    shape = graph.shape(q)
    if shape is None:
        raise ValueError(f"the shape of {q!r} is not static")
    inputs = [q, scale, *([zero_point] if zero_point else [])]
    output = build.add(
        "DequantizeBlocks",
        *inputs,
        output=output,
        domain=OWN_DOMAIN,
        axis=axis % len(shape),
        block_size=block,
    )
    graph.declare(output, graph.elem_type(scale), shape)
    return output


@rewrites("Transpose")
def transposed_blocks(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Blocks of a weight along another axis.

        Transpose(DequantizeBlocks(w: int8 [N, K], ..., axis=1))
            ->  DequantizeBlocks(constant w^T: int8 [K, N], ..., axis=0)

    Exporters quantise the weight of a linear layer as [N, K] and transpose the floats; products
    want the integers as [K, N].
    """
    source = graph.makers.get(node.input[0])
    if source is None or source.op_type != "DequantizeBlocks":
        return None
    arrays = [graph.constants[name] for name in source.input if name in graph.constants]
    if len(arrays) < len(source.input):
        return None
    build, attributes = NodeBuilder(graph, node), attributes_of(source)
    order = attributes_of(node).get("perm") or list(range(arrays[0].ndim))[::-1]
    q, scale, *zero_point = (
        build.constant(np.ascontiguousarray(array.transpose(order))) for array in arrays
    )
    axis = list(order).index(attributes["axis"])
    dequantize_blocks(
        build, q, scale, "".join(zero_point), axis, attributes["block_size"], node.output[0]
    )
    return build.nodes
