"""The remainder of a division of f32 vectors, exact as in C, as arithmetic TIR."""

from __future__ import annotations

from tvm import tirx

from .expressions import Expr, bind, cast, like, reinterpret
from .ieee import absolute, flipped, nearest_in_double
from .unlikely import unlikely

# The nearest integer to a quotient of two float32, if below 2^28, times a float32 is exact in
# float64. The remainder has no more digits than the divisor.
_QUOTIENT_DIGITS = 27
# The exponents of two float32 differ by at most 277.
_STEPS = 277 // _QUOTIENT_DIGITS


def fmod(x: Expr, y: Expr) -> Expr:
    """x - trunc(x / y) * y, about 30 instructions, two of them divisions of float64.

    Exact. The sign is that of x; NaN for an infinite x and for y = 0. A vector with a quotient of
    2^27 or more takes ten times as long.
    """
    x, y = bind(x), bind(y)
    dividend, divisor = bind(absolute(x)), bind(absolute(y))
    wide, by = bind(cast("float64", dividend)), bind(cast("float64", divisor))
    usual = cast("float32", _step(wide, by))
    usual = tirx.Select(dividend < divisor, dividend, usual)  # also right for an infinite divisor
    rest = wide
    for step in reversed(range(1, _STEPS + 1)):
        rest = _step(rest, bind(by * like(2.0 ** (_QUOTIENT_DIGITS * step), by)))
    rare = cast("float32", _step(rest, by))
    far = dividend >= divisor * like(2.0**_QUOTIENT_DIGITS, divisor)
    return flipped(unlikely(far, rare, usual), reinterpret("int32", x))


def _step(dividend: Expr, divisor: Expr) -> Expr:
    """The remainder of a bound float64 >= 0 by one that is at least a 2^27th of it."""
    nearest, _ = nearest_in_double(dividend / divisor)
    rest = bind(dividend - nearest * divisor)
    return bind(tirx.Select(rest < like(0, rest), rest + divisor, rest))
