"""Loops of pooling in channels-last order: vectors of channels, columns shared by windows.

    for i, j, c, k, l in grid: y[i, j, c] = max(y[i, j, c], x[i + k - 1, j + l - 1, c])

->  for i:
        for j at the left border, then at the right one: for the k and l that count: accumulate
        for j in steps of 4:
            six accumulators <- lowest
            for k that counts: accumulator[m] = max(accumulator[m], x[i + k - 1, j + m - 1, c])
            y[i, j + n, c] = max(accumulator[n], accumulator[n + 1], accumulator[n + 2])

A column of the image is read once for all windows of a step. A loop over k and l would read it once
for every window that contains it. A row of the image that contains a NaN is computed again
(`Watch`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from microkernels.machines.machine import Machine
from microkernels.vector import bfloat16
from microkernels.vector.expressions import Expr, cast, element_of, like, reinterpret, shuffle

from .accumulators import COMBINE, tiles_of
from .conditions import Window, columns_of
from .expressions import int64, loads_of, map_loads, ramp_at, substitute
from .loops import nested, over_axes, pieces, sequence, store_statement, stored, vectorized
from .nest import Axis, Store, analyzer_for
from .vector_math import lower_math

MOST_WINDOWS = 8
"""Most windows that one step computes."""


def window_loops(window: Window, machine: Machine, threads: int, lanes: int) -> tirx.Stmt:
    """Loops over rows, then borders and the steps between them."""
    nest, along = window.nest, window.along
    if str(nest.stores[0].buffer.dtype) == "bfloat16":
        lanes = machine.isa.vector_bits // 32
    registers = 24 if machine.isa.vector_bits >= 512 else 12
    windows, across = _tile(window, -(-along.extent // lanes), registers)
    others = [axis for axis in nest.spatial if axis is not along and axis is not window.place]
    statements = []
    for start, width, tiles in tiles_of(along.extent, across * lanes):
        axis = Axis.new(tiles, "channels")
        channel = axis.var * int64(across * lanes) + int64(start)
        covered = [(channel + int64(at), size) for at, size in pieces(width, lanes)]
        body = _row(window, covered, windows)
        statements.append(nested((*others, axis), body, machine, threads))
    return sequence(statements)


def _row(window: Window, covered: Covered, windows: int) -> tirx.Stmt:
    """All places of a row; for float maxima and minima, again if they saw a NaN."""
    store = window.nest.stores[0]
    dtype = accumulated(str(store.buffer.dtype))

    def runs(windows: int, watch: Watch | None) -> list[tirx.Stmt]:
        """Steps for all places, with up to `windows` windows in a step."""
        statements = []
        for run in _runs(window):
            for start, size, steps in tiles_of(run.count, windows if run.whole else 1):
                axis = Axis.new(steps, "step")
                analyzer = analyzer_for([*window.nest.spatial, axis])
                step = axis.var if steps > 1 else int64(0)
                place = analyzer.simplify(step * int64(size) + int64(run.first + start))
                count = size if run.whole else 0
                body = WindowStep(window, covered, place, count, analyzer, watch).statement()
                statements.append(body if steps == 1 else over_axes([axis], body))
        return statements

    if dtype not in WATCHED or not isinstance(store.value, tirx.Max | tirx.Min):
        return sequence(runs(windows, None))
    watch = Watch(dtype, [width for _, width in covered])
    again = sequence(runs(1, None))
    return sequence([*watch.begin(), *runs(windows, watch), watch.repeat_if_alarmed(again)])


@dataclass(frozen=True)
class _Run:
    """Neighbouring places; `whole` if all elements of their windows count."""

    first: int
    count: int
    whole: bool


def _runs(window: Window) -> list[_Run]:
    place, position = window.place, window.position
    if place is None or position is None:
        return [_Run(0, 1, True)]
    bound = window.bounds.get(position.var)
    if bound is None:
        return [_Run(0, place.extent, True)]
    end = position.extent
    whole = [bound.first(p) <= 0 and bound.last(p) >= end for p in range(place.extent)]
    runs = []
    for inside, group in itertools.groupby(range(place.extent), lambda p: whole[p]):
        places = list(group)
        runs.append(_Run(places[0], len(places), inside))
    return runs


def _tile(window: Window, vectors: int, registers: int) -> tuple[int, int]:
    """Windows, and vectors of channels, of the step with the fewest operations for each result."""
    if window.position is None:
        return 1, min(vectors, 4)
    rows = math.prod(axis.extent for axis in window.rows)
    longest = max((run.count for run in _runs(window) if run.whole), default=1)
    best, least = (1, 1), math.inf
    for windows in range(1, min(MOST_WINDOWS, longest) + 1):
        columns = len(columns_of(window, windows))
        across = min(vectors, max(registers // columns, 1), 4)
        if columns > registers and windows > 1:
            break
        work = columns * rows / windows + window.position.extent - 1
        # The tail of a row shares fewer columns.
        cost = work * (1 + longest % windows / longest)
        if cost < 0.99 * least:
            best, least = (windows, across), cost
    return best


# One step of pooling: accumulates columns over the rows of some windows, then combines them.
#
# six accumulators <- lowest
# for k that counts: accumulator[m] = max(accumulator[m], x[i + k - 1, j + m - 1, c])
# y[i, j + n, c] = max(accumulator[n], accumulator[n + 1], accumulator[n + 2])


Covered = Sequence[tuple[Expr, int]]
"""Vectors of channels: the first channel and the number of lanes."""


def accumulated(dtype: str) -> str:
    """The type that a pool of `dtype` is computed in.

    bfloat16 is computed in f32: sums are more exact, and maxima cost less.
    """
    return "float32" if dtype == "bfloat16" else dtype


def widened(value: Expr) -> Expr:
    """An element or an initial value, in the type that is accumulated."""
    dtype = accumulated(str(value.ty.dtype))
    if isinstance(value, tirx.FloatImm):
        return tirx.const(float(value.value), dtype)
    return cast(dtype, value)


def narrowed(value: Expr, store: Store) -> Expr:
    """An accumulated value in the type of a store's result."""
    dtype = str(store.buffer.dtype)
    if dtype == "bfloat16" and not isinstance(store.value, tirx.Add | tirx.Mul):
        return bfloat16.exactly(value)
    return cast(dtype, value)


