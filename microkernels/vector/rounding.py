"""Rounding f32 lanes to integers by an addition, to nearest, halves to even.

1.5 * 2^23 + x has no bits for fractions of x, and the lowest bits of its significand are the
integer: as int32, the sum is `ROUND_BITS` plus it.
"""

from .expressions import Expr, like, reinterpret
from .placeholders import Placeholder

ROUND = 1.5 * 2.0**23
ROUND_BITS = 0x4B400000


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
