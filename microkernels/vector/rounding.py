"""Rounding lanes to integers by an addition, to nearest, halves to even.

1.5 * 2^23 + x (2^52 in f64) has no bits for fractions of x, and the lowest bits of its significand
are the integer: as int32, the sum is `ROUND_BITS` plus it.
"""

from .expressions import Expr, bind, like, reinterpret
from .placeholders import Placeholder

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
        What is added; it costs nothing.
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
