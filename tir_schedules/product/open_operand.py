"""An operand that a kernel packs for itself, whose sizes are known at run time only.

panels of so many vectors of columns, each [steps of K][columns of the panel][kr]; the last one
is narrower
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector import bfloat16, memory
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import extents, loop_nest
from tir_schedules.core.emission import branch, ceil_div, choose, opaque_block
from tir_schedules.epilogue.epilogue import Columns, load_vector

from .packed_operand import PackedWords, merged, widened


class OpenWords(PackedWords):
    """Packed operands of dynamic sizes; their source is flat."""

    def _add_up(self, vector: Index, steps: Index, start: Callable[[Expr], Expr]) -> None:
        """Sums of a vector of columns, by the kernel's own products with ones."""
        assert self.sums is not None
        total = loop_nest.LaneTotals(self.lanes, 0, dtype="int32")
        with I.serial(steps) as step:
            group = self.buffer[ex.ramp(start(step), self.group)]
            total.store(self.kernel.add_up(total[0], group))
        I.buffer_store(self.sums, total[0], [ex.ramp(vector * self.lanes, self.lanes)])

    def _copied(self, step: Expr, valid: int, columns: Columns, at: Expr) -> None:
        """Packs a vector of columns of some rows of a step; 0 where there are no columns."""
        parts = []
        for i in range(valid):
            (start,) = self.source.index(step * self.kr + i, columns.start)
            place = Columns(start, columns.lanes, columns.valid)
            value = self._bits(load_vector(self.source.buffer, self.dtype, [], place))
            if columns.mask is not None:
                value = ex.bind(value)
                value = tirx.Select(columns.mask, value, ex.like(0, value))
            parts.append(value)
        self._put(at, merged(parts, self.kr))


