"""Tile configurations, and AMX instructions in NumPy.

The floating point products follow the Intel SDM, TDPBF16PS and TDPFP16PS: products of even and of
odd elements go to two float32 chains of fused multiply-adds in the order of k; then the sum of both
chains is added. Every rounding is to nearest even, with denormal results flushed; denormal bf16 and
float32 operands are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

INTEGER_TYPES = {
    "tdpbssd": (np.int8, np.int8),
    "tdpbsud": (np.int8, np.uint8),
    "tdpbusd": (np.uint8, np.int8),
    "tdpbuud": (np.uint8, np.uint8),
}
FLOAT_NAMES = ("tdpbf16ps", "tdpfp16ps")
PRODUCTS = (*INTEGER_TYPES, *FLOAT_NAMES)

_SMALLEST_NORMAL = 2.0**-126


def config_image(
    shapes: Sequence[tuple[int, int]], palette: int = 1, start_row: int = 0
) -> np.ndarray:
    """The 64 bytes that ldtilecfg reads; `shapes` are (rows, bytes per row) of tiles 0, 1, ..."""
    image = np.zeros(64, np.uint8)
    image[:2] = palette, start_row
    for tile, (rows, column_bytes) in enumerate(shapes):
        image[48 + tile] = rows
        image[16 + 2 * tile : 18 + 2 * tile].view("<u2")[0] = column_bytes
    return image


def product(name: str, sums: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sums after a dot product of tiles.

    Parameters
    ----------
    name : str
        The instruction.
    sums : numpy.ndarray
        uint32 [M, N]: int32 or float32, as bits.
    a : numpy.ndarray
        uint8 [M, 4 * K].
    b : numpy.ndarray
        uint8 [K, 4 * N].
    """
    if name in INTEGER_TYPES:
        a_type, b_type = INTEGER_TYPES[name]
        m, k, n = a.shape[0], b.shape[0], b.shape[1] // 4
        left = a.view(a_type).astype(np.int64).reshape(m, 4 * k)
        right = b.view(b_type).astype(np.int64).reshape(k, n, 4).transpose(0, 2, 1)
        result = sums.astype(np.int64) + left @ right.reshape(4 * k, n)
        return (result & 0xFFFFFFFF).astype(np.uint32)
    chains = [np.zeros(sums.shape, np.float64) for _ in range(2)]
    with np.errstate(invalid="ignore", over="ignore"):
        left, right = _widened(name, a), _widened(name, b)
        for k in range(b.shape[0]):
            for parity in range(2):
                factors = left[:, 2 * k + parity, None] * right[k, parity::2]
                # Float64 is exact enough: with products of at most 22 bits, its rounding can
                # neither make nor break a tie of float32.
                chains[parity] = _rounded(chains[parity] + factors)
        before = sums.view(np.float32).astype(np.float64)
        before = np.where(np.abs(before) < _SMALLEST_NORMAL, np.copysign(0.0, before), before)
        result = _rounded(before + _rounded(chains[0] + chains[1]))
    return result.astype(np.float32).view(np.uint32)


def same_floats(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether float32 bits are equal; all NaNs are equal."""
    x, y = left.view(np.float32), right.view(np.float32)
    return bool(((left == right) | (np.isnan(x) & np.isnan(y))).all())


def _widened(name: str, elements: np.ndarray) -> np.ndarray:
    """The 16-bit elements of byte rows as float64."""
    if name == "tdpfp16ps":
        return elements.view(np.float16).astype(np.float64)
    bits = elements.view(np.uint16).astype(np.uint32) << 16
    values = bits.view(np.float32).astype(np.float64)
    return np.where(np.abs(values) < _SMALLEST_NORMAL, np.copysign(0.0, values), values)


def _rounded(values: np.ndarray) -> np.ndarray:
    """Rounds float64 to float32, flushing results below the normal range to zero.

    A result is tiny if it is below 2^-126 after rounding to 24 bits with an unlimited exponent; the
    largest tiny value lies half a step (of 2^-150) below 2^-126.
    """
    tiny = np.abs(values) < _SMALLEST_NORMAL - 2.0**-151
    rounded = values.astype(np.float32).astype(np.float64)
    return np.where(tiny, np.copysign(0.0, values), rounded)
