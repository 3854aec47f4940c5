"""Trigonometric and hyperbolic functions of f32 vectors and their inverses, as arithmetic TIR.

They keep the rules of `vector_math`: vector instructions only, errors in ulp measured by
`python -m tools.vector_math.error`, first with fused multiply-add, then "plain", without; tables by
`python -m tools.vector_math.fit`.

sin, cos and tan are right for every finite x. Quarter turns are counted in float64, with 2 / pi in
three parts, so that a product with a part is exact. Of a large x, which is a multiple of a power of
two, only some binary digits of 2 / pi count (M. H. Payne and R. N. Hanek, "Radian reduction for
trigonometric functions", 1983): there are four ranges, each with its own three parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from tvm import tirx

from .expressions import Expr, bind, cast, like, reinterpret
from .ieee import absolute, flipped, hidden, nearest_in_double
from .unlikely import unlikely
from .vector_math import exp_within, log, polynomial

# Tables, lowest power first, as `vector_math_fit` prints them: x + x^3 P(x^2) is
# sin(x), on [0, 0.8], and cos(x) = 1 - x^2 / 2 + x^4 P(x^2);
SIN = (-1.6666654e-01, 8.332095e-03, -1.950554e-04)
COS = (4.166664e-02, -1.388713e-03, 2.4412086e-05)
# tan(x), on [0, 0.8];
TAN = (3.3333105e-01, 1.334016e-01, 5.3297956e-02, 2.483588e-02, 2.4681266e-03, 9.771269e-03)
# arcsin(x), on [0, 1/2];
ASIN = (1.6666752e-01, 7.4953094e-02, 4.546915e-02, 2.4184778e-02, 4.2158306e-02)
# arctan(x), on [0, 1];
ATAN = (
    *(-3.3333153e-01, 1.9993767e-01, -1.4211003e-01, 1.06657855e-01, -7.551724e-02),
    *(4.3205857e-02, -1.6364133e-02, 2.9197228e-03),
)
# sinh(x), on [0, 1].
SINH = (1.6666716e-01, 8.3302725e-03, 2.0373033e-04)

_TWO_OVER_PI = Fraction(
    0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A, 2**288
)
# A range of x is 26 binary digits wide, so that quarter turns of its numbers, divided by a power
# of two so that they are below 2^50, fit into the 52 digits of a float64.
_RANGE_DIGITS = 26
_RANGE_ENDS = (50, 76, 102)
_NEAR_END = 2.0**20
_PI_LOW = math.pi - 3.1415927410125732  # what pi has beyond a float32

_EXP_HALVES_END = 90.0  # e^x / 2 is infinite from 89.42 on
_LARGE = 2.0**14  # from here on, sqrt(x^2 +- 1) is x


def _parts_of_two_over_pi(dropped: int) -> tuple[float, float, float]:
    """2^dropped * 2 / pi less the nearest multiple of 4, in parts of 29, 29 and 53 bits."""
    value = _TWO_OVER_PI * 2**dropped
    if dropped:
        value -= 4 * round(value / 4)
    parts = []
    for digits in (27, 56):
        parts.append(Fraction(round(value * 2**digits), 2**digits))
        value -= parts[-1]
    return float(parts[0]), float(parts[1]), float(value)


_PARTS = [_parts_of_two_over_pi(_RANGE_DIGITS * place) for place in range(len(_RANGE_ENDS) + 1)]


def _by_range(magnitude: Expr, values: Sequence[float], element: str) -> Expr:
    """The value for the range in which a magnitude lies."""
    other = cast(element, magnitude)
    chosen = like(values[-1], other)
    for end, value in zip(reversed(_RANGE_ENDS), reversed(values[:-1]), strict=True):
        inside = magnitude < like(2.0**end, magnitude)
        chosen = tirx.Select(inside, like(value, other), chosen)
    return chosen


def _near(magnitude: Expr) -> tuple[Expr, Expr]:
    """r and n of a bound |x| < 2^20 that is r + n pi / 2: |r| <= 0.8, n as int32 modulo 4."""
    # The error is 2^-53 of a quarter turn; the least |r| of any float32 is 2^-29.
    wide = bind(cast("float64", magnitude))
    high, middle, low = (like(part, wide) for part in _PARTS[0])
    turns = bind(wide * high)
    whole, bits = nearest_in_double(turns)
    return _remainder((turns - whole) + wide * middle + wide * low), bind(cast("int32", bits))


def _far(magnitude: Expr) -> tuple[Expr, Expr]:
    """`_near` extended to every finite |x|."""
    scales = [2.0 ** (-_RANGE_DIGITS * place) for place in range(len(_PARTS))]
    wide = bind(cast("float64", bind(magnitude * _by_range(magnitude, scales, "float32"))))
    high, middle, low = (
        _by_range(magnitude, part, "float64") for part in zip(*_PARTS, strict=True)
    )
    turns = bind(wide * high)
    whole, bits = nearest_in_double(turns)
    turns = bind((turns - whole) + wide * middle)
    whole, more = nearest_in_double(turns)
    return _remainder((turns - whole) + wide * low), bind(cast("int32", bits + more))


def _remainder(turns: Expr) -> Expr:
    return bind(cast("float32", turns * like(math.pi / 2, turns)))


def _of_quarters(x: Expr, function: Callable[[Expr, Expr], Expr]) -> Expr:
    """The result of function(r, n) for a bound |x| = r + n pi / 2."""
    magnitude = bind(absolute(x))
    return unlikely(
        magnitude >= like(_NEAR_END, magnitude),
        function(*_far(magnitude)),
        function(*_near(magnitude)),
    )


def _odd(coefficients: Sequence[float], x: Expr, square: Expr) -> Expr:
    """x + x^3 P(x^2) of bound x and x^2."""
    return x + (x * square) * polynomial(coefficients, square)


def _is_odd(quarter: Expr) -> Expr:
    return tirx.NE(tirx.bitwise_and(quarter, like(1, quarter)), like(0, quarter))


def _sine(r: Expr, quarter: Expr) -> Expr:
    """sin(r + n pi / 2)."""
    square = bind(r * r)
    cosine = like(1, r) - square * like(0.5, r)
    cosine = (square * square) * polynomial(COS, square) + cosine
    value = tirx.Select(_is_odd(quarter), cosine, _odd(SIN, r, square))
    return flipped(value, tirx.shift_left(quarter, like(30, quarter)))


def _tangent(r: Expr, quarter: Expr) -> Expr:
    value = bind(_odd(TAN, r, bind(r * r)))
    return tirx.Select(_is_odd(quarter), like(-1, value) / value, value)


def sin(x: Expr) -> Expr:
    """Sine, about 45 instructions.

    Error: 1.6 ulp, 1.6 plain, for every finite x. sin(-0) = -0; NaN for infinities.
    """
    x = bind(x)
    return flipped(_of_quarters(x, _sine), reinterpret("int32", x))


def cos(x: Expr) -> Expr:
    """Cosine, about 45 instructions.

    Error: 1.6 ulp, 1.6 plain, for every finite x. NaN for infinities.
    """
    return _of_quarters(bind(x), lambda r, n: _sine(r, bind(n + like(1, n))))


def tan(x: Expr) -> Expr:
    """Tangent, about 45 instructions, one of them a division.

    Error: 2.9 ulp, 2.9 plain, for every finite x. tan(-0) = -0; NaN for infinities.
    """
    x = bind(x)
    return flipped(_of_quarters(x, _tangent), reinterpret("int32", x))


def _arcsine(x: Expr) -> tuple[Expr, Expr]:
    """Whether a bound x >= 0 is at most 1/2, and the arcsine of x, or else of
    sqrt((1 - x) / 2)."""
    near = x <= like(0.5, x)
    half = bind(like(0.5, x) - x * like(0.5, x))
    square = bind(tirx.Select(near, x * x, half))
    return near, bind(_odd(ASIN, bind(tirx.Select(near, x, tirx.sqrt(half))), square))


def asin(x: Expr) -> Expr:
    """Arcsine, about 25 instructions, one of them a square root.

    Error: 2.4 ulp, 2.4 plain. asin(-0) = -0; NaN for |x| > 1.
    """
    x = bind(x)
    # asin(x) = pi / 2 - 2 asin(sqrt((1 - x) / 2)).
    near, value = _arcsine(bind(absolute(x)))
    far = like(math.pi / 2, x) - (value * like(2, x) - like(_PI_LOW / 2, x))
    return flipped(tirx.Select(near, value, far), reinterpret("int32", x))


def acos(x: Expr) -> Expr:
    """Arccosine, about 25 instructions, one of them a square root.

    Error: 1.2 ulp, 1.2 plain. NaN for |x| > 1.
    """
    x = bind(x)
    # acos(x) = pi / 2 - asin(x) = 2 asin(sqrt((1 - x) / 2)) = pi - 2 asin(sqrt((1 + x) / 2)).
    near, value = _arcsine(bind(absolute(x)))
    sign = reinterpret("int32", x)
    middle = like(math.pi / 2, x) - (flipped(value, sign) - like(_PI_LOW / 2, x))
    double = bind(value * like(2, x))
    outer = tirx.Select(x < like(0, x), like(math.pi, x) - (double - like(_PI_LOW, x)), double)
    return tirx.Select(near, middle, outer)


def atan(x: Expr) -> Expr:
    """Arctangent, about 25 instructions, one of them a division.

    Error: 1.5 ulp, 1.7 plain. atan(-0) = -0.
    """
    x = bind(x)
    # atan(x) = pi / 2 - atan(1 / x).
    magnitude = bind(absolute(x))
    far = magnitude > like(1, x)
    r = bind(tirx.Select(far, like(1, x) / magnitude, magnitude))
    value = bind(_odd(ATAN, r, bind(r * r)))
    outer = like(math.pi / 2, x) - (value - like(_PI_LOW / 2, x))
    return flipped(tirx.Select(far, outer, value), reinterpret("int32", x))


def _exp_halves(magnitude: Expr) -> tuple[Expr, Expr]:
    """e^x / 2 and e^-x / 2 of a bound x >= 0; e^x / 4 is finite wherever e^x / 2 is."""
    quarter = bind(exp_within(bind(tirx.Min(like(_EXP_HALVES_END, magnitude), magnitude)), 2))
    return quarter * like(2, quarter), like(0.125, quarter) / quarter


def sinh(x: Expr) -> Expr:
    """Hyperbolic sine, about 35 instructions, one of them a division.

    Error: 1.7 ulp, 2 plain. sinh(-0) = -0.
    """
    x = bind(x)
    magnitude = bind(absolute(x))
    grown, shrunk = _exp_halves(magnitude)
    value = tirx.Select(
        magnitude < like(1, x), _odd(SINH, magnitude, bind(magnitude * magnitude)), grown - shrunk
    )
    return flipped(value, reinterpret("int32", x))


def cosh(x: Expr) -> Expr:
    """Hyperbolic cosine, 20 instructions, one of them a division.

    Error: 1.7 ulp, 2 plain.
    """
    grown, shrunk = _exp_halves(bind(absolute(x)))
    return grown + shrunk


def _log1p(x: Expr) -> Expr:
    """log(1 + x) of a bound x; -0 of -0."""
    # Rounding u = 1 + x loses x - (u - 1), which adds that over u to the logarithm.
    one = like(1, x)
    u = bind(x + one)
    lost = x - (hidden(u) - one)
    # If u is 0 or infinite, this is a NaN.
    gained = bind(lost / u)
    gained = tirx.Select(absolute(gained) < one, gained, like(0, x))
    return tirx.Select(tirx.EQ(u, one), x, log(u) + gained)


def _large(x: Expr, value: Expr) -> Expr:
    """log(2 x) for a large x, where it is acosh(x) and asinh(x) and squares may overflow; else
    `value`."""
    return tirx.Select(x < like(_LARGE, x), value, log(x) + like(math.log(2), x))


def log1p(x: Expr) -> Expr:
    """log(1 + x), about 40 instructions, two of them divisions.

    Error: 1.5 ulp, 1.5 plain. log1p(-1) = -inf, log1p(-0) = -0, log1p(inf) = inf, NaN for x < -1.
    """
    return _log1p(bind(x))


def asinh(x: Expr) -> Expr:
    """Inverse hyperbolic sine, about 55 instructions, two of them divisions and a square root.

    Error: 2.2 ulp, 2.2 plain. asinh(-0) = -0.
    """
    x = bind(x)
    one, magnitude = like(1, x), bind(absolute(x))
    small = bind(tirx.Min(like(_LARGE, x), magnitude))
    root = tirx.sqrt(one + small * small)
    value = _log1p(bind(small + small * (small / (one + root))))
    return flipped(_large(magnitude, value), reinterpret("int32", x))


def acosh(x: Expr) -> Expr:
    """Inverse hyperbolic cosine, about 55 instructions, a division and a square root.

    Error: 2.7 ulp, 2.7 plain. NaN for x < 1.
    """
    x = bind(x)
    above = bind(tirx.Min(like(_LARGE, x), x) - like(1, x))
    value = _log1p(bind(above + tirx.sqrt(above * (above + like(2, x)))))
    return tirx.Select(x < like(1, x), like(math.nan, x), _large(x, value))


def atanh(x: Expr) -> Expr:
    """Inverse hyperbolic tangent, about 45 instructions, two of them divisions.

    Error: 2.6 ulp, 2.6 plain. atanh(-0) = -0, atanh(1) = inf; NaN for |x| > 1.
    """
    x = bind(x)
    magnitude = bind(absolute(x))
    value = _log1p(bind(magnitude * like(2, x) / (like(1, x) - magnitude)))
    return flipped(value * like(0.5, x), reinterpret("int32", x))
