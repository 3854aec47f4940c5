"""2^x of f32 vectors for x <= 0, and e^x by it: the one exponential of every softmax.

    2^x = 2^n * 2^(x - n), n the nearest integer

AVX-512 scales by 2^n in one instruction (vscalefps). It handles underflow and -inf, so that nothing
has to be clamped. (vreduceps gives x - n in one instruction, but takes as long as the two that it
replaces. Rounding by a magic number takes longer: Zen 4 starts about 1.4 operations of 512 bits a
cycle.)
Elsewhere n is rounded by an addition that leaves it in the bits which make 2^n. The polynomials are
minimax fits on [-1/2, 1/2] (`vector_math_fit.fit_polynomial`).
"""

from __future__ import annotations

import math

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa

from .expressions import Expr, bind, lanes_of, like
from .vector_math import EXP2, polynomial, round_and_scale

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
        What the target has.
    degree : int
        Of the polynomial, a key of `POLYNOMIALS`; only AVX-512 uses less than all of it.
    """
    if lanes_of(x) != 16 or isa.f32_lanes != 16:
        return _exp2_by_arithmetic(x)
    x = bind(x)
    mask, rounding = tirx.const(_ALL, "int16"), tirx.const(_CURRENT_ROUNDING, "int32")
    nearest = bind(I.call_llvm_pure_intrin("float32x16", "llvm.roundeven.v16f32", x))
    # At -inf this is NaN, of which the scaling makes 0.
    fraction = bind(x - nearest)
    return I.call_llvm_pure_intrin(
        "float32x16",
        "llvm.x86.avx512.mask.scalef.ps.512",
        polynomial(POLYNOMIALS[degree], fraction),
        nearest,
        nearest,
        mask,
        rounding,
    )


def exp_of_difference(x: Expr) -> Expr:
    """e^x for x <= 0, in 12 instructions of any ISA; `vector_math.exp` takes 15.

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
