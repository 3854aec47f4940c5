"""Products, conversions and permutations of integers, 512 bits wide or less."""

from __future__ import annotations

from .llvm_ir import WORDS, constant, function


def _products_of_bytes(lanes: int) -> str:
    """%even16 and %odd16: products of the even and odd bytes, u8 times s8; they fit 16 bits."""
    half = f"<{lanes} x i16>"
    return f"""
  %a16 = bitcast <{2 * lanes} x i8> %a to {half}
  %b16 = bitcast <{2 * lanes} x i8> %b to {half}
  %a_even = and {half} %a16, splat (i16 255)
  %a_odd = lshr {half} %a16, splat (i16 8)
  %b_up = shl {half} %b16, splat (i16 8)
  %b_even = ashr {half} %b_up, splat (i16 8)
  %b_odd = ashr {half} %b16, splat (i16 8)
  %even16 = mul {half} %a_even, %b_even
  %odd16 = mul {half} %a_odd, %b_odd"""


def vpdpbusd(lanes: int) -> str:
    """Sums of four products of u8 and s8, modulo 2^32; each product fits 16 bits."""
    words, half = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    body = f"""{_products_of_bytes(2 * lanes)}
  %even = bitcast {half} %even16 to {words}
  %odd = bitcast {half} %odd16 to {words}
  %even_up = shl {words} %even, splat (i32 16)
  %odd_up = shl {words} %odd, splat (i32 16)
  %p0 = ashr {words} %even_up, splat (i32 16)
  %p1 = ashr {words} %odd_up, splat (i32 16)
  %p2 = ashr {words} %even, splat (i32 16)
  %p3 = ashr {words} %odd, splat (i32 16)
  %s0 = add {words} %p0, %p1
  %s1 = add {words} %p2, %p3
  %s2 = add {words} %s0, %s1
  %sum = add {words} %s2, %c
  ret {words} %sum
"""
    parameters = f"{words} %c, <{4 * lanes} x i8> %a, <{4 * lanes} x i8> %b"
    return function(words, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", parameters, body)


def pmaddwd() -> str:
    """Sums of two products of s16, modulo 2^32."""
    words, half = WORDS, "<32 x i16>"
    body = f"""
  %a32 = bitcast {half} %a to {words}
  %b32 = bitcast {half} %b to {words}
  %a_up = shl {words} %a32, splat (i32 16)
  %b_up = shl {words} %b32, splat (i32 16)
  %a_low = ashr {words} %a_up, splat (i32 16)
  %b_low = ashr {words} %b_up, splat (i32 16)
  %a_high = ashr {words} %a32, splat (i32 16)
  %b_high = ashr {words} %b32, splat (i32 16)
  %low = mul {words} %a_low, %b_low
  %high = mul {words} %a_high, %b_high
  %sum = add {words} %low, %high
  ret {words} %sum
"""
    return function(words, "llvm.x86.avx512.pmaddw.d.512", f"{half} %a, {half} %b", body)


def pmaddubsw() -> str:
    """Sums of two products of u8 and s8, saturated to 16 bits; each product fits 16 bits."""
    half = "<32 x i16>"
    body = f"""{_products_of_bytes(32)}
  %sum = call {half} @llvm.sadd.sat.v32i16({half} %even16, {half} %odd16)
  ret {half} %sum
"""
    text = function(half, "llvm.x86.avx512.pmaddubs.w.512", "<64 x i8> %a, <64 x i8> %b", body)
    return text + f"declare {half} @llvm.sadd.sat.v32i16({half}, {half})\n"


def pack(name: str, lanes: int, bits: int, least: int, most: int) -> str:
    """Saturates two vectors to half the width; their 128-bit parts alternate in the result."""
    wide, narrow = f"<{lanes} x i{bits}>", f"<{lanes} x i{bits // 2}>"
    result = f"<{2 * lanes} x i{bits // 2}>"
    group = 128 // bits
    order = [
        start + part * lanes + lane
        for start in range(0, lanes, group)
        for part in (0, 1)
        for lane in range(group)
    ]

    def saturated(value: str) -> str:
        return f"""
  %{value}_low = call {wide} @llvm.smax.v{lanes}i{bits}(
    {wide} %{value}, {wide} splat (i{bits} {least}))
  %{value}_in = call {wide} @llvm.smin.v{lanes}i{bits}(
    {wide} %{value}_low, {wide} splat (i{bits} {most}))
  %{value}_cut = trunc {wide} %{value}_in to {narrow}"""

    body = f"""{saturated("a")}{saturated("b")}
  %packed = shufflevector {narrow} %a_cut, {narrow} %b_cut, {constant("i32", order)}
  ret {result} %packed
"""
    declared = "".join(
        f"declare {wide} @llvm.{each}.v{lanes}i{bits}({wide}, {wide})\n"
        for each in ("smin", "smax")
    )
    text = function(result, f"llvm.x86.avx512.{name}.512", f"{wide} %a, {wide} %b", body)
    return text + declared


def permute(name: str, lanes: int, element: str, tables: int) -> str:
    """Picks each lane from one or two vectors by the low bits of an index."""
    vector, table = f"<{lanes} x {element}>", f"<{tables * lanes} x {element}>"
    index = {"float": "i32"}.get(element, element)
    indices = f"<{lanes} x {index}>"
    body = f"""
  %table = alloca {table}, align 64
  %within = and {indices} %index, splat ({index} {tables * lanes - 1})
"""
    if tables == 2:
        both = constant("i32", range(2 * lanes))
        body += f"  %both = shufflevector {vector} %a, {vector} %b, {both}\n"
        parameters = f"{vector} %a, {indices} %index, {vector} %b"
    else:
        body += f"  %both = freeze {vector} %a\n"
        parameters = f"{vector} %a, {indices} %index"
    body += f"  store {table} %both, ptr %table, align 64\n"
    before = "poison"
    for lane in range(lanes):
        body += f"""
  %i{lane} = extractelement {indices} %within, i32 {lane}
  %w{lane} = zext {index} %i{lane} to i64
  %p{lane} = getelementptr {element}, ptr %table, i64 %w{lane}
  %e{lane} = load {element}, ptr %p{lane}
  %r{lane} = insertelement {vector} {before}, {element} %e{lane}, i32 {lane}
"""
        before = f"%r{lane}"
    body += f"  ret {vector} {before}\n"
    return function(vector, f"llvm.x86.avx512.{name}.512", parameters, body)
