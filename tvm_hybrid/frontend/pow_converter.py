"""Converts Pow of all types; the result has the type of the base.

    Pow(x, 2)                ->    R.multiply(x, x)
    Pow(x: f32, y: i8)       ->    R.power(x, R.astype(y, "float32"))
    Pow(x: i32, y: f32)      ->    R.astype(R.power(R.astype(x, "float64"), ...), "int32")
    Pow(x: i32, y: i32)      ->    products of x, x * x, (x * x) * (x * x), ... by the bits of y

TVM's power takes floats of one type. Powers of integers are exact where the type holds them; those
with negative exponents are rounded towards zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from .expressions import Converter, Expr, cast, constant, dtype_of, literal, static_dims

# From here on a base of 2 or more leaves 64 bits; others depend on whether the exponent is odd.
_MOST = 64
# What float32 holds without rounding.
_EXACT_IN_FLOAT32 = ("int8", "int16", "uint8", "uint16", "float16", "bfloat16", "float32")
_LARGEST_EXACT = 2**24


def _pow(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x, exponent = inputs
    dtype = dtype_of(x)
    known = constant(exponent)
    if known is not None and known.size == 1 and known.item() == 2:
        dims = static_dims(x)
        if dims is not None and known.ndim <= len(dims):
            return relax.op.multiply(x, x)
    if not _is_float(dtype) and not _is_float(dtype_of(exponent)):
        return integer_power(builder, x, exponent)
    if dtype == dtype_of(exponent) != "bfloat16":
        return relax.op.power(x, exponent)
    computed = "float64"
    if dtype in _EXACT_IN_FLOAT32 and _fits_float32(exponent):
        computed = "float32"
    power = relax.op.power(cast(builder, x, computed), cast(builder, exponent, computed))
    return cast(builder, builder.normalize(power), dtype)


def _is_float(dtype: str) -> bool:
    return "float" in dtype


def _fits_float32(value: Expr) -> bool:
    """Whether float32 holds a value exactly."""
    if dtype_of(value) in _EXACT_IN_FLOAT32:
        return True
    known = constant(value)
    return known is not None and bool(
        ((known >= -_LARGEST_EXACT) & (known <= _LARGEST_EXACT) & (known == np.trunc(known))).all()
    )


def integer_power(builder: relax.BlockBuilder, x: Expr, exponent: Expr) -> Expr:
    """A power of an integer, by repeated squaring.

    More than the type holds is lost as in a product; a negative power of 0 is 0.
    """
    dtype, kind = dtype_of(x), dtype_of(exponent)

    def emit(call: Expr) -> Expr:
        return builder.normalize(call)

    def number(value: int, dtype: str) -> Expr:
        return literal(np.array(value, dtype))

    odd = emit(relax.op.bitwise_and(exponent, number(1, kind)))
    above = emit(relax.op.greater_equal(exponent, number(_MOST, kind)))
    least = emit(relax.op.add(odd, number(_MOST, kind)))
    bits = cast(builder, emit(relax.op.where(above, least, exponent)), "int32")
    power, square = number(1, dtype), x
    for bit in range((_MOST + 1).bit_length()):
        one = emit(relax.op.bitwise_and(bits, number(1 << bit, "int32")))
        chosen = emit(relax.op.not_equal(one, number(0, "int32")))
        power = emit(relax.op.where(chosen, emit(relax.op.multiply(power, square)), power))
        square = emit(relax.op.multiply(square, square))
    if kind.startswith("uint"):
        return power
    # 1 / x ** n is 0 but for x of 1 and -1.
    units = [emit(relax.op.equal(x, number(unit, dtype))) for unit in (1, -1)]
    unit = emit(relax.op.logical_or(*units))
    is_odd = emit(relax.op.not_equal(odd, number(0, kind)))
    signed = emit(relax.op.where(is_odd, x, number(1, dtype)))
    inverse = emit(relax.op.where(unit, signed, number(0, dtype)))
    negative = emit(relax.op.less(exponent, number(0, kind)))
    return relax.op.where(negative, inverse, power)


POW_CONVERTERS: dict[str, Converter] = {"Pow": _pow}
