"""What the int8 families of all ISAs share: u8 x s8 -> s32, exact.

No kernel saturates: no sum is kept in fewer bits than it can have, so that every ISA gives the same
integers. Signed activations are shifted by 128 before they come here;
`tir_schedules` corrects the sums (`zero_points`).
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm.tirx.script.builder.ir as I

from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.registry import register_microkernel
from microkernels.tile import MultiplyAdd
from microkernels.vector.expressions import Expr


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
