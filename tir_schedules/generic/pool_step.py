"""One step of pooling: accumulates columns over the rows of some windows, then combines them.

six accumulators <- lowest
for k that counts: accumulator[m] = max(accumulator[m], x[i + k - 1, j + m - 1, c])
y[i, j + n, c] = max(accumulator[n], accumulator[n + 1], accumulator[n + 2])
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer
from tvm.tirx.expr import BinaryOpExpr

from microkernels.vector import bfloat16
from microkernels.vector.expressions import Expr, cast, like

from .combine import COMBINE
from .expressions import int64, loads_of, map_loads, substitute
from .loops import sequence, store_statement, vectorized
from .nest import Axis, Store
from .padded_windows import bounds_at
from .pool_watch import Watch
from .pool_window import Window, columns_of
from .vector_math import lower_math

Covered = Sequence[tuple[Expr, int]]
"""Vectors of channels: the first channel and the number of lanes."""


def accumulated(dtype: str) -> str:
    """The type that a pool of a type is computed in.

    Sums of bfloat16 are more exact, and maxima cost less, in f32.
    """
    return "float32" if dtype == "bfloat16" else dtype


def widened(value: Expr) -> Expr:
    """An element or a start in the type that is accumulated."""
    dtype = accumulated(str(value.ty.dtype))
    if isinstance(value, tirx.FloatImm):
        return tirx.const(float(value.value), dtype)
    return cast(dtype, value)


def narrowed(value: Expr, store: Store) -> Expr:
    """An accumulated value in the type of the result of a store."""
    dtype = str(store.buffer.dtype)
    if dtype == "bfloat16" and not isinstance(store.value, tirx.Add | tirx.Mul):
        return bfloat16.exactly(value)
    return cast(dtype, value)


class Step:
    """Some neighbouring windows from `place` on; no whole one: the part of one that counts.

    With a watch, maxima may lose a NaN, and it notes that there was one.
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
        self.window = window
        self.watch = watch
        self.covered = covered
        self.place = place
        self.windows = windows
        self.analyzer = analyzer
        self.columns = columns_of(window, windows) if windows else {0: (0, 0)}
        self.store = window.nest.stores[0]
        self.dtype = accumulated(str(self.store.buffer.dtype))
        assert isinstance(self.store.value, BinaryOpExpr)
        node = type(self.store.value)
        self.combine: Callable[[Expr, Expr], Expr] = COMBINE[node] if watch is None else node
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
        if self.watch is not None:
            for piece in self._pieces:
                updates.append(self.watch.note(piece, self.buffers[piece], len(self.columns)))
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

    def _start(self, piece: int, column: int) -> tirx.Stmt:
        width, buffer = self.covered[piece][1], self.buffers[piece]

        def at_lane(lane: Expr) -> tirx.Stmt:
            init = lower_math(widened(self.store.start))
            return tirx.BufferStore(buffer, init, [int64(column * width) + lane])

        return vectorized(width, at_lane)

    def _update(self, piece: int, column: int, point: dict[tirx.Var, Expr]) -> tirx.Stmt:
        (channel, width), buffer = self.covered[piece], self.buffers[piece]

        def at_lane(lane: Expr) -> tirx.Stmt:
            position = int64(column * width) + lane
            at = {**point, self.window.along.var: channel + lane}
            element = lower_math(widened(substitute(self.store.value.b, at)))
            value = self.combine(tirx.BufferLoad(buffer, [position]), element)
            return tirx.BufferStore(buffer, value, [position])

        return vectorized(width, at_lane)

    def _result(self, piece: int, ahead: int) -> tirx.Stmt:
        """Stores what the columns of one window come to."""
        (channel, width), buffer = self.covered[piece], self.buffers[piece]
        window = self.window
        columns = [0]
        if self.windows and window.position is not None:
            positions = range(window.position.extent)
            order = list(self.columns)
            columns = [order.index(ahead * window.far + at * window.near) for at in positions]
        point = self._point(ahead, 0)
        # In a buffer: TVM looks through names, and an expression that uses one twice would double.
        total = tirx.decl_buffer((int64(width),), self.dtype, "total")

        def begin(lane: Expr) -> tirx.Stmt:
            first = tirx.BufferLoad(buffer, [int64(columns[0] * width) + lane])
            return tirx.BufferStore(total, first, [lane])

        def add(column: int, lane: Expr) -> tirx.Stmt:
            value = tirx.BufferLoad(buffer, [int64(column * width) + lane])
            combined = self.combine(tirx.BufferLoad(total, [lane]), value)
            return tirx.BufferStore(total, combined, [lane])

        def finish(lane: Expr) -> tirx.Stmt:
            finished = self._finished(point, tirx.BufferLoad(total, [lane]))
            at = {**point, window.along.var: channel + lane}
            return store_statement(replace(window.nest, lets=()), finished, at)

        return sequence(
            [
                tirx.AllocBuffer(total),
                vectorized(width, begin),
                *(vectorized(width, functools.partial(add, each)) for each in columns[1:]),
                vectorized(width, finish),
            ]
        )

    def _finished(self, point: dict[tirx.Var, Expr], total: Expr) -> list[Store]:
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

        found, result = [], narrowed(total, own)
        for store in stores:
            value = self.analyzer.simplify(substitute(store.value, point))
            value = tvm_ffi.structural_map(value, (tirx.Div, inverted))
            value = map_loads(value, lambda load: result if is_own(load) else load)
            found.append(replace(store, value=value))
        return found
