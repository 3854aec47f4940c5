"""u8 x s8 -> s32 without VNNI: by digits, bytes, words, halves. One packed weight serves all four.

    digits   of four bits of A: vpmaddubsw and vpmaddwd for each; exact, 6 instructions
    bytes    vpmaddubsw, vpmaddwd by ones; exact if every sum of two products fits 16 bits, 3
    words    vpmaddwd on operands that were widened in cache before; exact, 4
    halves   words that are made of bytes in registers; exact, 4, and 3 for each vector of B

The counts are instructions for 4 products in each lane, additions included. Bytes do not saturate
if all of A is at most 127 (2 * 127 * 128 = 32512), or if |w0| + |w1| <= 128 for every pair of
weights that are added first (255 * 128 = 32640). Only digits are registered: the caller of another
tile must know that bytes do not saturate, or must have widened the operands.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tvm.tirx.script.builder.ir as I

from microkernels.microkernel import Microkernel
from microkernels.tile import MultiplyAdd
from microkernels.vector.expressions import Expr, cast, constant, lanes_of, vector_type

KR = 4  # elements of K in a lane
LARGEST_PAIR = 128  # |w0| + |w1|

# Sums of pairs of bytes, and of words.
_INSTRUCTIONS = {
    "avx2": ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    "avx512": ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}


def has_pairs(kernel: Microkernel) -> bool:
    """Whether a kernel adds products of bytes in pairs, so that the other tiles exist for it."""
    integers = kernel.b_dtype == "int8" and not kernel.by_tiles
    return integers and kernel.isa_name in _INSTRUCTIONS


def byte_tile(kernel: Microkernel) -> Microkernel:
    """The tile by bytes that replaces a kernel with pairs."""

    def multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
        return accumulator + pair_sums(kernel.isa_name, pair_products(kernel.isa_name, a, b), 1)

    name = kernel.name.replace("u8s8s32", "u8s8s32_bytes")
    return replace(kernel, name=name, multiply_add=multiply_add)


def halves_tile(kernel: Microkernel) -> Microkernel:
    """The tile by halves that replaces a kernel with pairs, if words would fill the cache."""
    by_words = _by_words(kernel.isa_name)

    def multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
        words = lanes_of(a) // 2
        unsigned = I.reinterpret(vector_type("uint16", words), a)
        signed = I.reinterpret(vector_type("int16", words), b)
        eight = constant(8, "int16", words)
        # The upper byte of each word, and the lower one.
        halves = (
            (unsigned >> constant(8, "uint16", words), signed >> eight),
            (unsigned & constant(255, "uint16", words), (signed << eight) >> eight),
        )
        for one, other in halves:
            as_words = I.reinterpret(vector_type("int16", words), one)
            accumulator = by_words(accumulator, as_words, other)
        return accumulator

    name = kernel.name.replace("u8s8s32", "u8s8s32_halves")
    return replace(kernel, name=name, multiply_add=multiply_add)


def word_tile(kernel: Microkernel) -> Microkernel:
    """The tile by words that replaces a kernel with pairs; it takes two steps for one."""
    name = kernel.name.replace("u8s8s32", "s16s16s32")
    return replace(kernel, name=name, kr=2, multiply_add=_by_words(kernel.isa_name))


def packed_words_tile(kernel: Microkernel) -> Microkernel:
    """`word_tile` for operands that are words in memory."""
    return replace(word_tile(kernel), a_dtype="int16", b_dtype="int16")


def widening_tile(kernel: Microkernel) -> Microkernel:
    """`word_tile` for bytes that the tile widens: it pays if each vector of A is used once."""
    by_words = _by_words(kernel.isa_name)

    def multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
        return by_words(accumulator, cast("int16", a), cast("int16", b))

    return replace(kernel, kr=2, multiply_add=multiply_add)


def pairs_fit(packed: np.ndarray) -> bool:
    """Whether no pair of packed s8 weights can saturate, for any A."""
    return bool(_magnitudes(packed).max(initial=0) <= LARGEST_PAIR)


def split_pairs(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Splits weights into two that add up to them: the pairs that fit, and corrections.

    The first holds half of each pair that can saturate, the second the other half and else 0. So
    neither has a pair that can saturate.
    """
    large = np.repeat(_magnitudes(packed) > LARGEST_PAIR, 2).reshape(packed.shape)
    within = np.where(large, packed >> 1, packed)
    return within, packed - within


def _magnitudes(packed: np.ndarray) -> np.ndarray:
    """|w0| + |w1| of every pair."""
    return np.abs(packed.reshape(-1, 2).astype(np.int16)).sum(axis=1)


def by_digits(isa_name: str) -> MultiplyAdd:
    """Products by the lower and by the upper four bits of A."""

    def multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
        low, high = a & constant(15, "uint8", lanes_of(a)), a >> constant(4, "uint8", lanes_of(a))
        lower = pair_sums(isa_name, pair_products(isa_name, low, b), 1)
        return accumulator + lower + pair_sums(isa_name, pair_products(isa_name, high, b), 16)

    return multiply_add


def signed_pairs(isa_name: str, a: Expr, b: Expr, signs: Expr) -> Expr:
    """Sums of four products of bytes in 32 bits; `signs` are words of 1 or -1."""
    dtype = vector_type("int32", lanes_of(a) // KR)
    words = pair_products(isa_name, a, b)
    return I.call_llvm_pure_intrin(dtype, _INSTRUCTIONS[isa_name][1], words, signs)


def _by_words(isa_name: str) -> MultiplyAdd:
    def multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
        dtype = vector_type("int32", lanes_of(accumulator))
        return accumulator + I.call_llvm_pure_intrin(dtype, _INSTRUCTIONS[isa_name][1], a, b)

    return multiply_add


def pair_products(isa_name: str, a: Expr, b: Expr) -> Expr:
    """Sums of two products of u8 by s8, as saturating words."""
    dtype = vector_type("int16", lanes_of(a) // 2)
    return I.call_llvm_pure_intrin(dtype, _INSTRUCTIONS[isa_name][0], a, b)


def pair_sums(isa_name: str, words: Expr, factor: int) -> Expr:
    """Sums of two words in 32 bits, times a factor."""
    dtype = vector_type("int32", lanes_of(words) // 2)
    factors = constant(factor, "int16", lanes_of(words))
    return I.call_llvm_pure_intrin(dtype, _INSTRUCTIONS[isa_name][1], words, factors)
