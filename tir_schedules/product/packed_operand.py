"""An operand that is packed inside a kernel: by the task that reads it, or in pieces beforehand."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.arrays import RANGES, SHIFT
from microkernels.microkernel import Microkernel
from microkernels.tile import Address
from microkernels.vector import bfloat16, memory
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import loop_nest
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import ceil_div, choose, divided, for_groups, opaque_block
from tir_schedules.core.extents import as_expr
from tir_schedules.core.stored_operand import EqualPanels, PanelCut, StoredOperand
from tir_schedules.epilogue.epilogue import Columns, load_vector
from tir_schedules.epilogue.tile_results import store_columns

from .tile_products import OperandB

_LEAST_PIECE = 8  # rows of a piece, if vectors have fewer lanes


def element_of_packed(kernel: Microkernel) -> str:
    """The element type in which an operand is stored packed for a kernel."""
    return "uint16" if kernel.b_dtype in ("bfloat16", "float16") else kernel.b_dtype


def packed_size(kernel: Microkernel, k: Index, n: Index) -> Any:
    """Elements of a packed operand of K and N."""
    steps: Index = kernel.steps(k) if isinstance(k, int) else ceil_div(k, kernel.kr)
    return steps * kernel.kr * ceil_div(n, kernel.lanes) * kernel.lanes


def packed_room(kernel: Microkernel, k: Index, n: Index, count: int = 1) -> Expr:
    """A buffer for `count` packed operands, one after the other, in the current block."""
    size = count * packed_size(kernel, k, n)
    return I.sblock_alloc_buffer((size,), element_of_packed(kernel), align=64)


@dataclass
class PackedOperand(OperandB):
    """An operand packed inside the kernel: [N/nr][K/kr][nr][kr], padded with zeros.

    Packing converts elements to what the kernel multiplies: f32 to bfloat16 or float16, unsigned
    8-bit integers to signed ones, minus 128.

    K and N are numbers or, for vector kernels, expressions. Code for a dynamic size differs in two
    places. Columns that are read one by one repeat the last column beyond the end, as a branch for
    each would cost more than reading it again. And their vectors are packed in a loop, as code for
    each vector of a panel takes long to compile.

    Parameters
    ----------
    source : StoredOperand
        The operand in memory.
    kernel : Microkernel
        The register tile.
    panels : sequence of Group, or EqualPanels
        How the vectors of columns are cut into panels; EqualPanels if N is dynamic.
    shelf : Buffer or None
        A buffer for several operands (`packed_room`); None: the operand has its own buffer.
    number : Expr or int
        The operand's place in `shelf`.
    by_panel : bool
        Whether the buffer holds a single panel, which is packed right before it is read.
    room : tuple or None
        `extents.allocated` of K and N, or of K and a panel's columns if `by_panel`; None if both
        are static.
    """

    source: StoredOperand
    kernel: Microkernel
    panels: PanelCut
    shelf: Expr | None = None
    number: Index = 0
    by_panel: bool = False
    room: tuple[Index, Index] | None = None

    def __post_init__(self) -> None:
        source, kernel = self.source, self.kernel
        self.dtype, self.k, self.n = source.dtype, source.k, source.n
        self.lanes, self.kr, self.group = kernel.lanes, kernel.kr, kernel.lanes * kernel.kr
        self.element = element_of_packed(kernel)
        bits = 16 if self.element == "uint16" else 8
        self.word = "float32" if self.element == "float32" else f"uint{bits * self.kr}"
        # Whole steps of K, elements of the incomplete last step, and all steps.
        self.whole_steps, self.cut = divided(self.k, self.kr)
        self.steps: Any
        if isinstance(self.k, int):
            self.steps = kernel.steps(self.k)
        else:
            self.steps = self.k if self.kr == 1 else ex.materialise(ceil_div(self.k, self.kr))
        # Steps of a piece of K: it has about as many rows as a vector has columns.
        self.piece_steps = max(1, max(self.lanes, _LEAST_PIECE) // self.kr)
        self.sums: Expr | None = None
        self.base: Index = 0
        if self.shelf is not None:
            self.base = self.number * packed_size(kernel, self.k, self.n)
            self.buffer = self.shelf
            return
        k, n = self.room or (self.k, self.n)
        if self.by_panel and not isinstance(self.panels, EqualPanels):
            n = max(group.size for group in self.panels) * self.lanes
        self.buffer = packed_room(kernel, k, n)

    def column_sum(self, vector: Index) -> Expr:
        """The sums of one vector of columns; int32."""
        assert self.sums is not None
        return self.sums[ex.ramp(vector * self.lanes, self.lanes)]

    def load(self, panel: Index, width: Any, step: Index, j: Index) -> Expr | Address:
        """One vector of a panel, `lanes` columns of kr elements each, as `emit` takes it."""
        start = self._start(panel, width, step, j)
        return self.kernel.b_operand(self.buffer, start, width * self.group)

    def _start(self, panel: Index, width: Index, step: Index, j: Index) -> Index:
        """Where one vector of a panel begins."""
        start = ((0 if self.by_panel else panel) * self.steps + step * width + j) * self.group
        return start if isinstance(self.base, int) else self.base + start

    def _each_panel(self, body: Callable[[Index, Index, Sequence[Index]], None]) -> None:
        """Runs `body(first vector, width, vectors)` for all panels and their vectors."""
        if not isinstance(self.panels, EqualPanels):
            for_groups(self.panels, lambda panel, width: body(panel, width, range(width)))
            return

        def narrow(panel: Expr, width: Expr) -> None:
            # The width is dynamic: `body` gets one vector at a time.
            with I.serial(width) as j, opaque_block("vector"):
                body(panel, width, [j])

        self.panels.emit(lambda panel, width: body(panel, width, range(width)), narrow)

    def add_up(self) -> None:
        """Adds up the columns, by the kernel's own products with ones."""
        kernel, lanes = self.kernel, self.lanes
        columns = ceil_div((self.room or (self.k, self.n))[1], lanes) * lanes
        sums = self.sums = I.sblock_alloc_buffer((columns,), "int32", align=64)

        def panel(start: Index, width: Index, vectors: Sequence[Index]) -> None:
            total = loop_nest.LaneTotals(lanes, 0, len(vectors), "int32")
            with I.serial(self.steps) as step:
                for slot, j in enumerate(vectors):
                    group = self.buffer[ex.ramp(self._start(start, width, step, j), self.group)]
                    total.store(kernel.add_up(total[slot], group), slot)
            for slot, j in enumerate(vectors):
                I.buffer_store(sums, total[slot], [ex.ramp((start + j) * lanes, lanes)])

        with opaque_block("sums"):
            self._each_panel(panel)

    def pack(self) -> None:
        """Emits the loops that pack the operand."""
        with opaque_block("pack"):
            if self.room is None or self.source.contiguous == "columns":
                self._each_panel(self._pack_panel)
                return
            with I.serial(self.pieces) as vector, opaque_block("vector"):
                self._pack_vector(vector)

    def begin_panel(self, vector: Expr, vectors: int) -> None:
        """Emits the loops that pack a panel, if the operand is packed panel by panel."""
        if self.by_panel:
            with opaque_block("pack"):
                self._pack_panel(vector, vectors, range(vectors))

    def _pack_panel(self, panel: Index, width: Index, vectors: Sequence[Index]) -> None:
        if self.source.contiguous == "columns":
            self._copy_steps(0, self.whole_steps, panel, width, vectors)
            self._copy_rest(panel, width, vectors)
        else:
            self._each_vector(panel, vectors, functools.partial(self._vector, panel, width))
        self._pad_vectors(panel, width, vectors)

    @property
    def pieces(self) -> Index:
        """The number of pieces for `pack_piece`, of similar size: some columns, or some of K."""
        if isinstance(self.panels, EqualPanels):
            return self.panels.vectors
        if self.source.contiguous == "columns":
            return max(1, math.ceil(self.whole_steps / self.piece_steps))
        return math.ceil(self.n / self.lanes)

    def pack_piece(self, piece: Expr) -> None:
        """Emits the loops that pack one piece, so that several threads pack the operand."""
        with opaque_block("pack"):
            if self.source.contiguous != "columns":
                self._pack_vector(piece)
                return
            first = piece * self.piece_steps
            count = tirx.Min(self.piece_steps, self.whole_steps - first)
            if self.whole_steps:
                self._each_panel(functools.partial(self._copy_steps, first, count))
            with I.If(piece == self.pieces - 1), I.Then():

                def last(panel: Index, width: Index, vectors: Sequence[Index]) -> None:
                    self._copy_rest(panel, width, vectors)
                    self._pad_vectors(panel, width, vectors)

                self._each_panel(last)

    def _pack_vector(self, vector: Expr) -> None:
        """Packs one vector of columns."""
        panel, width = self._panel_of(vector)
        j = vector - panel
        put = functools.partial(self._vector, panel, width, j)
        if isinstance(self.n, int):
            store_columns(self.n, self.lanes, vector, True, put)
        else:
            put(Columns(vector * self.lanes, self.lanes, self.lanes))
        self._pad_vectors(panel, width, [j])

    def _panel_of(self, vector: Expr) -> tuple[Index, Index]:
        """The first vector of the panel of a vector, and the panel's width."""
        if isinstance(self.panels, EqualPanels):
            return self.panels.panel_of(vector)
        *others, last = self.panels
        panel, width = _within(last, vector), tirx.const(last.size, "int32")
        for group in reversed(others):
            inside = vector < group.start + group.count * group.size
            panel = tirx.Select(inside, _within(group, vector), panel)
            width = tirx.Select(inside, tirx.const(group.size, "int32"), width)
        if not others:
            return panel, last.size
        return ex.materialise(panel), ex.materialise(width)

    def _pad_vectors(self, panel: Index, width: Index, vectors: Iterable[Index]) -> None:
        """Stores zeros in the steps that only tiles read."""
        if not self.kernel.by_tiles:
            return
        first = math.ceil(self.k / self.kr)
        if first < self.steps:
            zero = ex.constant(0, self.element, self.group)
            with I.serial(self.steps - first) as step:
                for j in vectors:
                    offset = self._start(panel, width, first + step, j)
                    I.buffer_store(self.buffer, zero, [ex.ramp(offset, self.group)])

    def _each_vector(
        self, panel: Index, vectors: Sequence[Index], emit: Callable[[Index, Columns], None]
    ) -> None:
        """Runs `emit(j, columns)` for some vectors of a panel."""
        for number, j in enumerate(vectors, 1):
            last = number == len(vectors)
            store_columns(self.n, self.lanes, panel + j, last, functools.partial(emit, j))

    def _copy_steps(
        self, first: Index, count: Index, panel: Index, width: Index, vectors: Sequence[Index]
    ) -> None:
        """Packs whole steps of a panel, and reads each row once."""
        if isinstance(count, int) and not count:
            return
        # Rows of a head may lie pages apart: a step takes all vectors of the panel from a row.
        with I.serial(count) as step:
            at = step if isinstance(first, int) and first == 0 else first + step
            self._copy_step(panel, width, vectors, at, self.kr)

    def _copy_rest(self, panel: Index, width: Index, vectors: Sequence[Index]) -> None:
        """Packs the incomplete last step, if there is one."""
        self._cut_step(functools.partial(self._copy_step, panel, width, vectors))

    def _cut_step(self, body: Callable[[Expr, int], None]) -> None:
        """Runs `body(step, elements)` for the incomplete last step, if there is one."""
        step, cut = as_expr(self.whole_steps), self.cut
        if not isinstance(cut, int):
            with I.If(cut > 0), I.Then():
                choose(cut, range(1, self.kr), lambda valid: body(step, valid))
        elif cut:
            body(step, cut)

    def _copy_step(
        self, panel: Index, width: Index, vectors: Sequence[Index], step: Expr, valid: int
    ) -> None:
        def put(j: Index, columns: Columns) -> None:
            parts = []
            for i in range(valid):
                *leading, start = self.source.index(step * self.kr + i, columns.start)
                place = Columns(start, columns.lanes, columns.valid)
                row = self._bits(load_vector(self.source.buffer, self.dtype, leading, place))
                if columns.mask is not None and not isinstance(columns.valid, int):
                    row = ex.bind(row)
                    row = tirx.Select(columns.mask, row, ex.like(0, row))
                parts.append(row)
            self._put(self._start(panel, width, step, j), merged(parts, self.kr))

        self._each_vector(panel, vectors, put)

    def _vector(self, panel: Index, width: Index, j: Index, columns: Columns) -> None:
        """Packs a vector of columns that are not contiguous, in whole steps of K, then the tail."""
        places: list[Expr | None]
        if isinstance(self.n, int):
            places = [
                as_expr(columns.start + i) if i < columns.valid else None for i in range(self.lanes)
            ]
        else:
            last = self.n - 1
            places = [ex.bind(tirx.Min(columns.start + i, last)) for i in range(self.lanes)]
        first: Index = 0
        if self.source.contiguous == "steps":
            first = self._turn(panel, width, j, places)
        gather = functools.partial(self._gather_step, panel, width, j, places)
        left = self.whole_steps - first
        if not isinstance(left, int) or left:
            with I.serial(left) as step:
                gather(step if isinstance(first, int) and first == 0 else first + step, self.kr)
        self._cut_step(gather)

    def _turn(self, panel: Index, width: Index, j: Index, places: Sequence[Expr | None]) -> Index:
        """Packs contiguous steps of K by transposing square blocks of words in registers; returns
        the number of packed steps."""
        lanes, kr, whole, word = self.lanes, self.kr, self.whole_steps, self.word

        def block(step: Expr, words: int) -> None:
            rows = []
            for place in places:
                if place is None:
                    rows.append(ex.constant(0, word, lanes))
                    continue
                index = self.source.index(step * kr, place)
                elements = self.source.buffer[(*index[:-1], ex.ramp(index[-1], words * kr))]
                rounds = self.dtype == "float32" and self.kernel.b_dtype in ("bfloat16", "float16")
                if words < lanes and rounds:
                    # Rounding part of a vector takes LLVM seconds.
                    elements = widened(elements, lanes * math.ceil(words * kr / lanes))
                row = self._bits(elements)
                if word != "float32":
                    row = ex.reinterpret_group(word, row, ex.lanes_of(row) // kr)
                rows.append(ex.bind(widened(row, lanes)))
            for i, value in enumerate(memory.transpose_block(rows)[:words]):
                self._put(self._start(panel, width, step + i, j), value)

        # Transposing pairs or quadruples pays for whole words of K only.
        squares, left = divided(whole, lanes)
        if not isinstance(squares, int) or squares:
            with I.serial(squares) as square:
                block(square * lanes, lanes)
        if not isinstance(left, int):  # a dynamic number of steps: only whole squares are packed
            return ex.materialise(as_expr(squares * lanes))
        if left:
            block(as_expr(whole - left), left)
        return whole

    def _gather_step(
        self,
        panel: Index,
        width: Index,
        j: Index,
        places: Sequence[Expr | None],
        step: Expr,
        valid: int,
    ) -> None:
        """Packs one step of K, element by element."""
        offset = self._start(panel, width, step, j)
        for lane, place in enumerate(places):
            for i in range(self.kr):
                value = tirx.const(0, self.element)
                if place is not None and i < valid:
                    index = self.source.index(step * self.kr + i, place)
                    bits = self._bits(self.source.buffer[tuple(index)])
                    value = bits if self.element != "int8" else ex.reinterpret("int8", bits)
                I.buffer_store(self.buffer, value, [offset + lane * self.kr + i])

    def _bits(self, value: Expr) -> Expr:
        """Elements in memory as the bits that a kernel multiplies; f32 as it is."""
        kernel, dtype = self.kernel, self.dtype
        if kernel.b_dtype not in RANGES and dtype not in ("float32", "bfloat16", kernel.b_dtype):
            value, dtype = ex.cast("float32", value), "float32"
        if kernel.b_dtype == "bfloat16":
            return kernel.narrow(value) if dtype == "float32" else bfloat16.bits_of(value)
        if kernel.b_dtype == "float16":
            return ex.reinterpret("uint16", kernel.rounded(value))
        if kernel.b_dtype in ("int8", "uint8"):
            value = ex.reinterpret("uint8", value)
            return value ^ ex.like(SHIFT, value) if dtype != kernel.b_dtype else value
        if ex.element_of(value) == "bfloat16":
            return bfloat16.widen(bfloat16.bits_of(value))
        return value

    def _put(self, at: Index, words: Expr) -> None:
        """Stores one vector of words, each the kr elements of a column."""
        value = words
        if self.element != "float32":
            value = ex.reinterpret_group(self.element, words, self.group)
        I.buffer_store(self.buffer, value, [ex.ramp(at, self.group)])


def merged(parts: Sequence[Expr], kr: int) -> Expr:
    """Elements of at most kr consecutive rows as words; rows that do not exist are 0."""
    if kr == 1:
        return parts[0]
    bits = int(parts[0].ty.dtype.bits)
    word = f"uint{bits * kr}"
    words = ex.cast(word, parts[0])
    for i, part in enumerate(parts[1:], 1):
        wide = ex.cast(word, part)
        words = words | (wide << ex.like(bits * i, wide))
    return words


def widened(value: Expr, lanes: int) -> Expr:
    """An exact load, extended to `lanes` lanes; the further ones hold anything."""
    given = ex.lanes_of(value)
    if given == lanes:
        return value
    value = ex.bind(value)
    if given == 1:
        return ex.splat(value, lanes)
    chosen = [tirx.const(lane, "int32") for lane in range(lanes)]
    return tirx.Shuffle([value] * math.ceil(lanes / given), chosen)


def _within(group: Group, vector: Expr) -> Expr:
    """The first vector of the panel of a group to which a vector belongs."""
    if group.count == 1:
        return tirx.const(group.start, "int32")
    return group.start + I.floordiv(vector - group.start, group.size) * group.size
