"""Softmax along an inner axis: vectors lie along the contiguous dimension, one column per lane."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector import vector_math
from microkernels.vector.expressions import Expr, bind, constant, materialise
from microkernels.vector.vector_math import exp_of_difference
from tir_schedules.core.emission import ceil_div, opaque_block, open_tasks, share_of
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.core.reduce_lanes import LaneTotals
from tir_schedules.epilogue.epilogue import (
    Columns,
    Epilogue,
    load_vector,
    store_vector,
    unflatten,
)

from .normalize_view import View

Step = Callable[[Expr, int, Columns], None]


@dataclass
class ColumnStrip:
    """The loops over one strip of columns.

    Attributes
    ----------
    view : View
        The data: (*lead, n, inner).
    lanes : int
        Of a vector register.
    unroll : int
        Most vectors side by side; as many accumulators.
    x, out : Buffer
        In the shape of the view.
    epilogue : Epilogue
        Applied to every vector before it is stored.
    """

    view: View
    lanes: int
    unroll: int
    x: Expr
    out: Expr
    epilogue: Epilogue

    @property
    def vectors(self) -> int:
        """Vectors across, the last of which may be cut."""
        return math.ceil(self.view.inner / self.lanes)

    def block(self, outer: Expr, first: Expr, vectors: int, cut: int | Expr) -> None:
        """Normalises `vectors` vectors of columns; `cut` columns of the last one exist if not 0."""
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
            value = bind(exp_of_difference(shifted))
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
        with I.serial(self.view.n) as k:
            for j, columns in enumerate(self.strip):
                step(k, j, columns)

    def _load(self, buffer: Expr, k: Expr, columns: Columns) -> Expr:
        return load_vector(buffer, "float32", (*self.lead, k), columns)


@dataclass
class OpenColumns(ColumnStrip):
    """Softmax along an inner axis of any length, for any number of columns.

    threads share the (outer index, strip of columns) pairs; of a strip
        `unroll` whole vectors, or at the end of a line: single ones, then the one that is cut

    The loops over all columns of a region with open sizes.
    """

    def share(self, threads: int, few: Callable[[Expr], Expr]) -> None:
        """All columns, on so many threads; on one where `few(columns)` holds."""
        inner, outer = (as_expr(extent(size)) for size in (self.view.inner, self.view.outer))
        self.whole = materialise(I.floordiv(inner, self.lanes))
        self.left = materialise(inner - self.whole * self.lanes)
        strips = materialise(ceil_div(inner, self.unroll * self.lanes))
        with open_tasks(threads, few(outer * inner)) as (thread, parts):
            first, number = share_of(outer * strips, thread, parts)
            with I.serial(number) as place, opaque_block("strip"):
                item = materialise(first + place)
                at = materialise(I.floordiv(item, strips))
                self._strip(at, materialise((item - at * strips) * self.unroll))

    def _strip(self, outer: Expr, first: Expr) -> None:
        """The vectors of columns from one on: as many as there may be side by side."""
        with I.If(first + self.unroll <= self.whole):
            with I.Then():
                self.block(outer, first, self.unroll, 0)
            with I.Else():
                with I.serial(self.whole - first) as j, opaque_block("vector"):
                    self.block(outer, first + j, 1, 0)
                if self.lanes > 1:
                    with I.If(self.left > 0), I.Then():
                        self.block(outer, self.whole, 1, self.left)

    def _sweep(self, step: Step) -> None:
        with I.serial(as_expr(extent(self.view.n))) as k, opaque_block("row"):
            for j, columns in enumerate(self.strip):
                step(k, j, columns)
