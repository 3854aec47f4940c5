"""Values for bfloat16 products, and how far a kernel may be from the exact product of them."""

from __future__ import annotations

import numpy as np

from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from tests.tir_schedules.run_region import dtype_named, machine_for
from tvm_hybrid.runtime.feeds import BFLOAT16

TINY = 2.0**-126


def kernels(isa: str) -> tuple[Microkernel, ...]:
    """The bfloat16 kernels that can be chosen on an instruction set."""
    return kernels_for(machine_for(isa).isa, "bfloat16", "bfloat16")


def small_integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Integers in -8..8: every sum of up to 2^18 products of them is exact in f32."""
    return rng.integers(-8, 9, shape).astype(dtype_named(dtype))


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Standard normal f32 values with more digits than bfloat16 holds."""
    return np.asarray(rng.standard_normal(shape)).astype(np.float32).astype(dtype_named(dtype))


def rounded(x: np.ndarray) -> np.ndarray:
    """Values rounded to bfloat16 (to nearest, ties to even), in float64."""
    return x.astype(BFLOAT16).astype(np.float64)


def exact(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product of the rounded operands in float64, and the bound of a kernel's error.

    Products of bfloat16 values are exact in f32. A sum of K terms rounded in any order is off by at
    most (K + 1) * eps * |A| |B| (Higham, "Accuracy and Stability of Numerical Algorithms", section
    3.1). Instructions for bfloat16 may take subnormal numbers for zero, operands and results alike:
    a product and a sum then each lose at most the smallest normal f32 times the larger of 1, |a|
    and |b|.
    """
    x, y = rounded(a), rounded(b)
    k = a.shape[-1]
    bound = (k + 1) * np.finfo(np.float32).eps * np.matmul(np.abs(x), np.abs(y))
    return np.matmul(x, y), bound + 2 * k * TINY * max(1.0, np.abs(x).max(), np.abs(y).max())
