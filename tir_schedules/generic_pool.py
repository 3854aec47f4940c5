"""Loops of pooling in channels-last order: vectors of channels, columns shared by windows.

    for i, j, c, k, l in grid: y[i, j, c] = max(y[i, j, c], x[i + k - 1, j + l - 1, c])

->  for i:
        for j at the left border, then at the right one: for the k and l that count: accumulate
        for j in steps of 4:
            six accumulators <- lowest
            for k that counts: accumulator[m] = max(accumulator[m], x[i + k - 1, j + m - 1, c])
            y[i, j + n, c] = max(accumulator[n], accumulator[n + 1], accumulator[n + 2])

A column of the image is so read once for all windows of a step, where a loop over k and l reads it
once for every window that it lies in.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from microkernels import bfloat16
from microkernels.vectors import Expr, cast, like

from .generic_accumulators import tiles_of
from .generic_expr import int64, loads_of, map_loads, substitute, variables_beside_loads
from .generic_loops import access_strides, nested, pieces, sequence, store_statement, vectorized
from .generic_math import lower_math
from .generic_nest import Axis, Nest, Store, analyzer_for
from .generic_reduction_rows import COMBINE
from .generic_windows import Bounds, bounds_at
from .machine import Machine

Covered = Sequence[tuple[Expr, int]]
"""Vectors of channels: the first channel and the number of lanes."""

MOST_WINDOWS = 8
"""Windows that one step computes at most."""


@dataclass(frozen=True)
class Window:
    """A flat reduction whose windows slide along `place`; `position` runs through a window.

    Attributes
    ----------
    nest : Nest
        Without padding.
    along : Axis
        The result axis that lanes lie on.
    place, position : Axis or None
        Together, or not at all.
    bounds : Bounds
        What counts of the reduced axes.
    far, near : int
        Distance in elements from place to place, and from position to position.
    """

    nest: Nest
    along: Axis
    place: Axis | None
    position: Axis | None
    bounds: Bounds
    far: int = 0
    near: int = 0

    @property
    def rows(self) -> tuple[Axis, ...]:
        """The reduced axes but the one within a row."""
        return tuple(axis for axis in self.nest.reduce if axis is not self.position)


def window_of(nest: Nest, bounds: Bounds) -> Window | None:
    """How windows slide in a flat nest; None if neither do they overlap nor are there bounds."""
    if len(nest.stores) != 1 or nest.lets or type(nest.stores[0].value) not in COMBINE:
        return None
    store = nest.stores[0]
    own, value = store.value.a, store.value.b
    if not isinstance(own, TensorLoad) or not own.source.same_as(store.buffer):
        return None
    element = value.value if isinstance(value, tirx.Cast) else value
    if not isinstance(element, TensorLoad) or loads_of(element.indices[0]):
        return None
    if element.source.same_as(store.buffer):
        return None
    loads, stores = access_strides(nest)
    pairs = zip(_distinct(nest), loads, strict=True)
    strides = next(steps for load, steps in pairs if load.same_as(element))
    if any(step is None for step in strides.values()):
        return None
    steps = {var: step or 0 for var, step in strides.items()}
    along = nest.spatial[-1] if nest.spatial else None
    if along is None or steps[along.var] != 1 or any(s[along.var] != 1 for s in stores):
        return None
    if any(along.var in variables_beside_loads(each.value) for each in nest.results):
        return None
    if any(bound.place is not None and bound.place.same_as(along.var) for bound in bounds.values()):
        return None
    candidates = []
    for place, position in itertools.product(nest.spatial[:-1], nest.reduce):
        far, near = steps[place.var], steps[position.var]
        if far <= 0 or near <= 0:
            continue
        bound = bounds.get(position.var)
        slides = bound is not None and bound.place is not None and bound.place.same_as(place.var)
        if bound is not None and not slides:
            continue
        if slides or (far <= near * (position.extent - 1) and near <= far * (place.extent - 1)):
            candidates.append((near, far, place, position))
    if not candidates:
        return Window(nest, along, None, None, bounds) if bounds else None
    near, far, place, position = min(candidates, key=lambda each: each[:2])
    return Window(nest, along, place, position, bounds, far, near)


def _distinct(nest: Nest) -> list[TensorLoad]:
    """The loads in the order in which `access_strides` lists them."""
    found: list[TensorLoad] = []
    for load in nest.reads():
        if not any(load.same_as(other) for other in found):
            found.append(load)
    return found


def window_loops(window: Window, machine: Machine, parallel: bool, lanes: int) -> tirx.Stmt:
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
        body = sequence([_run(window, covered, run, windows) for run in _runs(window)])
        statements.append(nested((*others, axis), body, machine, parallel))
    return sequence(statements)


@dataclass(frozen=True)
class _Run:
    """Neighbouring places, and whether all of each window counts there."""

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


def _columns(window: Window, windows: int) -> dict[int, tuple[int, int]]:
    """For the distance of every column that some windows read, a window and a position in it."""
    if window.position is None:
        return {0: (0, 0)}
    points = itertools.product(range(windows), range(window.position.extent))
    found = {number * window.far + at * window.near: (number, at) for number, at in points}
    return dict(sorted(found.items()))


def _tile(window: Window, vectors: int, registers: int) -> tuple[int, int]:
    """Windows, and vectors of channels, of one step: with the fewest operations for a result."""
    if window.position is None:
        return 1, min(vectors, 4)
    rows = math.prod(axis.extent for axis in window.rows)
    longest = max((run.count for run in _runs(window) if run.whole), default=1)
    best, least = (1, 1), math.inf
    for windows in range(1, min(MOST_WINDOWS, longest) + 1):
        columns = len(_columns(window, windows))
        across = min(vectors, max(registers // columns, 1), 4)
        if columns > registers and windows > 1:
            break
        work = columns * rows / windows + window.position.extent - 1
        # What is left of a row is done with fewer columns shared.
        cost = work * (1 + longest % windows / longest)
        if cost < 0.99 * least:
            best, least = (windows, across), cost
    return best


def _run(window: Window, covered: Covered, run: _Run, windows: int) -> tirx.Stmt:
    """All places of a run, some windows at a time."""
    statements = []
    for start, size, steps in tiles_of(run.count, windows if run.whole else 1):
        axis = Axis.new(steps, "step")
        analyzer = analyzer_for([*window.nest.spatial, axis])
        step = axis.var if steps > 1 else int64(0)
        place = analyzer.simplify(step * int64(size) + int64(run.first + start))
        body = _Step(window, covered, place, size if run.whole else 0, analyzer).statement()
        statements.append(serial_over(axis, body))
    return sequence(statements)


def serial_over(axis: Axis, body: tirx.Stmt) -> tirx.Stmt:
    """A loop over an axis; none for a single pass."""
    if axis.extent == 1:
        return body
    return tirx.For(axis.var, int64(0), int64(axis.extent), tirx.ForKind.SERIAL, body)


class _Step:
    """Some neighbouring windows from `place` on; no whole one: the part of one that counts."""

    def __init__(
        self, window: Window, covered: Covered, place: Expr, windows: int, analyzer: Analyzer
    ) -> None:
        self.window = window
        self.covered = covered
        self.place = place
        self.windows = windows
        self.analyzer = analyzer
        self.columns = _columns(window, windows) if windows else {0: (0, 0)}
        self.store = window.nest.stores[0]
        # Sums of bfloat16 are more exact, and maxima cost less, in f32.
        dtype = str(self.store.buffer.dtype)
        self.dtype = "float32" if dtype == "bfloat16" else dtype
        self.buffers = [
            tirx.decl_buffer((int64(len(self.columns) * width),), self.dtype, "columns")
            for _, width in covered
        ]

    def statement(self) -> tirx.Stmt:
        """Columns accumulated over the rows, then combined window by window."""
        starts, updates = [], []
        for number, (ahead, at) in enumerate(self.columns.values()):
            for piece in range(len(self.covered)):
                starts.append(self._start(piece, number))
                updates.append(self._update(piece, number, self._point(ahead, at)))
        results = [self._result(piece, n) for n in range(self._count) for piece in self._pieces]
        return sequence(
            [
                *(tirx.AllocBuffer(buffer) for buffer in self.buffers),
                *starts,
                self._over_window(sequence(updates)),
                *results,
            ]
        )

    @property
    def _count(self) -> int:
        return max(self.windows, 1)

    @property
    def _pieces(self) -> range:
        return range(len(self.covered))

    def _point(self, ahead: int, at: int) -> dict[tirx.Var, Expr]:
        known: dict[tirx.Var, Expr] = {}
        if self.window.place is not None:
            known[self.window.place.var] = self.place + int64(ahead)
        if self.window.position is not None and self.windows:
            known[self.window.position.var] = int64(at)
        return known

    def _over_window(self, body: tirx.Stmt) -> tirx.Stmt:
        """Loops over what counts of the reduced axes that are not written out."""
        window = self.window
        inner = [] if self.windows or window.position is None else [window.position]
        for axis in reversed([*window.rows, *inner]):
            bound = window.bounds.get(axis.var)
            place: Expr = int64(0)
            if bound is not None and bound.place is not None:
                here = window.place is not None and bound.place.same_as(window.place.var)
                place = self.place if here else bound.place
            first, count = map(self.analyzer.simplify, bounds_at(bound, axis, place))
            # Loops of other extents need variables of their own.
            own = Axis.new(axis.extent, axis.var.name)
            body = substitute(body, {axis.var: own.var})
            body = tirx.For(own.var, first, count, tirx.ForKind.SERIAL, body)
        return body

    def _widened(self, value: Expr) -> Expr:
        """A value in the type that is accumulated."""
        if isinstance(value, tirx.FloatImm):
            return tirx.const(float(value.value), self.dtype)
        return lower_math(cast(self.dtype, value))

    def _narrowed(self, value: Expr) -> Expr:
        """An accumulated value in the type of the result."""
        dtype = str(self.store.buffer.dtype)
        if dtype == "bfloat16" and not isinstance(self.store.value, tirx.Add | tirx.Mul):
            return bfloat16.exactly(value)
        return cast(dtype, value)

    def _start(self, piece: int, column: int) -> tirx.Stmt:
        width, buffer = self.covered[piece][1], self.buffers[piece]

        def at_lane(lane: Expr) -> tirx.Stmt:
            init = self._widened(self.store.init)
            return tirx.BufferStore(buffer, init, [int64(column * width) + lane])

        return vectorized(width, at_lane)

    def _update(self, piece: int, column: int, point: dict[tirx.Var, Expr]) -> tirx.Stmt:
        (channel, width), buffer = self.covered[piece], self.buffers[piece]

        def at_lane(lane: Expr) -> tirx.Stmt:
            position = int64(column * width) + lane
            at = {**point, self.window.along.var: channel + lane}
            element = self._widened(substitute(self.store.value.b, at))
            value = COMBINE[type(self.store.value)](tirx.BufferLoad(buffer, [position]), element)
            return tirx.BufferStore(buffer, value, [position])

        return vectorized(width, at_lane)

    def _result(self, piece: int, ahead: int) -> tirx.Stmt:
        """Stores what the columns of one window come to."""
        (channel, width), buffer = self.covered[piece], self.buffers[piece]
        combine = COMBINE[type(self.store.value)]
        window = self.window
        columns = [0]
        if self.windows and window.position is not None:
            positions = range(window.position.extent)
            order = list(self.columns)
            columns = [order.index(ahead * window.far + at * window.near) for at in positions]
        point = self._point(ahead, 0)
        total = tirx.Var("total", self.dtype)
        finished = self._finished(point, total)

        def at_lane(lane: Expr) -> tirx.Stmt:
            reads = (tirx.BufferLoad(buffer, [int64(at * width) + lane]) for at in columns)
            nest = replace(window.nest, lets=((total, functools.reduce(combine, reads)),))
            return store_statement(nest, finished, {**point, window.along.var: channel + lane})

        return vectorized(width, at_lane)

    def _finished(self, point: dict[tirx.Var, Expr], total: tirx.Var) -> list[Store]:
        """What to store at a point whose elements come to `total`."""
        own = self.store
        stores = self.window.nest.epilogue or (
            Store(own.buffer, own.indices, tirx.BufferLoad(own.buffer, list(own.indices))),
        )

        def is_own(value: Expr) -> bool:
            return isinstance(value, TensorLoad) and value.source.same_as(own.buffer)

        def inverted(division: tirx.Div) -> Expr:
            """A mean: the number of elements is another for another row or column at most."""
            number = division.b
            dtype = str(division.ty.dtype)
            if not is_own(division.a) or loads_of(number) or not self.dtype.startswith("float"):
                return division
            if isinstance(number, tirx.FloatImm):
                inverse = float(np.float32(1) / np.float32(number.value))
                return cast(dtype, total * tirx.const(inverse, self.dtype))
            count = number.value if isinstance(number, tirx.Cast) else number
            return cast(dtype, total * (like(1.0, total) / cast(self.dtype, count)))

        found = []
        for store in stores:
            value = self.analyzer.simplify(substitute(store.value, point))
            value = tvm_ffi.structural_map(value, (tirx.Div, inverted))
            value = map_loads(value, lambda load: self._narrowed(total) if is_own(load) else load)
            found.append(replace(store, value=value))
        return found
