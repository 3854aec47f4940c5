"""v of one attention, packed for register tiles; the number of keys is known at run time only.

    panels of columns, each [keys / kr][columns of the panel][kr]

Behind the last key, v is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm.tirx.script.builder.ir as I

from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, materialise, ramp
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import ceil_div, choose, for_groups, opaque_block
from tir_schedules.epilogue.epilogue import Columns
from tir_schedules.product.open_operand import Element, PackedWords
from tir_schedules.product.packed_operand import merged
from tir_schedules.product.tile_stores import store_columns


class PackedValues(PackedWords):
    """v [n, e], packed by the task that reads it.

    Parameters
    ----------
    kernel : Microkernel
        Of the product.
    dtype : str
        Of v.
    panels : sequence of Group
        How the vectors of columns are cut.
    e : int
        Columns.
    n, room : Expr
        Keys, and as of `extents.allocated`.
    """

    def __init__(
        self,
        kernel: Microkernel,
        dtype: str,
        panels: Sequence[Group],
        e: int,
        n: Expr,
        room: Expr | int,
    ) -> None:
        super().__init__(kernel, dtype)
        self.panels, self.e, self.n = panels, e, n
        self.steps = n if self.kr == 1 else materialise(ceil_div(n, self.kr))
        self.columns = sum(group.count * group.size for group in panels) * self.lanes
        size = ceil_div(room, self.kr) * (self.columns * self.kr)
        self.buffer = I.sblock_alloc_buffer((size,), self.element, align=64)

    def load(self, panel: Expr | int, width: int, step: Expr | int, j: int) -> Expr:
        """One vector of columns of kr keys."""
        return self.buffer[ramp(self._start(panel, width, step, j), self.group)]

    def _start(self, panel: Expr | int, width: int, step: Expr | int, j: int) -> Expr:
        return (panel * self.steps + (step * width + j)) * self.group

    def pack(self, source: Expr, element: Element) -> None:
        """Emits the loops that pack it: rows are copied, kr of them merged into words."""

        def rows(step: Expr, valid: int) -> None:
            def panel(start: Expr | int, width: int) -> None:
                for j in range(width):

                    def put(columns: Columns, j: int = j) -> None:
                        parts = [
                            self._words(source, element(step * self.kr + i, columns.start), columns)
                            for i in range(valid)
                        ]
                        self._put(self._start(start, width, step, j), merged(parts, self.kr))

                    store_columns(self.e, self.lanes, start + j, j == width - 1, put)

            for_groups(self.panels, panel)

        with opaque_block("pack"):
            with I.serial(I.floordiv(self.n, self.kr)) as step, opaque_block("key"):
                rows(step, self.kr)
            if self.kr > 1:
                left = materialise(I.floormod(self.n, self.kr))
                last = materialise(I.floordiv(self.n, self.kr))
                with I.If(left > 0), I.Then():
                    choose(left, range(1, self.kr), lambda valid: rows(last, valid))

    def add_up(self) -> None:
        """Adds up the elements of each column."""
        self.sums = I.sblock_alloc_buffer((self.columns,), "int32", align=64)

        def panel(start: Expr | int, width: int) -> None:
            for j in range(width):
                self._add_up(
                    start + j,
                    self.steps,
                    lambda step, j=j: self._start(start, width, step, j),  # type: ignore[misc]
                )

        with opaque_block("sums"):
            for_groups(self.panels, panel)
