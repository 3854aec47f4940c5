"""Elements of vectors in another order: transposed blocks and groups of bytes."""

from __future__ import annotations

from collections.abc import Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from .expressions import Expr, cast, lanes_of, like, materialise, reinterpret, reinterpret_group


def transpose_block(rows: Sequence[Expr]) -> list[Expr]:
    """The columns of a block whose rows are vectors of as many lanes as there are rows.

    log2(lanes) rounds of two-input shuffles: each exchanges the off-diagonal quarters of every
    2h x 2h block (J. O. Eklundh, "A Fast Computer Method for Matrix Transposing", IEEE Trans.
    Computers, 1972).

    Each round is in memory: TVM would write the rounds before out anew for every use of a name, 960
    shuffles instead of 64 of a block of 16.
    """
    size = len(rows)
    values = list(rows)
    half = size // 2
    while half:
        exchanged = list(values)
        upper = [lane if not lane & half else size + lane - half for lane in range(size)]
        lower = [lane + half if not lane & half else size + lane for lane in range(size)]
        for i in range(size):
            if not i & half:
                a, b = values[i], values[i + half]
                exchanged[i] = materialise(_shuffle(a, b, upper))
                exchanged[i + half] = materialise(_shuffle(a, b, lower))
        values = exchanged
        half //= 2
    return values


def _shuffle(a: Expr, b: Expr, lanes: Sequence[int]) -> Expr:
    return tirx.Shuffle([a, b], [tirx.const(lane, "int32") for lane in lanes])


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
