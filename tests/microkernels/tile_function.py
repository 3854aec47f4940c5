"""A PrimFunc of one tile of any microkernel, vectors or tile registers alike."""

from __future__ import annotations

from collections.abc import Callable

import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.tir import NO_ALIAS
from microkernels.microkernel import Microkernel
from microkernels.tile import Place
from microkernels.vector.expressions import Expr, parameter, ramp
from tests.microkernels.operands import stored


def tile_function(
    kernel: Microkernel,
    rows: int,
    vectors: int,
    blocks: int,
    steps: int,
    start: str = "zero",
    name: str = "tile",
) -> tirx.PrimFunc:
    """C = sum over blocks of A[block] times B[block], in one tile; K = steps * kr.

    Parameters
    ----------
    kernel : Microkernel
        The kernel that multiplies.
    rows, vectors : int
        Size of the tile.
    blocks, steps : int
        The reduction: blocks with this number of steps of kr, which are whole tiles.
    start : str
        Whether the product is added to C: "zero" (it is not), "init" or "resume".
    name : str
        Name of the function.
    """
    lanes, kr = kernel.lanes, kernel.kr
    columns, pitch = vectors * lanes, steps * kr
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name(name)
        I.func_attr({"global_symbol": name, **NO_ALIAS})
        a = parameter("A", (blocks, rows, pitch), stored(kernel.a_dtype))
        size = pitch * columns
        b = parameter("B", (blocks * size,), stored(kernel.b_dtype))
        c = parameter("C", (rows, columns), kernel.acc_dtype)

        def place_in_b(j: int, block: Expr, step: Expr) -> Expr:
            return block * size + (step * vectors + j) * lanes * kr

        def held(i: Expr | int, j: int) -> Expr:
            return c[i, ramp(j * lanes, lanes)]

        init: Callable[[Expr | int, int], Expr] | None = held if start == "init" else None
        kernel.admit()
        with I.serial(1) as _, I.sblock("tile"):
            I.reads()
            I.writes()
            kernel.configure(rows, columns)
            result = kernel.emit(
                rows,
                vectors,
                (blocks, steps),
                lambda i, ks: kernel.a_operand(a, [ks[0], i, ks[1] * kr], pitch),
                lambda j, ks: kernel.b_operand(b, place_in_b(j, *ks), columns * kr),
                init,
                Place(c),
                start == "resume",
            )
            if result.place is None:
                for i in range(rows):
                    for j in range(vectors):
                        I.buffer_store(c, result.value(i, j), [i, ramp(j * lanes, lanes)])
            kernel.release()
    return builder.get()