def by_inverse(total: Expr, number: Expr) -> Expr:
    """A sum of floats times the inverse of a number of elements, in the type of the sum."""
    dtype = element_of(total)
    if isinstance(number, tirx.FloatImm):
        return total * tirx.const(float(np.float32(1) / np.float32(number.value)), dtype)
    count = number.value if isinstance(number, tirx.Cast) else number
    return total * (like(1.0, total) / cast(dtype, count))


def in_total(
    combine: Callable[[Expr, Expr], Expr],
    values: Sequence[Callable[[Expr], Expr]],
    dtype: str,
    width: int,
    finish: Callable[[Expr, Expr], tirx.Stmt],
) -> tirx.Stmt:
    """Combines the values of a vector in a buffer, and calls `finish` with their total.

    TVM looks through names, so an expression that uses a name twice would double. A value is called
    with a lane; `finish` gets the total and a lane, and returns a statement.
    """
    total = tirx.decl_buffer((int64(width),), dtype, "total")

    def so_far(number: int, lane: Expr) -> Expr:
        value = values[number](lane)
        return combine(tirx.BufferLoad(total, [lane]), value) if number else value

    sums = [functools.partial(so_far, number) for number in range(len(values))]
    steps = [stored(total, int64(0), width, each) for each in sums]
    last = vectorized(width, lambda lane: finish(tirx.BufferLoad(total, [lane]), lane))
    return sequence([tirx.AllocBuffer(total), *steps, last])


