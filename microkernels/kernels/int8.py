"""Microkernels of u8 by s8: by VNNI where the CPU has it, else by pairs, or without vectors."""

from __future__ import annotations

from collections.abc import Iterable

import tvm.tirx.script.builder.ir as I

from microkernels.isa import Isa, isa_named
from microkernels.microkernel import Microkernel
from microkernels.registry import register_microkernel
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


def register_int8_tiles(
    isa: Isa, kr: int, sizes: Iterable[tuple[int, int]], multiply_add: MultiplyAdd
) -> None:
    """Registers one u8 x s8 microkernel for every (mr, nr)."""
    for mr, nr in sizes:
        register_microkernel(
            Microkernel(
                name=f"{isa.name}_u8s8s32_{mr}x{nr}",
                isa_name=isa.name,
                a_dtype="uint8",
                b_dtype="int8",
                acc_dtype="int32",
                mr=mr,
                nr=nr,
                kr=kr,
                lanes=isa.f32_lanes,
                multiply_add=multiply_add,
            )
        )


register_int8_tiles(
    isa_named("avx512_vnni"),
    4,
    [(6, 64), (8, 48), (12, 32), (14, 32), (1, 256), (2, 128), (3, 128), (4, 96), (5, 80)],
    dot_by_vnni("llvm.x86.avx512.vpdpbusd.512"),
)


register_int8_tiles(
    isa_named("avx512"),
    KR,
    [(6, 48), (8, 32), (1, 128), (2, 96), (3, 96), (4, 64), (5, 64)],
    by_digits("avx512"),
)


register_int8_tiles(
    isa_named("avx2_vnni"),
    4,
    [(4, 24), (6, 16), (1, 64), (2, 48), (3, 32)],
    dot_by_vnni("llvm.x86.avx512.vpdpbusd.256"),
)


register_int8_tiles(isa_named("avx2"), KR, [(4, 16), (2, 24), (1, 48)], by_digits("avx2"))


def _multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
    return accumulator + cast("int32", a) * cast("int32", b)


register_int8_tiles(isa_named("scalar"), 1, [(4, 4)], _multiply_add)
