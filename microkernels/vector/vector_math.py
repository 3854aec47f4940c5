"""Transcendental functions of f32 vectors, as arithmetic TIR: exp, log, erf, tanh, gelu, ...

Every function takes an f32 expression of any number of lanes and returns one of the same type. It
uses only operations with vector instructions on every x86-64 CPU (add, multiply, divide, compare
and select, shifts, conversions, square root). So it never becomes a library call or scalar code,
and TVM's own vectoriser can widen it.

The error in a docstring is the largest against float64, in ulp of the correctly rounded result:
first with fused multiply-add (AVX2 and AVX-512 code, which give the same bits), then "plain",
without (SSE2). `python -m tools.vector_math.error` measures it, over every float32 in the
interesting range. Results below 2^-126 may be flushed to zero. NaN gives NaN everywhere. The
coefficients come from `python -m tools.vector_math.fit`.

x86 has no symmetric min and max: `Max(constant, x)`, in this order, is what keeps a NaN in x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa

from .expressions import Expr, bind, cast, lanes_of, like, reinterpret
from .ieee import ROUND, ROUND_BITS, absolute

# Tables, lowest power first, as `vector_math_fit` prints them.
# e^x on [-ln 2 / 2, ln 2 / 2].
EXP = (1.0, 1.0, 4.9999994e-01, 1.6666523e-01, 4.1668292e-02, 8.368533e-03, 1.3818291e-03)
# 2^x on [-1/2, 1/2].
EXP2 = (1.0, 6.93147e-01, 2.4022247e-01, 5.550711e-02, 9.671292e-03, 1.3269538e-03)
# log(1 + x) on [sqrt(1/2) - 1, sqrt(2) - 1].
LOG = (
    *(0.0, 1.0, -0.5, 3.333333e-01, -2.500082e-01, 2.0001242e-01, -1.6623409e-01),
    *(1.4201581e-01, -1.3159613e-01, 1.27622e-01, -7.6363996e-02),
)
# log(1 + x) on [0, 1].
LOG1P = (
    *(0.0, 1.0, -4.999993e-01, 3.3330464e-01, -2.495802e-01, 1.9692121e-01, -1.5344977e-01),
    *(1.0661371e-01, -5.7460483e-02, 2.008846e-02, -3.2910742e-03),
)
# tanh(x) = x P(x^2) / Q(x^2) on [-9.02, 9.02].
TANH_P = (1.0, 1.3382687e-01, 3.4974585e-03, 2.0635816e-05, 1.3384406e-08)
TANH_Q = (1.0, 4.6716008e-01, 2.5884362e-02, 3.288518e-04, 7.790253e-07)
# erf(x) = x P(x^2) / Q(x^2) on [-4, 4].
ERF_P = (*(1.1283791e00, 1.9354546e-01, 5.310157e-02, 3.8834044e-03, 2.8456145e-04, 1.9869397e-06),)
ERF_Q = (1.0, 5.0485754e-01, 1.1535007e-01, 1.5207267e-02, 1.1855739e-03, 3.7420232e-05)
# log2 of the upper tail of the normal distribution, log2(erfc(x / sqrt(2)) / 2), on [0, 13].
NORMAL_TAIL = (
    *(-9.9999994e-01, -1.1511071e00, -4.591996e-01, -5.24978e-02, 7.015879e-03, -4.0044142e-05),
    *(-2.7192666e-04, 7.9498095e-05, -1.3088871e-05, 1.3789122e-06, -9.1645944e-08, 3.495269e-09),
    -5.8169667e-11,
)

# ln 2 in two parts (Cody and Waite, "Software Manual for the Elementary Functions", 1980): the
# first has 9 bits, so that an exponent times it is exact.
_LN2_HIGH = 355 / 512
_LN2_LOW = math.log(2) - _LN2_HIGH
# Adding this rounds to an integer n (to nearest, even) and leaves n + 127, the biased exponent of
# 2^n, in the lowest bits.
_BIAS = 127
_MANTISSA_BITS = 23
_SMALLEST_NORMAL = 2.0**-126

# Where exp stops: at the low end the scale is zero, at the high end the result is infinite.
_EXP_LOW = -87.5
_EXP_HIGH = 88.73
# Where the rational functions, beyond their intervals, have passed 1 by more than their rounding
# errors (by 7 and 10 times 2^-24), so that a final clamp gives 1 exactly.
_TANH_END = 9.5
_ERF_END = 4.15
# Here the polynomial for the normal tail is -127.2, which makes a zero scale.
_NORMAL_TAIL_END = 13.0

_GELU_LINEAR = 2 * math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715 * _GELU_LINEAR


def _at_least(low: float, x: Expr) -> Expr:
    return tirx.Max(like(low, x), x)


def _at_most(high: float, x: Expr) -> Expr:
    return tirx.Min(like(high, x), x)


def _clamp(low: float, x: Expr, high: float) -> Expr:
    return _at_least(low, _at_most(high, x))


def polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Horner's scheme, lowest power first; `x` must be bound. A constant 0 costs a multiply."""
    value = like(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        value = value * x if coefficient == 0 else value * x + like(coefficient, x)
    return value


def round_and_scale(x: Expr, halvings: int = 0) -> tuple[Expr, Expr]:
    """n = round(x) and 2^(n - halvings); x is used once.

    The scale is zero for an exponent of -127, infinite for 128. Beyond those ends it is wrong:
    clamp x first.
    """
    bias = _BIAS - halvings
    shifted = bind(x + like(ROUND + bias, x))
    bits = reinterpret("int32", shifted)
    # TVM simplifies (x + c) - c to x, looking through names: the second c must not look like one.
    disguised = reinterpret("float32", like(ROUND_BITS + bias, bits))
    nearest = bind(shifted - disguised)
    scale = reinterpret("float32", tirx.shift_left(bits, like(_MANTISSA_BITS, bits)))
    return nearest, scale


def exp_within(x: Expr, halvings: int = 0) -> Expr:
    """exp(x) / 2^halvings of a bound x that is already clamped to where the exponent fits."""
    return _exp_of(x, 1, halvings)


def _exp_of(x: Expr, sign: int, halvings: int = 0) -> Expr:
    """`exp_within` of x or of -x; the sign is in the constants: LLVM would not leave it there."""
    # Twice the polynomial times 2^(n - 1): just below the largest float32 n is 128, and 2^128 is
    # infinite.
    nearest, scale = round_and_scale(x * like(sign / math.log(2), x), halvings + 1)
    remainder = bind(x - nearest * like(sign * _LN2_HIGH, x))
    remainder = bind(remainder - nearest * like(sign * _LN2_LOW, x))
    terms = [2 * each * sign**power for power, each in enumerate(EXP)]
    return polynomial(terms, remainder) * scale


def exp(x: Expr) -> Expr:
    """e^x, 14 instructions.

    Error: 0.91 ulp, 1.2 plain. Zero where the result is below 2^-125.5, infinite where above the
    largest float32; exp(-inf) = 0, exp(inf) = inf.
    """
    return exp_within(bind(_clamp(_EXP_LOW, x, _EXP_HIGH)))


def log(x: Expr) -> Expr:
    """Natural logarithm, about 30 instructions.

    Error: 0.86 ulp, 0.87 plain, denormal x included. log(0) = -inf, log(x < 0) is NaN,
    log(inf) = inf.
    """
    x = bind(x)
    tiny = x < like(_SMALLEST_NORMAL, x)
    normal = tirx.Select(tiny, x * like(2.0**_MANTISSA_BITS, x), x)
    bits = bind(reinterpret("int32", normal))
    # The mantissa is taken in [sqrt(1/2), sqrt(2)), so that x near 1 has exponent 0.
    root = like(0x3F3504F3, bits)
    exponent = bind(tirx.shift_right(bits - root, like(_MANTISSA_BITS, bits)))
    mantissa = reinterpret("float32", bits - tirx.shift_left(exponent, like(_MANTISSA_BITS, bits)))
    n = cast("float32", exponent) + tirx.Select(tiny, like(-_MANTISSA_BITS, x), like(0, x))
    n = bind(n)
    f = bind(mantissa - like(1, x))
    square = bind(f * f)
    tail = polynomial(LOG[3:], f) * (square * f) + n * like(_LN2_LOW, x)
    value = n * like(_LN2_HIGH, x) + (f + (tail - like(0.5, x) * square))
    at_zero = tirx.Select(tirx.EQ(x, like(0, x)), like(-math.inf, x), like(math.nan, x))
    value = tirx.Select(x > like(0, x), value, at_zero)
    return tirx.Select(x < like(math.inf, x), value, x)


def _odd_rational(p: Sequence[float], q: Sequence[float], x: Expr, end: float) -> Expr:
    """x P(x^2) / Q(x^2), which passes 1 at `end`, and stays 1 from there on."""
    x = bind(_clamp(-end, x, end))
    square = bind(x * x)
    return _clamp(-1, x * polynomial(p, square) / polynomial(q, square), 1)


def erf(x: Expr) -> Expr:
    """Error function, 18 instructions, one of them a division.

    Error: 6.3 ulp, 8.2 plain; 4e-7 absolute, 5e-7 plain. Exactly 1 or -1 from |x| = 4.15 on.
    """
    return _odd_rational(ERF_P, ERF_Q, x, _ERF_END)


def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent, 16 instructions, one of them a division.

    Error: 5.6 ulp, 6.1 plain; 3.4e-7 absolute, 3.6e-7 plain. Exactly 1 or -1 from |x| = 9.5 on.
    """
    return _odd_rational(TANH_P, TANH_Q, x, _TANH_END)


def _exp_negated(x: Expr) -> Expr:
    """exp(-x) of a bound, clamped x."""
    return _exp_of(x, -1)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x), 15 instructions, one of them a division.

    Error: 2.6 ulp, 2.5 plain. Exactly 1 from x = 17.5 on, 0 where the result is below 2^-126.
    """
    x = bind(_clamp(-_EXP_HIGH, x, -_EXP_LOW))
    return like(1, x) / (like(1, x) + _exp_negated(x))


def silu(x: Expr) -> Expr:
    """x / (1 + e^-x), 16 instructions, one of them a division.

    Error: 2.4 ulp, 2.5 plain. Below x = -88.72, where the result is under 2.7e-37, it is -0; at
    -inf it is NaN, as the formula is.
    """
    x = bind(x)
    # At the clamp the denominator is infinite.
    return x / (like(1, x) + _exp_negated(bind(_clamp(-_EXP_HIGH, x, -_EXP_LOW))))


def gelu_tanh(x: Expr) -> Expr:
    """x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, 19 instructions, one of them a division.

    Error: for x >= -1, 2.8 ulp (2.7 plain); for x >= -3, 14 (15); for x >= -5.5, 34 (38); below,
    215 (216), which is 1.4e-5 of the result. Below x = -10.06, where the result is under 3e-38, it
    is -0; at -inf it is NaN, as the formula is.
    """
    # (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)): nothing cancels for negative x.
    x = bind(x)
    double = x * (x * x * like(_GELU_CUBIC, x) + like(_GELU_LINEAR, x))
    return x / (like(1, x) + _exp_negated(bind(_clamp(-_EXP_HIGH, double, -_EXP_LOW))))


def gelu_erf(x: Expr) -> Expr:
    """x (1 + erf(x / sqrt(2))) / 2, 28 instructions, no division.

    Error: for x >= -1, 4.5 ulp (5 plain); for x >= -3, 19 (23); for x >= -5.5, 75 (82); for
    x >= -8, 740 (780), which is 4.9e-5 of the result. Farther down, where the result is under
    5e-15, it grows to 13% of the result; below x = -12.96, where that is under 2e-37, it is 0; at
    -inf it is NaN, as the formula is. (The formula as written cancels, and gives 0 from x = -5.6
    down.)
    """
    # With t = |x| and the normal tail Q(t) = erfc(t / sqrt(2)) / 2 this is max(x, 0) - t Q(t).
    # Q = 2^polynomial keeps its relative accuracy where 1 + erf(x) cancels.
    x = bind(x)
    bits = reinterpret("int32", x)
    negative = reinterpret("float32", tirx.bitwise_or(bits, like(-(2**31), bits)))
    negative = bind(_at_least(-_NORMAL_TAIL_END, negative))  # -t
    alternating = [-each if power % 2 else each for power, each in enumerate(NORMAL_TAIL)]
    log2_tail = bind(polynomial(alternating, negative))
    nearest, scale = round_and_scale(log2_tail)
    tail = polynomial(EXP2, bind(log2_tail - nearest)) * scale
    # min(-t, x) is -t wherever the tail is not 0, and infinite at -inf alone.
    return _at_least(0, x) + tirx.Min(negative, x) * tail


def hardswish(x: Expr) -> Expr:
    """x min(max(x + 3, 0), 6) / 6, 5 instructions.

    Error: 2.5 ulp, 2.5 plain. Exactly x from x = 3 on; -0 from x = -3 down; NaN at -inf, as the
    formula is.
    """
    x = bind(x)
    return x * _clamp(0, (x + like(3, x)) * like(1 / 6, x), 1)


def softplus(x: Expr) -> Expr:
    """log(1 + e^x), 27 instructions.

    Error: 2.4 ulp, 3 plain: small results for negative x are as accurate as the others. Zero
    where the result is below 2^-125.5, softplus(inf) = inf.
    """
    # log(1 + e^x) = max(x, 0) + log(1 + e^-|x|).
    x = bind(x)
    small = bind(_exp_negated(bind(_at_most(-_EXP_LOW, absolute(x)))))
    return _at_least(0, x) + polynomial(LOG1P, small)


def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x), two instructions, one of them a division.

    Error: 1.5 ulp, 1.5 plain, denormal x included. rsqrt(0) = inf, rsqrt(-0) = -inf,
    rsqrt(inf) = 0, NaN for x < 0.
    """
    return like(1, x) / tirx.sqrt(x)


# 2^x of f32 vectors for x <= 0, and e^x by it: the one exponential of every softmax.
#
#     2^x = 2^n * 2^(x - n), n the nearest integer
#
# AVX-512 scales by 2^n in one instruction (vscalefps). It handles underflow and -inf, so that
# nothing has to be clamped. (vreduceps gives x - n in one instruction, but takes as long as the two
# that it replaces. Rounding by a magic number takes longer: Zen 4 starts about 1.4 operations of
# 512 bits a cycle.) Elsewhere n is rounded by an addition that leaves it in the bits which make
# 2^n. The polynomials are minimax fits on [-1/2, 1/2] (`vector_math_fit.fit_polynomial`).


LOG2_E = math.log2(math.e)

# Lowest power first, by degree; largest relative errors 7.5e-5 and 9.6e-8.
POLYNOMIALS = {3: (9.9992806e-01, 6.9326097e-01, 2.4261121e-01, 5.5171523e-02), 5: EXP2}
_ALL = -1
_CURRENT_ROUNDING = 4
_LOWEST_EXPONENT = -127.0  # its scale 2^n is zero


def exp2(x: Expr, isa: Isa, degree: int = 5) -> Expr:
    """2^x for x <= 0: 4 instructions and one for each degree on AVX-512, 11 elsewhere.

    Relative error at most 3 * 2^-24 and that of the polynomial. Zero below about 2^-126 and at
    -inf; NaN stays NaN.

    Parameters
    ----------
    x : Expr
        f32 lanes, at most 0.
    isa : Isa
        The target's instruction set.
    degree : int
        Degree of the polynomial, a key of `POLYNOMIALS`; without AVX-512 it is always 5.
    """
    if lanes_of(x) != 16 or isa.f32_lanes != 16:
        return _exp2_by_arithmetic(x)
    x = bind(x)
    mask, rounding = tirx.const(_ALL, "int16"), tirx.const(_CURRENT_ROUNDING, "int32")
    nearest = bind(I.call_llvm_pure_intrin("float32x16", "llvm.roundeven.v16f32", x))
    # At -inf this is NaN, which the scaling turns into 0.
    power, scalef = polynomial(POLYNOMIALS[degree], bind(x - nearest)), "mask.scalef.ps.512"
    arguments = power, nearest, nearest, mask, rounding
    return I.call_llvm_pure_intrin("float32x16", f"llvm.x86.avx512.{scalef}", *arguments)


def exp_of_difference(x: Expr) -> Expr:
    """e^x for x <= 0, in 12 instructions of any ISA; `vector_math.exp` takes 14.

    x log2(e) is rounded, instead of being reduced in two parts. The relative error therefore grows
    with |x|, up to (0.62 |x| + 2) eps; against the largest exponential, which is 1, it stays below
    2 eps, as |x| e^x < 0.4. e^-inf is 0, and so are results below 2^-126; NaN gives NaN. (AVX-512's
    scaling would save three instructions, but makes numbers below 2^-126, which Intel's CPUs
    compute slowly.)

    Parameters
    ----------
    x : Expr
        f32, any number of lanes.
    """
    return _exp2_by_arithmetic(x * like(LOG2_E, x))


def _exp2_by_arithmetic(x: Expr) -> Expr:
    """2^x for x <= 0, any number of lanes."""
    x = bind(tirx.Max(like(_LOWEST_EXPONENT, x), x))
    nearest, scale = round_and_scale(x)
    return polynomial(EXP2, bind(x - nearest)) * scale
