"""Microkernels of bf16: by dot products where the CPU has them, else widened to f32."""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I

from microkernels.registry import register_microkernels
from microkernels.vector.bfloat16 import NARROW, NARROW_TWO, widen
from microkernels.vector.expressions import Expr, like, reinterpret, reinterpret_group

_DOT = "tvm_hybrid_dpbf16"

# TVM has no bfloat type to pass to the intrinsics, hence these functions; they are always inlined.
DOT_LLVM_IR = f"""
define linkonce_odr <16 x float> @{_DOT}(<16 x float> %c, <16 x i32> %a, <16 x i32> %b) #0 {{
  %pairs_a = bitcast <16 x i32> %a to <32 x bfloat>
  %pairs_b = bitcast <16 x i32> %b to <32 x bfloat>
  %sum = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
    <16 x float> %c, <32 x bfloat> %pairs_a, <32 x bfloat> %pairs_b)
  ret <16 x float> %sum
}}
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
  <16 x float>, <32 x bfloat>, <32 x bfloat>)
define linkonce_odr <16 x i16> @{NARROW}(<16 x float> %x) #0 {{
  %narrow = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)
  %bits = bitcast <16 x bfloat> %narrow to <16 x i16>
  ret <16 x i16> %bits
}}
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)
define linkonce_odr <32 x i16> @{NARROW_TWO}(<16 x float> %low, <16 x float> %high) #0 {{
  %narrow = call <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(
    <16 x float> %high, <16 x float> %low)
  %bits = bitcast <32 x bfloat> %narrow to <32 x i16>
  ret <32 x i16> %bits
}}
declare <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float>, <16 x float>)
attributes #0 = {{ alwaysinline nounwind }}
"""


def dot_by_dpbf16(accumulator: Expr, a: Expr, b: Expr) -> Expr:
    """vdpbf16ps: two products and their sum with the accumulator, in one instruction."""
    dtype = str(accumulator.ty.dtype)
    words = (reinterpret_group("int32", pairs, 16) for pairs in (a, b))
    return I.call_pure_extern(dtype, _DOT, accumulator, *words)


def dot_by_widening(accumulator: Expr, a: Expr, b: Expr) -> Expr:
    """Two f32 FMAs on the halves of every 32-bit word: a bf16 is the upper half of a f32."""
    lanes = int(accumulator.ty.dtype.lanes)
    first, second = (reinterpret_group("int32", pairs, lanes) for pairs in (a, b))

    def low(word: Expr) -> Expr:
        return reinterpret("float32", word << like(16, word))

    def high(word: Expr) -> Expr:
        return reinterpret("float32", word & like(-0x10000, word))

    return accumulator + low(first) * low(second) + high(first) * high(second)


def one_product(accumulator: Expr, a: Expr, b: Expr) -> Expr:
    """One f32 product a step of K, for kr = 1."""
    return accumulator + widen(a) * widen(b)


TYPES = ("bf16", "bfloat16", "bfloat16", "float32")

register_microkernels(
    "avx512_bf16",
    TYPES,
    2,
    [(6, 64), (8, 48), (12, 32), (14, 32), (1, 256), (2, 128), (3, 128), (4, 96), (5, 80)],
    dot_by_dpbf16,
    DOT_LLVM_IR,
)


# bf16 tiles on AVX-512 without a fast vdpbf16ps: operands are widened when they are loaded.
#
# The arithmetic is no faster than f32, but the weight takes half the bytes.


register_microkernels(
    "avx512", TYPES, 2, [(6, 48), (8, 32), (1, 128), (2, 96), (4, 64)], dot_by_widening
)
register_microkernels("avx2", TYPES, 2, [(4, 16), (2, 24), (1, 48)], dot_by_widening)
register_microkernels("scalar", TYPES, 1, [(4, 4)], one_product)