class WindowStep:
    """A step of `windows` neighbouring windows from `place` on; 0 means one window cut by padding.

    With a watch, maxima may lose a NaN, and the watch records that there was one.
    """

    def __init__(
        self,
        window: Window,
        covered: Covered,
        place: Expr,
        windows: int,
        analyzer: Analyzer,
        watch: Watch | None = None,
    ) -> None:
        self.window, self.covered, self.watch = window, covered, watch
        self.place, self.windows, self.analyzer = place, windows, analyzer
        self.columns = columns_of(window, windows) if windows else {0: (0, 0)}
        self.store = window.nest.stores[0]
        self.dtype = accumulated(str(self.store.buffer.dtype))
        assert isinstance(self.store.value, tirx.expr.BinaryOpExpr)
        node = type(self.store.value)
        self.combine: Callable[[Expr, Expr], Expr] = COMBINE[node] if watch is None else node
        self.buffers = [
            tirx.decl_buffer((int64(len(self.columns) * width),), self.dtype, "columns")
            for _, width in covered
        ]

    def statement(self) -> tirx.Stmt:
        """Accumulates the columns over the rows, then combines them window by window."""
        starts, updates = [], []
        for number, (ahead, at) in enumerate(self.columns.values()):
            for piece in range(len(self.covered)):
                starts.append(self._start(piece, number))
                updates.append(self._update(piece, number, self._point(ahead, at)))
        if self.watch is not None:
            for piece, buffer in enumerate(self.buffers):
                updates.append(self.watch.note(piece, buffer, len(self.columns)))
        places = itertools.product(range(max(self.windows, 1)), range(len(self.covered)))
        results = [self._result(piece, ahead) for ahead, piece in places]
        allocated = map(tirx.AllocBuffer, self.buffers)
        return sequence([*allocated, *starts, self._over_window(sequence(updates)), *results])

    def _point(self, ahead: int, at: int) -> dict[tirx.Var, Expr]:
        known: dict[tirx.Var, Expr] = {}
        if self.window.place is not None:
            known[self.window.place.var] = self.place + int64(ahead)
        if self.window.position is not None and self.windows:
            known[self.window.position.var] = int64(at)
        return known

    def _over_window(self, body: tirx.Stmt) -> tirx.Stmt:
        """Loops over the counting part of those reduced axes that are not unrolled."""
        window = self.window
        inner = [] if self.windows or window.position is None else [window.position]
        for axis in reversed([*window.rows, *inner]):
            bound = window.bounds.get(axis.var)
            first, last = int64(0), int64(axis.extent)
            if bound is not None:
                here = window.place is not None and window.place.var.same_as(bound.place)
                place = self.place if here else bound.place
                place = int64(0) if place is None else place
                first = tirx.Max(bound.first(place), first)
                last = tirx.Min(bound.last(place), last)
            first, count = map(self.analyzer.simplify, (first, last - first))
            # TVM needs a new variable for loops of another extent.
            own = Axis.new(axis.extent, axis.var.name)
            body = substitute(body, {axis.var: own.var})
            body = tirx.For(own.var, first, count, tirx.ForKind.SERIAL, body)
        return body

    def _start(self, piece: int, column: int) -> tirx.Stmt:
        width = self.covered[piece][1]
        start = lower_math(widened(self.store.start))
        return stored(self.buffers[piece], int64(column * width), width, lambda _: start)

    def _update(self, piece: int, column: int, point: dict[tirx.Var, Expr]) -> tirx.Stmt:
        (channel, width), buffer = self.covered[piece], self.buffers[piece]

        first = int64(column * width)

        def combined(lane: Expr) -> Expr:
            at = {**point, self.window.along.var: channel + lane}
            element = lower_math(widened(substitute(self.store.value.b, at)))
            return self.combine(tirx.BufferLoad(buffer, [first + lane]), element)

        return stored(buffer, first, width, combined)

    def _result(self, piece: int, ahead: int) -> tirx.Stmt:
        """Stores the total of the columns of one window."""
        (channel, width), buffer = self.covered[piece], self.buffers[piece]
        window = self.window
        columns = [0]
        if self.windows and window.position is not None:
            positions = range(window.position.extent)
            order = list(self.columns)
            columns = [order.index(ahead * window.far + at * window.near) for at in positions]
        point = self._point(ahead, 0)

        def value_of(column: int, lane: Expr) -> Expr:
            return tirx.BufferLoad(buffer, [int64(column * width) + lane])

        def finish(total: Expr, lane: Expr) -> tirx.Stmt:
            at = {**point, window.along.var: channel + lane}
            finished = self._finished(point, total)
            return store_statement(replace(window.nest, lets=()), finished, at)

        values = [functools.partial(value_of, column) for column in columns]
        return in_total(self.combine, values, self.dtype, width, finish)

    def _finished(self, point: dict[tirx.Var, Expr], total: Expr) -> list[Store]:
        """The stores at a point whose elements have the total `total`."""
        own = self.store

        def is_own(value: Expr) -> bool:
            return isinstance(value, TensorLoad) and value.source.same_as(own.buffer)

        def inverted(division: tirx.Div) -> Expr:
            """Makes a mean a product: the divisor only changes with the row or column."""
            number = division.b
            dtype = str(division.ty.dtype)
            if not is_own(division.a) or loads_of(number) or not self.dtype.startswith("float"):
                return division
            return cast(dtype, by_inverse(total, number))

        found, result = [], narrowed(total, own)
        for store in self.window.nest.finished:
            value = self.analyzer.simplify(substitute(store.value, point))
            value = tvm_ffi.structural_map(value, (tirx.Div, inverted))
            value = map_loads(value, lambda load: result if is_own(load) else load)
            found.append(replace(store, value=value))
        return found


