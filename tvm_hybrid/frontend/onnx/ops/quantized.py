"""Converters of quantised operators to the forms that the low-precision passes recognise.

operator               Relax
MatMulInteger          R.matmul(R.subtract(R.astype(a, "int32"), za), R.astype(b, "int32"),
                       out_dtype="int32"); a zero point of 0 leaves no subtract
ConvInteger            R.nn.conv2d of such operands
QuantizeLinear         R.quantize(x, scale, zero_point)
DequantizeLinear       R.dequantize(q, scale, zero_point)
DynamicQuantizeLinear  relay_passes.ir.dynamic_quantize
DequantizeBlocks       R.reshape((R.reshape(q, [K / b, b, N]) - zero_point) * scale, [K, N])

Weights stay 8-bit constants: what multiplies them widens them. A scale or zero point of one
element is of rank 0. DequantizeBlocks is the front end's own (rewrites/integer_matmul.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax

from relay_passes.ir.dynamic_quantize import emit_dynamic_quantize
from relay_passes.ir.quantization import centred

from ...expressions import (
    Attrs,
    Expr,
    Inputs,
    cast,
    constant,
    current_builder,
    dtype_of,
    known_dims,
    literal,
    normalize,
    rank_of,
    reshaped,
)
from ..graph.graph import CONTRIB_DOMAIN, OWN_DOMAIN
from ..graph.requests import check_equal, check_product
from ..graph.sizes import dims_of, index, is_open
from ..operators import operator
from .windows import check_channels, kernel_of, with_pads


@operator("MatMulInteger")
def _matmul_integer(inputs: Inputs, attrs: Attrs) -> Expr:
    check_product(*inputs[:2])
    left, right = inputs[2], inputs[3]
    if left is not None:  # [M], one value for each row
        left = _parameter(left, (-1, 1))
    if right is not None:  # [N], one value for each column
        right = _parameter(right, (-1,))
    a, b = centred(normalize, inputs[0], left), centred(normalize, inputs[1], right)
    return relax.op.matmul(a, b, out_dtype="int32")


@operator("ConvInteger")
def _conv_integer(inputs: Inputs, attrs: Attrs) -> Expr:
    rank = rank_of(inputs[0]) - 2
    if rank not in _CONVOLUTIONS:
        raise ValueError(f"a convolution over {rank} dimensions is not supported")
    check_channels(inputs[0], inputs[1], attrs)
    left, right = inputs[2], inputs[3]
    if left is not None:
        left = _parameter(left, ())
    if right is not None:  # one value for each output channel
        right = _parameter(right, (-1, 1, *(1 for _ in range(rank))))
    x, attrs = with_pads("ConvInteger", inputs[0], kernel_of(inputs[1], attrs), attrs)
    # What is padded is 0 once the zero point is subtracted: the operator pads with zero points.
    return _CONVOLUTIONS[rank](
        centred(normalize, x, left),
        centred(normalize, inputs[1], right),
        strides=attrs.get("strides", (1,) * rank),
        padding=attrs["pads"],
        dilation=attrs.get("dilations", (1,) * rank),
        groups=attrs.get("group", 1),
        out_dtype="int32",
    )


_CONVOLUTIONS: dict[int, Callable[..., Expr]] = {
    1: relax.op.nn.conv1d,
    2: relax.op.nn.conv2d,
    3: relax.op.nn.conv3d,
}


@operator("QuantizeLinear")
def _quantize_linear(inputs: Inputs, attrs: Attrs) -> Expr:
    # Narrower floats and int32 are divided in float32, as ONNX Runtime does.
    x, scale = (cast(value, "float32") for value in inputs[:2])
    scale = _parameter(scale, (-1,))
    axis = _axis(x, scale, attrs)
    zero_point = inputs[2]
    if zero_point is not None:
        dtype = dtype_of(zero_point)
        zero_point = _parameter(zero_point, (-1,))
    else:
        code = attrs.get("output_dtype", 0)
        dtype = str(helper.tensor_dtype_to_np_dtype(code)) if code else "uint8"
        zero_point = literal(np.zeros(known_dims(scale), dtype))
    return relax.op.quantize(x, scale, zero_point, axis=axis, out_dtype=dtype)


@operator("DequantizeLinear")
def _dequantize_linear(inputs: Inputs, attrs: Attrs) -> Expr:
    q, scale, zero_point = inputs[0], inputs[1], inputs[2]
    code = attrs.get("output_dtype", 0)
    dtype = str(helper.tensor_dtype_to_np_dtype(code)) if code else dtype_of(scale)
    scale = _parameter(cast(scale, "float32"), (-1,))
    if zero_point is None:
        zero_point = literal(np.zeros(known_dims(scale), dtype_of(q)))
    zero_point = _parameter(zero_point, (-1,))
    # Products of 8 or 16 bits and a narrower float are exact in float32: one rounding in all.
    axis = _axis(q, scale, attrs)
    wide = normalize(relax.op.dequantize(q, scale, zero_point, axis, "float32"))
    return cast(wide, dtype)


@operator("DynamicQuantizeLinear")
def _dynamic_quantize_linear(inputs: Inputs, attrs: Attrs) -> Expr:
    return relax.Tuple(list(emit_dynamic_quantize(current_builder(), inputs[0])))


@operator("DequantizeBlocks", domain=OWN_DOMAIN, static=True)
def _dequantize_blocks(inputs: Inputs, attrs: Attrs) -> Expr:
    q, scale, zero_point = inputs[0], inputs[1], inputs[2]
    dims, grid = known_dims(q), known_dims(scale)
    axis, block = attrs["axis"], attrs["block_size"]
    blocks = grid[axis]
    missing = blocks * block - dims[axis]
    if missing:  # the last block is short
        q = _padded(q, axis, missing)
    split = (*dims[:axis], blocks, block, *dims[axis + 1 :])
    singles = (*grid[: axis + 1], 1, *grid[axis + 1 :])
    value = normalize(relax.op.astype(reshaped(q, split), "float32"))
    offsets = None if zero_point is None else constant(zero_point)
    if zero_point is not None and (offsets is None or offsets.any()):
        offset = reshaped(cast(zero_point, "float32"), singles)
        value = normalize(relax.op.subtract(value, offset))
    factor = reshaped(cast(scale, "float32"), singles)
    value = normalize(relax.op.multiply(value, factor))
    whole = (*dims[:axis], blocks * block, *dims[axis + 1 :])
    value = normalize(relax.op.reshape(value, whole))
    if missing:
        value = normalize(relax.op.strided_slice(value, [axis], [0], [dims[axis]]))
    return cast(value, dtype_of(scale))


def _padded(q: Expr, axis: int, count: int) -> Expr:
    array = constant(q)
    rank = len(known_dims(q))
    if array is not None:
        widths = [(0, count if position == axis else 0) for position in range(rank)]
        return literal(np.pad(array, widths))
    flat = [0, 0] * rank
    flat[2 * axis + 1] = count
    return normalize(relax.op.nn.pad(q, flat))


def _parameter(value: Expr, vector: Sequence[int]) -> Expr:
    """A scale or zero point: [] if it has one element, a vector in the shape `vector`."""
    dims = known_dims(value)
    if np.prod(dims) == 1:
        return reshaped(value, ())
    if len(dims) != 1:
        return value
    return reshaped(value, [dims[0] if size == -1 else size for size in vector])


def _axis(x: Expr, scale: Expr, attrs: Attrs) -> int:
    """The axis of a per-axis scale, counted from the front; -1 for one scale.

    An open size along it is as many as there are scales.
    """
    rank, scales = rank_of(x), known_dims(scale)
    if not scales:
        return -1
    # The default is 1 even where there is one axis.
    axis = 0 if rank == 1 else int(attrs.get("axis", 1)) % rank
    if len(scales) == 1 and is_open(x):
        check_equal(dims_of(x)[axis], index(scales[0]))
    return axis


@operator("MatMulInteger16", domain=CONTRIB_DOMAIN, static=True)
def _matmul_integer_16(inputs: Inputs, attrs: Attrs) -> Any:
    """ONNX Runtime's product of int16 or uint16, in 32 bits."""
    unsigned = all(dtype_of(each) == "uint16" for each in inputs)
    wide = "uint32" if unsigned else "int32"
    return relax.op.matmul(*(cast(each, wide) for each in inputs))
