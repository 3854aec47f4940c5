"""Loops for nests that accumulate: sums, maxima, pooling, convolutions, matrix products.

Along the result, if neighbouring results read neighbouring elements (or one common element):

    for i, k, j in grid: y[i, j] += a[i, k] * b[k, j]

    ->  for it, jt in grid(n / 6, m / 64):
            24 accumulators of 16 lanes in registers <- 0
            for k: accumulator[i, j] += a[6 * it + i, k] * b[k, 64 * jt + j]
            y <- accumulators (with the epilogue applied)

Row by row, if register tiles would jump through more rows than are in cache:

    ->  for jb in grid(m / 2048): y <- 0; for k: for j in block: y[j] += x[k, j]

Along the reduced axis, if neighbouring elements lie along it:

    for i, k in grid: y[i] += x[i, k]

    ->  for i: four accumulators of 16 lanes; for k in steps of 64: accumulate; add the lanes up

So the order of additions is not that of the original loops (float addition is not associative).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from . import accumulators, loops
from .accumulators import Accumulators, shared_axis, tiles_of
from .conditions import window_of, without_padding
from .elementwise import conditions_as_selects, is_guarded_by, lanes_for
from .expressions import int64, loads_of, same, variables_of
from .loops import Plan, collapsed, nested, over_axes, pieces, sequence
from .nest import Axis, Nest, NotHandledError
from .pool import window_loops
from .reads import NOTHING_STAGED, Staged, stage, strided_loads
from .windows import window_loops as slid_loops
from .windows import windows_of

_MANY_ROWS = 32  # hardware prefetchers can follow fewer rows than this
_SWEPT = 2048  # most results of a block, which stay in L1

_Write = Callable[[int, Expr, Expr, dict[tirx.Var, Expr], Staged], tirx.Stmt]


def reduction_loops(nest: Nest, machine: Machine, parallel: bool) -> tuple[tirx.Stmt, str]:
    """Loops for a flat nest with reduced axes, and the name of the schedule.

    Raises
    ------
    NotHandledError
        If the nest does more than update one element per store.
    """
    nest = _checked(nest)
    threads = loops.threads_sharing([nest], machine) if parallel else 1
    lanes = lanes_for(nest, machine)
    stripped = without_padding(nest)
    slid = windows_of(nest) if stripped is None and lanes > 1 else None
    if slid is not None:
        return slid_loops(slid, replace(machine, threads=threads)), "generic_pool"
    inside, bounds = stripped if stripped is not None else (nest, {})
    bounded = [each.place for each in bounds.values() if each.place is not None]
    window = window_of(collapsed(inside, (*bounds, *bounded)), bounds) if lanes > 1 else None
    if window is not None:
        return window_loops(window, machine, threads, lanes), "generic_pool"
    nest = conditions_as_selects(collapsed(nest))
    plan = Plan.of(nest, machine, threads)
    along, strided = _along_result(plan)
    inner = None  # a reduced axis of neighbouring elements, if partial results may be combined
    for axis in () if accumulators.not_combined(nest) else nest.reduce:
        steps = [strides[axis.var] for strides in plan.loads]
        if all(step in (0, 1) for step in steps) and 1 in steps:
            inner = axis
    if lanes > 1 and along is not None and (inner is None or 2 * along.extent >= lanes):
        if _streams(plan, along):
            return _swept_loops(plan, along), "generic_reduction"
        return _result_loops(plan, along, lanes), "generic_reduction"
    if lanes > 1 and inner is not None and 2 * inner.extent >= lanes:
        return accumulators.reduced_row_loops(plan, inner, lanes), "generic_reduction"
    if lanes > 1 and strided is not None and strided.extent >= 4:
        return _result_loops(plan, strided, lanes), "generic_reduction"
    body = _register_tile(nest, None, None, int64(0), int64(0), 1, [(0, 1)])  # element by element
    return nested(nest.spatial, body, machine, threads), "generic_reduction"


def _checked(nest: Nest) -> Nest:
    """The nest, if each of its stores updates one element that no other store accesses."""
    if any(store.init is None for store in nest.stores):
        raise NotHandledError(f"{nest.name} accumulates into an element that it does not set")
    reduced = {axis.var for axis in nest.reduce}
    own = {store.buffer: store.indices[0] for store in nest.stores}
    for store in (*nest.stores, *nest.epilogue):
        if reduced & variables_of(store.indices[0]):
            raise NotHandledError(f"{nest.name} scatters what it accumulates")
    for load in nest.reads():
        index = own.get(load.source)
        if index is not None and not same(load.indices[0], index):
            raise NotHandledError(f"{nest.name} reads a neighbour of what it accumulates")
    for position, store in enumerate(nest.stores):
        earlier = {other.buffer for other in nest.stores[:position]}
        if any(load.source in earlier for load in loads_of(store.value)):
            raise NotHandledError(f"{nest.name} updates results one through the other")
    return nest


def _along_result(plan: Plan) -> tuple[Axis | None, Axis | None]:
    """The result axes for lanes: the last one with neighbouring reads, and with any reads."""
    neighbours = strided = None
    for axis in plan.nest.spatial:
        if any(strides[axis.var] != 1 for strides in plan.stores):
            continue
        if is_guarded_by(plan.nest, axis.var):
            continue
        steps = [strides[axis.var] for strides in plan.loads]
        if None in steps:
            continue
        strided = axis
        if all(step in (0, 1) for step in steps):
            neighbours = axis
    return neighbours, strided


def _result_loops(plan: Plan, along: Axis, lanes: int) -> tirx.Stmt:
    nest, machine = plan.nest, plan.machine
    shared = shared_axis(plan, along)
    registers = 24 if machine.isa.vector_bits >= 512 else 12
    registers //= len(nest.stores)
    across = min(-(-along.extent // lanes), 4)
    down = 1 if shared is None else max(min(shared.extent, registers // across, 6), 1)
    others = [axis for axis in nest.spatial if axis is not along and axis is not shared]
    statements = []
    for row_start, rows, row_tiles in tiles_of(shared.extent if shared else 1, down):
        for start, width, tiles in tiles_of(along.extent, across * lanes):
            row_axis, column_axis = Axis.new(row_tiles, "rows"), Axis.new(tiles, "columns")
            column = column_axis.var * int64(across * lanes) + int64(start)
            row = row_axis.var * int64(down) + int64(row_start)
            body = _register_tile(nest, along, shared, column, row, rows, pieces(width, lanes))
            axes = (*others, row_axis, column_axis)
            statements.append(nested(axes, body, machine, plan.threads))
    return sequence(statements)


def _streams(plan: Plan, along: Axis) -> bool:
    """Whether register tiles would jump through more rows than are in cache."""
    nest = plan.nest
    if len(nest.stores) != 1 or len(nest.results) != 1 or nest.lets or shared_axis(plan, along):
        return False
    rows = math.prod(axis.extent for axis in nest.reduce)
    bits = max(int(load.ty.dtype.bits) for load in nest.reads())
    return rows >= _MANY_ROWS and nest.points * bits // 8 > plan.machine.l2_bytes


def _swept_loops(plan: Plan, along: Axis) -> tirx.Stmt:
    """Loops row by row: results stay in L1, and elements are read in the order of memory."""
    lanes = lanes_for(plan.nest, plan.machine)
    vectors = max(along.extent // lanes, 1)

    def longest(size: int) -> tuple[int, int]:
        """Vectors of the busiest thread, with the tail; of equal counts the longest block wins."""
        count, rest = divmod(vectors, size)
        return -(-count // plan.threads) * size + rest, -size

    block = min(range(1, min(vectors, _SWEPT // lanes) + 1), key=longest) * lanes
    others = [axis for axis in plan.nest.spatial if axis is not along]
    statements = []
    for start, width, count in tiles_of(along.extent, block):
        outer, inner = Axis.new(count, "columns"), Axis.new(width, "column")
        column = outer.var * int64(block) + inner.var + int64(start)
        body = accumulators.along_results(plan.nest.substituted({along.var: column}), inner)
        statements.append(nested((*others, outer), body, plan.machine, plan.threads))
    return sequence(statements)


def _register_tile(
    nest: Nest,
    along: Axis | None,
    shared: Axis | None,
    column: Expr,
    row: Expr,
    rows: int,
    vectors: list[tuple[int, int]],
) -> tirx.Stmt:
    registers = Accumulators(nest, [width for _, width in vectors], rows)
    strided = [] if along is None else strided_loads(nest, along, shared)

    def everywhere(write: _Write, loads: list[TensorLoad]) -> tirx.Stmt:
        return sequence([vector(write, loads, piece) for piece in range(len(vectors))])

    def vector(write: _Write, loads: list[TensorLoad], piece: int) -> tirx.Stmt:
        start, width = vectors[piece]
        first = column + int64(start)
        staged = NOTHING_STAGED
        if along is not None:
            staged = stage(loads, along, {along.var: first}, width)

        def of_row(number: Expr) -> tirx.Stmt:
            def at_lane(lane: Expr) -> tirx.Stmt:
                at = {} if along is None else {along.var: first + lane}
                if shared is not None:
                    at[shared.var] = row + number
                return write(piece, number, lane, at, staged)

            return loops.vectorized(width, at_lane)

        return sequence([*staged.statements, loops.unrolled(rows, of_row)])

    def finish(piece: int, row: Expr, lane: Expr, at: dict[tirx.Var, Expr], _: Staged) -> tirx.Stmt:
        return registers.finish(registers.elements(piece, row, lane), at)

    return sequence(
        [
            *registers.allocations(),
            everywhere(lambda piece, number, lane, *_: registers.start(piece, number, lane), []),
            over_axes(nest.reduce, everywhere(registers.update, strided)),
            everywhere(finish, []),
        ]
    )
