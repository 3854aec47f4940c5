"""The accumulators of a reduction: local buffers that LLVM keeps in registers.

Along the reduced axis, for neighbouring elements that lie along it:

for i, k in grid(n, 100): y[i] += x[i, k]

->  for i in range(n):
        a, b, c (16 lanes), d (4 lanes) <- 0
        a += x[i, 0:16] + x[i, 48:64], b += x[i, 16:32] + ..., d += x[i, 96:100]
        a += b + c; h = a[0:8] + a[8:16]; h = h[0:4] + h[4:8] + d; ...; y[i] = the last lane
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.vector.expressions import Expr, element_of, like, shuffle

from . import loops
from .expressions import calls_of, int64, loads_of, map_loads, ramp_at
from .nest import Axis, Nest, NotHandledError, Store
from .reads import NOTHING_STAGED, Staged


def _extreme(node: type[tirx.Max | tirx.Min]) -> Callable[[Expr, Expr], Expr]:
    def combine(total: Expr, element: Expr) -> Expr:
        if not element_of(total).startswith(("float", "bfloat")):
            return node(total, element)
        # total == total does not work: TVM takes it for true.
        is_number = tirx.LE(total, like(math.inf, total))
        return tirx.Select(is_number, node(total, element), total)

    return combine


COMBINE: dict[type, Callable[[Expr, Expr], Expr]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Mul: lambda a, b: a * b,
    tirx.Max: _extreme(tirx.Max),
    tirx.Min: _extreme(tirx.Min),
}
"""For the node that updates an element, a function (current value, new value) -> next value."""

_NEUTRAL: dict[type[Expr], int] = {tirx.Add: 0, tirx.Mul: 1}


def keeping_nan(value: Expr) -> Expr:
    """Makes an update `max(y[i], x)` or `min(y[i], x)` keep a NaN; other values stay unchanged.

        y[i] = max(y[i], x[i, k])    ->    y[i] = y[i] <= inf ? max(y[i], x[i, k]) : y[i]

    x86's maximum returns its second argument if either is a NaN. So the new value comes second, and
    a comparison keeps an old NaN. That takes one more instruction on AVX-512 (a masked maximum),
    and two more elsewhere.
    """
    if isinstance(value, tirx.Max | tirx.Min) and isinstance(value.a, TensorLoad):
        return COMBINE[type(value)](value.a, value.b)
    return value


class Accumulators:
    """Local buffers in place of the accumulated elements: one for each store and register."""

    def __init__(self, nest: Nest, widths: list[int], rows: int) -> None:
        self.nest, self.rows, self.widths = nest, rows, widths
        self.buffers = [
            [
                tirx.decl_buffer((int64(rows * width),), store.buffer.dtype, "accumulator")
                for width in widths
            ]
            for store in nest.stores
        ]

    def allocations(self) -> list[tirx.Stmt]:
        return [tirx.AllocBuffer(buffer) for row in self.buffers for buffer in row]

    def elements(self, piece: int, row: Expr, lane: Expr) -> list[TensorLoad]:
        """One lane of a register for each store."""
        position = row * int64(self.widths[piece]) + lane
        return [tirx.BufferLoad(buffers[piece], [position]) for buffers in self.buffers]

    def reading(self, totals: Sequence[Expr]) -> Callable[[TensorLoad], Expr]:
        """A function that replaces loads of accumulated elements by `totals`, one a store."""

        def change(load: TensorLoad) -> Expr:
            for store, total in zip(self.nest.stores, totals, strict=True):
                if load.source.same_as(store.buffer):
                    return total
            return load

        return change

    def start(self, piece: int, row: Expr, lane: Expr, neutral: bool = False) -> tirx.Stmt:
        """Stores the initial values or, if `neutral`, values that change no combination."""
        statements = []
        elements = self.elements(piece, row, lane)
        for store, element in zip(self.nest.stores, elements, strict=True):
            number = _NEUTRAL.get(type(store.value)) if neutral else None
            value = store.start if number is None else like(number, store.start)
            statements.append(tirx.BufferStore(element.source, value, element.indices))
        return loops.sequence(statements)

    def update(
        self,
        piece: int,
        row: Expr,
        lane: Expr,
        at: dict[tirx.Var, Expr],
        staged: Staged = NOTHING_STAGED,
    ) -> tirx.Stmt:
        elements = self.elements(piece, row, lane)
        nest = self.nest.with_loads(self.reading(elements)).with_loads(staged.lane(lane))
        updates = [
            Store(element.source, tuple(element.indices), keeping_nan(store.value))
            for store, element in zip(nest.stores, elements, strict=True)
        ]
        return loops.store_statement(nest, updates, at)

    def finish(self, totals: Sequence[Expr], at: dict[tirx.Var, Expr]) -> tirx.Stmt:
        """Stores the results that have the given totals."""
        change, results = self.reading(totals), self.nest.finished
        stores = [replace(store, value=map_loads(store.value, change)) for store in results]
        return loops.store_statement(replace(self.nest, lets=()), stores, at)

    def whole_row(
        self,
        reduced: Sequence[Axis],
        passes: list[tirx.Stmt],
        point: Callable[[Expr], dict[tirx.Var, Expr]],
    ) -> tirx.Stmt:
        """Reduces each row to one element: starts all registers, runs `passes`, combines lanes.

        `reduced` are the axes of loops around the passes; `point` maps the number of a row to the
        values of axes at its results.
        """

        def start(piece: int, number: Expr) -> tirx.Stmt:
            width = self.widths[piece]
            return loops.vectorized(
                width, lambda lane: self.start(piece, number, lane, neutral=True)
            )

        starts = [
            loops.unrolled(self.rows, partial(start, piece)) for piece in range(len(self.widths))
        ]
        finish: list[tirx.Stmt] = []
        for number in map(int64, range(self.rows)):
            totals = [_folded(self, index, number, finish) for index in range(len(self.buffers))]
            finish.append(self.finish(totals, point(number)))
        updates = loops.over_axes(reduced, loops.sequence(passes))
        return loops.sequence([*self.allocations(), *starts, updates, *finish])


def not_combined(nest: Nest) -> str:
    """Why partial results of a reduction must not be combined; "" if they may be."""
    own = {store.buffer for store in nest.stores}
    for store in nest.stores:
        value = store.value
        if type(value) not in COMBINE or store.init is None:
            return "is no plain reduction"
        if not isinstance(value.a, TensorLoad) or value.a.source not in own:
            return "does not add to what it has"
        if any(load.source in own for load in loads_of(value.b)):
            return "reads what it reduces"
        if calls_of(value.b, "if_then_else"):
            return "chooses what it reads"
    if any(load.source in own for _, value in nest.lets for load in loads_of(value)):
        return "names what it reduces"
    return ""


def along_results(nest: Nest, axis: Axis) -> tirx.Stmt:
    """Accumulates results along an axis in place, or in a row if their type is another one."""
    if len(nest.stores) != 1 or len(nest.results) != 1:
        raise NotHandledError(f"{nest.name} has several results")
    (store,), (result,) = nest.stores, nest.results
    row = replace(result, value=store.value)
    apart: list[tirx.Stmt] = []
    if str(store.buffer.dtype) != str(result.buffer.dtype):
        kept = tirx.decl_buffer((axis.stated,), store.buffer.dtype, "row")
        row = replace(row, buffer=kept, indices=(axis.var,))
        apart.append(tirx.AllocBuffer(kept))

    def placed(load: TensorLoad) -> Expr:
        same = load.source.same_as(store.buffer)
        return tirx.BufferLoad(row.buffer, list(row.indices)) if same else load

    update = Store(row.buffer, row.indices, map_loads(keeping_nan(store.value), placed))

    def each(value: Store) -> tirx.Stmt:
        return loops.over_axes([axis], loops.store_statement(nest, [value], {}))

    parts = [each(replace(row, value=store.start)), loops.over_axes(nest.reduce, each(update))]
    if nest.epilogue:
        parts.append(each(replace(result, value=map_loads(result.value, placed))))
    return loops.sequence([*apart, *parts])


def tiles_of(extent: int, size: int) -> list[tuple[int, int, int]]:
    """(start, size, count) of the full tiles and of the tail."""
    full, rest = divmod(extent, size)
    found = [(0, size, full)] if full else []
    return found + ([(full * size, rest, 1)] if rest else [])


def shared_axis(plan: loops.Plan, along: Axis) -> Axis | None:
    """Another result axis whose points share the vectors read along `along`."""
    best = None
    for axis in plan.nest.spatial:
        if axis is along or any(s[axis.var] is None for s in (*plan.loads, *plan.stores)):
            continue
        moving = [strides for strides in plan.loads if strides[along.var] != 0]
        if moving and any(strides[axis.var] == 0 for strides in moving):
            best = axis
    return best


def reduced_row_loops(plan: loops.Plan, inner: Axis, lanes: int) -> tirx.Stmt:
    """Loops with lanes along the reduced axis `inner`; a few rows at once if they share reads."""
    shared = shared_axis(plan, inner)
    down = 1 if shared is None else min(shared.extent, 4)
    chains = max(min(inner.extent // lanes, 4 if down == 1 else 2), 1)
    others = [axis for axis in plan.nest.spatial if axis is not shared]
    statements = []
    for start, rows, tiles in tiles_of(1 if shared is None else shared.extent, down):
        axis = Axis.new(tiles, "rows")
        row = axis.var * int64(down) + int64(start)
        body = _rows(plan.nest, inner, shared, row, rows, chains, lanes)
        statements.append(loops.nested((*others, axis), body, plan.machine, plan.threads))
    return loops.sequence(statements)


def dynamic_row(nest: Nest, inner: Axis, lanes: int) -> tirx.Stmt:
    """One element, reduced along a dynamic axis."""
    return _rows(nest, inner, None, int64(0), 1, 4, lanes)


def _rows(
    nest: Nest, inner: Axis, shared: Axis | None, row: Expr, rows: int, chains: int, lanes: int
) -> tirx.Stmt:
    """A few rows, each reduced to one element in `chains` registers and narrower ones."""
    wide, known = chains * lanes, inner.end is None
    steps, rest = divmod(inner.extent, wide)
    tail = loops.pieces(rest, lanes) if known else [(0, 1)]
    widths = [lanes] * chains + [width for _, width in tail if width < lanes]
    registers = Accumulators(nest, widths, rows)
    outer = tuple(axis for axis in nest.reduce if axis is not inner)

    def point(number: Expr, position: Expr) -> dict[tirx.Var, Expr]:
        at = {inner.var: position}
        if shared is not None:
            at[shared.var] = row + number
        return at

    def updates(position: Expr, covered: Iterable[tuple[int, int]]) -> tirx.Stmt:
        """Updates registers; `covered` has (register, start)."""

        def update(piece: int, start: Expr, number: Expr) -> tirx.Stmt:
            return loops.vectorized(
                widths[piece],
                lambda lane: registers.update(piece, number, lane, point(number, start + lane)),
            )

        return loops.sequence(
            [
                loops.unrolled(rows, partial(update, piece, position + int64(start)))
                for piece, start in covered
            ]
        )

    every, passes = [(chain, chain * lanes) for chain in range(chains)], list[tirx.Stmt]()
    if not known:
        whole, vectors = (tirx.FloorDiv(inner.stated, int64(size)) for size in (wide, lanes))
        # The first register takes the remaining vectors, a register of one lane the last elements.
        begun, end = whole * int64(chains), vectors * int64(lanes)
        step, vector, last = (tirx.Var("step", "int64") for _ in range(3))
        passes += [
            loops.loop(step, whole, updates(step * int64(wide), every)),
            loops.loop(vector, vectors - begun, updates((begun + vector) * int64(lanes), [(0, 0)])),
            loops.loop(last, inner.stated - end, updates(end + last, [(chains, 0)])),
        ]
    elif steps:
        passes.append(loops.serial(steps, lambda s: updates(s * int64(wide), every)))
    if known and tail:
        where = [(number if width == lanes else -1, at) for number, (at, width) in enumerate(tail)]
        narrow = itertools.count(chains)
        covered = [(next(narrow) if piece < 0 else piece, at) for piece, at in where]
        passes.append(updates(int64(steps * wide), covered))
    return registers.whole_row(outer, passes, lambda number: point(number, int64(0)))


def _folded(registers: Accumulators, index: int, number: Expr, statements: list[tirx.Stmt]) -> Expr:
    """Combines all lanes of a row's registers, and appends the statements for that."""
    store = registers.nest.stores[index]
    combine = COMBINE[type(store.value)]

    def named(value: Expr) -> Expr:
        # In a buffer: TVM looks through names, and an expression that uses one twice would double.
        lanes = int(value.ty.dtype.lanes)
        buffer = tirx.decl_buffer((int64(lanes),), store.buffer.dtype, "lanes")
        place = ramp_at(int64(0), lanes) if lanes > 1 else int64(0)
        statements.extend([tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, value, [place])])
        return tirx.BufferLoad(buffer, [place])

    width = max(registers.widths)
    total: Expr | None = None
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
        total = named(combine(store.start, total))
    return total
