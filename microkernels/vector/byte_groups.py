"""Differences of unsigned bytes, and groups of four of 32 bytes, with the instructions of AVX2."""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from .expressions import Expr, cast, lanes_of, like, reinterpret, reinterpret_group


def saturating_difference(a: Expr, b: Expr) -> Expr:
    """a - b of uint8 lanes, 0 where b is larger: vpsubusb."""
    lanes = lanes_of(a)
    return I.call_llvm_pure_intrin(f"uint8x{lanes}", f"llvm.usub.sat.v{lanes}i8", a, b)


def groups_found(value: Expr) -> Expr:
    """An int32 with a bit for each group of four of 32 bytes that are not all 0: vmovmskps."""
    words = reinterpret_group("int32", value, 8)
    signs = like(0, words) - cast("int32", tirx.NE(words, like(0, words)))
    movmskps = "llvm.x86.avx.movmsk.ps.256"
    return I.call_llvm_pure_intrin("int32", movmskps, reinterpret("float32", signs))


def first_group(found: Expr) -> Expr:
    """The number of the lowest bit of an int32 that is not 0: tzcnt."""
    return I.call_llvm_pure_intrin("int32", "llvm.cttz.i32", found, tirx.const(True, "bool"))
