"""Normalises contiguous rows: a few rows at a time, vectors along the row.

A row that fits in cache is read from memory once: the first sweep loads it, later sweeps find it in
registers or in L1. Several rows are interleaved, because one row alone is a chain of dependent
reductions. A row that does not fit is read twice: statistics are computed chunk by chunk and
merged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector import ieee, vector_math
from microkernels.vector.expressions import Expr, Index, bind, constant, materialise, splat
from tir_schedules.core.emission import ceil_div, dynamic_tasks, opaque_block, repeat, share_of
from tir_schedules.core.extents import allocated, as_expr, extent
from tir_schedules.core.loop_nest import Combine, LaneTotals, add, reduce_lanes
from tir_schedules.core.size import is_dynamic
from tir_schedules.epilogue.epilogue import Columns, Epilogue, load_vector, store_vector, unflatten

from .normalize_view import SOFTMAX_OPS, View

Term = Callable[[int, Columns], Expr]
Leading = Callable[[Expr], Sequence[Expr]]
Part = tuple[Index, int, int]
"""Part of a row: its first column, its whole vectors, and the columns of a partial one."""


def f32(value: float) -> Expr:
    """A number as a scalar expression."""
    return tirx.const(value, "float32")


@dataclass
class Rows:
    """The loops over one block of rows.

    Attributes
    ----------
    view : View
        The data.
    lanes : int
        Lanes of a vector register.
    unroll : int
        Vectors in one iteration of a loop along the row; as many accumulators.
    keep : bool
        Whether a row stays in registers between sweeps; else it is read again.
    chunk : int
        Vectors after which the statistics of a long row are merged.
    x, out : Buffer
        Buffers in the shape of the view.
    weights : sequence of Buffer
        Vectors of n numbers: scale, or scale and shift.
    epilogue : Epilogue
        Applied to every vector before it is stored.
    x_leading, out_leading : callable or None
        Row -> leading indices of x, and of out; those of the view if None.
    """

    view: View
    lanes: int
    unroll: int
    keep: bool
    chunk: int
    x: Expr
    weights: Sequence[Expr]
    out: Expr
    epilogue: Epilogue
    x_leading: Leading | None = None
    out_leading: Leading | None = None
    kept: dict[tuple[int, int], Expr] = field(default_factory=dict)
    held: Expr | None = None

    def block(self, row: Index, rows: int) -> None:
        """Normalises `rows` rows from `row`."""
        with opaque_block("rows"):
            self.kept = {}
            op = self.view.region.op
            self.flat = [bind(row + i) for i in range(rows)]
            self.leading = [self._leading(index, self.x_leading) for index in self.flat]
            self.target = [self._leading(index, self.out_leading) for index in self.flat]
            self.held = None
            narrow = self.view.region.output.dtype != "float32"
            if op == "softmax" and self._chunks() == 1 and narrow and not self.keep:
                shape = rows, allocated(self.view.n)
                self.held = I.sblock_alloc_buffer(shape, "float32")
            if op in SOFTMAX_OPS:
                self._softmax(logarithm=op == "log_softmax")
            else:
                self._norm(centered=op == "layer_norm")

    def _leading(self, row: Expr, mapping: Leading | None) -> Sequence[Expr]:
        return unflatten(row, self.view.lead) if mapping is None else mapping(row)

    @property
    def _is_dynamic(self) -> bool:
        """Whether the length of a row is dynamic; `keep` and `chunk` then have no effect."""
        return is_dynamic((self.view.n,))

    # --- the operators -----------------------------------------------------------------------

    def _softmax(self, logarithm: bool) -> None:
        if self._chunks() > 1:
            high, total = self._online_softmax()
        else:
            high = self._reduce(self._load, tirx.Max, -math.inf)
            total = self._reduce(self._exponential(high, hold=not logarithm), add, 0.0)
        if logarithm:
            shift = [materialise(vector_math.log(splat(value, self.lanes))) for value in total]
            self._store(lambda i, columns: self._centered(high)(i, columns) - shift[i])
            return
        scale = [materialise(f32(1) / value) for value in total]
        term = self._exponential(high, hold=False) if self._chunks() > 1 else self._held
        self._store(lambda i, columns: term(i, columns) * splat(scale[i], columns.lanes))

    def _norm(self, centered: bool) -> None:
        epsilon = self.view.region.real("epsilon")
        if self._is_dynamic:
            inverse = materialise(f32(1) / tirx.Cast("float32", as_expr(extent(self.view.n))))
        else:
            inverse = f32(1 / self.view.n)
        value: Term = self._load
        if not centered:
            square_sum = self._reduce(_squared(value), add, 0.0)
        elif self._chunks() > 1:
            mean, square_sum = self._online_moments()
            value = self._centered(mean)
        else:
            mean = [materialise(s * inverse) for s in self._reduce(self._load, add, 0.0)]
            value = self._centered(mean)
            square_sum = self._reduce(_squared(value), add, 0.0)
        scale = [materialise(f32(1) / I.sqrt(s * inverse + f32(epsilon))) for s in square_sum]
        self._store(lambda i, columns: value(i, columns) * splat(scale[i], columns.lanes))

    # --- rows beyond cache ---------------------------------------------------------------------

    def _online_softmax(self) -> tuple[list[Expr], list[Expr]]:
        """Computes the maximum and the sum of exponentials of every row, in one pass."""
        # Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867.
        high = self._scalars(-math.inf)
        total = self._scalars(0.0)

        def merge(chunk: Part) -> None:
            part = self._reduce(self._load, tirx.Max, -math.inf, chunk)
            old = [bind(h[()]) for h in high]
            new = [bind(tirx.Max(o, p)) for o, p in zip(old, part, strict=True)]
            # The reference is clamped to a finite number, so that a chunk of -inf counts nothing.
            base = [materialise(tirx.Max(n, f32(ieee.LOWEST))) for n in new]
            sums = self._reduce(self._exponential(base, False), add, 0.0, chunk)
            for i, value in enumerate(sums):
                before = tirx.Max(old[i], f32(ieee.LOWEST)) - base[i]
                rest = total[i][()] * vector_math.exp_of_difference(bind(before))
                I.buffer_store(total[i], rest + value, [])
                I.buffer_store(high[i], new[i], [])

        self._for_chunks(merge)
        return [bind(h[()]) for h in high], [bind(t[()]) for t in total]

    def _online_moments(self) -> tuple[list[Expr], list[Expr]]:
        """Computes the mean and the sum of squared deviations of every row, in one pass."""
        # Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
        # variances" (1979), equations 2.1.
        mean = self._scalars(0.0)
        square_sum = self._scalars(0.0)
        count = I.sblock_alloc_buffer((), "float32")
        I.buffer_store(count, f32(0), [])

        def merge(chunk: Part) -> None:
            size = chunk[1] * self.lanes + chunk[2]
            sums = self._reduce(self._load, add, 0.0, chunk)
            part = [materialise(s * f32(1 / size)) for s in sums]
            squares = self._reduce(_squared(self._centered(part)), add, 0.0, chunk)
            before = bind(count[()])
            share = bind(f32(size) / (before + f32(size)))
            for i, value in enumerate(squares):
                delta = bind(part[i] - mean[i][()])
                I.buffer_store(mean[i], mean[i][()] + delta * share, [])
                apart = delta * delta * before * share
                I.buffer_store(square_sum[i], square_sum[i][()] + value + apart, [])
            I.buffer_store(count, before + f32(size), [])

        self._for_chunks(merge)
        return [bind(m[()]) for m in mean], [bind(s[()]) for s in square_sum]

    def _scalars(self, start: float) -> list[Expr]:
        buffers: list[Expr] = [I.sblock_alloc_buffer((), "float32") for _ in self.flat]
        for buffer in buffers:
            I.buffer_store(buffer, f32(start), [])
        return buffers

    def _chunks(self) -> int:
        if self._is_dynamic:  # dynamic rows beyond cache are read again, as shorter rows are
            return 1
        return math.ceil(math.ceil(self.view.n / self.lanes) / self.chunk)

    def _for_chunks(self, body: Callable[[Part], None]) -> None:
        """Runs `body(part)` for every chunk."""
        vectors, cut = divmod(self.view.n, self.lanes)
        whole, rest = divmod(vectors, self.chunk)
        if whole:
            with I.serial(whole) as chunk:
                body((chunk * (self.chunk * self.lanes), self.chunk, 0))
        if rest or cut:
            body((whole * self.chunk * self.lanes, rest, cut))

    # --- sweeps ----------------------------------------------------------------------------------

    def _sweep(self, body: Callable[[Columns, int], None], part: Part | None = None) -> None:
        """Runs `body(columns, accumulator)` for a row's whole vectors, then for the partial one."""
        lanes, unroll, n = self.lanes, self.unroll, extent(self.view.n)
        if isinstance(n, int):
            start, vectors, cut = part or (0, *divmod(n, lanes))
            unroll = vectors if self.keep else unroll
            turns = vectors // unroll if unroll else 0
            if turns > 1:
                with I.serial(turns) as i:
                    for slot in range(unroll):
                        body(Columns(start + (i * unroll + slot) * lanes, lanes, lanes), slot)
            for vector in range(turns * unroll if turns > 1 else 0, vectors):
                body(Columns(start + vector * lanes, lanes, lanes), vector % self.unroll)
            if cut:
                body(Columns(start + vectors * lanes, lanes, cut), vectors % self.unroll)
            return
        whole = materialise(I.floordiv(n, lanes))
        several = materialise(I.floordiv(whole, unroll))
        with I.serial(several) as i, opaque_block("vectors"):
            for slot in range(unroll):
                body(Columns((i * unroll + slot) * lanes, lanes, lanes), slot)
        if unroll > 1:
            with I.serial(whole - several * unroll) as i, opaque_block("vector"):
                body(Columns((several * unroll + i) * lanes, lanes, lanes), 0)
        if lanes > 1:
            left = materialise(n - whole * lanes)
            with I.If(left > 0), I.Then(), opaque_block("cut"):
                body(Columns(whole * lanes, lanes, left), 0)

    def _reduce(
        self, term: Term, combine: Combine, identity: float, part: Part | None = None
    ) -> list[Expr]:
        """Combines the terms of every row to a scalar; `unroll` independent chains each."""
        slots = self.unroll
        if not self._is_dynamic:
            _, vectors, cut = part or (0, *divmod(self.view.n, self.lanes))
            slots = min(slots, vectors + bool(cut))
        neutral = constant(identity, "float32", self.lanes)
        totals = [LaneTotals(self.lanes, identity, slots) for _ in self.flat]

        def step(columns: Columns, slot: int) -> None:
            for i, total in enumerate(totals):
                value = term(i, columns)
                if columns.mask is not None:
                    value = tirx.Select(columns.mask, value, neutral)
                total.store(combine(total[slot], value), slot)

        self._sweep(step, part)
        # All rows in step, so that the latency of one is hidden behind the others.
        combined = [total.combined(combine) for total in totals]
        return [reduce_lanes(vector, combine) for vector in combined]

    def _store(self, value: Term) -> None:
        """Emits scale and shift of a norm, the epilogue, and the store of every vector."""

        def step(columns: Columns, _slot: int) -> None:
            weights = [bind(load_vector(w, "float32", (), columns)) for w in self.weights]
            for i, leading in enumerate(self.target):
                result = value(i, columns)
                if weights:
                    result = result * weights[0]
                if len(weights) > 1:
                    result = result + weights[1]
                result = self.epilogue(bind(result), self.flat[i], columns)
                store_vector(self.out, result, leading, columns)

        self._sweep(step)

    # --- terms -----------------------------------------------------------------------------------

    def _load(self, i: int, columns: Columns) -> Expr:
        """x, from registers if it is kept there."""
        key = (i, int(columns.start)) if self.keep else None
        if key is not None and key in self.kept:
            return self.kept[key]
        value = bind(load_vector(self.x, "float32", self.leading[i], columns))
        if key is not None:
            self.kept[key] = value
        return value

    def _centered(self, middle: Sequence[Expr]) -> Term:
        return lambda i, columns: self._load(i, columns) - splat(middle[i], columns.lanes)

    def _exponential(self, high: Sequence[Expr], hold: bool) -> Term:
        """exp(x - high); with `hold` it stays for the last sweep, in registers or in memory."""

        def term(i: int, columns: Columns) -> Expr:
            value = bind(vector_math.exp_of_difference(bind(self._centered(high)(i, columns))))
            if hold and self.keep:
                self.kept[i, int(columns.start)] = value
            elif hold:
                buffer, leading = self._row_held(i)
                store_vector(buffer, value, leading, columns)
            return value

        return term

    def _held(self, i: int, columns: Columns) -> Expr:
        if self.keep:
            return self.kept[i, int(columns.start)]
        buffer, leading = self._row_held(i)
        return bind(load_vector(buffer, "float32", leading, columns))

    def _row_held(self, i: int) -> tuple[Expr, Sequence[Expr]]:
        """Returns buffer and index of a row's f32 numbers, in `held` or in an f32 output."""
        if self.held is None:
            return self.out, self.target[i]
        return self.held, [tirx.const(i, "int32")]


