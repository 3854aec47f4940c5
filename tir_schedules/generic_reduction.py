"""Loops for nests that accumulate: sums, maxima, pooling, convolutions, matrix products.

Along the result, when neighbouring results read neighbouring elements (or the same one):

    for i, k, j in grid: y[i, j] += a[i, k] * b[k, j]

    ->  for it, jt in grid(n / 6, m / 64):
            24 accumulators of 16 lanes in registers <- 0
            for k: accumulator[i, j] += a[6 * it + i, k] * b[k, 64 * jt + j]
            y <- accumulators (with the epilogue applied)

Along the reduced axis, when that is where neighbours lie:

    for i, k in grid: y[i] += x[i, k]

    ->  for i: four accumulators of 16 lanes; for k in steps of 64: accumulate; add the lanes up

A sum's order of additions so differs from the loops' (float addition is not associative). max and
min keep what TVM makes of NaN: the result may or may not be NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.vectors import Expr, like

from .generic_elementwise import conditions_as_selects, lanes_for
from .generic_expr import (
    calls_of,
    int64,
    loads_of,
    map_loads,
    ramp_at,
    same,
    shuffle,
    variables_of,
)
from .generic_loops import (
    FORK_NANOSECONDS,
    Strides,
    access_strides,
    collapsed,
    nanoseconds,
    nested,
    pieces,
    sequence,
    serial,
    store_statement,
    unrolled,
    vectorized,
)
from .generic_nest import Axis, Nest, NotHandledError, Store
from .generic_staging import NOTHING_STAGED, Staged, stage, strided_loads
from .machine import Machine

_COMBINE: dict[type, Callable[[Expr, Expr], Expr]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Mul: lambda a, b: a * b,
    tirx.Max: tirx.Max,
    tirx.Min: tirx.Min,
}


_Write = Callable[[int, Expr, Expr, dict[tirx.Var, Expr], Staged], tirx.Stmt]


@dataclass(frozen=True)
class _Plan:
    nest: Nest
    loads: list[Strides]
    stores: list[Strides]
    machine: Machine
    parallel: bool


def reduction_loops(nest: Nest, machine: Machine, parallel: bool) -> tuple[tirx.Stmt, str]:
    """Loops for a flat nest with reduced axes, and the name of the schedule.

    Raises
    ------
    NotHandledError
        If the nest does more than update one element per store.
    """
    nest = conditions_as_selects(collapsed(_checked(nest)))
    loads, stores = access_strides(nest)
    wide = parallel and nanoseconds(nest) >= FORK_NANOSECONDS
    plan = _Plan(nest, loads, stores, machine, wide)
    lanes = lanes_for(nest, machine)
    along, strided = _along_result(plan)
    inner = _along_reduced(plan)
    if lanes > 1 and along is not None and (inner is None or 2 * along.extent >= lanes):
        return _result_loops(plan, along, lanes), "generic_reduction"
    if lanes > 1 and inner is not None and 2 * inner.extent >= lanes:
        return _row_loops(plan, inner, lanes), "generic_reduction"
    if lanes > 1 and strided is not None and strided.extent >= 4:
        return _result_loops(plan, strided, lanes), "generic_reduction"
    return _scalar_loops(plan), "generic_reduction"


def _checked(nest: Nest) -> Nest:
    """The nest, if each store updates one element that no other store of it touches."""
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


def _along_result(plan: _Plan) -> tuple[Axis | None, Axis | None]:
    """The axis to lay lanes along the results: with neighbouring reads, and with any reads."""
    neighbours = strided = None
    for axis in plan.nest.spatial:
        if any(strides[axis.var] != 1 for strides in plan.stores):
            continue
        if any(
            axis.var in variables_of(call.args[0])
            for value in plan.nest.expressions()
            for call in calls_of(value, "if_then_else")
        ):
            continue
        steps = [strides[axis.var] for strides in plan.loads]
        if None in steps:
            continue
        strided = axis
        if all(step in (0, 1) for step in steps):
            neighbours = axis
    return neighbours, strided


def _along_reduced(plan: _Plan) -> Axis | None:
    """The reduced axis along which neighbours lie, if partial results may be combined."""
    own = {store.buffer for store in plan.nest.stores}
    for store in plan.nest.stores:
        value = store.value
        if type(value) not in _COMBINE or plan.nest.lets:
            return None
        if not isinstance(value.a, TensorLoad) or value.a.source not in own:
            return None
        if any(load.source in own for load in loads_of(value.b)):
            return None
        if calls_of(value.b, "if_then_else"):
            return None
    for axis in reversed(plan.nest.reduce):
        steps = [strides[axis.var] for strides in plan.loads]
        if all(step in (0, 1) for step in steps) and 1 in steps:
            return axis
    return None


class _Accumulators:
    """Local buffers in place of the accumulated elements: one per store and register."""

    def __init__(self, nest: Nest, widths: list[int], rows: int) -> None:
        self.nest = nest
        self.rows = rows
        self.buffers = [
            [
                tirx.decl_buffer((int64(rows * width),), store.buffer.dtype, "accumulator")
                for width in widths
            ]
            for store in nest.stores
        ]
        self.widths = widths

    def allocations(self) -> list[tirx.Stmt]:
        return [tirx.AllocBuffer(buffer) for row in self.buffers for buffer in row]

    def at(self, piece: int, row: Expr, lane: Expr) -> Callable[[TensorLoad], Expr]:
        """Replaces loads of accumulated elements by one lane of a register."""
        position = row * int64(self.widths[piece]) + lane

        def change(load: TensorLoad) -> Expr:
            for store, buffers in zip(self.nest.stores, self.buffers, strict=True):
                if load.source.same_as(store.buffer):
                    return tirx.BufferLoad(buffers[piece], [position])
            return load

        return change

    def stores(self, piece: int, row: Expr, lane: Expr) -> list[tuple[Store, tirx.Var, Expr]]:
        position = row * int64(self.widths[piece]) + lane
        return [
            (store, buffers[piece], position)
            for store, buffers in zip(self.nest.stores, self.buffers, strict=True)
        ]

    def start(self, piece: int, row: Expr, lane: Expr) -> tirx.Stmt:
        return sequence(
            [
                tirx.BufferStore(buffer, store.init, [position])
                for store, buffer, position in self.stores(piece, row, lane)
            ]
        )

    def update(
        self,
        piece: int,
        row: Expr,
        lane: Expr,
        at: dict[tirx.Var, Expr],
        staged: Staged = NOTHING_STAGED,
    ) -> tirx.Stmt:
        nest = self.nest.with_loads(self.at(piece, row, lane)).with_loads(staged.lane(lane))
        updates = [
            Store(buffer, (position,), store.value)
            for store, (_, buffer, position) in zip(
                nest.stores, self.stores(piece, row, lane), strict=True
            )
        ]
        return store_statement(nest, updates, at)

    def finish(self, piece: int, row: Expr, lane: Expr, at: dict[tirx.Var, Expr]) -> tirx.Stmt:
        change = self.at(piece, row, lane)
        stores = [replace(store, value=map_loads(store.value, change)) for store in self.results()]
        return store_statement(replace(self.nest, lets=()), stores, at)

    def finish_with(self, totals: list[tirx.Var], at: dict[tirx.Var, Expr]) -> tirx.Stmt:
        """Stores the results of accumulated elements that are in variables."""

        def change(load: TensorLoad) -> Expr:
            for store, total in zip(self.nest.stores, totals, strict=True):
                if load.source.same_as(store.buffer):
                    return total
            return load

        stores = [replace(store, value=map_loads(store.value, change)) for store in self.results()]
        return store_statement(replace(self.nest, lets=()), stores, at)

    def results(self) -> tuple[Store, ...]:
        """The epilogue, or stores of the accumulated elements as they are."""
        return self.nest.epilogue or tuple(
            replace(store, value=tirx.BufferLoad(store.buffer, list(store.indices)))
            for store in self.nest.stores
        )


def _over_reduced(axes: tuple[Axis, ...], body: tirx.Stmt) -> tirx.Stmt:
    for axis in reversed(axes):
        body = tirx.For(axis.var, int64(0), int64(axis.extent), tirx.ForKind.SERIAL, body)
    return body


def _shared_axis(plan: _Plan, along: Axis) -> Axis | None:
    """Another result axis whose points share the vectors read along `along`."""
    best = None
    for axis in plan.nest.spatial:
        if axis is along or any(s[axis.var] is None for s in (*plan.loads, *plan.stores)):
            continue
        moving = [strides for strides in plan.loads if strides[along.var] != 0]
        if moving and any(strides[axis.var] == 0 for strides in moving):
            best = axis
    return best


def _tiles(extent: int, size: int) -> list[tuple[int, int, int]]:
    """(start, size, count) of the full tiles and of the rest."""
    full, rest = divmod(extent, size)
    found = [(0, size, full)] if full else []
    return found + ([(full * size, rest, 1)] if rest else [])


def _result_loops(plan: _Plan, along: Axis, lanes: int) -> tirx.Stmt:
    nest, machine = plan.nest, plan.machine
    shared = _shared_axis(plan, along)
    registers = 24 if machine.isa.vector_bits >= 512 else 12
    registers //= len(nest.stores)
    across = min(-(-along.extent // lanes), 4)
    down = 1 if shared is None else max(min(shared.extent, registers // across, 6), 1)
    others = [axis for axis in nest.spatial if axis is not along and axis is not shared]
    statements = []
    for row_start, rows, row_tiles in _tiles(shared.extent if shared else 1, down):
        for start, width, tiles in _tiles(along.extent, across * lanes):
            row_axis, column_axis = Axis.new(row_tiles, "rows"), Axis.new(tiles, "columns")
            column = column_axis.var * int64(across * lanes) + int64(start)
            row = row_axis.var * int64(down) + int64(row_start)
            body = _register_tile(nest, along, shared, column, row, rows, pieces(width, lanes))
            axes = (*others, row_axis, column_axis)
            statements.append(nested(axes, body, machine, plan.parallel))
    return sequence(statements)


def _register_tile(
    nest: Nest,
    along: Axis,
    shared: Axis | None,
    column: Expr,
    row: Expr,
    rows: int,
    vectors: list[tuple[int, int]],
) -> tirx.Stmt:
    registers = _Accumulators(nest, [width for _, width in vectors], rows)

    strided = strided_loads(nest, along, shared)

    def everywhere(write: _Write, loads: list[TensorLoad]) -> tirx.Stmt:
        statements: list[tirx.Stmt] = []
        for piece, (start, width) in enumerate(vectors):
            first: dict[tirx.Var, Expr] = {along.var: column + int64(start)}
            staged = stage(loads, along, first, width)
            statements += staged.statements
            statements.append(unrolled(rows, _vector_of_row(piece, width, first, staged, write)))
        return sequence(statements)

    def _vector_of_row(
        piece: int, width: int, first: dict[tirx.Var, Expr], staged: Staged, write: _Write
    ) -> Callable[[Expr], tirx.Stmt]:
        def of_row(number: Expr) -> tirx.Stmt:
            def at_lane(lane: Expr) -> tirx.Stmt:
                at = {along.var: first[along.var] + lane}
                if shared is not None:
                    at[shared.var] = row + number
                return write(piece, number, lane, at, staged)

            return vectorized(width, at_lane)

        return of_row

    return sequence(
        [
            *registers.allocations(),
            everywhere(lambda piece, number, lane, *_: registers.start(piece, number, lane), []),
            _over_reduced(nest.reduce, everywhere(registers.update, strided)),
            everywhere(lambda *where: registers.finish(*where[:4]), []),
        ]
    )


def _row_loops(plan: _Plan, inner: Axis, lanes: int) -> tirx.Stmt:
    nest, machine = plan.nest, plan.machine
    shared = _shared_axis(plan, inner)
    down = 1 if shared is None else min(shared.extent, 4)
    chains = max(min(inner.extent // lanes, 4 if down == 1 else 2), 1)
    others = [axis for axis in nest.spatial if axis is not shared]
    if shared is None:
        return nested(
            others, _rows(nest, inner, None, int64(0), 1, chains, lanes), machine, plan.parallel
        )
    statements = []
    for start, rows, tiles in _tiles(shared.extent, down):
        axis = Axis.new(tiles, "rows")
        row = axis.var * int64(down) + int64(start)
        body = _rows(nest, inner, shared, row, rows, chains, lanes)
        statements.append(nested((*others, axis), body, machine, plan.parallel))
    return sequence(statements)


def _rows(
    nest: Nest,
    inner: Axis,
    shared: Axis | None,
    row: Expr,
    rows: int,
    chains: int,
    lanes: int,
) -> tirx.Stmt:
    """A few rows, each reduced to one element in `chains` registers and narrower ones."""
    steps, rest = divmod(inner.extent, chains * lanes)
    tail = pieces(rest, lanes)
    widths = [lanes] * chains + [width for _, width in tail if width < lanes]
    registers = _Accumulators(nest, widths, rows)
    outer = tuple(axis for axis in nest.reduce if axis is not inner)

    def point(number: Expr, position: Expr) -> dict[tirx.Var, Expr]:
        at = {inner.var: position}
        if shared is not None:
            at[shared.var] = row + number
        return at

    def updates(position: Expr, covered: Iterable[tuple[int, int]]) -> tirx.Stmt:
        """Updates registers: (register, start)."""

        def update(piece: int, start: int) -> tirx.Stmt:
            return unrolled(
                rows,
                lambda number: vectorized(
                    widths[piece],
                    lambda lane: registers.update(
                        piece, number, lane, point(number, position + int64(start) + lane)
                    ),
                ),
            )

        return sequence([update(piece, start) for piece, start in covered])

    def start(piece: int) -> tirx.Stmt:
        return unrolled(
            rows,
            lambda number: vectorized(
                widths[piece], lambda lane: _identity(registers, piece, number, lane)
            ),
        )

    passes = []
    if steps:
        covered = [(chain, chain * lanes) for chain in range(chains)]
        passes.append(serial(steps, lambda s: updates(s * int64(chains * lanes), covered)))
    if tail:
        where = [(number if width == lanes else -1, at) for number, (at, width) in enumerate(tail)]
        narrow = itertools.count(chains)
        covered = [(next(narrow) if piece < 0 else piece, at) for piece, at in where]
        passes.append(updates(int64(steps * chains * lanes), covered))
    finish: list[tirx.Stmt] = []
    for number in map(int64, range(rows)):
        totals = [_folded(registers, index, number, finish) for index in range(len(nest.stores))]
        finish.append(registers.finish_with(totals, point(number, int64(0))))
    return sequence(
        [
            *registers.allocations(),
            *(start(piece) for piece in range(len(widths))),
            _over_reduced(outer, sequence(passes)),
            *finish,
        ]
    )


def _identity(registers: _Accumulators, piece: int, number: Expr, lane: Expr) -> tirx.Stmt:
    """Every lane starts from what leaves a combination unchanged."""
    statements = []
    for store, buffer, position in registers.stores(piece, number, lane):
        neutral = {tirx.Add: 0, tirx.Mul: 1}.get(type(store.value))
        value = store.init if neutral is None else like(neutral, store.init)
        statements.append(tirx.BufferStore(buffer, value, [position]))
    return sequence(statements)


def _folded(
    registers: _Accumulators, index: int, number: Expr, statements: list[tirx.Stmt]
) -> tirx.Var:
    """All lanes of a row's registers combined; appends the statements that do it."""
    store = registers.nest.stores[index]
    combine = _COMBINE[type(store.value)]

    def named(value: Expr) -> tirx.Var:
        variable = tirx.Var("lanes", str(value.ty.dtype))
        statements.append(tirx.Bind(variable, value))
        return variable

    width = max(registers.widths)
    total: tirx.Var | None = None
    while width:
        if total is not None:
            low, high = range(width), range(width, 2 * width)
            total = named(combine(shuffle([total], low), shuffle([total], high)))
        for piece, buffer in enumerate(registers.buffers[index]):
            if registers.widths[piece] == width:
                start = number * int64(width)
                value = tirx.BufferLoad(buffer, [ramp_at(start, width) if width > 1 else start])
                total = named(value if total is None else combine(total, value))
        width //= 2
    assert total is not None
    if isinstance(store.value, tirx.Add | tirx.Mul):
        total = named(combine(store.init, total))
    return total


def _scalar_loops(plan: _Plan) -> tirx.Stmt:
    """One element after the other, accumulated in registers."""
    registers = _Accumulators(plan.nest, [1], 1)
    zero = int64(0)
    body = sequence(
        [
            *registers.allocations(),
            registers.start(0, zero, zero),
            _over_reduced(plan.nest.reduce, registers.update(0, zero, zero, {})),
            registers.finish(0, zero, zero, {}),
        ]
    )
    return nested(plan.nest.spatial, body, plan.machine, plan.parallel)
