"""Legalises R.take where it is known which element each place has: runs of elements are copied.

Before

    lv = R.take(x, R.const([2, 1, 0, 1, 2, 3, 4]), axis=1, mode="clip")

After

    lv = R.call_tir(take, (x,))    # y[i, j] = x[i, j < 2 ? 2 - j : j - 2]

A table that a kernel computes is taken likewise, if the kernel is marked (`PLACES`): Pad along axes
of open sizes makes such tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import ir, relax, s_tir, te, tirx

from microkernels.base.tvm_compat.relax import INJECTIVE, OP_PATTERN, Legalize, legalize_by_tvm
from tir_schedules.core.statements import walk
from tir_schedules.generic.expressions import substitute

PLACES = "tvm_hybrid.places"
"""Attribute of a kernel whose result says which element each place has, all of them being there."""

MOST_RUNS = 8
LEAST_LENGTH = 4  # of a run, on average

Source = Callable[[tirx.Expr, Sequence[tirx.Expr]], tirx.Expr]
"""What says which element a place has, given some sizes."""

Found = tuple[Source, list[tirx.Expr]]

Run = tuple[int, int, int]
"""Its first place, the element there, and by how much elements rise from place to place."""


def _take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, table = call.args
    shapes = data.ty.shape, call.ty.shape
    if call.attrs.axis is None or not all(isinstance(each, relax.ShapeExpr) for each in shapes):
        return legalize_by_tvm(builder, call)
    axis = int(call.attrs.axis) % len(data.ty.shape.values)
    found = _by_runs(data, table, axis) or _by_kernel(builder, table)
    if found is None:
        return legalize_by_tvm(builder, call)
    source, given = found

    def compute(x: te.Tensor, sizes: list[tirx.Expr], given: list[tirx.Expr]) -> te.Tensor:
        def element(*place: tirx.Var) -> tirx.Expr:
            return x(*place[:axis], source(place[axis], given), *place[axis + 1 :])

        return te.compute(sizes, element, name="taken")

    sizes, attrs = list(call.ty.shape.values), {OP_PATTERN: INJECTIVE}
    return builder.call_te(
        compute, data, sizes, given, primfunc_name_hint="take", primfunc_attrs=attrs
    )


def _by_runs(data: relax.Expr, table: relax.Expr, axis: int) -> Found | None:
    """The elements of a table that is known, if they are a few runs."""
    if not isinstance(table, ir.GenericConst) or len(table.value.shape) != 1:
        return None
    extent = data.ty.shape.values[axis]
    values = table.value.numpy().astype(np.int64)
    if not isinstance(extent, tirx.IntImm) or not len(values):
        return None
    if values.min() < 0 or values.max() >= int(extent):
        return None
    found = runs(values)
    if not found or len(values) < LEAST_LENGTH * len(found):
        return None

    def source(place: tirx.Expr, _given: Sequence[tirx.Expr]) -> tirx.Expr:
        own = [(place - first) * step + element for first, element, step in found]
        result = own.pop()
        while own:
            result = tirx.if_then_else(place < found[len(own)][0], own.pop(), result)
        return result

    return source, []


def runs(values: np.ndarray) -> list[Run]:
    """Where elements stay, rise or fall by 1 from place to place; nothing if too often."""
    steps, found, first = np.diff(values), list[Run](), 0
    while first < len(values):
        step = int(steps[first]) if first < len(steps) and abs(steps[first]) <= 1 else 0
        other = np.flatnonzero(steps[first:] != step)
        found.append((first, int(values[first]), step))
        if len(found) > MOST_RUNS:
            return []
        first += int(other[0]) + 1 if len(other) else len(values)
    return found


def _by_kernel(builder: relax.BlockBuilder, table: relax.Expr) -> Found | None:
    """The elements of a table that a kernel computes from sizes."""
    made = builder.lookup_binding(table) if isinstance(table, relax.Var) else None
    if not isinstance(made, relax.Call) or not isinstance(made.args[0], relax.GlobalVar):
        return None
    kernel = builder.get()[made.args[0]]
    if PLACES not in (getattr(kernel, "attrs", None) or {}):
        return None
    *own, result = kernel.params
    given = list(made.args[1].fields)
    if isinstance(result.shape[0], tirx.Var):  # a size that only the result has
        own, given = [*own, result.shape[0]], [*given, table.ty.shape.values[0]]
    (block,) = [
        each for each in walk(kernel.body) if isinstance(each, s_tir.SBlock) and each.iter_vars
    ]
    (store,) = [each for each in walk(block.body) if isinstance(each, tirx.BufferStore)]

    def source(place: tirx.Expr, given: Sequence[tirx.Expr]) -> tirx.Expr:
        values = dict(zip(own, given, strict=True))
        return substitute(store.value, {**values, block.iter_vars[0].var: place})

    return source, given


LEGALIZATIONS: dict[str, Legalize] = {"relax.take": _take}