@dataclass
class OpenOperand(OpenWords):
    """B [k, n], packed by the task that reads it.

    Parameters
    ----------
    source, kernel
        As of `PackedWords`.
    width : int
        Vectors of a panel.
    vectors : Expr or int
        Vectors of columns.
    room : tuple
        k and n as of `extents.allocated`.
    """

    width: int
    vectors: Index
    room: tuple[Index, Index]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.k, self.n = self.source.k, self.source.n
        self.steps = self.k
        if self.kr > 1 and isinstance(self.k, int):
            self.steps = -(-self.k // self.kr)
        elif self.kr > 1:
            self.steps = ex.materialise(ceil_div(self.k, self.kr))
        self.columns = ceil_div(self.room[1], self.lanes)
        size = self.columns * (ceil_div(self.room[0], self.kr) * self.group)
        self.buffer = I.sblock_alloc_buffer((size,), self.element, align=64)

    def pack(self) -> None:
        """Emits the loops that pack it."""
        ways = {"columns": self._copy, "steps": self._turn}
        ways.get(self.source.contiguous, self._gather)()

    def load(self, panel: Expr, width: Index, step: Index, j: Index) -> Expr:
        """One vector of columns of a panel that begins with the vector `panel`."""
        return self.buffer[ex.ramp(self._start(panel, width, step, j), self.group)]

    def _start(self, panel: Expr, width: Index, step: Index, j: Index) -> Expr:
        return (panel * self.steps + (step * width + j)) * self.group

    def _turn(self) -> None:
        """Steps of K that lie next to each other: squares of words turn in registers.

        Behind the last column, vectors repeat it.
        """
        lanes = self.lanes
        whole, rest = _divided(self.k, self.kr)
        squares, left = _divided(whole, lanes)

        def vector(columns: list[Expr], start: Callable[[Index], Expr]) -> None:
            def block(first: Index, count: int) -> None:
                rows = [ex.bind(self._row(key, first, count)) for key in columns]
                for i, value in enumerate(memory.transpose_block(rows)[:count]):
                    self._put(start(first + i), value)

            _each(squares, "square", lambda square: block(square * lanes, lanes))
            behind = ex.materialise(extents.as_expr(squares * lanes))
            steps: Index = self.steps - behind
            if isinstance(left, int):
                steps = int(rest > 0) if isinstance(rest, int) else steps
                if left:
                    block(behind, left)
                behind = behind + left
            _each(steps, "step", lambda step: self._gather_step(columns, behind + step, start))

        self._for_vectors(vector)

    def _gather(self) -> None:
        """Elements that lie anywhere, one by one."""

        def vector(columns: list[Expr], start: Callable[[Index], Expr]) -> None:
            with I.serial(self.steps) as step, opaque_block("step"):
                self._gather_step(columns, step, start)

        self._for_vectors(vector)

    def _for_vectors(self, body: Callable[[list[Expr], Callable[[Index], Expr]], None]) -> None:
        """Runs `body(columns, step of K -> where its words lie)` for each vector of columns."""
        lanes = self.lanes
        with opaque_block("pack"), I.serial(self.vectors) as vector, opaque_block("columns"):
            panel, width = self._panel_of(vector)
            j, last = vector - panel, self.n - 1
            columns = [ex.bind(tirx.Min(vector * lanes + lane, last)) for lane in range(lanes)]
            body(columns, lambda step: self._start(panel, width, step, j))

    def _element(self, column: Expr, step: Index) -> Expr:
        """An element in memory."""
        return self.source.buffer[tuple(self.source.index(step, column))]

    def _gather_step(self, columns: list[Expr], step: Expr, start: Callable[[Index], Expr]) -> None:
        """One step of K of a vector of columns; 0 behind the last element of K."""
        kr, lanes, place = self.kr, self.lanes, ex.bind(start(step))
        if kr == 1:
            for lane, column in enumerate(columns):
                value = self._bits(self._element(column, step))
                I.buffer_store(self.buffer, value, [place + lane])
            return
        stored = "uint16" if self.dtype == "bfloat16" else self.dtype
        held = I.sblock_alloc_buffer((lanes,), stored, align=64)
        parts = []
        for i in range(kr):
            row = ex.bind(step * kr + i)
            there = ex.bind(tirx.Min(row, self.k - 1))
            for lane, column in enumerate(columns):
                value = bfloat16.operand_bits(self._element(column, there))
                I.buffer_store(held, value, [lane])
            vector = ex.bind(held[ex.ramp(0, lanes)])
            if self.dtype == "bfloat16":
                vector = bfloat16.from_bits(vector)
            found = self._bits(vector)
            inside = ex.splat(row < self.k, lanes)
            parts.append(ex.bind(tirx.Select(inside, found, ex.like(0, found))))
        self._put(place, merged(parts, kr))

    def _copy(self) -> None:
        """Columns that lie next to each other: rows are copied, kr of them made words.

        Behind the last column there are zeros.
        """
        lanes, kr, width = self.lanes, self.kr, self.width
        whole, left = _divided(self.n, lanes)
        panels, side = _divided(whole, width)

        def rows(step: Expr, valid: int) -> None:
            def put(panel: Expr, wide: Index, j: Index, lanes_there: Index) -> None:
                columns = Columns((panel + j) * lanes, lanes, lanes_there)
                self._copied(step, valid, columns, self._start(panel, wide, step, j))

            def panel(number: Expr) -> None:
                for j in range(width):
                    put(ex.bind(number * width), width, j, lanes)

            _each(panels, "panel", panel)
            first = ex.materialise(extents.as_expr(panels * width))
            narrow = ex.materialise(extents.as_expr(self.vectors - panels * width))
            _each(side, "side", lambda number: put(first, narrow, number, lanes))
            if isinstance(left, int):
                if left:
                    put(first, narrow, side, left)
                return
            with I.If(left > 0), I.Then(), opaque_block("cut"):
                put(first, narrow, side, left)

        with opaque_block("pack"):
            steps, rest = _divided(self.k, kr)
            _each(steps, "step", lambda step: rows(step, kr))
            last = ex.materialise(extents.as_expr(steps))
            if isinstance(rest, int):
                if rest:
                    rows(last, rest)
                return
            with I.If(rest > 0), I.Then():
                choose(rest, range(1, kr), lambda valid: rows(last, valid))

    def _panel_of(self, vector: Expr) -> tuple[Expr, Expr]:
        """The first vector of the panel of a vector, and the panel's width."""
        panel = ex.materialise(I.floordiv(vector, self.width) * self.width)
        most = tirx.const(self.width, "int32")
        return panel, ex.materialise(tirx.Min(most, self.vectors - panel))

    def _row(self, key: Expr, first: Index, words: int) -> Expr:
        """Some words of a column, in a vector of words of which the others hold anything."""
        if self.dtype == "float32" and self.element == "float32":
            (start,) = self.source.index(first, key)
            columns = Columns(start, self.lanes, words)
            return load_vector(self.source.buffer, "float32", [], columns)
        count = words * self.kr
        (start,) = self.source.index(first * self.kr, key)
        elements = self.source.buffer[ex.ramp(start, count)]
        if self.dtype == "float32" and count % self.lanes:
            # Rounding part of a vector takes LLVM seconds.
            elements = widened(elements, count + -count % self.lanes)
        row = self._bits(elements)
        if self.element == "float32":
            return widened(row, self.lanes)
        found = ex.reinterpret_group(self.word, row, ex.lanes_of(row) // self.kr)
        return widened(found, self.lanes)

    def add_up(self) -> None:
        """Adds up the elements of each column."""
        self.sums = I.sblock_alloc_buffer((self.columns * self.lanes,), "int32", align=64)
        with opaque_block("sums"), I.serial(self.vectors) as vector, opaque_block("columns"):
            panel, width = self._panel_of(vector)
            j = vector - panel
            self._add_up(vector, self.steps, lambda step: self._start(panel, width, step, j))


class OpenPanel(OpenOperand):
    """B [k, n], columns next to each other, of which one panel at a time is packed."""

    def _start(self, panel: Index, width: Index, step: Index, j: Index) -> Expr:
        return extents.as_expr(step * width + j) * self.group

    def pack_panel(self, panel: Expr, width: int) -> None:
        """Packs the panel that begins with a vector; behind the last column there are zeros."""
        lanes, kr = self.lanes, self.kr
        steps, rest = _divided(self.k, kr)

        def rows(step: Expr, valid: int, cut: Index) -> None:
            for j in range(width):
                columns = Columns((panel + j) * lanes, lanes, cut if j == width - 1 else lanes)
                self._copied(step, valid, columns, self._start(panel, width, step, j))

        def all_rows(cut: Index) -> None:
            _each(steps, "step", lambda step: rows(step, kr, cut))
            if isinstance(rest, int) and rest:
                rows(ex.materialise(extents.as_expr(steps)), rest, cut)

        left = ex.materialise(tirx.Min(self.n - (panel + (width - 1)) * lanes, lanes))
        with opaque_block("pack"):
            branch(left < lanes, lambda: all_rows(left), lambda: all_rows(lanes))


def _each(count: Index, name: str, body: Callable[[Expr], None]) -> None:
    """A loop, unless it is known to have no turn; a block of that name is around its body."""
    if not isinstance(count, int) or count:
        with I.serial(count) as number, opaque_block(name):
            body(number)


def _divided(size: Index, by: int) -> tuple[Index, Index]:
    """(quotient, remainder) of a size, each in a register."""
    if isinstance(size, int):
        return divmod(size, by)
    if by == 1:
        return size, 0
    return ex.materialise(I.floordiv(size, by)), ex.materialise(I.floormod(size, by))
