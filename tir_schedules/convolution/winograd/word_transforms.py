"""The transforms of Winograd's F(2x2, 3x3) in integers of 16 bits, and what they are exact for.

A tile of 2x2 results needs 16 products instead of 36 (Lavin and Gray, arXiv 1509.09308, section
4.1). With twice their G there are integers only, and the sums are four times the results:

    4 Y = A^T [ (G g G^T) * (B^T d B) ] A        d: 4x4 of x less its zero point

|d| <= 255, so |B^T d B| <= 1020; |g| <= 128, so |G g G^T| <= 1152: both are words, and vpmaddwd
adds two of their products in 32 bits. Sums may wrap on their way, 4 Y must not: `MOST_CHANNELS`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from microkernels.vector.expressions import Expr, bind

TILE, TAPS = 2, 3
REACH = TILE + TAPS - 1
SHIFT = 2
MOST_CHANNELS = (2**31 - 1) // (4 * TAPS * TAPS * 255 * 128)

G = np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]])
G_INVERSE = np.array([[1, 0, 0, 0], [0, 1, -1, 0], [0, 0, 0, 1]]) / 2  # G_INVERSE @ G = 1


def input_transform(d: Sequence[Expr]) -> list[Expr]:
    """B^T d along one axis: four vectors of four."""
    return [bind(value) for value in (d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3])]


def output_transform(m: Sequence[Expr]) -> list[Expr]:
    """A^T m along one axis: two vectors of four."""
    return [bind(m[0] + m[1] + m[2]), bind(m[1] - m[2] - m[3])]


def words_of_bytes(expr: relax.Expr, count: int) -> relax.Expr:
    """int32 [count]: words whose bytes lie behind each other as int8."""
    pairs = relax.op.reshape(relax.op.astype(expr, "int32"), (count, 2))
    low, high = (relax.op.strided_slice(pairs, [1], [at], [at + 1]) for at in (0, 1))
    low = relax.op.bitwise_and(low, relax.const(255, "int32"))
    whole = relax.op.add(low, relax.op.multiply(high, relax.const(256, "int32")))
    return relax.op.reshape(whole, (count,))
