"""What follows a weight of 8-bit integers that is no constant, as Relax expressions.

    w: int8 [taps, IC, N]  ->  int32 [classes, N]  ->  int8 [classes * N * 4], as stored behind w

`ZeroPoints.column_term` computes the same of a constant. A class is a group of positions of a
convolution, at which some of the taps lie within the image.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from microkernels.kernels.byte_pairs import LARGEST_PAIR

from .zero_points import ZeroPoints

_SHIFTS = np.arange(0, 32, 8, dtype=np.int32)


def expressed_terms(points: ZeroPoints, weight: relax.Expr, counted: np.ndarray) -> relax.Expr:
    """int32 [classes, N]: the column term of every class.

    Parameters
    ----------
    points : ZeroPoints
        Of the product; the weight has none.
    weight : relax.Expr
        int8 [taps, IC, N].
    counted : numpy.ndarray
        bool [classes, taps]: which taps lie within the image.
    """
    assert points.b == 0 and not points.b_columns  # kernels of convolutions know no others
    factor = 1 if points.a_runtime else -points.a
    sums = relax.op.sum(relax.op.astype(weight, "int32"), axis=1)
    chosen = relax.const(counted.astype(np.int32) * np.int32(factor))
    return relax.op.matmul(chosen, sums, out_dtype="int32")


def expressed_answer(packed: relax.Expr, count: int) -> relax.Expr:
    """int32 [1]: whether pairs of so many packed bytes fit, as `byte_pairs.pairs_fit` says."""
    op = relax.op
    pairs = op.reshape(op.abs(op.astype(packed, "int32")), (count // 2, 2))
    largest = op.max(op.sum(pairs, axis=1), axis=0, keepdims=True)
    return op.astype(op.less_equal(largest, relax.const(LARGEST_PAIR, "int32")), "int32")


def expressed_bytes(numbers: relax.Expr, count: int, dtype: str, each: int = 4) -> relax.Expr:
    """The lowest bytes of int32 numbers as elements of an 8-bit type, as they lie in memory."""
    column = relax.op.reshape(numbers, (count, 1))
    shifted = relax.op.right_shift(column, relax.const(_SHIFTS[:each]))
    single = relax.op.bitwise_and(shifted, relax.const(255, "int32"))
    return relax.op.reshape(relax.op.astype(single, dtype), (each * count,))
