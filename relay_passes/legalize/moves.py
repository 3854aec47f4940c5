"""Operators that move elements: take, scatter, slices, permutations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np
import tvm.tirx.script.builder.ir as I
import tvm_ffi
from tvm import ir, relax, s_tir, te, tirx, topi
from tvm.s_tir import SBlock
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.relax import INJECTIVE, OP_PATTERN, Legalize, legalize_by_tvm
from microkernels.vector.expressions import Expr, element_of, like
from relay_passes.ir.axes import reorder_axes
from tir_schedules.core.emission import opaque_block, walk
from tir_schedules.generic.expressions import const_int, substitute

PLACES = "tvm_hybrid.places"
"""Attribute of kernels that compute, for each result place, a source index within range."""

MOST_RUNS = 8
LEAST_LENGTH = 4  # average length of a run

Source = Callable[[tirx.Expr, Sequence[tirx.Expr]], tirx.Expr]
"""(place, sizes) -> source index for the place."""

Found = tuple[Source, list[tirx.Expr]]

Run = tuple[int, int, int]
"""First place of the run, source index there, and step of the source index per place."""


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
    """The source of a constant table that consists of a few runs; else None."""
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
    """Legalises R.take with known indices: copies runs of elements.

    Before

        lv = R.take(x, R.const([2, 1, 0, 1, 2, 3, 4]), axis=1, mode="clip")

    After

        lv = R.call_tir(take, (x,))    # y[i, j] = x[i, j < 2 ? 2 - j : j - 2]

    A table that a kernel computes is taken like this, too, if the kernel is marked (`PLACES`): Pad
    along dynamic axes makes such tables.

    Returns runs in which the index stays, rises by 1 or falls by 1; empty if there are too many.
    """
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
    """The source of a table that a marked kernel computes from sizes; else None."""
    made = builder.lookup_binding(table) if isinstance(table, relax.Var) else None
    if not isinstance(made, relax.Call) or not isinstance(made.args[0], relax.GlobalVar):
        return None
    kernel = builder.get()[made.args[0]]
    if PLACES not in (getattr(kernel, "attrs", None) or {}):
        return None
    *own, result = kernel.params
    given = list(made.args[1].fields)
    if isinstance(result.shape[0], tirx.Var):  # a size that only the result defines
        own, given = [*own, result.shape[0]], [*given, table.ty.shape.values[0]]
    blocks = [each for each in walk(kernel.body) if isinstance(each, s_tir.SBlock)]
    (block,) = (each for each in blocks if each.iter_vars)
    (store,) = (each for each in walk(block.body) if isinstance(each, tirx.BufferStore))

    def source(place: tirx.Expr, given: Sequence[tirx.Expr]) -> tirx.Expr:
        values = dict(zip(own, given, strict=True))
        return substitute(store.value, {**values, block.iter_vars[0].var: place})

    return source, given


# Legalises R.scatter_elements: a copy, then the updates, with columns of a row innermost.
#
# Before
#
#     lv = R.scatter_elements(x, indices, updates, axis=0, reduction="max")
#
# After
#
#     lv = R.call_tir(scatter_elements, (x, indices, updates))
#
#     y[:] = x[:]
#     for blocks of columns: for k in rows: for j in columns of the block:
#         y[indices[k, j], j] = max(y[indices[k, j], j], updates[k, j])
#
# TVM's own kernel runs down one column after the other. Negative indices count from the end, and
# indices are clipped here, so that `clip_indices` need not do it.


COPIED = 1 << 13  # elements copied at a time
COLUMNS = 256  # of a block: its rows stay in cache

Combine: TypeAlias = Callable[[Expr, Expr], Expr]
"""(old element, update) -> new element."""


def _extreme(node: type[tirx.Max | tirx.Min], compare: type[tirx.GT | tirx.LT]) -> Combine:
    """Makes the larger or the smaller of two elements; NaN if either is NaN."""

    def combine(old: Expr, new: Expr) -> Expr:
        if "float" not in element_of(old):
            return node(old, new)
        # Generic schedules make `llvm.maximum` of a maximum, which branches on the sign of an
        # element: signs that change at random make that three times as slow.
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
    """Applies the updates; threads share the work so that no two write to one element."""
    before, (count, *behind) = list(indices.shape[:axis]), list(indices.shape[axis:])
    # One thread updates a block of columns, or else all elements after one index.
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


# Legalises R.dynamic_strided_slice, so that no bounds or steps crash the process.
#
# Before
#
#     lv = R.dynamic_strided_slice(x, begins, ends, steps)    # x: (n, 6)
#
# After
#
#     lv1 = R.call_tir(slice_sizes, (begins, ends, steps, n))    # [1, size 0, size 1]
#     lv2: R.Shape([1, s0, s1]) = R.tensor_to_shape(lv1)
#     lv = R.call_tir(dynamic_strided_slice, (x, begins, steps))
#
# The first element is 0 if a step is 0, and the program then raises an error. TVM's own function
# for sizes divides by such a step, which crashes the process. Its sizes are negative if the end
# lies before the beginning, and for steps near the limits of int64.


def _dynamic_strided_slice(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, *bounds = call.args
    extents = list(data.ty.shape.values)
    found = builder.call_te(_sizes, *bounds, extents, primfunc_name_hint="slice_sizes")
    shape = builder.emit(relax.op.tensor_to_shape(builder.emit(found)))
    sizes = [tirx.Var("s", "int64") for _ in extents]
    builder.match_cast(shape, relax.ShapeType([1, *sizes]))
    return builder.call_te(topi.dynamic_strided_slice, *call.args, output_shape=sizes)


def _sizes(
    begins: te.Tensor, ends: te.Tensor, steps: te.Tensor, extents: list[tirx.Expr]
) -> te.Tensor:
    """1 if no step is 0, else 0; then the result's size along every axis."""
    zero, one = (tirx.const(number, "int64") for number in (0, 1))

    def element(place: tirx.Var) -> tirx.Expr:
        bad = [tirx.EQ(steps(axis), zero) for axis in range(len(extents))]
        found: tirx.Expr = tirx.Select(tirx.any(*bad), zero, one)
        for axis, extent in enumerate(extents):
            size = _count(begins(axis), ends(axis), steps(axis), extent)
            found = tirx.Select(tirx.EQ(place, tirx.const(axis + 1, place.ty.dtype)), size, found)
        return found

    return te.compute((len(extents) + 1,), element, name="sizes")


