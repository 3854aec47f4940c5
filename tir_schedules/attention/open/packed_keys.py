"""k and v of one attention, packed for register tiles; the number of keys is known at run time.

    k    panels of so many vectors of keys, each [d][keys of the panel]; the last one is narrower
    v    panels of columns, each [keys][columns of the panel]

Behind the last key, vectors of k repeat it: what is multiplied by it is hidden afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, bind, constant, materialise, ramp
from microkernels.vector.transpose import transpose_block
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.group_loops import for_groups
from tir_schedules.core.open_loops import ceil_div
from tir_schedules.epilogue.epilogue import Columns, load_vector
from tir_schedules.product.tile_stores import store_columns

Element = Callable[[Expr, Expr | int], Expr]
"""(key, column) -> where an element lies."""


class PackedKeys:
    """k [d, n], packed by the task that reads it.

    Parameters
    ----------
    kernel : Microkernel
        Of the scores; it takes f32.
    width : int
        Vectors of a panel.
    d : int
        Columns of k.
    n, vectors : Expr
        Keys, and vectors of them.
    room : Expr or int
        Keys, as of `extents.allocated`.
    """

    def __init__(
        self,
        kernel: Microkernel,
        width: int,
        d: int,
        n: Expr,
        vectors: Expr,
        room: Expr | int,
    ) -> None:
        self.lanes, self.width, self.d, self.n, self.vectors = kernel.lanes, width, d, n, vectors
        size = ceil_div(room, self.lanes) * (d * self.lanes)
        self.buffer = I.sblock_alloc_buffer((size,), "float32", align=64)

    def load(self, panel: Expr, width: int, step: Expr | int, j: int) -> Expr:
        """One vector of keys of a panel that begins with the vector `panel`."""
        return self.buffer[ramp(self._start(panel, width, step, j), self.lanes)]

    def _start(self, panel: Expr, width: Expr | int, step: Expr | int, j: Expr | int) -> Expr:
        return (panel * self.d + (step * width + j)) * self.lanes

    def pack(self, source: Expr, element: Element) -> None:
        """Emits the loops that pack it: squares are transposed in registers."""
        lanes, d = self.lanes, self.d
        with opaque_block("pack"), I.serial(self.vectors) as vector, opaque_block("keys"):
            panel = materialise(I.floordiv(vector, self.width) * self.width)
            width = materialise(tirx.Min(tirx.const(self.width, "int32"), self.vectors - panel))
            j = vector - panel
            last = self.n - 1
            keys = [bind(tirx.Min(vector * lanes + lane, last)) for lane in range(lanes)]

            def block(first: Expr | int, words: int) -> None:
                rows = [
                    bind(
                        load_vector(
                            source, "float32", [], Columns(element(key, first), lanes, words)
                        )
                    )
                    for key in keys
                ]
                for i, value in enumerate(transpose_block(rows)[:words]):
                    at = self._start(panel, width, first + i, j)
                    I.buffer_store(self.buffer, value, [ramp(at, lanes)])

            if d // lanes:
                with I.serial(d // lanes) as square, opaque_block("square"):
                    block(square * lanes, lanes)
            if d % lanes:
                block(tirx.const(d - d % lanes, "int32"), d % lanes)


class PackedValues:
    """v [n, e], packed by the task that reads it.

    Parameters
    ----------
    kernel : Microkernel
        Of the product; it takes f32.
    panels : sequence of Group
        How the vectors of columns are cut.
    e : int
        Columns.
    n, room : Expr
        Keys, as of `PackedKeys`.
    """

    def __init__(
        self,
        kernel: Microkernel,
        panels: Sequence[Group],
        e: int,
        n: Expr,
        room: Expr | int,
    ) -> None:
        self.lanes, self.panels, self.e, self.n = kernel.lanes, panels, e, n
        vectors = sum(group.count * group.size for group in panels)
        self.buffer = I.sblock_alloc_buffer((room * (vectors * self.lanes),), "float32", align=64)

    def load(self, panel: Expr | int, width: int, key: Expr | int, j: int) -> Expr:
        """One vector of columns of a key."""
        return self.buffer[ramp(self._start(panel, width, key, j), self.lanes)]

    def _start(self, panel: Expr | int, width: int, key: Expr | int, j: int) -> Expr:
        return (panel * self.n + (key * width + j)) * self.lanes

    def pack(self, source: Expr, element: Element) -> None:
        """Emits the loops that pack it: rows are copied."""

        def panel(start: Expr | int, width: int) -> None:
            for j in range(width):

                def put(columns: Columns, j: int = j) -> None:
                    place = Columns(element(key, columns.start), columns.lanes, columns.valid)
                    value = load_vector(source, "float32", [], place)
                    if columns.mask is not None:
                        value = tirx.Select(
                            columns.mask, bind(value), constant(0, "float32", self.lanes)
                        )
                    at = self._start(start, width, key, j)
                    I.buffer_store(self.buffer, value, [ramp(at, self.lanes)])

                store_columns(self.e, self.lanes, start + j, j == width - 1, put)

        with opaque_block("pack"), I.serial(self.n) as key, opaque_block("key"):
            for_groups(self.panels, panel)
