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
from tvm.ir.expr import TensorLoad
from tvm.tirx import ForKind

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr
from tir_schedules.core.emission import walk

from ..accumulators import along_results
from ..elementwise import lanes_for
from ..expressions import calls_of, const_int, guard_floats, int64, loads_of, variables_of
from ..loops import flattened, parameter_views, temporary_view, with_statements, without_repeats
from ..nest import Nest, NotHandledError
from ..reduction_rows import open_row
from ..strided_reads import COMBINE, with_selects
from ..vector_math import lower_math
from .elements import (
    element_loops,
    open_nests,
    over_axes,
    require_open,
    step_along,
    with_fewer_reduced,
)
from .windows import window_loops, windows_of

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


def open_reductions(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    """Reductions of tensors with open sizes, in vectors.

        for i, k in grid(n, m): y[i] += x[i, k]

        ->  for i: four accumulators of vectors; what is left of k, one by one; add the lanes up

        for k, j in grid(m, n): y[j] += x[k, j]

        ->  for j: y[j] = 0
            for k: for j: y[j] += x[k, j]                LLVM makes vectors of it

    Loops stand in that order where neighbours of the result read neighbours. TVM's order, the
    reduced axis innermost, jumps from row to row, and LLVM may not reorder a sum of floats.

    Loops for a function that reduces, alone or with what is computed of the result.

    Raises
    ------
    NotHandledError
        If all sizes are known, or it is no such function.
    """
    program = open_nests(func)
    if not any(nest.reduce for nest in program.nests):
        raise NotHandledError("it reduces nothing")
    views, statements = parameter_views(func)
    kept = {store.buffer for nest in program.nests for store in nest.results}
    for buffer in program.temporaries:
        views[buffer] = temporary_view(buffer)
        if buffer in kept:
            statements.append(tirx.AllocBuffer(views[buffer].flat))
    for nest in program.nests:
        flat = flattened(nest if nest.reduce else with_selects(nest), views)
        statements.append(_loops(flat, machine) if nest.reduce else element_loops(flat, machine))
    return with_statements(func, statements), "generic_reduction"


def _loops(nest: Nest, machine: Machine) -> tirx.Stmt:
    windows = windows_of(nest)
    if windows is not None:
        return window_loops(windows, machine)
    nest = with_fewer_reduced(nest)
    own = {store.buffer for store in nest.stores}
    for store in nest.stores:
        value = store.value
        if type(value) not in COMBINE or store.init is None or nest.lets:
            raise NotHandledError(f"{nest.name} is no plain reduction")
        if not isinstance(value.a, TensorLoad) or value.a.source not in own:
            raise NotHandledError(f"{nest.name} does not add to what it has")
        if any(load.source in own for load in loads_of(value.b)):
            raise NotHandledError(f"{nest.name} reads what it reduces")
        if calls_of(value.b, "if_then_else"):
            raise NotHandledError(f"{nest.name} chooses what it reads")
    loads = [load for store in nest.stores for load in loads_of(store.value.b)]
    lanes = lanes_for(nest, machine)
    for axis in reversed(nest.reduce):
        steps = [step_along(nest, load.indices[0], axis) for load in loads]
        if lanes > 1 and 1 in steps and all(step in (0, 1) for step in steps):
            return over_axes(nest.spatial, open_row(nest, axis, lanes), machine)
    for axis in nest.spatial[-1:]:
        steps = [step_along(nest, load.indices[0], axis) for load in loads]
        written = [step_along(nest, store.indices[0], axis) for store in nest.results]
        if all(step in (0, 1) for step in steps) and set(written) == {1}:
            return over_axes(nest.spatial[:-1], along_results(nest, axis), machine)
    raise NotHandledError(f"{nest.name} reads no neighbours")
