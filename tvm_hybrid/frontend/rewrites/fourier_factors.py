"""A long Fourier transform as two products with small tables (Cooley and Tukey, 1965).

    MatMul(x: [4, 4096], table: [4096, 8192])
    ->
    Reshape(x, [4, 64, 64]), Transpose               [4, n2, n1]
    MatMul by [64, 128], Mul, MatMul, Mul, Add       [4, n2, (part, k1)], times the twiddle factors
    Reshape, Transpose                               [4, k1, (part, n2)]
    MatMul by [128, 128], Reshape, Transpose         [4, (k2, k1), part]

Element n1 * second + n2 of a signal adds to element k1 + first * k2 of its transform. The twiddle
factor of n2 and k1 multiplies a complex number. The second product with the first table computes
that number times i, so that the multiplications and the addition are epilogues of products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..node_builder import Extent, NodeBuilder
from ..node_extents import times

_BYTE = 0.5
"""Multiplications that take as long as one moved byte.

Both constants are fitted to 54 transforms of 60 to 1024 elements (1, 4 and 64 signals, AVX2, one
core): the faster form is chosen for 51, and the others lose less than 1.8 times.
"""
_KERNELS = 80_000.0
"""Multiplications that take as long as the calls of the additional kernels."""
_USUAL_ROWS = 4
"""The number of signals for the estimate if it is open."""


@dataclass(frozen=True)
class Factors:
    """A transform of `first` * `second` elements as two products.

    Parameters
    ----------
    read
        Number of elements that the signal has; elements behind them are 0.
    parts
        1 for a signal of real numbers, 2 for one of complex numbers.
    made
        Number of elements of the result.
    made_parts
        1 if only the real parts are results.
    """

    first: int
    second: int
    read: int
    parts: int
    made: int
    made_parts: int
    inverse: bool

    @property
    def rows(self) -> int:
        """Runs of `second` elements in the signal, the last one padded with zeros."""
        return -(-self.read // self.second)

    @property
    def columns(self) -> int:
        """Runs of `first` elements in the result, the last one cut."""
        return -(-self.made // self.first)

    @property
    def multiplications(self) -> int:
        """The multiplications of one signal."""
        opening = 2 * self.second * self.rows * self.parts * 2 * self.first
        return opening + self.first * 2 * self.second * self.columns * self.made_parts

    @property
    def moved(self) -> int:
        """Numbers of one signal that are read or written by what is no product."""
        made = self.columns * self.first * self.made_parts
        return 2 * (self.rows * self.second * self.parts + 2 * self.first * self.second + made)

    @property
    def table_numbers(self) -> int:
        """Numbers of all constants."""
        opening = 2 * self.rows * self.parts * 2 * self.first
        twiddles = 4 * self.second * self.first
        return opening + twiddles + 2 * self.second * self.columns * self.made_parts


def factors_of(
    length: int, read: int, parts: int, made: int, made_parts: int, inverse: bool, count: Extent
) -> Factors | None:
    """The two products of a transform; None if one product is estimated to be faster.

    Parameters
    ----------
    count
        Number of signals.
    """
    first = max(size for size in range(1, math.isqrt(length) + 1) if length % size == 0)
    factors = Factors(first, length // first, read, parts, made, made_parts, inverse)
    rows = count if isinstance(count, int) else _USUAL_ROWS
    table = read * parts * made * made_parts
    one = rows * table + _BYTE * 4 * table
    moved = rows * factors.moved + factors.table_numbers
    split = rows * factors.multiplications + _BYTE * 4 * moved + _KERNELS
    return factors if split < one else None


def factored_product(
    build: NodeBuilder, factors: Factors, signal: str, count: Extent, dtype: npt.DTypeLike
) -> str:
    """The transform of a signal [count, read, parts], [count, made, made_parts]."""
    first, second, rows = factors.first, factors.second, factors.rows
    missing = rows * second - factors.read
    if missing:
        pads = build.constant([0, 0, 0, 0, missing, 0], np.int64)
        signal = build.add("Pad", signal, pads)
    signal = build.reshape(signal, [count, rows, second, factors.parts])
    signal = build.add("Transpose", signal, perm=[0, 2, 1, 3])
    signal = build.reshape(signal, [count, second, rows * factors.parts])
    turned = []
    for turn, twiddles in zip((1, 1j), _twiddles(factors), strict=True):
        table = build.constant(_opening_table(factors, turn), dtype)
        product = build.add("MatMul", signal, table)
        turned.append(build.add("Mul", product, build.constant(twiddles, dtype)))
    signal = build.add("Add", *turned)
    signal = build.reshape(signal, [count, second, 2, first])
    signal = build.add("Transpose", signal, perm=[0, 3, 2, 1])
    signal = build.reshape(signal, [times(build, count, first), 2 * second])
    signal = build.add("MatMul", signal, build.constant(_closing_table(factors), dtype))
    columns, parts = factors.columns, factors.made_parts
    signal = build.reshape(signal, [count, first, columns, parts])
    signal = build.add("Transpose", signal, perm=[0, 2, 1, 3])
    signal = build.reshape(signal, [count, columns * first, parts])
    if columns * first == factors.made:
        return signal
    start, stop, axes = (build.constant([each], np.int64) for each in (0, factors.made, 1))
    return build.add("Slice", signal, start, stop, axes)


def roots(powers: np.ndarray, length: int, inverse: bool) -> np.ndarray:
    """Powers of the root of unity, complex numbers of float64."""
    root = np.exp((2j if inverse else -2j) * math.pi * np.arange(length) / length)
    return root[powers % length]


def _opening_table(factors: Factors, turn: complex) -> np.ndarray:
    """Sums over n1, times `turn`: [rows * parts, 2 * first]."""
    powers = np.outer(np.arange(factors.rows), np.arange(factors.first))
    table = turn * roots(powers, factors.first, factors.inverse)
    both = np.stack([table, 1j * table][: factors.parts], 1)
    return np.concatenate([both.real, both.imag], -1).reshape(-1, 2 * factors.first)


def _twiddles(factors: Factors) -> tuple[np.ndarray, np.ndarray]:
    """Real and imaginary parts of the twiddle factors, both twice: [second, 2 * first]."""
    powers = np.outer(np.arange(factors.second), np.arange(factors.first))
    values = roots(powers, factors.first * factors.second, factors.inverse)
    return np.tile(values.real, 2), np.tile(values.imag, 2)


def _closing_table(factors: Factors) -> np.ndarray:
    """Sums over n2: [2 * second, columns * made_parts]."""
    powers = np.outer(np.arange(factors.second), np.arange(factors.columns))
    table = roots(powers, factors.second, factors.inverse)
    if factors.inverse:
        table = table / (factors.first * factors.second)
    both = np.stack([table, 1j * table])
    parts = np.stack([both.real, both.imag][: factors.made_parts], -1)
    return parts.reshape(2 * factors.second, -1)