def _squared(term: Term) -> Term:
    def square(i: int, columns: Columns) -> Expr:
        value = bind(term(i, columns))
        return value * value

    return square


Step = Callable[[Expr, int, Columns], None]


class ColumnStrip:
    """The loops over one strip of columns.

    Parameters
    ----------
    view : View
        The data: (*lead, n, inner).
    lanes : int
        Lanes of a vector register.
    unroll : int
        Most vectors side by side; as many accumulators.
    x, out : Buffer
        Buffers in the shape of the view.
    epilogue : Epilogue
        Applied to every vector before it is stored.
    """

    def __init__(
        self, view: View, lanes: int, unroll: int, x: Expr, out: Expr, epilogue: Epilogue
    ) -> None:
        self.view, self.lanes, self.unroll = view, lanes, unroll
        self.x, self.out, self.epilogue = x, out, epilogue

    def block(self, outer: Expr, first: Expr, vectors: int, cut: Index) -> None:
        """Normalises `vectors` vectors of columns; the last has only `cut` columns if not 0."""
        with opaque_block("columns"):
            lanes = self.lanes
            last = lanes if isinstance(cut, int) and cut == 0 else cut
            valid = [*[lanes] * (vectors - 1), last]
            self.strip = [
                Columns((first + j) * lanes, lanes, count) for j, count in enumerate(valid)
            ]
            self.outer = outer
            self.lead = unflatten(outer, self.view.lead)
            self._softmax()

    def _softmax(self) -> None:
        logarithm = self.view.region.op == "log_softmax"
        high = [LaneTotals(self.lanes, -math.inf) for _ in self.strip]
        total = [LaneTotals(self.lanes, 0.0) for _ in self.strip]

        def find_high(k: Expr, j: int, columns: Columns) -> None:
            high[j].store(tirx.Max(high[j][0], self._load(self.x, k, columns)))

        def sum_up(k: Expr, j: int, columns: Columns) -> None:
            shifted = bind(self._load(self.x, k, columns) - top[j])
            value = bind(vector_math.exp_of_difference(shifted))
            if not logarithm:
                store_vector(self.out, value, (*self.lead, k), columns)
            total[j].store(total[j][0] + value)

        def finish(k: Expr, j: int, columns: Columns) -> None:
            if logarithm:
                result = self._load(self.x, k, columns) - top[j] - scale[j]
            else:
                result = self._load(self.out, k, columns) * scale[j]
            row = self.outer * extent(self.view.n) + k
            result = self.epilogue(bind(result), row, columns)
            store_vector(self.out, result, (*self.lead, k), columns)

        self._sweep(find_high)
        top = [bind(found[0]) for found in high]
        self._sweep(sum_up)
        sums = [bind(found[0]) for found in total]
        one = constant(1.0, "float32", self.lanes)
        scale = [bind(vector_math.log(s) if logarithm else one / s) for s in sums]
        self._sweep(finish)

    def _sweep(self, step: Step) -> None:
        def row(k: Expr) -> None:
            for j, columns in enumerate(self.strip):
                step(k, j, columns)

        repeat(extent(self.view.n), "row", row)

    def _load(self, buffer: Expr, k: Expr, columns: Columns) -> Expr:
        return load_vector(buffer, "float32", (*self.lead, k), columns)


