"""What the int8 families of all ISAs share: u8 x s8 -> s32, exact.

No kernel saturates: products are widened to 32 bits before anything can overflow, so that every ISA
gives the same integers. Signed activations are shifted by 128 before they come here;
`tir_schedules` corrects the sums (`zero_points`).
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm.tirx.script.builder.ir as I

from microkernels.isa import Isa
from microkernels.microkernel import Microkernel, MultiplyAdd, register_microkernel
from microkernels.vector.expressions import Expr, cast, vector_type


def dot_by_vnni(intrinsic: str) -> MultiplyAdd:
    """vpdpbusd: four products and their sum with the accumulator, in one instruction."""

    def multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
        dtype = str(accumulator.ty.dtype)
        return I.call_llvm_pure_intrin(dtype, intrinsic, accumulator, a, b)

    return multiply_add


def dot_by_words(intrinsic: str) -> MultiplyAdd:
    """vpmaddwd on operands widened to 16 bits: two products and their exact 32-bit sum."""

    def multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
        lanes = int(accumulator.ty.dtype.lanes)
        dtype = vector_type("int32", lanes)
        pairs = I.call_llvm_pure_intrin(dtype, intrinsic, cast("int16", a), cast("int16", b))
        return accumulator + pairs

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
