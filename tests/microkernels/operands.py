"""Operands for any microkernel, their exact product, and the error that a kernel may have."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from microkernels.microkernel import Microkernel

Floats = NDArray[np.float64]


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """float32 as bfloat16 (uint16), truncated, as any finite bfloat16 is a valid operand."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def as_float(values: np.ndarray) -> Floats:
    """Operands as float64; uint16 holds bfloat16."""
    if values.dtype == np.uint16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64)


def stored(dtype: str) -> str:
    """The NumPy type that stores an operand type: bfloat16 lives in uint16."""
    return "uint16" if dtype == "bfloat16" else dtype


def extremes(dtype: str) -> tuple[int, ...]:
    """Both ends of an integer type, their neighbours in pairs, and 0 and 1."""
    ends = np.iinfo(dtype)
    return (int(ends.min), int(ends.max), 0, 1, -1 if ends.min else 128)


def random_operand(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Every value of an integer type, ends included; standard normal floats."""
    if dtype == "float16":
        return rng.standard_normal(shape).astype(np.float16)
    if np.issubdtype(np.dtype(stored(dtype)), np.integer) and dtype != "bfloat16":
        ends = np.iinfo(dtype)
        values = rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)
        # A quarter of the elements is at an end of the type: sums of pairs overflow 16 bits.
        at_end = rng.random(shape) < 0.25
        extremes = rng.choice(np.array([ends.min, ends.max], dtype), shape)
        return np.where(at_end, extremes, values)
    normal = rng.standard_normal(shape).astype(np.float32)
    return bfloat16_bits(normal) if dtype == "bfloat16" else normal


def assert_product(
    kernel: Microkernel,
    result: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    start: np.ndarray | None = None,
) -> None:
    """result = start + sum over blocks of a[block] @ b[block]: exact for integers, else bounded.

    A sum of n f32 terms is off by at most n * eps * |A| |B|, whatever the order in which they are
    added and rounded (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1): one
    after the other, or, by TDPBF16PS, the even and the odd ones of 32 each for themselves, then
    both, then the accumulator. Products of bfloat16 are exact in f32, and those of float16. The
    instructions for bfloat16 take subnormal inputs for zero and flush subnormal results: of the n
    products and the n additions each then loses at most the smallest normal f32 times the larger of
    1, |a| and |b|. TDPFP16PS flushes results alone, which sums of float16 products never are.

    Parameters
    ----------
    kernel : Microkernel
        Gives the types.
    result : ndarray
        Shape (rows, columns), of the accumulators' type.
    a, b : ndarray
        Shapes (blocks, rows, K) and (blocks, K, columns), as stored.
    start : ndarray or None
        What the accumulators started with; zero if None.
    """
    before = np.zeros_like(result) if start is None else start
    if kernel.acc_dtype == "int32":
        exact = np.einsum("bik,bkj->ij", a.astype(np.int64), b.astype(np.int64))
        np.testing.assert_array_equal(result, before + exact)
        return
    x, y = as_float(a), as_float(b)
    terms = a.shape[0] * a.shape[2] + 1
    magnitude = np.einsum("bik,bkj->ij", abs(x), abs(y)) + abs(before.astype(np.float64))
    bound = terms * np.finfo(np.float32).eps * magnitude
    if kernel.a_dtype == "bfloat16":
        bound += 2 * terms * 2.0**-126 * max(1.0, abs(x).max(), abs(y).max())
    error = abs(result - before - np.einsum("bik,bkj->ij", x, y))
    assert (error <= bound).all(), float((error - bound).max())
