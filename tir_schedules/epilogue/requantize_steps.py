"""Requantises in registers: scales a sum of products and rounds it, by one or two multiplications.

    requantize(q, z, s)    = saturate(round_half_even(f32(q) * s + z))
    requantize(q, z, s, t) = saturate(round_half_even(f32(f32(q) * s) * t + z))

An FMA does the last multiplication and the rounding: adding 1.5 * 2^23 leaves the integer in the
low bits. Results must fit in 16 bits before they are saturated. The pass that makes such steps
proves that, and that the integers equal those of the operators that a step replaces.
"""

from __future__ import annotations

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.integers import RANGES
from microkernels.vector.expressions import Expr, cast, lanes_of, like, reinterpret, vector_type
from microkernels.vector.rounding import ROUND, ROUND_BITS

from .quantize_steps import rounded

WORD = 2**15
"""Results before saturation lie within -WORD..WORD - 1."""


def emit_words(value: Expr, zero_point: int, factors: list[Expr]) -> Expr:
    """int32 lanes of which the low 16 bits are the result, yet to be saturated.

    Parameters
    ----------
    value : Expr
        int32 lanes.
    zero_point : int
        Of the result.
    factors : list of Expr
        One or two, f32 lanes.
    """
    real = cast("float32", value)
    if len(factors) == 2:
        real = rounded(real * factors[0])
    lanes = lanes_of(value)
    fused = I.call_llvm_pure_intrin(
        vector_type("float32", lanes),
        "llvm.fma." + ("f32" if lanes == 1 else f"v{lanes}f32"),
        real,
        factors[-1],
        like(ROUND + zero_point, real),
    )
    return reinterpret("int32", fused)


def emit_requantize(value: Expr, zero_point: int, factors: list[Expr], dtype: str) -> Expr:
    """int32 lanes within the range of `dtype`; parameters as of `emit_words`."""
    words = emit_words(value, zero_point, factors)
    return saturated(words - like(ROUND_BITS, words), dtype)


def saturated(value: Expr, dtype: str) -> Expr:
    """int32 lanes brought into the range of an 8-bit type."""
    low, high = (like(limit, value) for limit in RANGES[dtype])
    return tirx.Min(tirx.Max(value, low), high)


def requantize_reference(
    dtype: str, value: np.ndarray, zero_point: np.ndarray, *factors: np.ndarray
) -> np.ndarray:
    """The meaning by numpy.

    A f64 product of two f32 numbers is exact. So is the sum with the zero point in x87's 64 bits
    where it can be close to half an integer; elsewhere its last bit does not matter.
    """
    real = np.asarray(value).astype(np.float32)
    for factor in factors[:-1]:
        real = real * np.asarray(factor, np.float32)
    product = real.astype(np.float64) * np.asarray(factors[-1], np.float64)
    total = np.rint(product.astype(np.longdouble) + np.asarray(zero_point, np.longdouble))
    return np.clip(total, *RANGES[dtype]).astype(dtype)
