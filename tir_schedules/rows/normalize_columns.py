"""Softmax along an inner axis: vectors lie along the contiguous dimension, one column per lane."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector import vector_math
from microkernels.vector.exp2 import exp_of_difference
from microkernels.vector.expressions import Expr, bind, constant
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import extent
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
