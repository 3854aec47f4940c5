"""Converters of operators on elements and rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, te, tirx

from ... import expressions as ex
from ...expressions import Attrs, Expr, Inputs
from ..operators import operator
from .arithmetic import unchanged

# Operators whose results for some values Relax's operators leave open.
#
# operator        here
# BitCast         the same bits as another type
# BitShift        as the operator's text says beyond the width, too
# Mod             the sign of the divisor, as in Python
# IsInf           compares with one infinity or both
# Sign            of unsigned integers the smaller of each and 1


@operator("BitCast")
def _bit_cast(inputs: Inputs, attrs: Attrs) -> Any:
    x, target = inputs[0], str(helper.tensor_dtype_to_np_dtype(attrs["to"]))
    if "bool" in (target, ex.dtype_of(x)):  # whose bytes are 0 and 1
        return relax.op.astype(x, target)

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *place: tirx.reinterpret(target, x[place]))

    return ex.emit_te(compute, x, primfunc_name_hint="bit_cast")


@operator("BitShift")
def _bit_shift(inputs: Inputs, attrs: Attrs) -> Any:
    """A shift by the width or more, or by less than 0, moves all bits out."""
    x, amount = inputs
    dtype, left = ex.dtype_of(x), attrs["direction"] == "LEFT"
    shift = relax.op.left_shift if left else relax.op.right_shift
    bits = np.dtype(dtype).itemsize * 8
    known = ex.constant(amount)
    if known is not None and not ((known < 0) | (known >= bits)).any():
        return shift(x, amount)

    def number(value: int) -> Expr:
        return ex.literal(np.array(value, dtype))

    out = ex.normalize(relax.op.greater_equal(amount, number(bits)))
    if not dtype.startswith("uint"):
        below = ex.normalize(relax.op.less(amount, number(0)))
        out = ex.normalize(relax.op.logical_or(out, below))
    most = ex.normalize(relax.op.where(out, number(bits - 1), amount))
    shifted = ex.normalize(shift(x, most))
    if not left and not dtype.startswith("uint"):
        return shifted  # nothing but the sign is left
    return relax.op.where(out, number(0), shifted)


@operator("Mod")
def _mod(inputs: Inputs, attrs: Attrs) -> Any:
    x, divisor = inputs
    dtype = ex.dtype_of(x)
    if attrs.get("fmod", 0):
        return relax.op.mod(x, divisor)
    if "float" not in dtype:
        return relax.op.floor_mod(x, divisor)
    zero = ex.literal(np.array(0, dtype))

    rest = ex.normalize(relax.op.mod(x, divisor))
    below = ex.normalize(relax.op.less(divisor, zero))
    differ = ex.normalize(relax.op.logical_xor(ex.normalize(relax.op.less(rest, zero)), below))
    moved = ex.normalize(relax.op.where(differ, ex.normalize(relax.op.add(rest, divisor)), rest))
    signed = ex.normalize(relax.op.where(below, ex.literal(np.array(-0.0, dtype)), zero))
    return relax.op.where(ex.normalize(relax.op.equal(rest, zero)), signed, moved)


@operator("IsInf")
def _is_inf(inputs: Inputs, attrs: Attrs) -> Any:
    x = inputs[0]
    dtype = ex.dtype_of(x)
    both = attrs.get("detect_positive", 1), attrs.get("detect_negative", 1)
    if all(both):
        return relax.op.isinf(x)
    if not any(both):
        never = ex.literal(np.array(False))
        return relax.op.logical_and(ex.normalize(relax.op.isinf(x)), never)
    limit = np.inf if both[0] else -np.inf
    return relax.op.equal(x, ex.literal(np.array(limit, dtype)))


@operator("Sign")
def _sign(inputs: Inputs, attrs: Attrs) -> Any:
    dtype = ex.dtype_of(inputs[0])
    if not dtype.startswith("uint"):
        return relax.op.sign(inputs[0])
    return relax.op.minimum(inputs[0], ex.literal(np.array(1, dtype)))


# From here on a base of 2 or more leaves 64 bits; others depend on whether the exponent is odd.
_MOST = 64
# What float32 holds without rounding.
_EXACT_IN_FLOAT32 = ("int8", "int16", "uint8", "uint16", "float16", "bfloat16", "float32")
_LARGEST_EXACT = 2**24


@operator("Pow")
def _pow(inputs: Inputs, attrs: Attrs) -> Any:
    x, exponent = inputs
    same = unchanged("Pow", inputs)
    if same is not None:
        return same
    dtype = ex.dtype_of(x)
    known = ex.constant(exponent)
    if known is not None and known.size == 1 and known.item() == 2:
        dims = ex.static_dims(x)
        if dims is not None and known.ndim <= len(dims):
            return relax.op.multiply(x, x)
    if not _is_float(dtype) and not _is_float(ex.dtype_of(exponent)):
        return integer_power(x, exponent)
    if dtype == ex.dtype_of(exponent) != "bfloat16":
        return relax.op.power(x, exponent)
    computed = "float64"
    if dtype in _EXACT_IN_FLOAT32 and _fits_float32(exponent):
        computed = "float32"
    power = relax.op.power(ex.cast(x, computed), ex.cast(exponent, computed))
    return ex.cast(ex.normalize(power), dtype)


def _is_float(dtype: str) -> bool:
    return "float" in dtype


def _fits_float32(value: Expr) -> bool:
    """Whether float32 holds a value exactly."""
    if ex.dtype_of(value) in _EXACT_IN_FLOAT32:
        return True
    known = ex.constant(value)
    return known is not None and bool(
        ((known >= -_LARGEST_EXACT) & (known <= _LARGEST_EXACT) & (known == np.trunc(known))).all()
    )


def integer_power(x: Expr, exponent: Expr) -> Expr:
    """Converts Pow of all types; the result has the type of the base.

        Pow(x, 2)                ->    R.multiply(x, x)
        Pow(x: f32, y: i8)       ->    R.power(x, R.astype(y, "float32"))
        Pow(x: i32, y: f32)      ->    R.astype(R.power(R.astype(x, "float64"), ...), "int32")
        Pow(x: i32, y: i32)      ->    products of x, x * x, (x * x) * (x * x), ... by the bits of y

    TVM's power takes floats of one type. Powers of integers are exact where the type holds them;
    those with negative exponents are rounded towards zero.

    A power of an integer, by repeated squaring.

    More than the type holds is lost as in a product; a negative power of 0 is 0.
    """
    dtype, kind = ex.dtype_of(x), ex.dtype_of(exponent)

    def number(value: int, dtype: str) -> Expr:
        return ex.literal(np.array(value, dtype))

    odd = ex.normalize(relax.op.bitwise_and(exponent, number(1, kind)))
    above = ex.normalize(relax.op.greater_equal(exponent, number(_MOST, kind)))
    least = ex.normalize(relax.op.add(odd, number(_MOST, kind)))
    bits = ex.cast(ex.normalize(relax.op.where(above, least, exponent)), "int32")
    power, square = number(1, dtype), x
    for bit in range((_MOST + 1).bit_length()):
        one = ex.normalize(relax.op.bitwise_and(bits, number(1 << bit, "int32")))
        chosen = ex.normalize(relax.op.not_equal(one, number(0, "int32")))
        power = ex.normalize(
            relax.op.where(chosen, ex.normalize(relax.op.multiply(power, square)), power)
        )
        square = ex.normalize(relax.op.multiply(square, square))
    if kind.startswith("uint"):
        return power
    # 1 / x ** n is 0 but for x of 1 and -1.
    units = [ex.normalize(relax.op.equal(x, number(unit, dtype))) for unit in (1, -1)]
    unit = ex.normalize(relax.op.logical_or(*units))
    is_odd = ex.normalize(relax.op.not_equal(odd, number(0, kind)))
    signed = ex.normalize(relax.op.where(is_odd, x, number(1, dtype)))
    inverse = ex.normalize(relax.op.where(unit, signed, number(0, dtype)))
    negative = ex.normalize(relax.op.less(exponent, number(0, kind)))
    return relax.op.where(negative, inverse, power)