WATCHED = {"float32": "int32", "float64": "int64"}
"""Types that a `Watch` works on, and integers of their width."""


class Watch:
    """Detects a NaN in the columns of a pool, so that x86's maximum, which loses some, can be used.

    for k that counts:
        accumulator[m] = max(accumulator[m], x[i + k - 1, j + m - 1, c])    # a new NaN is kept
        watch += 1 + accumulator[0] * accumulator[1] + accumulator[2] * accumulator[3] + ...
    if the watch is NaN: compute all again, with maxima that keep a NaN

    One FMA for two elements costs less than any maximum that keeps a NaN. Infinities may cause a
    false alarm, which costs only time. The 1 keeps products of small numbers from becoming
    subnormal. There is one watch vector for each vector of channels; `widths` are their lanes.
    """

    def __init__(self, dtype: str, widths: Sequence[int]) -> None:
        self.dtype, self.widths = dtype, widths
        self.buffers = [tirx.decl_buffer((int64(width),), dtype, "watch") for width in widths]

    def begin(self) -> list[tirx.Stmt]:
        """Allocates and clears the watch vectors."""
        zero = tirx.const(0.0, self.dtype)
        pairs = zip(self.buffers, self.widths, strict=True)
        cleared = [stored(buffer, int64(0), width, lambda _: zero) for buffer, width in pairs]
        return [*map(tirx.AllocBuffer, self.buffers), *cleared]

    def note(self, piece: int, columns: tirx.Buffer, count: int) -> tirx.Stmt:
        """Adds `count` vectors that were just updated to a watch vector."""
        buffer, width = self.buffers[piece], self.widths[piece]

        def seen(lane: Expr) -> Expr:
            values = [tirx.BufferLoad(columns, [int64(n * width) + lane]) for n in range(count)]
            total = like(1.0, values[0])
            for number in range(0, count, 2):
                total = values[number] * values[min(number + 1, count - 1)] + total
            return tirx.BufferLoad(buffer, [lane]) + total

        return stored(buffer, int64(0), width, seen)

    def repeat_if_alarmed(self, again: tirx.Stmt) -> tirx.Stmt:
        """Runs `again` if there was a NaN."""
        statements: list[tirx.Stmt] = []

        def named(value: Expr) -> tirx.Var:
            variable = tirx.Var("watched", str(value.ty.dtype))
            statements.append(tirx.Bind(variable, value))
            return variable

        total: Expr = tirx.const(0.0, self.dtype)
        for buffer, width in zip(self.buffers, self.widths, strict=True):
            index = ramp_at(int64(0), width) if width > 1 else int64(0)
            value = named(tirx.BufferLoad(buffer, [index]))
            while width > 1:
                width //= 2
                halves = [shuffle([value], range(at, at + width)) for at in (0, width)]
                value = named(halves[0] + halves[1])
            total = named(total + value)
        # Compare as integers: TVM takes x == x for true, and its x != y is false for a NaN.
        bits = reinterpret(WATCHED[self.dtype], total)
        infinity = int(np.array(np.inf, self.dtype).view(WATCHED[self.dtype]))
        magnitude = tirx.bitwise_and(bits, like(np.iinfo(WATCHED[self.dtype]).max, bits))
        statements.append(tirx.IfThenElse(magnitude > like(infinity, bits), again, None))
        return sequence(statements)
