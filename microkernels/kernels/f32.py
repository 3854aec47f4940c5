"""Microkernels of f32: one register tile a kernel, on AVX-512, AVX2 and without vectors."""

from __future__ import annotations

from collections.abc import Iterable

from microkernels.registry import register_microkernels
from microkernels.vector.expressions import Expr


def multiply_add(accumulator: Expr, a: Expr, b: Expr) -> Expr:
    """accumulator + a * b; LLVM contracts it to one FMA if the ISA has FMAs."""
    return accumulator + a * b


def register_f32_tiles(isa_name: str, sizes: Iterable[tuple[int, int]]) -> None:
    """Registers one f32 microkernel for every (mr, nr)."""
    register_microkernels(
        isa_name, ("f32", "float32", "float32", "float32"), 1, sizes, multiply_add
    )


# AVX-512 f32 tiles: 32 registers of 16 lanes.
#
# 6x64 and 8x48 keep 24 accumulators, three or four vectors of B and one broadcast of A in
# registers: 24 independent FMA chains hide the latency. 14x32 suits rows of pixels. Tiles of
# one to five rows are wide: there the bandwidth of the weight is the limit.


register_f32_tiles(
    "avx512", [(6, 64), (8, 48), (14, 32), (1, 256), (2, 128), (3, 128), (4, 96), (5, 80)]
)
register_f32_tiles("avx2", [(4, 24), (6, 16), (1, 120), (2, 48), (3, 32)])
register_f32_tiles("scalar", [(4, 4)])
