"""Legalises: a permutation that moves elements is marked, and stays so inside a fused kernel.

Before

    lv = R.permute_dims(x, axes=[0, 2, 1])

After

    lv = R.call_tir(transpose, (x,))

    with T.sblock("T_transpose"):
        T.sblock_attr({"tvm_hybrid.reorder": True})
        ...

FuseTIR keeps attributes of blocks alone, not those of functions.
"""

from __future__ import annotations

import tvm_ffi
from tvm import relax, te, tirx
from tvm.s_tir import SBlock

from microkernels.base.tvm_compat.relax import Legalize, legalize_by_tvm
from relay_passes.ir.axis_view import reorder_axes

MARK = "tvm_hybrid.reorder"


def reorders_in(function: tirx.PrimFunc) -> int:
    """How many reorders a kernel does, before it is scheduled."""
    marked: list[SBlock] = []

    def visit(block: SBlock) -> None:
        if MARK in block.annotations:
            marked.append(block)

    tvm_ffi.structural_walk(function.body, (SBlock, visit))
    return len(marked)


def _permute_dims(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    order = reorder_axes(call)
    if order is None:
        return legalize_by_tvm(builder, call)

    def reordered(x: te.Tensor) -> te.Tensor:
        def element(*indices: tirx.Var) -> tirx.Expr:
            return x(*(indices[order.index(axis)] for axis in range(len(order))))

        shape = [x.shape[axis] for axis in order]
        return te.compute(shape, element, "T_transpose", tag="injective", attrs={MARK: True})

    return builder.call_te(reordered, call.args[0], primfunc_name_hint="transpose")


LEGALIZATIONS: dict[str, Legalize] = {"relax.permute_dims": _permute_dims}
