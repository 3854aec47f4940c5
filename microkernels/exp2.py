"""2^x of f32 vectors for softmax: by AVX-512's own instructions, or by arithmetic elsewhere.

    2^x = 2^floor(x) * 2^(x - floor(x))

AVX-512 has the remainder (vreduceps) and the scaling (vscalefps) in one instruction each; the
latter underflows and takes -inf by itself, so that nothing has to be clamped. The polynomials are
minimax fits of 2^x on [0, 1) (`vector_math_fit.fit_polynomial`).
"""

from __future__ import annotations

import math

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from .isa import Isa
from .vector_math import exp
from .vectors import Expr, bind, lanes_of, like

# Lowest power first. Largest relative errors: 7.7e-8 and 7.5e-5.
FULL = (9.9999994e-01, 6.9315273e-01, 2.4015573e-01, 5.582121e-02, 8.9946752e-03, 1.8755692e-03)
SHORT = (9.999252e-01, 6.9583374e-01, 2.2606705e-01, 7.802441e-02)
_FLOOR = 9  # vreduceps: no bits of fraction kept, round down, no exceptions
_ALL = -1
_CURRENT_ROUNDING = 4


def exp2(x: Expr, isa: Isa, short: bool = False) -> Expr:
    """2^x for x <= 0: 8 instructions on AVX-512, 16 elsewhere.

    Relative error at most 3 * 2^-24 (7 * 2^-24 without AVX-512), or 7.6e-5 if `short` (for results
    that are rounded to 8 bits). Zero below about 2^-126 and at -inf; NaN stays NaN.

    Parameters
    ----------
    x : Expr
        f32 lanes, at most 0.
    isa : Isa
        What the target has.
    short : bool
        Whether the polynomial of degree 3 is enough; only AVX-512 uses it.
    """
    if lanes_of(x) != 16 or isa.f32_lanes != 16:
        return exp(x * like(math.log(2), x))
    x = bind(x)
    mask, rounding = tirx.const(_ALL, "int16"), tirx.const(_CURRENT_ROUNDING, "int32")
    intrinsic = "llvm.x86.avx512.mask.{}.ps.512"
    fraction = bind(
        I.call_llvm_pure_intrin(
            "float32x16",
            intrinsic.format("reduce"),
            x,
            tirx.const(_FLOOR, "int32"),
            x,
            mask,
            rounding,
        )
    )
    coefficients = SHORT if short else FULL
    value = like(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        value = value * fraction + like(coefficient, x)
    return I.call_llvm_pure_intrin(
        "float32x16", intrinsic.format("scalef"), value, x, x, mask, rounding
    )
