"""What the f32 families of all ISAs share: LLVM contracts multiply and add to an FMA."""

from __future__ import annotations

from collections.abc import Iterable

from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.registry import register_microkernel
from microkernels.vector.expressions import Expr


def multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
    """accumulator + a * b; LLVM contracts it to one FMA where the ISA has one."""
    return accumulator + a * b


def register_f32_tiles(isa: Isa, sizes: Iterable[tuple[int, int]]) -> None:
    """Registers one f32 microkernel for every (mr, nr)."""
    for mr, nr in sizes:
        register_microkernel(
            Microkernel(
                name=f"{isa.name}_f32_{mr}x{nr}",
                isa_name=isa.name,
                a_dtype="float32",
                b_dtype="float32",
                acc_dtype="float32",
                mr=mr,
                nr=nr,
                kr=1,
                lanes=isa.f32_lanes,
                multiply_add=multiply_add,
            )
        )
