"""bfloat16 in vector code: the upper half of an f32, held in uint16 lanes.

TVM's LLVM back end has no bfloat type, so values are moved as 16-bit integers and computed in f32.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from .expressions import Expr, bind, cast, element_of, lanes_of, like, reinterpret, shuffle, splat

NARROW = "tvm_hybrid_cvtneps2bf16"
NARROW_TWO = "tvm_hybrid_cvtne2ps2bf16"
_HALF = 0x7FFF
_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_QUIET = 0x0040


def bits_of(value: Expr) -> Expr:
    """The uint16 lanes of bfloat16 lanes."""
    if isinstance(value, tirx.Broadcast):  # TVM crashes on the bits of a broadcast
        return splat(reinterpret("uint16", value.value), lanes_of(value))
    return reinterpret("uint16", value)


def operand_bits(value: Expr) -> Expr:
    """Lanes as kernels multiply them: the bits of bfloat16, anything else as it is."""
    return bits_of(value) if element_of(value) == "bfloat16" else value


def from_bits(bits: Expr) -> Expr:
    """The bfloat16 lanes of uint16 lanes."""
    return reinterpret("bfloat16", bits)


def widen(bits: Expr) -> Expr:
    """bfloat16 (uint16 lanes) as f32, exactly."""
    wide = cast("uint32", bits)
    return reinterpret("float32", wide << like(16, wide))


def narrow_by_instruction(value: Expr) -> Expr:
    """`narrow` by vcvtneps2bf16, for 16 or 32 lanes; it flushes subnormal numbers to 0.

    Only for kernels with a microkernel of the avx512_bf16 family, which defines what is called.
    """
    if lanes_of(value) == 32:
        value = bind(value)
        low, high = (shuffle([value], range(start, start + 16)) for start in (0, 16))
        return I.call_pure_extern("uint16x32", NARROW_TWO, low, high)
    if lanes_of(value) != 16:
        return narrow(value)
    return I.call_pure_extern("uint16x16", NARROW, value)


def narrow(value: Expr) -> Expr:
    """f32 as bfloat16 (uint16 lanes), rounded to nearest even; a NaN stays one.

    Adds half of the dropped part, less one if the kept part is even, to the bits.
    """
    bits = bind(reinterpret("uint32", value))
    upper = bind(bits >> like(16, bits))
    odd = upper & like(1, bits)
    rounded = (bits + (odd + like(_HALF, bits))) >> like(16, bits)
    quiet = upper | like(_QUIET, bits)
    # Not value != value: TVM's simplifier takes that for false.
    nan = tirx.GT(bits & like(_MAGNITUDE, bits), like(_INFINITY, bits))
    return cast("uint16", tirx.Select(nan, quiet, rounded))


def exactly(value: Expr) -> Expr:
    """Converts an f32 that bfloat16 represents exactly, without rounding."""
    bits = reinterpret("uint32", value)
    return from_bits(cast("uint16", bits >> like(16, bits)))
