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

    out, zero = amount >= ex.number(x, bits), ex.number(x, 0)
    if not dtype.startswith("uint"):
        out = relax.op.logical_or(out, amount < zero)
    shifted = shift(x, relax.op.where(out, ex.number(x, bits - 1), amount))
    if not left and not dtype.startswith("uint"):
        return shifted  # nothing but the sign is left
    return relax.op.where(out, zero, shifted)


@operator("Mod")
def _mod(inputs: Inputs, attrs: Attrs) -> Any:
    x, divisor = inputs
    dtype = ex.dtype_of(x)
    if attrs.get("fmod", 0):
        return relax.op.mod(x, divisor)
    if "float" not in dtype:
        return relax.op.floor_mod(x, divisor)
    zero = ex.number(x, 0)
    rest, below = ex.normalize(relax.op.mod(x, divisor)), ex.normalize(divisor < zero)
    differ = relax.op.logical_xor(rest < zero, below)
    moved = ex.normalize(relax.op.where(differ, rest + divisor, rest))
    signed = ex.normalize(relax.op.where(below, ex.number(x, -0.0), zero))
    return relax.op.where(relax.op.equal(rest, zero), signed, moved)


@operator("IsInf")
def _is_inf(inputs: Inputs, attrs: Attrs) -> Any:
    x = inputs[0]
    both = attrs.get("detect_positive", 1), attrs.get("detect_negative", 1)
    if all(both):
        return relax.op.isinf(x)
    if not any(both):
        return relax.op.logical_and(relax.op.isinf(x), ex.literal(np.array(False)))
    return relax.op.equal(x, ex.number(x, np.inf if both[0] else -np.inf))


@operator("Sign")
def _sign(inputs: Inputs, attrs: Attrs) -> Any:
    x = inputs[0]
    is_unsigned = ex.dtype_of(x).startswith("uint")
    return relax.op.minimum(x, ex.number(x, 1)) if is_unsigned else relax.op.sign(x)


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
            return x * x
    if "float" not in dtype and "float" not in ex.dtype_of(exponent):
        return integer_power(x, exponent)
    if dtype == ex.dtype_of(exponent) != "bfloat16":
        return relax.op.power(x, exponent)
    fits = ex.dtype_of(exponent) in _EXACT_IN_FLOAT32
    if known is not None and not fits:
        is_small = (known >= -_LARGEST_EXACT) & (known <= _LARGEST_EXACT)
        fits = bool((is_small & (known == np.trunc(known))).all())
    computed = "float32" if dtype in _EXACT_IN_FLOAT32 and fits else "float64"
    power = relax.op.power(ex.cast(x, computed), ex.cast(exponent, computed))
    return ex.cast(power, dtype)


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
    odd = ex.normalize(relax.op.bitwise_and(exponent, ex.number(exponent, 1)))
    most = ex.number(exponent, _MOST)
    bits = ex.cast(relax.op.where(exponent >= most, odd + most, exponent), "int32")
    power, square = ex.number(x, 1), x
    for bit in range((_MOST + 1).bit_length()):
        one = relax.op.bitwise_and(bits, ex.number(bits, 1 << bit))
        chosen = relax.op.not_equal(one, ex.number(bits, 0))
        power = ex.normalize(relax.op.where(chosen, power * square, power))
        square = ex.normalize(square * square)
    if ex.dtype_of(exponent).startswith("uint"):
        return power
    # 1 / x ** n is 0 but for x of 1 and -1.
    unit = relax.op.logical_or(*(relax.op.equal(x, ex.number(x, unit)) for unit in (1, -1)))
    is_odd = relax.op.not_equal(odd, ex.number(exponent, 0))
    signed = relax.op.where(is_odd, x, ex.number(x, 1))
    inverse = ex.normalize(relax.op.where(unit, signed, ex.number(x, 0)))
    return relax.op.where(exponent < ex.number(exponent, 0), inverse, power)
