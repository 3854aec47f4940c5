"""Loops of reductions along the reduced axis, for neighbouring elements that lie along it.

for i, k in grid(n, 100): y[i] += x[i, k]

->  for i in range(n):
        a, b, c (16 lanes), d (4 lanes) <- 0
        a += x[i, 0:16] + x[i, 48:64], b += x[i, 16:32] + ..., d += x[i, 96:100]
        a += b + c; h = a[0:8] + a[8:16]; h = h[0:4] + h[4:8] + d; ...; y[i] = the last lane
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from tvm import tirx

from microkernels.vector.expressions import Expr, like

from .accumulators import Accumulators, Plan, over_reduced, shared_axis, tiles_of
from .expressions import int64, ramp_at, shuffle
from .loops import nested, pieces, sequence, serial, unrolled, vectorized
from .nest import Axis, Nest
from .strided_reads import COMBINE


def reduced_row_loops(plan: Plan, inner: Axis, lanes: int) -> tirx.Stmt:
    """Loops with lanes along the reduced axis `inner`; a few rows at once if they share reads."""
    nest, machine = plan.nest, plan.machine
    shared = shared_axis(plan, inner)
    down = 1 if shared is None else min(shared.extent, 4)
    chains = max(min(inner.extent // lanes, 4 if down == 1 else 2), 1)
    others = [axis for axis in nest.spatial if axis is not shared]
    if shared is None:
        return nested(
            others, _rows(nest, inner, None, int64(0), 1, chains, lanes), machine, plan.threads
        )
    statements = []
    for start, rows, tiles in tiles_of(shared.extent, down):
        axis = Axis.new(tiles, "rows")
        row = axis.var * int64(down) + int64(start)
        body = _rows(nest, inner, shared, row, rows, chains, lanes)
        statements.append(nested((*others, axis), body, machine, plan.threads))
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
    registers = Accumulators(nest, widths, rows)
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
            over_reduced(outer, sequence(passes)),
            *finish,
        ]
    )


def open_row(nest: Nest, inner: Axis, lanes: int) -> tirx.Stmt:
    """One element, reduced along an axis of open extent: in a few registers, then in one, and what
    is left of that one by one."""
    chains = 4
    registers = Accumulators(nest, [lanes] * chains + [1], 1)
    zero, wide = int64(0), int64(chains * lanes)
    steps = tirx.FloorDiv(inner.stated, wide)
    vectors = tirx.FloorDiv(inner.stated, int64(lanes))

    def vector(piece: int, first: Expr) -> tirx.Stmt:
        return vectorized(
            lanes,
            lambda lane: registers.update(piece, zero, lane, {inner.var: first + lane}),
        )

    def several(step: Expr) -> tirx.Stmt:
        first = step * wide
        return sequence([vector(n, first + int64(n * lanes)) for n in range(chains)])

    def loop(start: Expr, end: Expr, body: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        var = tirx.Var("step", "int64")
        return tirx.For(var, zero, end - start, tirx.ForKind.SERIAL, body(start + var))

    def start(piece: int, width: int) -> tirx.Stmt:
        return vectorized(width, lambda lane: _identity(registers, piece, zero, lane))

    passes = [
        loop(zero, steps, several),
        loop(steps * int64(chains), vectors, lambda at: vector(0, at * int64(lanes))),
        loop(
            vectors * int64(lanes),
            inner.stated,
            lambda at: registers.update(chains, zero, zero, {inner.var: at}),
        ),
    ]
    finish: list[tirx.Stmt] = []
    totals = [_folded(registers, index, zero, finish) for index in range(len(nest.stores))]
    outer = tuple(axis for axis in nest.reduce if axis is not inner)
    return sequence(
        [
            *registers.allocations(),
            *(start(piece, width) for piece, width in enumerate(registers.widths)),
            over_reduced(outer, sequence(passes)),
            *finish,
            registers.finish_with(totals, {}),
        ]
    )


_NEUTRAL: dict[type[Expr], int] = {tirx.Add: 0, tirx.Mul: 1}


def _identity(registers: Accumulators, piece: int, number: Expr, lane: Expr) -> tirx.Stmt:
    """Every lane starts from what leaves a combination unchanged."""
    statements = []
    for store, buffer, position in registers.stores(piece, number, lane):
        neutral = _NEUTRAL.get(type(store.value))
        value = store.start if neutral is None else like(neutral, store.start)
        statements.append(tirx.BufferStore(buffer, value, [position]))
    return sequence(statements)


def _folded(registers: Accumulators, index: int, number: Expr, statements: list[tirx.Stmt]) -> Expr:
    """All lanes of a row's registers combined; appends the statements that do it."""
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
