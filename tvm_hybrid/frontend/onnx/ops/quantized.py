"""Quantisation, in the forms that the low-precision passes recognise.

operator               Relax
QuantizeLinear         R.quantize(x, scale, zero_point)
DequantizeLinear       R.dequantize(q, scale, zero_point)
  in blocks            R.reshape((R.reshape(q, [K / b, b, N]) - zero_point) * scale, [K, N])
DynamicQuantizeLinear  relay_passes.ir.dynamic_quantize
QLinearAdd and others  the float operator between dequantize and quantize

Weights stay 8-bit constants; the products widen them. A scale or zero point of one element has
rank 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tvm import relax

from microkernels.base.arrays import RANGES
from relay_passes.ir.dynamic_quantize import emit_dynamic_quantize

from ... import expressions as ex
from ...expressions import NARROW_INPUTS, OPSET, Attrs, Expr, Inputs
from ..evaluate import computed
from ..graph.graph import CONTRIB_DOMAIN, dtype_named
from ..graph.narrow_types import FLOATS, INTEGERS, NARROW, stored_type
from ..graph.requests import check_sizes, differ
from ..graph.sizes import dims_of, index, plain
from ..operators import SOFTMAX_ALONG_AXIS, apply, operator
from ..reader.check_model import type_name
from .elementwise import decoded, encoded

_SCALES = ("float32", "float16", "bfloat16")
_PRECISIONS = (0, *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16))
_LIMITS = INTEGERS | {
    helper.np_dtype_to_tensor_dtype(np.dtype(name)): (np.iinfo(name).min, np.iinfo(name).max)
    for name in ("uint8", "int8", "uint16", "int16")
}


class Parameters(NamedTuple):
    """How a tensor is quantised.

    Attributes
    ----------
    scale : Expr
        Of rank 0 if it is a single number.
    zero_point : Expr or None
        It has the scale's shape; None if it is 0.
    axis : int
        The axis of the scales or blocks; -1 if there is one scale.
    block : int
        Elements per block; 0 if there are no blocks.
    """

    scale: Expr
    zero_point: Expr | None
    axis: int
    block: int

    def along(self, value: Expr, x: Expr) -> Expr:
        """Reshapes a scale or zero point to broadcast to the tensor x."""
        if self.axis < 0:
            return value
        if self.block:
            places = np.arange(ex.known_dims(x)[self.axis]) // self.block
            return computed("Gather", value, ex.literal(places), axis=self.axis)
        return ex.reshaped(value, [-1 if axis == self.axis else 1 for axis in range(ex.rank_of(x))])


def _parameters(x: Expr, scale: Expr, zero_point: Expr, attrs: Attrs) -> Parameters:
    """The scale and zero point of a QuantizeLinear or DequantizeLinear.

    Raises
    ------
    ValueError
        They do not fit each other or the tensor: there must be one, one for each index of an axis,
        or one for each block.
    """
    if ex.dtype_of(scale) not in _SCALES:
        raise ValueError(f"its scale is of the type {ex.dtype_of(scale)}")
    found = ex.known_dims(scale)
    offsets = found if zero_point is None else ex.known_dims(zero_point)
    if offsets != found and not math.prod(offsets) == math.prod(found) == 1:
        raise ValueError(f"its scale has the shape {found}, its zero point the shape {offsets}")
    zeros = None if zero_point is None else ex.constant(zero_point)
    if zeros is not None and not zeros.any():
        zero_point = None
    if math.prod(found) == 1 and len(found) <= 1:
        return Parameters(single(scale), single(zero_point), -1, 0)
    dims, axis, block = dims_of(x), attrs.get("axis", 1), attrs.get("block_size", 0)
    if len(dims) == axis == 1:  # axis 1 is the default, even for a vector
        axis = 0
    if not -len(dims) <= axis < len(dims):
        raise ValueError(f"axis {axis} of a value of rank {len(dims)}")
    axis %= len(dims)
    wanted = tuple(plain(dims[axis : axis + 1]))
    if block > 0:
        shape = ex.known_dims(x)
        wanted = (*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :])
    if block < 0 or len(found) != len(wanted) or any(map(differ, found, wanted)):
        blocks = f" in blocks of {block}" if block else " or one scale"
        raise ValueError(f"its scale has the shape {found}; axis {axis} needs {wanted}{blocks}")
    check_sizes([*map(index, wanted)], [*map(index, found)])
    return Parameters(scale, zero_point, axis, block)


def single(value: Expr | None) -> Any:
    """A scale or zero point of a whole tensor; ValueError if it has more than one element."""
    if value is None:
        return None
    dims = ex.known_dims(value)
    if math.prod(dims) != 1:
        one = "this operator has one scale and one zero point for a whole tensor"
        raise ValueError(f"a scale or zero point of the shape {dims}; {one}")
    return ex.reshaped(value, ())


@operator("QuantizeLinear")
@operator("QuantizeLinear", domain=CONTRIB_DOMAIN)
def _quantize_linear(x: Expr, scale: Expr, zero_point: Expr, **attrs: Any) -> Expr:
    """QuantizeLinear; narrow types, blocks and precisions other than float32 are written in steps.

    QuantizeLinear(x, s, z: i4)      ->    Cast(Clip(Round(x / s) + z, -8, 7))
    QuantizeLinear(x, s, z: f8)      ->    Cast(x / s + z)
    """
    target = attrs.get("output_dtype") or TensorProto.UINT8
    if zero_point is not None:
        target = helper.np_dtype_to_tensor_dtype(np.dtype(ex.dtype_of(zero_point)))
        target = attrs.get(NARROW_INPUTS, {}).get(2, target)
    if target not in _LIMITS and target not in FLOATS - {TensorProto.FLOAT8E8M0}:
        raise ValueError(f"quantising to {type_name(target)} is not supported")
    precision = attrs.get("precision", 0)
    if precision not in (*_PRECISIONS, TensorProto.DOUBLE):
        raise ValueError(f"a precision of {type_name(precision)}")
    how = _parameters(x, scale, zero_point, attrs)
    if not (target in NARROW or how.block or precision not in (0, TensorProto.FLOAT)):
        # Narrower floats and int32 are divided in float32, as ONNX Runtime does.
        dtype, x = dtype_named(target), ex.cast(x, "float32")
        scale, zeros = ex.cast(how.scale, "float32"), _zeros(how, dtype)
        return relax.op.quantize(x, scale, zeros, axis=how.axis, out_dtype=dtype)
    wide = dtype_named(precision or TensorProto.FLOAT)
    value = computed("Div", ex.cast(x, wide), ex.cast(how.along(how.scale, x), wide))
    offset = how.zero_point
    if target in FLOATS:
        if offset is not None:
            value = computed("Add", value, how.along(decoded(offset, target), x))
        return encoded(value, target, **attrs)
    value = apply("Round", ex.cast(value, "float32"))
    if offset is not None:
        value = apply("Add", value, ex.cast(how.along(offset, x), "float32"))
    low, high = _LIMITS[target]
    value = apply("Clip", value, min=float(low), max=float(high))
    return relax.op.astype(value, dtype_named(stored_type(target)))


def _zeros(how: Parameters, dtype: str) -> Expr:
    """The zero point, as zeros if it is absent."""
    if how.zero_point is not None:
        return how.zero_point
    return ex.literal(np.zeros(ex.known_dims(how.scale), dtype))


@operator("DequantizeLinear")
@operator("DequantizeLinear", domain=CONTRIB_DOMAIN)
def _dequantize_linear(q: Expr, scale: Expr, zero_point: Expr, **attrs: Any) -> Expr:
    narrow, code = attrs.get(NARROW_INPUTS, {}), attrs.get("output_dtype", 0)
    if ex.dtype_of(q) not in ("uint8", "int8", "uint16", "int16", "int32"):
        raise ValueError(f"dequantising {ex.dtype_of(q)} is not supported")
    if zero_point is not None:
        zeros = ex.constant(zero_point)
        differ = zeros is None and narrow.get(0) != narrow.get(2)
        if differ or ex.dtype_of(zero_point) != ex.dtype_of(q):
            raise ValueError("its zero point is of another type than the value")
        if ex.dtype_of(q) == "int32" and zeros is not None and zeros.any():
            raise ValueError("the zero point of an int32 value must be 0")
    how = _parameters(q, scale, zero_point, attrs)
    dtype, scale = dtype_named(code) if code else ex.dtype_of(scale), ex.cast(how.scale, "float32")
    if narrow.get(0) in FLOATS:
        value = decoded(q, narrow[0])
        if how.zero_point is not None:
            value = computed("Sub", value, how.along(decoded(how.zero_point, narrow[0]), q))
        return ex.cast(computed("Mul", value, how.along(scale, q)), dtype)
    if how.block:
        return ex.cast(dequantized_blocks(q, how), dtype)
    # Products of 8 or 16 bits and a narrower float are exact in float32, so there is one rounding.
    zeros = _zeros(how, ex.dtype_of(q))
    return ex.cast(relax.op.dequantize(q, scale, zeros, how.axis, "float32"), dtype)


@operator("DynamicQuantizeLinear")
def _dynamic_quantize_linear(x: Expr) -> Expr:
    return relax.Tuple(list(emit_dynamic_quantize(ex.current_builder(), x)))


# One scale and zero point for each block along an axis.
#
#     q: [K, N], scale: [K / b, N], zero_point: [K / b, N]
#         ->  (q - zero_point) * scale, each repeated b times along the axis
#
# Never folded, so that weights stay small. Zero points may be floats.


def dequantized_blocks(q: Expr, how: Parameters) -> Expr:
    """The float32 values; the last block may be shorter."""
    dims, grid, axis, block = ex.known_dims(q), ex.known_dims(how.scale), how.axis, how.block
    blocks = grid[axis]
    missing = blocks * block - dims[axis]
    if missing:
        widths = [(0, missing if place == axis else 0) for place in range(len(dims))]
        array, flat = ex.constant(q), [width for pair in widths for width in pair]
        q = relax.op.nn.pad(q, flat) if array is None else ex.literal(np.pad(array, widths))
    singles = (*grid[: axis + 1], 1, *grid[axis + 1 :])
    split = ex.reshaped(q, (*dims[:axis], blocks, block, *dims[axis + 1 :]))
    value = relax.op.astype(split, "float32")
    if how.zero_point is not None:
        value = value - ex.reshaped(ex.cast(how.zero_point, "float32"), singles)
    value = value * ex.reshaped(ex.cast(how.scale, "float32"), singles)
    value = relax.op.reshape(value, (*dims[:axis], blocks * block, *dims[axis + 1 :]))
    if missing:
        value = relax.op.strided_slice(value, [axis], [0], [dims[axis]])
    return ex.normalize(value)


BITS = (2, 4, 8)


def unpack(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Unpacks numbers of 2, 4 or 8 bits along the last axis, lowest bits of each byte first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], packed.shape[-1] * len(shifts))


@operator("GatherBlockQuantized", domain=CONTRIB_DOMAIN)
def _gather_block_quantized(
    data: Expr, indices: Expr, scale: Expr, zero_point: Expr, **attrs: Any
) -> Expr:
    """Gathers and dequantizes rows of a packed table with their scales and zero points."""
    table, scales, offsets = map(ex.constant, (data, scale, zero_point))
    if table is None or scales is None or (offsets is None and zero_point is not None):
        raise ValueError("its table must be constant")
    bits = attrs.get("bits", 4)
    if 0 not in attrs.get(NARROW_INPUTS, {}):
        if table.dtype != np.uint8 or bits not in BITS:
            raise ValueError(f"a table of {table.dtype} with {bits} bits is not supported")
        table = unpack(table, bits)
        if offsets is None:
            offsets = np.full(scales.shape, 1 << (bits - 1), np.uint8)
        else:
            offsets = unpack(offsets, bits)[..., : scales.shape[-1]]
    axis = attrs.get("quantize_axis", 1) % table.ndim
    rows = attrs.get("gather_axis", 0) % table.ndim
    if axis == rows:
        raise ValueError("it gathers along the blocks' axis")
    # An index outside the table reads the last row; ONNX Runtime gives zeros.
    q, scale, zero_point = (
        None if each is None else apply("Gather", ex.literal(each), indices, axis=rows)
        for each in (table, scales, offsets)
    )
    moved = axis + ex.rank_of(indices) - 1 if axis > rows else axis
    how = Parameters(scale, zero_point, moved, attrs.get("block_size", 128))
    return ex.cast(dequantized_blocks(q, how), ex.dtype_of(scale))


# ONNX Runtime's quantised operators: the float operator between dequantize and quantize.
#
#     QLinearAdd(a, sa, za, b, sb, zb, sy, zy)
#         ->  QuantizeLinear(Add(DequantizeLinear(a, sa, za), DequantizeLinear(b, sb, zb)), sy, zy)
#
# As in ONNX Runtime, QLinearAdd, QLinearMul and QLinearAveragePool round after the zero point is
# added, the others before. ONNX Runtime multiplies by sa / sy, while this multiplies by sa and
# divides by sy: a result within a rounding error of a tie can differ by one. Means become sums of
# integers (relay_passes/quantize/integer_mean.py), which it multiplies by another rounded factor.


class Quantized(NamedTuple):
    """A quantised value; it represents (value - zero_point) * scale."""

    value: Expr
    scale: Expr
    zero_point: Expr | None


def quantized(inputs: Inputs, position: int) -> Quantized:
    """Three successive inputs as value, scale and zero point."""
    return Quantized(*(inputs[position + number] for number in range(3)))


def requantized(value: Expr, scale: Expr, zero_point: Expr | None, dtype: str) -> Expr:
    """Quantises a float value to 8 bits; without a zero point it is 0 of the type `dtype`."""
    dtype = dtype if zero_point is None else ex.dtype_of(zero_point)
    if dtype not in RANGES:
        raise ValueError(f"a quantised value must be uint8 or int8, and is {dtype}")
    if zero_point is None:
        zero_point = ex.literal(np.zeros((), dtype))
    return apply("QuantizeLinear", value, single(scale), single(zero_point))


def channels_first(value: Expr, compute: Callable[[Expr], Expr]) -> Expr:
    """Applies a function of [N, C, ...] tensors to a tensor [N, ..., C]."""
    rank = ex.rank_of(value)
    moved = apply("Transpose", value, perm=[0, rank - 1, *range(1, rank - 1)])
    return apply("Transpose", compute(moved), perm=[0, *range(2, rank), 1])


def _between(
    *given: Expr, name: str, operands: int = 1, rounds_last: bool = False, **attrs: Any
) -> Expr:
    """A float operator between dequantize and quantize; transposes if channels are last.

    Parameters
    ----------
    operands : int
        Number of operands.
    rounds_last : bool
        Whether the zero point is added before the result is rounded.
    """

    inputs = Inputs(given)
    values = [_dequantized(quantized(inputs, 3 * number)) for number in range(operands)]
    if name == "Softmax":  # along one axis; in the old form along it and all later axes
        opset = attrs.get("opset", SOFTMAX_ALONG_AXIS)
        attrs = {"axis": attrs.get("axis", -1), OPSET: opset}
    if attrs.get("channels_last", 0):
        result = channels_first(values[0], lambda value: apply(name, value, **attrs))
    else:
        result = apply(name, *values, **attrs)
    scale, zero_point = inputs[3 * operands], inputs[3 * operands + 1]
    dtype = ex.dtype_of(inputs[0] if zero_point is None else zero_point)
    if rounds_last and zero_point is not None:
        result, zero_point = _with_odd_part(result, single(scale), single(zero_point))
    return requantized(result, scale, zero_point, dtype)


def _dequantized(q: Quantized) -> Expr:
    return apply("DequantizeLinear", q.value, single(q.scale), single(q.zero_point))


def _with_odd_part(value: Expr, scale: Expr, zero_point: Expr) -> tuple[Expr, Expr | None]:
    """A value and a zero point that let QuantizeLinear round x / scale + zero_point as a whole."""
    known = ex.constant(zero_point)
    if known is None:
        return apply("Add", value, apply("Mul", scale, ex.cast(zero_point, "float32"))), None
    # QuantizeLinear adds the zero point after rounding ties to even. For an even zero point this is
    # equal; for an odd one, one scale is added to the value instead.
    if known.item() % 2 == 0:
        return value, zero_point
    return apply("Add", value, scale), ex.literal(known - known.dtype.type(1))


_ROUNDED_LAST = {"Add": 2, "Mul": 2, "AveragePool": 1}  # operator -> number of operands
_ONE_OPERAND = ("Sigmoid", "LeakyRelu", "ReduceMean", "Softmax", "GlobalAveragePool")
for _name, _operands in {**dict.fromkeys(_ONE_OPERAND, 1), **_ROUNDED_LAST}.items():
    operator(f"QLinear{_name}", domain=CONTRIB_DOMAIN)(
        partial(_between, name=_name, operands=_operands, rounds_last=_name in _ROUNDED_LAST)
    )


@operator("QLinearWhere", domain=CONTRIB_DOMAIN)
def _qlinear_where(condition: Expr, *given: Expr) -> Expr:
    """Converts both sides of a QLinearWhere to the output's scale, then selects 8-bit values."""
    sides = (_in_scale(Quantized(*given[place : place + 3]), *given[6:]) for place in (0, 3))
    return apply("Where", condition, *sides)


