"""Scaling by a power of two, and conversion to integers."""

from __future__ import annotations

from .llvm_ir import (
    BITS,
    FLOATS,
    INFINITY,
    MINUS_INFINITY,
    MINUS_TWO_TO_31,
    NAN,
    TWO_TO_31,
    WORDS,
    function,
)

# A double's exponent holds every power that matters, so that the product is rounded once.
SCALEF = (
    function(
        FLOATS,
        "llvm.x86.avx512.mask.scalef.ps.512",
        f"{FLOATS} %a, {FLOATS} %b, {FLOATS} %source, i16 %mask, i32 %rounding",
        f"""
  %down = call {FLOATS} @llvm.floor.v16f32({FLOATS} %b)
  %above = fcmp ogt {FLOATS} %down, splat (float 300.0)
  %most = select {BITS} %above, {FLOATS} splat (float 300.0), {FLOATS} %down
  %inside = fcmp ogt {FLOATS} %most, splat (float -300.0)
  %power = select {BITS} %inside, {FLOATS} %most, {FLOATS} splat (float -300.0)
  %n = fptosi {FLOATS} %power to <16 x i64>
  %biased = add <16 x i64> %n, splat (i64 1023)
  %raised = shl <16 x i64> %biased, splat (i64 52)
  %factor = bitcast <16 x i64> %raised to <16 x double>
  %wide = fpext {FLOATS} %a to <16 x double>
  %product = fmul <16 x double> %wide, %factor
  %finite = fptrunc <16 x double> %product to {FLOATS}

  %up = fcmp oeq {FLOATS} %b, splat (float {INFINITY})
  %off = fcmp oeq {FLOATS} %b, splat (float {MINUS_INFINITY})
  %a_nan = fcmp uno {FLOATS} %a, %a
  %b_nan = fcmp uno {FLOATS} %b, %b
  %size = call {FLOATS} @llvm.fabs.v16f32({FLOATS} %a)
  %a_zero = fcmp oeq {FLOATS} %a, splat (float 0.0)
  %a_infinite = fcmp oeq {FLOATS} %size, splat (float {INFINITY})
  %infinity = call {FLOATS} @llvm.copysign.v16f32(
    {FLOATS} splat (float {INFINITY}), {FLOATS} %a)
  %zero = call {FLOATS} @llvm.copysign.v16f32({FLOATS} zeroinitializer, {FLOATS} %a)
  %times_inf = select {BITS} %a_zero, {FLOATS} splat (float {NAN}), {FLOATS} %infinity
  %times_zero = select {BITS} %a_infinite, {FLOATS} splat (float {NAN}), {FLOATS} %zero
  %r0 = select {BITS} %up, {FLOATS} %times_inf, {FLOATS} %finite
  %r1 = select {BITS} %off, {FLOATS} %times_zero, {FLOATS} %r0
  %b_quiet = fadd {FLOATS} %b, %b
  %r2 = select {BITS} %b_nan, {FLOATS} %b_quiet, {FLOATS} %r1
  %a_quiet = fadd {FLOATS} %a, %a
  %a_bits = bitcast {FLOATS} %a to {WORDS}
  %quiet_bit = and {WORDS} %a_bits, splat (i32 4194304)
  %was_quiet = icmp ne {WORDS} %quiet_bit, zeroinitializer
  %quiet_up = and {BITS} %was_quiet, %up
  %quiet_off = and {BITS} %was_quiet, %off
  %n0 = select {BITS} %quiet_up, {FLOATS} splat (float {INFINITY}), {FLOATS} %a_quiet
  %n1 = select {BITS} %quiet_off, {FLOATS} zeroinitializer, {FLOATS} %n0
  %r3 = select {BITS} %a_nan, {FLOATS} %n1, {FLOATS} %r2
  %lanes = bitcast i16 %mask to {BITS}
  %result = select {BITS} %lanes, {FLOATS} %r3, {FLOATS} %source
  ret {FLOATS} %result
""",
    )
    + f"""declare {FLOATS} @llvm.floor.v16f32({FLOATS})
declare {FLOATS} @llvm.fabs.v16f32({FLOATS})
declare {FLOATS} @llvm.copysign.v16f32({FLOATS}, {FLOATS})
"""
)

# Rounding mode: 4 is MXCSR's, to nearest even; 8 to 11 are encoded in the instruction.
CVTPS2DQ = function(
    WORDS,
    "llvm.x86.avx512.mask.cvtps2dq.512",
    f"{FLOATS} %x, {WORDS} %source, i16 %mask, i32 %rounding",
    f"""
  %even = call {FLOATS} @llvm.roundeven.v16f32({FLOATS} %x)
  %down = call {FLOATS} @llvm.floor.v16f32({FLOATS} %x)
  %up = call {FLOATS} @llvm.ceil.v16f32({FLOATS} %x)
  %cut = call {FLOATS} @llvm.trunc.v16f32({FLOATS} %x)
  %is_down = icmp eq i32 %rounding, 9
  %is_up = icmp eq i32 %rounding, 10
  %is_cut = icmp eq i32 %rounding, 11
  %r0 = select i1 %is_down, {FLOATS} %down, {FLOATS} %even
  %r1 = select i1 %is_up, {FLOATS} %up, {FLOATS} %r0
  %rounded = select i1 %is_cut, {FLOATS} %cut, {FLOATS} %r1
  %least = fcmp oge {FLOATS} %rounded, splat (float {MINUS_TWO_TO_31})
  %most = fcmp olt {FLOATS} %rounded, splat (float {TWO_TO_31})
  %inside = and {BITS} %least, %most
  %safe = select {BITS} %inside, {FLOATS} %rounded, {FLOATS} zeroinitializer
  %number = fptosi {FLOATS} %safe to {WORDS}
  %all = select {BITS} %inside, {WORDS} %number, {WORDS} splat (i32 -2147483648)
  %lanes = bitcast i16 %mask to {BITS}
  %result = select {BITS} %lanes, {WORDS} %all, {WORDS} %source
  ret {WORDS} %result
""",
) + "".join(
    f"declare {FLOATS} @llvm.{name}.v16f32({FLOATS})\n"
    for name in ("roundeven", "floor", "ceil", "trunc")
)
