"""Transposition of a square block in registers, by shuffles."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from .expressions import Expr, materialise


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