@operator("QLinearConcat", domain=CONTRIB_DOMAIN)
def _qlinear_concat(*inputs: Expr, axis: int) -> Expr:
    """Converts all parts of a QLinearConcat to the output's scale, then concatenates them."""
    if len(inputs) < 5 or (len(inputs) - 2) % 3:
        raise ValueError(f"it has {len(inputs)} inputs; it has 2 and 3 per part")
    places = range(2, len(inputs), 3)
    parts = (_in_scale(Quantized(*inputs[place : place + 3]), *inputs[:2]) for place in places)
    return apply("Concat", *parts, axis=axis)


def _in_scale(q: Quantized, scale: Expr, zero_point: Expr | None) -> Expr:
    """Converts a value to another scale and zero point; returns it unchanged if they are equal."""
    if _same(q.scale, scale) and _same(q.zero_point, zero_point):
        return q.value
    return requantized(_dequantized(q), scale, zero_point, ex.dtype_of(q.value))


def _same(left: Expr | None, right: Expr | None) -> bool:
    """Whether two parameters have equal values and types."""
    if left is None or right is None:
        return left is right
    arrays = [ex.constant(single(each)) for each in (left, right)]
    if arrays[0] is None or arrays[1] is None:
        return bool(left.same_as(right))
    return arrays[0].dtype == arrays[1].dtype and arrays[0].item() == arrays[1].item()
