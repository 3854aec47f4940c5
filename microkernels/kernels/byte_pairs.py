"""u8 x s8 -> s32 by vpmaddubsw: exact only where no sum of two products leaves 16 bits.

    vpmaddubsw         sums of two products, in words; saturates
    vpmaddwd by ones   sums of two words, in 32 bits

With the addition to the accumulators these are three instructions for four products a lane, where
operands widened to words take four. Nothing saturates if all of A is at most 127
(2 * 127 * 128 = 32512), or if |w0| + |w1| <= 128 for every pair of weights that are added first
(255 * 128 = 32640). These tiles are not registered, because nobody may choose them without knowing
one of the two.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tvm.tirx.script.builder.ir as I

from microkernels.microkernel import Microkernel, MultiplyAdd
from microkernels.vector.expressions import Expr, constant, lanes_of, vector_type

KR = 4  # elements of K in a lane
LARGEST_A = 127
LARGEST_PAIR = 128  # |w0| + |w1|

_INSTRUCTIONS = {
    "avx2": ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    "avx512": ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}


def byte_tile(kernel: Microkernel) -> Microkernel | None:
    """The tile by pairs of bytes, of the same size; None where the CPU has something better.

    Parameters
    ----------
    kernel : Microkernel
        Of the integer families; those that multiply words have one.
    """
    if kernel.b_dtype != "int8" or kernel.isa_name not in _INSTRUCTIONS or kernel.by_tiles:
        return None
    multiply_add = _dot_by_bytes(*_INSTRUCTIONS[kernel.isa_name])
    name = f"{kernel.isa_name}_u8s8s32_bytes_{kernel.mr}x{kernel.nr}"
    return replace(kernel, name=name, kr=KR, multiply_add=multiply_add)


def pairs_fit(matrix: np.ndarray) -> bool:
    """Whether no pair of weights of a column of s8 [K, N] can saturate, whatever A is."""
    padded = np.pad(np.abs(matrix.astype(np.int16)), ((0, len(matrix) % 2), (0, 0)))
    return bool((padded[::2] + padded[1::2]).max(initial=0) <= LARGEST_PAIR)


def _dot_by_bytes(pairs: str, fours: str) -> MultiplyAdd:
    def multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
        lanes = lanes_of(accumulator)
        words = I.call_llvm_pure_intrin(vector_type("int16", 2 * lanes), pairs, a, b)
        ones = constant(1, "int16", 2 * lanes)
        sums = I.call_llvm_pure_intrin(vector_type("int32", lanes), fours, words, ones)
        return accumulator + sums

    return multiply_add
