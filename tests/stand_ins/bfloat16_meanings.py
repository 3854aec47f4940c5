"""Conversion to bfloat16, and dot products of pairs of bfloat16."""

from __future__ import annotations

from .llvm_ir import (
    BITS,
    FLOATS,
    PREFIX,
    SMALLEST_NORMAL,
    TWO_TO_64,
    TWO_TO_MINUS_62,
    WORDS,
    constant,
    function,
)

_NARROW_HELPER = function(
    "<16 x i16>",
    "narrow",
    f"{FLOATS} %x",
    f"""
  %bits = bitcast {FLOATS} %x to {WORDS}
  %exponent = and {WORDS} %bits, splat (i32 2139095040)
  %tiny = icmp eq {WORDS} %exponent, zeroinitializer
  %nan = fcmp uno {FLOATS} %x, %x
  %upper = lshr {WORDS} %bits, splat (i32 16)
  %odd = and {WORDS} %upper, splat (i32 1)
  %bias = add {WORDS} %odd, splat (i32 32767)
  %sum = add {WORDS} %bits, %bias
  %normal = lshr {WORDS} %sum, splat (i32 16)
  %quiet = or {WORDS} %upper, splat (i32 64)
  %sign = and {WORDS} %upper, splat (i32 32768)
  %r0 = select {BITS} %tiny, {WORDS} %sign, {WORDS} %normal
  %r1 = select {BITS} %nan, {WORDS} %quiet, {WORDS} %r0
  %result = trunc {WORDS} %r1 to <16 x i16>
  ret <16 x i16> %result
""",
)

CVTNEPS2BF16 = _NARROW_HELPER + function(
    "<16 x bfloat>",
    "llvm.x86.avx512bf16.cvtneps2bf16.512",
    f"{FLOATS} %x",
    f"""
  %narrow = call <16 x i16> @{PREFIX}narrow({FLOATS} %x)
  %result = bitcast <16 x i16> %narrow to <16 x bfloat>
  ret <16 x bfloat> %result
""",
)

CVTNE2PS2BF16 = _NARROW_HELPER + function(
    "<32 x bfloat>",
    "llvm.x86.avx512bf16.cvtne2ps2bf16.512",
    f"{FLOATS} %high, {FLOATS} %low",
    f"""
  %first = call <16 x i16> @{PREFIX}narrow({FLOATS} %low)
  %second = call <16 x i16> @{PREFIX}narrow({FLOATS} %high)
  %both = shufflevector <16 x i16> %first, <16 x i16> %second, {constant("i32", range(32))}
  %result = bitcast <32 x i16> %both to <32 x bfloat>
  ret <32 x bfloat> %result
""",
)

# Subnormal operands and results become zeros. A result is subnormal if it is below 2^-126 with an
# unlimited exponent: the rounded sum times 2^64 shows that.
_FLUSH_HELPERS = (
    function(
        FLOATS,
        "flushed",
        f"{FLOATS} %x",
        f"""
  %size = call {FLOATS} @llvm.fabs.v16f32({FLOATS} %x)
  %tiny = fcmp olt {FLOATS} %size, splat (float {SMALLEST_NORMAL})
  %zero = call {FLOATS} @llvm.copysign.v16f32({FLOATS} zeroinitializer, {FLOATS} %x)
  %result = select {BITS} %tiny, {FLOATS} %zero, {FLOATS} %x
  ret {FLOATS} %result
""",
    )
    + function(
        FLOATS,
        "flushing_fma",
        f"{FLOATS} %a, {FLOATS} %b, {FLOATS} %c",
        f"""
  %sum = call {FLOATS} @llvm.fma.v16f32({FLOATS} %a, {FLOATS} %b, {FLOATS} %c)
  %a_up = fmul {FLOATS} %a, splat (float {TWO_TO_64})
  %c_up = fmul {FLOATS} %c, splat (float {TWO_TO_64})
  %up = call {FLOATS} @llvm.fma.v16f32({FLOATS} %a_up, {FLOATS} %b, {FLOATS} %c_up)
  %size = call {FLOATS} @llvm.fabs.v16f32({FLOATS} %up)
  %tiny = fcmp olt {FLOATS} %size, splat (float {TWO_TO_MINUS_62})
  %zero = call {FLOATS} @llvm.copysign.v16f32({FLOATS} zeroinitializer, {FLOATS} %sum)
  %result = select {BITS} %tiny, {FLOATS} %zero, {FLOATS} %sum
  ret {FLOATS} %result
""",
    )
    + f"""declare {FLOATS} @llvm.fabs.v16f32({FLOATS})
declare {FLOATS} @llvm.copysign.v16f32({FLOATS}, {FLOATS})
declare {FLOATS} @llvm.fma.v16f32({FLOATS}, {FLOATS}, {FLOATS})
"""
)


def _halves(name: str) -> str:
    """A vector's bfloat16 numbers as f32: the odd and the even ones, flushed."""
    return f"""
  %{name}_words = bitcast <32 x bfloat> %{name} to {WORDS}
  %{name}_up = shl {WORDS} %{name}_words, splat (i32 16)
  %{name}_down = and {WORDS} %{name}_words, splat (i32 -65536)
  %{name}_even_raw = bitcast {WORDS} %{name}_up to {FLOATS}
  %{name}_odd_raw = bitcast {WORDS} %{name}_down to {FLOATS}
  %{name}_even = call {FLOATS} @{PREFIX}flushed({FLOATS} %{name}_even_raw)
  %{name}_odd = call {FLOATS} @{PREFIX}flushed({FLOATS} %{name}_odd_raw)"""


# Two fused multiply-adds: first of the odd elements.
DPBF16PS = _FLUSH_HELPERS + function(
    FLOATS,
    "llvm.x86.avx512bf16.dpbf16ps.512",
    f"{FLOATS} %c, <32 x bfloat> %a, <32 x bfloat> %b",
    f"""{_halves("a")}{_halves("b")}
  %start = call {FLOATS} @{PREFIX}flushed({FLOATS} %c)
  %first = call {FLOATS} @{PREFIX}flushing_fma(
    {FLOATS} %a_odd, {FLOATS} %b_odd, {FLOATS} %start)
  %sum = call {FLOATS} @{PREFIX}flushing_fma(
    {FLOATS} %a_even, {FLOATS} %b_even, {FLOATS} %first)
  ret {FLOATS} %sum
""",
)
