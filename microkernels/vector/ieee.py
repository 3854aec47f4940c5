"""Arithmetic on floats with its IEEE 754 meaning, which TVM and x86 do not give by themselves.

TVM simplifies floats as if they were real numbers: x * 0, 0 / x and x - x become 0, x + 0 becomes x
(so that -0 stays -0), x == x becomes true, max(0, NaN) becomes 0, x / 0 is refused, and "not x < y"
becomes y <= x, which differs for a NaN. The functions here hide an argument from TVM where that may
happen. LLVM removes `hidden`, so it costs nothing.

x86 has no symmetric minimum and maximum: both give their second argument if either is a NaN. So a
constant goes first, which costs nothing. With two variables it takes more instructions.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import tirx

from .expressions import Expr, bind, by_llvm, cast, element_of, like, reinterpret
from .placeholders import Placeholder

LOWEST = float(np.finfo(np.float32).min)
"""The lowest finite f32."""

_SAME_WIDTH = {"float16": "int16", "float32": "int32", "float64": "int64"}
_HALF_RANGE = {"uint32": 31, "uint64": 63}
_INFINITE = {"float16": 0x7C00, "float32": 0x7F800000, "float64": 0x7FF0000000000000}
"""The bits of infinity; those of a NaN's magnitude are more."""


def is_float(value: Expr) -> bool:
    """Whether an expression has a float type that `hidden` supports."""
    return element_of(value) in _SAME_WIDTH


def hidden(value: Expr) -> Expr:
    """A value that TVM cannot simplify together with others; LLVM can."""
    element = element_of(value)
    return reinterpret(element, reinterpret(_SAME_WIDTH[element], value))


def number_of(value: Expr) -> float | None:
    """The number in every lane of a constant float, or None."""
    if isinstance(value, tirx.Broadcast):
        value = value.value
    return float(value.value) if isinstance(value, tirx.FloatImm) else None


def add(x: Expr, y: Expr) -> Expr:
    """x + y; x + 0 may be x, so that -0 stays -0."""
    return tirx.Add(_not_zero(x), _not_zero(y))


def subtract(x: Expr, y: Expr) -> Expr:
    """x - y; a NaN for two infinities of one sign."""
    return tirx.Sub(hidden(x), _not_zero(y)) if is_float(x) else x - y


def multiply(x: Expr, y: Expr) -> Expr:
    """x * y; 0 times an infinity or a NaN is a NaN."""
    return tirx.Mul(_not_zero(x), _not_zero(y))


def divide(x: Expr, y: Expr) -> Expr:
    """x / y; infinite for a y of 0, and a NaN if x is 0 too."""
    return tirx.Div(_not_zero(x), _not_zero(y))


def maximum(x: Expr, y: Expr) -> Expr:
    """The larger value; a NaN if either is one. For 0 and -0 it may be either.

    One instruction with a constant; about six with two variables.
    """
    return _extreme(tirx.Max, "llvm.maximum", x, y)


def minimum(x: Expr, y: Expr) -> Expr:
    """The smaller value; NaNs and zeros as for `maximum`."""
    return _extreme(tirx.Min, "llvm.minimum", x, y)


def absolute(x: Expr) -> Expr:
    """|x|, one instruction; 0 for -0."""
    bits = reinterpret(_SAME_WIDTH[element_of(x)], x)
    ones = 2 ** (int(x.ty.dtype.bits) - 1) - 1
    return reinterpret(element_of(x), tirx.bitwise_and(bits, like(ones, bits)))


def is_nan(x: Expr) -> Expr:
    """Whether a value is a NaN, on vectors, too: TVM takes its own `isnan` apart into lanes."""
    bits = reinterpret(_SAME_WIDTH[element_of(x)], absolute(x))
    return bits > like(_INFINITE[element_of(x)], bits)


