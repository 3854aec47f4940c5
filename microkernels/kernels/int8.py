"""Microkernels of u8 by s8: by VNNI where the CPU has it, else by pairs, or without vectors.

Those of s8 by u8 multiply signed activations by weights of few bits, which are unsigned bytes.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I

from microkernels.registry import register_microkernels
from microkernels.tile import MultiplyAdd
from microkernels.vector.expressions import Expr, cast

from .byte_pairs import KR, by_digits

# What the int8 families of all ISAs share: u8 x s8 -> s32, exact.
#
# No kernel saturates: no sum is kept in fewer bits than it can have, so that every ISA gives the
# same integers. Signed activations are shifted by 128 before they come here; `tir_schedules`
# corrects the sums (`zero_points`).


def dot_by_vnni(intrinsic: str) -> MultiplyAdd:
    """vpdpbusd: four products and their sum with the accumulator, in one instruction."""

    def multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
        dtype = str(accumulator.ty.dtype)
        return I.call_llvm_pure_intrin(dtype, intrinsic, accumulator, a, b)

    return multiply_add


def exchanged(multiply_add: MultiplyAdd) -> MultiplyAdd:
    """Makes a product of s8 by u8 from a product of u8 by s8."""
    return lambda accumulator, a, b: multiply_add(accumulator, b, a)


def _multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
    return accumulator + cast("int32", a) * cast("int32", b)


TYPES = ("u8s8s32", "uint8", "int8", "int32")

register_microkernels(
    "avx512_vnni",
    TYPES,
    4,
    [(6, 64), (8, 48), (12, 32), (14, 32), (1, 256), (2, 128), (3, 128), (4, 96), (5, 80)],
    dot_by_vnni("llvm.x86.avx512.vpdpbusd.512"),
)


register_microkernels(
    "avx512",
    TYPES,
    KR,
    [(6, 48), (8, 32), (1, 128), (2, 96), (3, 96), (4, 64), (5, 64)],
    by_digits("avx512"),
)
register_microkernels(
    "avx2_vnni",
    TYPES,
    4,
    [(4, 24), (6, 16), (1, 64), (2, 48), (3, 32)],
    dot_by_vnni("llvm.x86.avx512.vpdpbusd.256"),
)
register_microkernels("avx2", TYPES, KR, [(4, 16), (2, 24), (1, 48)], by_digits("avx2"))
register_microkernels("scalar", TYPES, 1, [(4, 4)], _multiply_add)

EXCHANGED = ("s8u8s32", "int8", "uint8", "int32")
for _isa, _sizes, _instruction in (
    ("avx512_vnni", [(6, 32), (4, 48)], "llvm.x86.avx512.vpdpbusd.512"),
    ("avx2_vnni", [(4, 24), (6, 16)], "llvm.x86.avx512.vpdpbusd.256"),
):
    register_microkernels(_isa, EXCHANGED, 4, _sizes, exchanged(dot_by_vnni(_instruction)))
