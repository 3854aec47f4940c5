"""Reductions over windows that slide along rows, one axis after the other.

    for i, j, k, l in grid(n, m, 3, 3):
        y[i, j] = max(y[i, j], 0 < 2*j + l <= w ? x[2*i + k, 2*j + l - 1] : lowest)

    ->  columns 2 * j + l, of which those from 1 to w are read: x[2*i + k, column - 1]

`windows_of` recognises windows, `window_loops` writes their loops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr

from . import expressions
from .accumulators import COMBINE
from .conditions import Piece, chosen_element, conjunction, pieces
from .elementwise import lanes_for
from .expressions import calls_of, const_int, int64, loads_of, map_loads, substitute, variables_of
from .loops import Body, in_shares, loop, over_axes, sequence, vectorized, vectors_and_rest
from .nest import Axis, Nest, Store
from .pool import accumulated, by_inverse, in_total, narrowed, widened
from .reads import NOTHING_STAGED, stage, staged_stores
from .vector_math import lower_math

MOST_TAPS = 16
"""Most elements of a row that are combined for one result; the code for them is unrolled."""

MOST_APART = 4
"""Most elements from one window to the next, or between the elements of a window."""


@dataclass(frozen=True)
class Windows:
    """A nest with windows that slide along its last result axis."""

    nest: Nest  # with one store, a reduction
    taps: Axis  # the reduced axis along the row
    step: int  # columns from one window to the next
    apart: int  # columns from one element of a window to the next
    column: tirx.Var  # position in the row: step * result + apart * tap
    element: Expr  # the reduced value at a column, if all conditions hold
    inside: tuple[Expr, ...]  # conditions on the column
    outer: tuple[Expr, ...]  # conditions that all elements of the row share

    @property
    def along(self) -> Axis:
        """The result axis of a row."""
        return self.nest.spatial[-1]

    @property
    def others(self) -> tuple[Axis, ...]:
        """The reduced axes that step from row to row."""
        return tuple(axis for axis in self.nest.reduce if axis is not self.taps)

    @property
    def store(self) -> Store:
        """The store that reduces."""
        return self.nest.stores[0]

    @property
    def columns(self) -> Expr:
        """Length of a row."""
        last = (self.taps.extent - 1) * self.apart + 1
        return self.nest.analyzer().simplify(
            tirx.Max((self.along.stated - int64(1)) * int64(self.step) + int64(last), int64(0))
        )


def windows_of(nest: Nest) -> Windows | None:
    """The windows of a nest; None if it has none with a few elements close together."""
    if len(nest.stores) != 1 or nest.lets or not nest.spatial or not nest.reduce:
        return None
    store = nest.stores[0]
    if type(store.value) not in COMBINE or store.init is None:
        return None
    parts = _parts(store)
    if parts is None or any(load.source.same_as(store.buffer) for load in loads_of(parts[0])):
        return None
    for taps in reversed(nest.reduce):
        found = None if taps.end is not None else _along(nest, taps, *parts)
        if found is not None:
            # Accumulators (`reduction`) need a padded copy of the image, or shuffle an element once
            # for each window that contains it. In other cases they are faster for static rows.
            overlap = 1 < found.step < found.taps.extent
            pays = bool(found.others) and (bool(found.inside) or overlap)
            return found if found.along.end is not None or pays else None
    return None


def _parts(store: Store) -> tuple[Expr, list[Expr]] | None:
    """What is reduced, and the conditions under which it counts."""
    if not calls_of(store.value.b, "if_then_else"):
        return store.value.b, []
    chosen = chosen_element(store)
    if chosen is None:
        return None
    condition, element = chosen
    conditions = conjunction(condition)
    if any(loads_of(each) or not isinstance(each, tirx.LT | tirx.LE) for each in conditions):
        return None
    return element, conditions


def _along(nest: Nest, taps: Axis, element: Expr, conditions: list[Expr]) -> Windows | None:
    """The windows whose elements follow each other along one reduced axis, or None."""
    row, analyzer = nest.spatial[-1], nest.analyzer()

    def steps_of(position: Expr) -> tuple[int | None, int | None]:
        found = expressions.strides_of(position, [row.var, taps.var], analyzer)
        return found[row.var], found[taps.var]

    positions = [index for load in loads_of(element) for index in load.indices]
    steps = set(map(steps_of, positions)) - {(0, 0)}
    used = expressions.variables_beside_loads(element)
    if len(steps) != 1 or any(map(loads_of, positions)) or row.var in used or taps.var in used:
        return None
    step, apart = (0 if each is None else each for each in steps.pop())
    if min(step, apart) != 1 or max(step, apart) > MOST_APART or taps.extent > MOST_TAPS:
        return None
    for each in conditions:
        far, near = steps_of(each.a - each.b)
        if far is None or near is None or far * apart != near * step:
            return None
    column, zero = tirx.Var("column", "int64"), int64(0)
    at = {row.var: zero, taps.var: column} if apart == 1 else {row.var: column, taps.var: zero}
    moved = [substitute(each, at) for each in conditions]
    inside = tuple(each for each in moved if column in variables_of(each))
    outer = tuple(each for each in moved if column not in variables_of(each))
    return Windows(nest, taps, step, apart, column, substitute(element, at), inside, outer)


# Loops of reductions over windows that slide along rows, one axis after the other:
#
#     for i, j, k, l in grid(n, m, 3, 3):
#         y[i, j] = max(y[i, j], 0 < 2*j + l <= w ? x[2*i + k, 2*j + l - 1] : lowest)
#
#     ->  for i: for c in range(1, w + 1): row[c] = max(x[2*i, c - 1], x[2*i + 1, c - 1], ...)
#                for j: t[j] = max(row[2*j], row[2*j + 1], row[2*j + 2])
#                for j: y[i, j] = t[j]
#
# A window of 3 by 3 takes 3 + 3 steps instead of 9. No loop checks where a row ends: `row` has the
# padding from the start. All loops are vectorised. Windows that leave the image at its first or
# last row are added row by row, and only the rows inside.


ROWS = 8
"""Rows of results computed together: what one step stores is in cache when the next reads it."""

MOST_ROWS = 9
"""Most rows of a window that are unrolled."""

MOST_PIECES = 8
"""Most loops that a row is cut into: where padding begins, or a mean has more elements."""


def window_loops(windows: Windows, machine: Machine) -> tirx.Stmt:
    """Loops for a flat nest; threads share its rows."""
    return _Writer(windows, machine).statement()


class _Writer:
    """Writes the loops of windows."""

    def __init__(self, windows: Windows, machine: Machine) -> None:
        self.windows, self.threads = windows, machine.threads
        self.combine = COMBINE[type(windows.store.value)]
        self.start = widened(windows.store.start)  # initial value, in the accumulated type
        dtype = accumulated(str(windows.store.buffer.dtype))
        self.lanes = lanes_for(windows.nest, machine)
        if dtype != str(windows.store.buffer.dtype):
            self.lanes = machine.isa.f32_lanes
        wide = int64(self.lanes)
        self.results = tirx.floordiv(windows.along.stated + wide - int64(1), wide) * wide
        beyond = -(-windows.taps.extent * windows.apart // self.lanes) * self.lanes
        self.columns = self.results * int64(windows.step) + int64(beyond)
        # The total of the rows of a window at each column, and rows of results in whole vectors.
        self.kept = tirx.decl_buffer((self.columns * int64(ROWS),), dtype, "rows")
        self.totals = tirx.decl_buffer((self.results * int64(ROWS),), dtype, "totals")
        self.row = tirx.Var("row", "int64")

    def statement(self) -> tirx.Stmt:
        """Loops over groups of rows; each thread has buffers and a chunk of the groups."""
        at, axes = tirx.Var("column", "int64"), self.windows.nest.spatial[:-1]
        start = tirx.BufferStore(self.kept, self.start, [at])
        filled = loop(at, self.kept.shape[0], start)
        own = [tirx.AllocBuffer(self.kept), tirx.AllocBuffer(self.totals), filled]
        steps = [self._rows(), self._combined(), *self._finished()]
        last = axes[-1] if axes else Axis.new(1, "row")
        groups = tirx.floordiv(last.stated + int64(ROWS - 1), int64(ROWS))
        group = Axis(tirx.Var("group", "int64"), last.extent, groups)
        first = group.var * int64(ROWS)
        count = tirx.Min(last.stated - first, int64(ROWS))
        loops = []
        for step in steps:
            row = tirx.Var("row", "int64")
            body = substitute(step, {self.row: row, last.var: first + row})
            loops.append(loop(row, count, body))
        points = (*axes[:-1], group)
        if self.threads == 1:
            return sequence([*own, over_axes(points, sequence(loops))])
        number = tirx.Var("number", "int64")

        def share(first: Expr, count: Expr) -> tirx.Stmt:
            place, names = first + number, list[tirx.Stmt]()
            for axis in reversed(points):
                names.append(tirx.Bind(axis.var, tirx.floormod(place, axis.stated)))
                place = tirx.floordiv(place, axis.stated)
            return sequence([*own, loop(number, count, sequence([*names, *loops]))])

        size = math.prod((axis.stated for axis in points), start=int64(1))
        return in_shares(size, self.threads, share)

    def _kept(self, column: Expr) -> Expr:
        return self.row * self.columns + column

    def _total(self, result: Expr) -> Expr:
        return self.row * self.results + result

    def _rows(self) -> tirx.Stmt:
        """Combines the rows of the windows, unrolled if all are inside of the image."""
        windows = self.windows
        elements = self._elements()

        def begin(at: Expr) -> tirx.Stmt:
            return tirx.BufferStore(self.kept, self.start, [self._kept(at)])

        begun = [self._along(piece, begin) for piece, _ in elements]
        one_by_one = sequence([*begun, self._over_rows(elements)])
        count = math.prod(axis.extent for axis in windows.others)
        if any(axis.end is not None for axis in windows.others) or count > MOST_ROWS:
            return one_by_one
        places = itertools.product(*(range(axis.extent) for axis in windows.others))
        points = [
            {axis.var: int64(at) for axis, at in zip(windows.others, place, strict=True)}
            for place in places
        ]
        reduced = [partial(self._reduced, element=each, points=points) for _, each in elements]
        pairs = zip(elements, reduced, strict=True)
        at_once = sequence([self._in_vectors(piece, some) for (piece, _), some in pairs])
        asked = [substitute(each, point) for each in windows.outer for point in points]
        return tirx.IfThenElse(tirx.all(*asked), at_once, one_by_one) if asked else at_once

    def _elements(self) -> list[tuple[Piece, Expr]]:
        """The pieces of a row that are inside of the image, and the value that each reads."""
        windows = self.windows
        column = Axis(windows.column, windows.along.extent, windows.columns)
        question = widened(windows.element)
        if windows.inside:
            question = tirx.if_then_else(tirx.all(*windows.inside), question, self.start)
        own = Store(self.kept, (column.var,), question)
        spatial = (*windows.nest.spatial[:-1], *windows.others, column)
        nest = replace(windows.nest, spatial=spatial, reduce=(), stores=(own,), epilogue=())
        cut = pieces(nest.tidied(), column.var, windows.columns, set(), MOST_PIECES)
        found = [(piece, piece.nest.stores[0].value) for piece in cut]
        return [each for each in found if not expressions.same(each[1], self.start)]

    def _over_rows(self, elements: list[tuple[Piece, Expr]]) -> tirx.Stmt:
        """Adds one row after the other, those inside of the image only."""

        def added(element: Expr) -> Body:
            def add(at: Expr) -> tirx.Stmt:
                value = lower_math(substitute(element, {self.windows.column: at}))
                # The row comes second: LLVM makes a masked store of a choice between row values.
                value = self.combine(value, tirx.BufferLoad(self.kept, [self._kept(at)]))
                return tirx.BufferStore(self.kept, value, [self._kept(at)])

            return add

        body = sequence([self._along(piece, added(element)) for piece, element in elements])
        if self.windows.outer:
            body = tirx.IfThenElse(tirx.all(*self.windows.outer), body, None)
        return over_axes(self.windows.others, body)

    def _reduced(
        self, first: Expr, width: int, element: Expr, points: list[dict[tirx.Var, Expr]]
    ) -> tirx.Stmt:
        """Combines all rows of the windows in a register."""

        def value_at(number: int, lane: Expr) -> Expr:
            at = {**points[number], self.windows.column: first + lane}
            return lower_math(substitute(element, at))

        def keep(total: Expr, lane: Expr) -> tirx.Stmt:
            return tirx.BufferStore(self.kept, total, [self._kept(first + lane)])

        values = [partial(value_at, number) for number in range(len(points))]
        return in_total(self.combine, values, self.kept.dtype, width, keep)

    def _combined(self) -> tirx.Stmt:
        """Combines neighbours in the row into results, a vector of results at a time."""
        windows, lanes = self.windows, self.lanes
        result, vector = Axis.new(lanes, "result"), tirx.Var("vector", "int64")
        start = self._kept(result.var * int64(windows.step))
        loads = [
            tirx.BufferLoad(self.kept, [start + int64(tap * windows.apart)])
            for tap in range(windows.taps.extent)
        ]
        first = vector * int64(lanes)
        staged = NOTHING_STAGED
        if windows.step > 1:
            staged = stage(loads, result, {result.var: first}, lanes)

        def tap(load: TensorLoad, lane: Expr) -> Expr:
            return substitute(staged.lane(lane)(load), {result.var: first + lane})

        def keep(total: Expr, lane: Expr) -> tirx.Stmt:
            return tirx.BufferStore(self.totals, total, [self._total(first + lane)])

        values = [partial(tap, load) for load in loads]
        body = in_total(self.combine, values, self.kept.dtype, lanes, keep)
        count = tirx.floordiv(self.results, int64(lanes))
        return loop(vector, count, sequence([*staged.statements, body]))

    def _finished(self) -> list[tirx.Stmt]:
        """Stores the results and what the epilogue computes: a step for each piece of a row."""
        nest, row, own = self.windows.nest, self.windows.along, self.windows.store

        def total(load: TensorLoad) -> Expr:
            if not load.source.same_as(own.buffer):
                return load
            return narrowed(tirx.BufferLoad(self.totals, [self._total(row.var)]), own)

        stores = tuple(replace(each, value=map_loads(each.value, total)) for each in nest.finished)
        plain = replace(nest, reduce=(), stores=stores, epilogue=()).tidied()

        def finish(first: Expr, width: int, nest: Nest) -> tirx.Stmt:
            return staged_stores(nest, row, first, width)

        def inverted(division: tirx.Div) -> Expr:
            """Makes a mean a product if the number of elements is constant within a piece."""
            own, number = division.a, division.b
            is_sum = isinstance(own, TensorLoad) and own.source.same_as(self.totals)
            used = row.var in variables_of(number) or loads_of(number)
            is_float = str(division.ty.dtype).startswith("float")
            return by_inverse(own, number) if is_sum and is_float and not used else division

        def in_value(value: Expr) -> Expr:
            return tvm_ffi.structural_map(value, (tirx.Div, inverted))

        found = []
        for piece in pieces(plain, row.var, row.stated, set(), MOST_PIECES):
            piece = replace(piece, nest=piece.nest.with_values(in_value))
            found.append(self._in_vectors(piece, partial(finish, nest=piece.nest)))
        return found

    def _along(self, piece: Piece, at: Body) -> tirx.Stmt:
        """Runs `at` once for each place of a piece."""

        def wide(first: Expr) -> tirx.Stmt:
            return vectorized(self.lanes, lambda lane: at(first + lane))

        return vectors_and_rest(piece.first, _size_of(piece), self.lanes, wide, at)

    def _in_vectors(self, piece: Piece, some: Callable[[Expr, int], tirx.Stmt]) -> tirx.Stmt:
        """Runs `some` for each place of a piece; it may run twice for some places."""
        size = _size_of(piece)
        known = const_int(size)
        width = self.lanes
        # A piece shorter than a vector takes a smaller vector if its size is static.
        while known is not None and width > max(known, 1):
            width //= 2
        vector, single = tirx.Var("vector", "int64"), tirx.Var("rest", "int64")
        # The last vector ends with the piece, so it may overlap the one before.
        last = some(piece.first + size - int64(width), width)
        whole, rest = tirx.floordiv(size, int64(width)), tirx.floormod(size, int64(width))
        wide = loop(vector, whole, some(piece.first + vector * int64(width), width))
        if known is not None:
            return sequence([wide, last] if known % width else [wide])
        wide = sequence([wide, tirx.IfThenElse(rest > int64(0), last, None)])
        one_by_one = loop(single, size, some(piece.first + single, 1))
        return tirx.IfThenElse(size >= int64(width), wide, one_by_one)


def _size_of(piece: Piece) -> Expr:
    return piece.nest.analyzer().simplify(tirx.Max(piece.end - piece.first, int64(0)))