class DynamicColumns(ColumnStrip):
    """Softmax along an inner axis of dynamic length, for a dynamic number of columns.

    Threads share the (outer index, strip of columns) pairs. A strip is `unroll` whole vectors; at
    the end of a line, it is single vectors and then the partial one.
    """

    def share(self, threads: int, few: Callable[[Expr], Expr]) -> None:
        """Emits all columns, on `threads` threads; on one if `few(columns)` holds."""
        inner, outer = (as_expr(extent(size)) for size in (self.view.inner, self.view.outer))
        whole = materialise(I.floordiv(inner, self.lanes))
        left = materialise(inner - whole * self.lanes)
        strips = materialise(ceil_div(inner, self.unroll * self.lanes))
        with dynamic_tasks(threads, few(outer * inner)) as (thread, parts):
            first, number = share_of(outer * strips, thread, parts)
            with I.serial(number) as place, opaque_block("strip"):
                item = materialise(first + place)
                at = materialise(I.floordiv(item, strips))
                # As many vectors of columns side by side as possible.
                begin = materialise((item - at * strips) * self.unroll)
                with I.If(begin + self.unroll <= whole):
                    with I.Then():
                        self.block(at, begin, self.unroll, 0)
                    with I.Else():
                        with I.serial(whole - begin) as j, opaque_block("vector"):
                            self.block(at, begin + j, 1, 0)
                        if self.lanes > 1:
                            with I.If(left > 0), I.Then():
                                self.block(at, whole, 1, left)
