"""k and v of one attention, packed for register tiles; the number of keys is known at run time.

    k    panels of so many vectors of keys, each [d / kr][keys of the panel][kr]; the last one is
         narrower
    v    panels of columns, each [keys / kr][columns of the panel][kr]

Behind the last key, vectors of k repeat it: what is multiplied by it is hidden afterwards. Behind
the last key, v is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import (
    Expr,
    bind,
    constant,
    lanes_of,
    like,
    materialise,
    ramp,
    reinterpret_group,
)
from microkernels.vector.transpose import transpose_block
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.group_loops import for_groups
from tir_schedules.core.open_loops import ceil_div, choose
from tir_schedules.epilogue.epilogue import Columns, load_vector
from tir_schedules.product.packed_operand import bits_for, element_of_packed, merged, widened
from tir_schedules.product.tile_stores import store_columns

Element = Callable[[Expr, Expr | int], Expr]
"""(key, column) -> where an element lies."""


class Packed:
    """What packed k and v have in common.

    Parameters
    ----------
    kernel : Microkernel
        The register tile that reads it.
    dtype : str
        Type of the elements in memory.
    """

    buffer: Expr

    def __init__(self, kernel: Microkernel, dtype: str) -> None:
        self.kernel, self.dtype = kernel, dtype
        self.lanes, self.kr, self.group = kernel.lanes, kernel.kr, kernel.lanes * kernel.kr
        self.element = element_of_packed(kernel)
        self.word = "float32" if self.element == "float32" else f"uint{self._bits * self.kr}"
        self.sums: Expr | None = None

    @property
    def _bits(self) -> int:
        return 16 if self.element == "uint16" else 8

    def column_sum(self, vector: Expr | int) -> Expr:
        """The sums of one vector of columns; int32."""
        assert self.sums is not None
        return self.sums[ramp(vector * self.lanes, self.lanes)]

    def _put(self, at: Expr, words: Expr) -> None:
        """Stores one vector of words, each the kr elements of a column."""
        value = words
        if self.element != "float32":
            value = reinterpret_group(self.element, words, self.group)
        I.buffer_store(self.buffer, value, [ramp(at, self.group)])

    def _add_up(self, vector: Expr | int, steps: Expr | int, start: Callable[[Expr], Expr]) -> None:
        """Sums of a vector of columns, by the kernel's own products with ones."""
        assert self.sums is not None
        total = I.sblock_alloc_buffer((self.lanes,), "int32")
        every = ramp(0, self.lanes)
        I.buffer_store(total, constant(0, "int32", self.lanes), [every])
        with I.serial(steps) as step:
            group = self.buffer[ramp(start(step), self.group)]
            I.buffer_store(total, self.kernel.add_up(total[every], group), [every])
        I.buffer_store(self.sums, total[every], [ramp(vector * self.lanes, self.lanes)])


class PackedKeys(Packed):
    """k [d, n], packed by the task that reads it.

    Parameters
    ----------
    kernel : Microkernel
        Of the scores.
    dtype : str
        Of k.
    width : int
        Vectors of a panel.
    d : int
        Columns of k; a multiple of kr.
    n, vectors : Expr
        Keys, and vectors of them.
    room : Expr or int
        Keys, as of `extents.allocated`.
    """

    def __init__(
        self,
        kernel: Microkernel,
        dtype: str,
        width: int,
        d: int,
        n: Expr,
        vectors: Expr,
        room: Expr | int,
    ) -> None:
        super().__init__(kernel, dtype)
        self.width, self.steps, self.n, self.vectors = width, d // self.kr, n, vectors
        self.room = ceil_div(room, self.lanes)
        size = self.room * (self.steps * self.group)
        self.buffer = I.sblock_alloc_buffer((size,), self.element, align=64)

    def load(self, panel: Expr, width: int, step: Expr | int, j: int) -> Expr:
        """One vector of keys of a panel that begins with the vector `panel`."""
        return self.buffer[ramp(self._start(panel, width, step, j), self.group)]

    def _start(self, panel: Expr, width: Expr | int, step: Expr | int, j: Expr | int) -> Expr:
        return (panel * self.steps + (step * width + j)) * self.group

    def pack(self, source: Expr, element: Element) -> None:
        """Emits the loops that pack it: squares of words are transposed in registers."""
        lanes, steps = self.lanes, self.steps
        with opaque_block("pack"), I.serial(self.vectors) as vector, opaque_block("keys"):
            panel, width = self._panel_of(vector)
            j = vector - panel
            last = self.n - 1
            keys = [bind(tirx.Min(vector * lanes + lane, last)) for lane in range(lanes)]

            def block(first: Expr | int, words: int) -> None:
                rows = [bind(self._row(source, element, key, first, words)) for key in keys]
                for i, value in enumerate(transpose_block(rows)[:words]):
                    self._put(self._start(panel, width, first + i, j), value)

            if steps // lanes:
                with I.serial(steps // lanes) as square, opaque_block("square"):
                    block(square * lanes, lanes)
            if steps % lanes:
                block(tirx.const(steps - steps % lanes, "int32"), steps % lanes)

    def _panel_of(self, vector: Expr) -> tuple[Expr, Expr]:
        """The first vector of the panel of a vector, and the panel's width."""
        panel = materialise(I.floordiv(vector, self.width) * self.width)
        most = tirx.const(self.width, "int32")
        return panel, materialise(tirx.Min(most, self.vectors - panel))

    def _row(
        self, source: Expr, element: Element, key: Expr, first: Expr | int, words: int
    ) -> Expr:
        """Some words of a key, in a vector of words of which the others hold anything."""
        if self.element == "float32":
            columns = Columns(element(key, first), self.lanes, words)
            return load_vector(source, "float32", [], columns)
        count = words * self.kr
        elements = source[ramp(element(key, first * self.kr), count)]
        if self.dtype == "float32" and count % self.lanes:
            # Rounding part of a vector takes LLVM seconds.
            elements = widened(elements, count + -count % self.lanes)
        row = bits_for(elements, self.dtype, self.kernel)
        return widened(reinterpret_group(self.word, row, lanes_of(row) // self.kr), self.lanes)

    def add_up(self) -> None:
        """Adds up the elements of each key."""
        self.sums = I.sblock_alloc_buffer((self.room * self.lanes,), "int32", align=64)
        with opaque_block("sums"), I.serial(self.vectors) as vector, opaque_block("keys"):
            panel, width = self._panel_of(vector)
            j = vector - panel
            self._add_up(vector, self.steps, lambda step: self._start(panel, width, step, j))


class PackedValues(Packed):
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
        Keys, as of `PackedKeys`.
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
                            self._row(source, element(step * self.kr + i, columns.start), columns)
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

    def _row(self, source: Expr, start: Expr, columns: Columns) -> Expr:
        """A vector of columns of a key; 0 where there are none."""
        value = load_vector(source, self.dtype, [], Columns(start, columns.lanes, columns.valid))
        value = bits_for(value, self.dtype, self.kernel)
        if columns.mask is not None:
            value = bind(value)
            value = tirx.Select(columns.mask, value, like(0, value))
        return value

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
