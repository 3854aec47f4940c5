"""Quantises and dequantises in registers, exactly as ONNX says.

    quantize(x) = saturate(round_half_even(x / scale) + zero_point)      QuantizeLinear
    dequantize(q) = (q - zero_point) * scale                             DequantizeLinear

The division is the rounded f32 one. For a scale known at compile time, two multiplications by a
reciprocal of twice the precision replace it, if they provably give equal integers: results can
differ only next to the thresholds n + 1/2, and all of them are tried. Between steps, 8-bit values
are held as int32 lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.arrays import RANGES
from microkernels.vector import expressions as ex
from microkernels.vector import placeholders
from microkernels.vector.expressions import Expr
from microkernels.vector.ieee import ROUND, round_to_integer
from tir_schedules.core.region import Region

from .lookup_table import Lookup

Number = float | placeholders.Placeholder | Expr


def rounded(value: Expr) -> Expr:
    """A f32 value that LLVM must round here: it may not become part of an FMA."""
    return ex.by_llvm("llvm.arithmetic.fence", value)


def emit_dequantize(value: Expr, scale: Number, zero_point: Number) -> Expr:
    """(value - zero_point) * scale in f32, for int32 lanes or a result of `emit_centred`."""
    centred = ex.element_of(value) == "float32" or zero_point == 0
    shifted = value if centred else value - _integer(zero_point, value)
    real = ex.cast("float32", shifted)
    return rounded(real * _everywhere(scale, real))


def emit_quantize(value: Expr, scale: Number, zero_point: Number, dtype: str) -> Expr:
    """Quantises f32 lanes to int32 lanes in the range of `dtype` ("uint8" or "int8")."""
    quotient = rounded(_within(value, scale, zero_point, dtype))
    if isinstance(zero_point, placeholders.Known):
        return round_to_integer(quotient, placeholders.as_integer(zero_point))
    integer = round_to_integer(quotient)
    return integer + _integer(zero_point, integer)


def emit_centred(value: Expr, scale: Number, zero_point: Number, dtype: str) -> Expr:
    """`emit_quantize` less the zero point, in f32; a 0 may be -0."""
    quotient = rounded(_within(value, scale, zero_point, dtype))
    if ex.lanes_of(value) == 1:  # plain x86-64 rounds by calling a function
        return rounded(quotient + ex.like(ROUND, value)) - ex.like(ROUND, value)
    return ex.by_llvm("llvm.roundeven", quotient)


def _within(value: Expr, scale: Number, zero_point: Number, dtype: str) -> Expr:
    """value / scale, limited to what the type can hold, but not yet rounded."""
    known = isinstance(scale, placeholders.Known) and isinstance(zero_point, placeholders.Known)
    parts = _parts(scale, zero_point, dtype) if known else None
    if parts is None:
        quotient = value / _everywhere(scale, value)
        low, high = (_bound(limit, zero_point, value) for limit in RANGES[dtype])
        return tirx.Min(tirx.Max(quotient, low), high)
    least, largest, reciprocal, rest = parts
    value = ex.bind(tirx.Min(tirx.Max(value, ex.like(least, value)), ex.like(largest, value)))
    return _quotient(value, reciprocal, rest)


def can_quantize_wide(scale: float, zero_point: float, dtype: str) -> bool:
    """Whether `emit_quantize_wide` supports this scale and zero point."""
    return _parts(scale, zero_point, dtype) is not None


def emit_quantize_wide(
    value: Expr, scale: float, zero_point: float, dtype: str, bounded: bool
) -> Expr:
    """`emit_quantize` to int32 lanes without the zero point and without saturation; for 16 lanes
    of AVX-512.

    Parameters
    ----------
    bounded : bool
        Whether |value| is less than 2^30 * scale. Otherwise too large values are limited first: the
        conversion makes everything outside of int32 the smallest number, right only on that side.
    """
    parts = _parts(scale, zero_point, dtype)
    assert parts is not None
    high = parts[1]
    if not bounded:
        value = ex.bind(tirx.Min(value, ex.like(high, value)))
    quotient, zeros = _quotient(value, *parts[2:]), ex.like(0, ex.reinterpret("int32", value))
    mask, rounding = tirx.const(-1, "int16"), tirx.const(4, "int32")  # 4: the current mode, to even
    name = "llvm.x86.avx512.mask.cvtps2dq.512"
    return I.call_llvm_pure_intrin("int32x16", name, quotient, zeros, mask, rounding)


def _quotient(value: Expr, reciprocal: float, rest: float) -> Expr:
    """A value divided by a scale, given the scale's reciprocal and the reciprocal's remainder."""
    quotient = value if reciprocal == 1 else value * ex.like(reciprocal, value)
    if not rest:
        return quotient
    correction = rounded(value * ex.like(rest, value))
    return ex.by_llvm("llvm.fma", value, ex.like(reciprocal, value), correction)


def quantize_reference(
    dtype: str, value: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
) -> np.ndarray:
    """QuantizeLinear by numpy."""
    low, high = RANGES[dtype]
    quotient = np.rint(np.asarray(value, np.float32) / np.asarray(scale, np.float32))
    return np.clip(quotient + np.asarray(zero_point, np.float32), low, high).astype(dtype)


def dequantize_reference(
    value: np.ndarray, scale: np.ndarray, zero_point: np.ndarray
) -> np.ndarray:
    """DequantizeLinear by numpy."""
    shifted = value.astype(np.int32) - np.asarray(zero_point).astype(np.int32)
    return shifted.astype(np.float32) * np.asarray(scale, np.float32)


def _everywhere(number: Number, value: Expr) -> Expr:
    """A number in every lane, of the type of `value` if it is known at compile time."""
    if isinstance(number, placeholders.Known):
        return ex.like(number, value)
    lanes = ex.lanes_of(value)
    return ex.splat(number, lanes) if ex.lanes_of(number) == 1 else number


def _integer(zero_point: Number, value: Expr) -> Expr:
    """A zero point in every int32 lane."""
    if isinstance(zero_point, placeholders.Known):
        return ex.like(placeholders.as_integer(zero_point), value)
    return ex.cast("int32", _everywhere(zero_point, value))


def _bound(limit: int, zero_point: Number, value: Expr) -> Expr:
    """limit - zero_point in every f32 lane."""
    if isinstance(zero_point, placeholders.Known):
        return ex.like(placeholders.as_real(limit - placeholders.as_integer(zero_point)), value)
    return ex.like(float(limit), value) - ex.cast("float32", _everywhere(zero_point, value))


def _parts(scale: Any, zero_point: Any, dtype: str) -> tuple[Any, ...] | None:
    """`_reciprocal` of numbers that may be placeholders."""
    return placeholders.unpacked(
        placeholders.applied(_reciprocal, scale, placeholders.as_integer(zero_point), dtype)
    )


@functools.cache
def _reciprocal(
    scale: float, zero_point: int, dtype: str
) -> tuple[float, float, float, float] | None:
    """Returns lowest x, highest x, reciprocal, remainder; None unless every integer is right."""
    exact = np.longdouble(np.float32(scale))
    # x below `low` or above `high` saturates.
    with np.errstate(over="ignore"):
        low, high = (np.float32((limit - zero_point) * exact) for limit in RANGES[dtype])
    tiny = np.finfo(np.float32).tiny
    if not (np.isfinite([low, high]).all() and tiny * 2.0**60 < scale < 2.0**100):
        return None
    reciprocal = np.float32(1 / exact)
    rest = np.float32((1 - np.longdouble(reciprocal) * exact) / exact)
    thresholds = (np.arange(-257, 257, dtype=np.longdouble) + 0.5) * exact
    candidates = [thresholds.astype(np.float32)]
    for _ in range(3):
        candidates.append(np.nextafter(candidates[-1], np.float32(np.inf)))
        candidates.insert(0, np.nextafter(candidates[0], np.float32(-np.inf)))
    x = np.concatenate([*candidates, [low, high]])
    correction = (x.astype(np.longdouble) * rest).astype(np.float32)
    product = x.astype(np.longdouble) * np.longdouble(reciprocal)
    found = np.rint((product + correction).astype(np.float32))
    if (found != np.rint(x / np.float32(scale))).any():
        return None
    return float(low), float(high), float(reciprocal), float(rest)


# Requantises in registers: scales a sum of products and rounds it, by one or two multiplications.
#
#     requantize(q, z, s)    = saturate(round_half_even(f32(q) * s + z))
#     requantize(q, z, s, t) = saturate(round_half_even(f32(f32(q) * s) * t + z))
#
# An FMA does the last multiplication and the rounding: adding 1.5 * 2^23 leaves the integer in the
# low bits. Results must fit in 16 bits before they are saturated. The pass that makes such steps
# proves that, and that the integers equal those of the operators that a step replaces.


WORD = 2**15
"""Results before saturation lie within -WORD..WORD - 1."""


def emit_words(value: Expr, zero_point: int, factors: list[Expr]) -> Expr:
    """int32 lanes whose low 16 bits are the result, not yet saturated.

    Parameters
    ----------
    value : Expr
        int32 lanes.
    zero_point : int
        Zero point of the result.
    factors : list of Expr
        One or two factors, f32 lanes.
    """
    real = ex.cast("float32", value)
    if len(factors) == 2:
        real = rounded(real * factors[0])
    fused = ex.by_llvm("llvm.fma", real, factors[-1], ex.like(ROUND + zero_point, real))
    return ex.reinterpret("int32", fused)


def saturated(value: Expr, dtype: str) -> Expr:
    """int32 lanes brought into the range of an 8-bit type."""
    low, high = (ex.like(limit, value) for limit in RANGES[dtype])
    return tirx.Min(tirx.Max(value, low), high)


def requantize_reference(
    dtype: str, value: np.ndarray, zero_point: np.ndarray, *factors: np.ndarray
) -> np.ndarray:
    """Requantisation by numpy.

    A f64 product of two f32 numbers is exact. So is the sum with the zero point in x87's 64 bits if
    it can be close to half an integer; otherwise its last bit does not matter.
    """
    real = np.asarray(value).astype(np.float32)
    for factor in factors[:-1]:
        real = real * np.asarray(factor, np.float32)
    product = real.astype(np.float64) * np.asarray(factors[-1], np.float64)
    total = np.rint(product.astype(np.longdouble) + np.asarray(zero_point, np.longdouble))
    return np.clip(total, *RANGES[dtype]).astype(dtype)


# Steps for which 0 and -0 are equal, as for integers.
_BLIND_TO_SIGNS = {
    *("constant", "item", "cast", "quantize", "dequantize", "less", "where"),
    *("add", "subtract", "multiply", "maximum", "minimum", "relu", "leaky_relu"),
}


def centred_steps(region: Region, lookups: Mapping[int, Lookup]) -> frozenset[int]:
    """Numbers, as in `EpilogueOp.args`, of quantised values that may stay f32, less the zero point.

        dequantize(quantize(x, s, z), s, z) = s * round(x / s, within the type)

    A value that a model quantises between two fused operators is never stored as an integer. So
    adding and subtracting its zero point and converting it twice are useless. A product of K = 64
    with 256 columns that is quantised, then added to a residual, takes 6% less time without them.
    """
    steps = region.epilogue
    if not steps or steps[-1].op != "quantize" or {s.op for s in steps} - _BLIND_TO_SIGNS:
        return frozenset()
    first = 1 + len(region.operands)
    looked_up = {lookup.source for lookup in lookups.values()}
    found = set()
    for number, step in enumerate(steps[:-1], first):
        users = [user for user in steps if number in user.args]
        undone = all(user.op == "dequantize" and user.args[1:] == step.args[1:] for user in users)
        if step.op == "quantize" and undone and number not in looked_up:
            found.add(number)
    return frozenset(found)
