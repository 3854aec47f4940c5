"""The instructions' results in NumPy, after Intel's manual, volume 2.

Lanes are the elements of one-dimensional arrays; floats are passed as their bits. A form of an
instruction that the project does not use (a mask, a rounding) is left out.
"""

from __future__ import annotations

import numpy as np

SMALLEST_NORMAL = 2.0**-126
_INDEFINITE = np.uint32(0xFFC00000)  # the NaN of an invalid operation
_ROUNDINGS = {4: np.rint, 8: np.rint, 9: np.floor, 10: np.ceil, 11: np.trunc}


def vpdpbusd(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """VPDPBUSD: c + sums of four u8 * s8; c is int32 and wraps around."""
    products = a.view(np.uint8).astype(np.int64) * b.view(np.int8)
    return (c + products.reshape(-1, 4).sum(1)).astype(np.int32)


def pmaddwd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """VPMADDWD: sums of two s16 * s16."""
    products = a.astype(np.int64) * b
    return products.reshape(-1, 2).sum(1).astype(np.int32)


def pmaddubsw(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """VPMADDUBSW: sums of two u8 * s8, saturated."""
    products = a.view(np.uint8).astype(np.int64) * b.view(np.int8)
    return np.clip(products.reshape(-1, 2).sum(1), -(2**15), 2**15 - 1).astype(np.int16)


def pack(a: np.ndarray, b: np.ndarray, dtype: str) -> np.ndarray:
    """VPACKSSDW, VPACKSSWB, VPACKUSWB: 128 saturated bits of a, 128 of b, and so on."""
    group = 16 // a.itemsize
    both = np.stack([a.reshape(-1, group), b.reshape(-1, group)], axis=1)
    ends = np.iinfo(dtype)
    return np.clip(both, ends.min, ends.max).astype(dtype).reshape(-1)


def permute(index: np.ndarray, *tables: np.ndarray) -> np.ndarray:
    """VPERMD, VPERMPS, VPERMI2D, VPERMI2W: lanes of one or two tables by the index's low bits."""
    table = np.concatenate(tables)
    return table[index.astype(np.int64) & (table.size - 1)]


def scalef(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """VSCALEFPS: a * 2^floor(b), rounded once, with Intel's table of special cases."""
    return np.array([_scaled(x, y) for x, y in zip(a, b, strict=True)], np.uint32)


def _scaled(a: np.uint32, b: np.uint32) -> np.uint32:
    x, y = (np.array(bits, np.uint32).view(np.float32)[()] for bits in (a, b))
    sign = a & np.uint32(0x80000000)
    infinity, quiet = np.uint32(0x7F800000), np.uint32(0x00400000)
    if np.isnan(x):
        if a & quiet and np.isinf(y):
            return infinity if y > 0 else np.uint32(0)
        return a | quiet
    if np.isnan(y):
        return b | quiet
    if np.isinf(y):
        if y > 0:
            return _INDEFINITE if x == 0 else sign | infinity
        return _INDEFINITE if np.isinf(x) else sign
    with np.errstate(over="ignore"):
        # float64 holds a times any power that matters exactly.
        power = int(max(-400.0, min(400.0, np.floor(np.float64(y)))))
        return np.float32(np.ldexp(np.float64(x), power)).view(np.uint32)


def cvtps2dq(x: np.ndarray, rounding: int) -> np.ndarray:
    """VCVTPS2DQ: rounded integers; the integer indefinite for values beyond int32."""
    with np.errstate(invalid="ignore"):
        rounded = _ROUNDINGS[rounding](x.view(np.float32).astype(np.float64))
        fits = (rounded >= -(2.0**31)) & (rounded < 2.0**31)
    return np.where(fits, np.where(fits, rounded, 0).astype(np.int64), -(2**31)).astype(np.int32)


def cvtneps2bf16(x: np.ndarray) -> np.ndarray:
    """VCVTNEPS2BF16: rounds to nearest even; denormals become zeros, NaNs become quiet."""
    return np.array([_bfloat16(int(bits)) for bits in x], np.uint16)


def _bfloat16(bits: int) -> int:
    exponent, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0:
        return bits >> 16 & 0x8000
    if exponent == 0xFF:
        return bits >> 16 | (0x40 if fraction else 0)
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def cvtne2ps2bf16(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """VCVTNE2PS2BF16: the second source becomes the lower half."""
    return np.concatenate([cvtneps2bf16(low), cvtneps2bf16(high)])


def dpbf16ps(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """VDPBF16PS: two fused multiply-adds, first of the odd elements, then of the even ones.

    Each rounds to nearest even; denormal operands and results are zeros.
    """
    with np.errstate(all="ignore"):
        total = _flushed(c.view(np.float32).astype(np.float64))
        for parity in (1, 0):
            left, right = (
                _flushed((x[parity::2].astype(np.uint32) << 16).view(np.float32).astype(np.float64))
                for x in (a, b)
            )
            total = _rounded(_to_odd(left * right, total))
        return total.astype(np.float32).view(np.uint32)


def _flushed(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) < SMALLEST_NORMAL, np.copysign(0.0, values), values)


def _to_odd(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y in float64, rounded to odd: rounding it again equals rounding x + y once."""
    total = x + y
    part = total - x
    error = (x - (total - part)) + (y - part)  # Knuth's TwoSum: total + error = x + y
    even = total.view(np.uint64) & np.uint64(1) == 0
    inexact = np.isfinite(total) & (error != 0) & even
    away = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, total.view(np.int64) + away, total.view(np.int64)).view(np.float64)


def _rounded(values: np.ndarray) -> np.ndarray:
    """Rounds to float32; flushes results below the normal range with an unlimited exponent."""
    scaled = (values * 2.0**64).astype(np.float32)
    tiny = np.abs(scaled) < np.float32(SMALLEST_NORMAL * 2.0**64)
    rounded = values.astype(np.float32).astype(np.float64)
    return np.where(tiny, np.copysign(0.0, values), rounded)
