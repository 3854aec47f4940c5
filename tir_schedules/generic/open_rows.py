"""Vectorises the last axis of functions whose other sizes are known at run time only.

    for n, h, w, c in grid(b, (x - 1) // 2 + 1, y, 96): z[n, h, w, c] = max(x[n, h, w, c], 0)

    ->  for n, h, w: for v in vectorized(16), six times: z[n, h, w, 16 * i + v] = ...

    for n, c, h, w in grid(b, 96, x, y): z[n, c] += x[n, h, w, c]

    ->  for n, h, w: the same, over vectors of c

What comes before is computed where it is needed. It takes what `open_items` leaves: sizes that are
expressions, and sums over open sizes.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import ForKind

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr
from tir_schedules.core.statements import walk

from .expressions import const_int, int64, loads_of, variables_of
from .floats import guard_floats
from .loops import without_repeats
from .nest import NotHandledError
from .open_nests import require_open
from .vector_math import lower_math

LEAST_LANES = 4
MOST_UNROLLED = 64  # vectors of a row that have code of their own, where parts are joined


def open_rows(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Every block's last axis in vectors, in the innermost loops.

    Raises
    ------
    NotHandledError
        If all sizes are known, or the last axis of a block is short or not known.
    """
    require_open(func)
    reduces = any(
        isinstance(each, s_tir.SBlock) and each.init is not None for each in walk(func.body)
    )
    if not isinstance(func.body, s_tir.SBlockRealize):
        raise NotHandledError("the body is not a root block")
    schedule = s_tir.Schedule(func.with_body(guard_floats(func.body)))
    root = schedule.get_sblock(func.body.block.name_hint)
    for block in schedule.get_child_blocks(root)[:-1]:
        _inline(schedule, block)
    # Only now: TVM refuses a program in which the names of one function come twice.
    inlined = schedule.mod["main"]
    inlined = inlined.with_body(lower_math(inlined.body))
    schedule = s_tir.Schedule(_ask_by_vectors(inlined, machine))
    for block in schedule.get_child_blocks(schedule.get_sblock(func.body.block.name_hint)):
        _vectorize(schedule, block, machine)
    name = "generic_reduction" if reduces else "generic_injective"
    vectors = schedule.mod["main"]
    vectors = vectors.with_body(tvm_ffi.structural_map(vectors.body, (tirx.For, without_repeats)))
    return vectors.with_attrs(func.attrs), name


def _inline(schedule: s_tir.Schedule, block: Any) -> None:
    """Computes a block where its result is read, if that can be."""
    try:
        schedule.compute_inline(block)
    except s_tir.ScheduleError:  # a sum, or a result
        return


def _vectorize(schedule: s_tir.Schedule, block: Any, machine: Machine) -> None:
    statement = schedule.get(block)
    loops, iterators = schedule.get_loops(block), list(statement.iter_vars)
    if len(loops) != len(iterators):
        raise NotHandledError(f"{statement.name_hint} has other loops than axes")
    data = [
        number
        for number, iterator in enumerate(iterators)
        if iterator.iter_type == tirx.IterVar.DataPar
    ]
    if not data:
        raise NotHandledError(f"{statement.name_hint} has no rows")
    last = data[-1]
    extent = const_int(iterators[last].dom.extent) or 0
    if not _ends_with(statement, iterators[last].var):
        raise NotHandledError(f"{statement.name_hint} stores elements that lie apart")
    lanes = _lanes(extent, machine)
    if not lanes:
        raise NotHandledError(f"{statement.name_hint} has rows of {extent or 'open length'}")
    after = loops[last + 1 :]
    if after:
        schedule.reorder(*after, loops[last])
    outer, inner = schedule.split(loops[last], [None, lanes])
    schedule.vectorize(inner)
    if extent // lanes <= MOST_UNROLLED and _reads_along(statement, iterators[last].var):
        schedule.unroll(outer)
    leading = [loops[number] for number in data[:-1]]
    if machine.threads > 1 and leading:
        schedule.parallel(schedule.fuse(*leading[:2]) if _adjoin(data) else leading[0])
    if after:
        # What a sum begins with is stored apart: there may be nothing to add.
        begin = schedule.decompose_reduction(block, after[0])
        stored = schedule.get_loops(begin)[-1]
        if schedule.get(stored).kind != ForKind.VECTORIZED:
            schedule.vectorize(stored)


def _lanes(extent: int, machine: Machine) -> int:
    """Lanes of whole vectors along so many elements; 0 if there are no such."""
    lanes = machine.isa.f32_lanes
    while lanes >= LEAST_LANES and extent % lanes:
        lanes //= 2
    return lanes if extent and lanes >= LEAST_LANES else 0


def _ask_by_vectors(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """A function that asks for each whole vector, not for each lane, on which side of a limit it
    lies: `v // 8 < 4` instead of `v < 32`. Else TVM takes such a vector apart."""

    def block(node: s_tir.SBlock) -> s_tir.SBlock:
        data = [each for each in node.iter_vars if each.iter_type == tirx.IterVar.DataPar]
        lanes = _lanes(const_int(data[-1].dom.extent) or 0, machine) if data else 0
        if not lanes:
            return node
        var = data[-1].var

        vector = tirx.floordiv(var, int64(lanes))

        def whole(limit: Expr) -> Expr | None:
            number = const_int(limit)
            return None if number is None or number % lanes else int64(number // lanes)

        # All of a vector lies on one side of `v < n` and of `n <= v`, n being whole vectors.
        def below(each: tirx.LT) -> Expr:
            limit = whole(each.b) if each.a.same_as(var) else None
            return each if limit is None else tirx.LT(vector, limit)

        def from_there(each: tirx.LE) -> Expr:
            limit = whole(each.a) if each.b.same_as(var) else None
            return each if limit is None else tirx.LE(limit, vector)

        changed = [(tirx.LT, below), (tirx.LE, from_there)]
        body = tvm_ffi.structural_map(node.body, changed)
        return s_tir.SBlock(
            node.iter_vars,
            node.reads,
            node.writes,
            node.name_hint,
            body,
            node.init,
            node.alloc_buffers,
            node.match_buffers,
            node.annotations,
        )

    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlock, block)))


def _adjoin(data: list[int]) -> bool:
    """Whether the first two loops are over elements, and no others lie between them."""
    return len(data) > 2 and data[:2] == [0, 1]


def _reads_along(block: s_tir.SBlock, var: tirx.Var) -> bool:
    """Whether a block reads neighbours along an axis. What lies apart is read element by element:
    60 vectors with code of their own took 3 seconds to compile."""
    stores = [each for each in walk(block.body) if isinstance(each, tirx.BufferStore)]
    loads = [load for store in stores for load in loads_of(store.value)]
    return not any(var in variables_of(index) for load in loads for index in load.indices[:-1])


def _ends_with(block: s_tir.SBlock, var: tirx.Var) -> bool:
    """Whether a block stores along an axis in memory."""
    stores = [each for each in walk(block.body) if isinstance(each, tirx.BufferStore)]
    return all(store.indices and store.indices[-1].same_as(var) for store in stores)
