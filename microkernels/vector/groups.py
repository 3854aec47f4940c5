"""Bytes of unsigned integers, and groups of four of them, with the instructions of AVX2."""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from .expressions import Expr, cast, like, reinterpret_group


def saturating_difference(a: Expr, b: Expr) -> Expr:
    """a - b of uint8 lanes, 0 where b is larger: vpsubusb."""
    name = f"llvm.usub.sat.v{a.ty.dtype.lanes}i8"
    return I.call_llvm_pure_intrin(str(a.ty.dtype), name, a, b)


def which_groups(value: Expr) -> Expr:
    """A bit of an int32 for each group of four bytes of 32 that is not 0: vmovmskps."""
    words = reinterpret_group("int32", value, 8)
    signs = like(0, words) - cast("int32", tirx.NE(words, like(0, words)))
    floats = I.reinterpret("float32x8", signs)
    return I.call_llvm_pure_intrin("int32", "llvm.x86.avx.movmsk.ps.256", floats)