def flipped(x: Expr, bits: Expr) -> Expr:
    """An f32 whose sign changes where the highest bit of an int32 is set, two instructions."""
    highest = tirx.bitwise_and(bits, like(-(2**31), bits))
    return reinterpret("float32", tirx.bitwise_xor(reinterpret("int32", x), highest))


def is_negative(x: Expr) -> Expr:
    """Whether the sign bit is set, also for -0; a blend instruction reads only this bit."""
    bits = reinterpret(_SAME_WIDTH[element_of(x)], x)
    return bits < like(0, bits)


def convert(element: str, x: Expr) -> Expr:
    """Converts a value to another type; a float is truncated towards zero to an integer.

    For a NaN and values that do not fit, ONNX states no result, so it is ONNX Runtime's: the least
    integer of 32 or 64 bits (for unsigned ones 2^31 or 2^63, and 0 beyond the upper end; 0 for a
    float16 in uint32); narrower types take the low bits of the 32.
    """
    integer = element.startswith(("int", "uint"))
    if not integer or not is_float(x) or element in ("int32", "int64"):
        return cast(element, x)
    if element not in _HALF_RANGE:
        return cast(element, cast("int32", x))
    half, signed = _HALF_RANGE[element], element.removeprefix("u")
    if element_of(x) == "float16":  # which cannot represent half of the range
        x = cast("float32", x)
        if element == "uint32":  # only infinities and a NaN are outside
            inside = absolute(x) < like(2.0**16, x)
            converted = cast(element, cast(signed, x))
            return tirx.Select(inside, converted, like(0, converted))
    least = like(2.0**half, x)
    upper = cast(signed, x - least)
    upper = cast(element, upper ^ like(-(2**half), upper))
    return tirx.Select(x >= least, upper, cast(element, cast(signed, x)))


def _extreme(node: type[tirx.Max | tirx.Min], function: str, x: Expr, y: Expr) -> Expr:
    if not is_float(x):
        return node(x, y)
    numbers = number_of(x), number_of(y)
    for value, number in zip((x, y), numbers, strict=True):
        if number is not None and math.isnan(number):
            return hidden(value)  # TVM folds max(0, NaN) to 0
    if numbers[1] is not None:
        return node(y, x)
    return node(x, y) if numbers[0] is not None else by_llvm(function, x, y)


def _not_zero(value: Expr) -> Expr:
    """A value, hidden if it is a scalar constant 0."""
    # TVM folds no 0 that is broadcast. So vector kernels that differ only in such numbers stay
    # alike and can be shared.
    zero = isinstance(value, tirx.FloatImm) and float(value.value) == 0
    return hidden(value) if zero and is_float(value) else value


# Rounding lanes to integers by an addition, to nearest, halves to even.
#
# 1.5 * 2^23 + x (2^52 in f64) has no bits for fractions of x, and the lowest bits of its
# significand are the integer: as int32, the sum is `ROUND_BITS` plus it.


ROUND = 1.5 * 2.0**23
ROUND_BITS = 0x4B400000
_DOUBLE = 1.5 * 2.0**52
_DOUBLE_BITS = 0x4338000000000000


def round_to_integer(value: Expr, offset: int | Placeholder = 0) -> Expr:
    """The nearest integer plus an offset, as int32 lanes.

    Parameters
    ----------
    value : Expr
        f32 lanes, of magnitude at most 2^22.
    offset : int or Placeholder
        Added to the integer at no cost.
    """
    bits = reinterpret("int32", value + like(ROUND, value))
    return bits - like(ROUND_BITS - offset, bits)


def nearest_in_double(value: Expr) -> tuple[Expr, Expr]:
    """The nearest integer to f64 lanes of magnitude at most 2^51, and its low digits as int64.

    A NaN and infinities stay.
    """
    shifted = bind(value + like(_DOUBLE, value))
    bits = reinterpret("int64", shifted)
    # TVM simplifies (x + c) - c to x: the second c must not look like one.
    return shifted - reinterpret("float64", like(_DOUBLE_BITS, bits)), bits
