"""Legalises R.scatter_elements: a copy, then the updates, neighbours of a row innermost.

Before

    lv = R.scatter_elements(x, indices, updates, axis=0, reduction="max")

After

    lv = R.call_tir(scatter_elements, (x, indices, updates))

    y[:] = x[:]
    for blocks of columns: for k in rows: for j in columns of the block:
        y[indices[k, j], j] = max(y[indices[k, j], j], updates[k, j])

TVM's own runs down one column after the other. Indices are counted from the end where they are
negative, and clipped, so that `clip_indices` leaves them to this kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.relax import Legalize, legalize_by_tvm
from microkernels.vector.expressions import Expr, element_of, like
from tir_schedules.core.emission import opaque_block
from tir_schedules.generic.expressions import const_int

COPIED = 1 << 13  # elements at a time
COLUMNS = 256  # of a block: their rows stay in cache

Combine: TypeAlias = Callable[[Expr, Expr], Expr]
"""(What an element is so far, an update) -> what it is then."""


def _extreme(node: type[tirx.Max | tirx.Min], compare: type[tirx.GT | tirx.LT]) -> Combine:
    """The larger or the smaller; a NaN if either is one.

    `llvm.maximum`, which generic schedules make of a maximum, branches on the sign of an element:
    signs that change at random make that three times as slow.
    """

    def combine(old: Expr, new: Expr) -> Expr:
        if "float" not in element_of(old):
            return node(old, new)
        chosen = tirx.Select(compare(old, new), old, new)  # x86 has one instruction for it
        return tirx.Select(old <= like(math.inf, old), chosen, old)

    return combine


_COMBINED: dict[str, Combine] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "mean": lambda old, new: (old + new) / like(2, new),
    "min": _extreme(tirx.Min, tirx.LT),
    "max": _extreme(tirx.Max, tirx.GT),
}


def _scatter_elements(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not all(isinstance(each.ty.shape, relax.ShapeExpr) for each in call.args):
        return legalize_by_tvm(builder, call)
    axis = int(call.attrs.axis) % len(call.args[0].ty.shape.values)
    combine = _COMBINED[str(call.attrs.reduction)]

    def computed(x: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> Any:
        def statement(ins: Sequence[Expr], outs: Sequence[Expr]) -> tirx.Stmt:
            with IRBuilder() as kernel, opaque_block("scatter"):
                _copy(ins[0], outs[0])
                if all(const_int(size) != 0 for size in ins[1].shape):
                    _update(outs[0], ins[1], ins[2], axis, combine)
            return kernel.get()

        tensors, dtype = [x, indices, updates], str(x.dtype)
        return te.extern([x.shape], tensors, statement, name="scatter_elements", dtype=dtype)

    return builder.call_te(computed, *call.args, primfunc_name_hint="scatter_elements")


def _copy(source: Expr, result: Expr) -> None:
    """Copies all elements; threads share them."""
    size = math.prod(result.shape)
    own, new = (I.decl_buffer([size], each.dtype, data=each.data) for each in (source, result))
    parts = tirx.floordiv(size + (COPIED - 1), COPIED)
    with I.parallel(parts) as part, I.serial(te.min(size - part * COPIED, COPIED)) as number:
        I.buffer_store(new, own[part * COPIED + number], [part * COPIED + number])


def _update(y: Expr, indices: Expr, updates: Expr, axis: int, combine: Combine) -> None:
    """Puts the updates in; threads share what no two of them write to."""
    before, (count, *behind) = list(indices.shape[:axis]), list(indices.shape[axis:])
    # One thread has a block of columns, or else all behind one index.
    width = COLUMNS if len(behind) == 1 else 1
    blocks = tirx.floordiv(behind[0] + (width - 1), width) if behind else 1
    extent = y.shape[axis]
    with ExitStack() as loops:
        task: Expr = loops.enter_context(I.parallel(math.prod([*before, blocks])))
        first, task = tirx.floormod(task, blocks) * width, tirx.floordiv(task, blocks)
        place = list[Expr]()
        for size in reversed(before):
            place.insert(0, tirx.floormod(task, size))
            task = tirx.floordiv(task, size)
        place.append(loops.enter_context(I.serial(count)))
        if behind:
            columns = loops.enter_context(I.serial(te.min(width, behind[0] - first)))
            place += [first + columns, *(loops.enter_context(I.serial(n)) for n in behind[1:])]
        index = indices[tuple(place)].astype(str(extent.ty.dtype))
        index = index + tirx.Select(index < 0, extent, tirx.const(0, index.ty.dtype))
        index = te.max(te.min(index, extent - 1), 0)
        target = [*place[:axis], index, *place[axis + 1 :]]
        I.buffer_store(y, combine(y[tuple(target)], updates[tuple(place)]), target)


LEGALIZATIONS: dict[str, Legalize] = {"relax.scatter_elements": _scatter_elements}
"""By the operator's name."""
