"""Softmax along an inner axis of any length, for any number of columns.

threads share the (outer index, strip of columns) pairs; of a strip
    `unroll` whole vectors, or at the end of a line: single ones, then the one that is cut
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I

from microkernels.vector.expressions import Expr, materialise
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.core.open_loops import ceil_div, open_tasks, share_of

from .normalize_columns import ColumnStrip, Step


@dataclass
class OpenColumns(ColumnStrip):
    """The loops over all columns of a region with open sizes."""

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