def _count(begin: tirx.Expr, end: tirx.Expr, step: tirx.Expr, extent: tirx.Expr) -> tirx.Expr:
    """The number of elements between two bounds; a step of 0 counts as 1."""
    zero, one, minus = (tirx.const(number, "int64") for number in (0, 1, -1))
    upwards = step > zero
    low = tirx.Select(upwards, zero, minus)
    high = tirx.Select(upwards, extent, extent - one)
    first, last = (
        te.max(te.min(tirx.Select(bound < zero, bound + extent, bound), high), low)
        for bound in (begin, end)
    )
    length = te.max(tirx.Select(upwards, last - first, first - last), zero)
    # No sum below overflows: a step larger than the axis is clipped to the axis.
    most = te.max(extent, one)
    within = te.max(te.min(step, most), zero - most)
    stride = te.max(tirx.Select(upwards, within, zero - within), one)
    return tirx.floordiv(length + stride - one, stride)


MARK = "tvm_hybrid.reorder"


def reorders_in(function: tirx.PrimFunc) -> int:
    """Number of reorders of an unscheduled kernel: each is marked, and fusing keeps the mark.

    Before

        lv = R.permute_dims(x, axes=[0, 2, 1])

    After

        lv = R.call_tir(transpose, (x,))

        with T.sblock("T_transpose"):
            T.sblock_attr({"tvm_hybrid.reorder": True})
            ...

    FuseTIR keeps attributes of blocks, but not of functions.
    """
    blocks: list[SBlock] = []
    tvm_ffi.structural_walk(function.body, (SBlock, blocks.append))
    return sum(MARK in block.annotations for block in blocks)


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


LEGALIZATIONS: dict[str, Legalize] = {
    "relax.take": _take,
    "relax.scatter_elements": _scatter_elements,
    "relax.dynamic_strided_slice": _dynamic_strided_slice,
    "relax.permute_dims": _permute_dims,
}
