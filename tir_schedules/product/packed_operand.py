"""An operand that is packed inside a kernel: by the task that reads it, or in pieces beforehand."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.arrays import SHIFT
from microkernels.microkernel import Microkernel
from microkernels.tile import Address
from microkernels.vector import bfloat16, memory
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import emission, loop_nest
from tir_schedules.core.blocking import Group, Panels
from tir_schedules.epilogue.epilogue import Columns, load_vector
from tir_schedules.epilogue.tile_results import store_columns

from .tile_products import OperandB

_LEAST_PIECE = 8  # rows, where vectors have less lanes


def element_of_packed(kernel: Microkernel) -> str:
    """The element type of what a kernel reads packed, as it is stored."""
    return "uint16" if kernel.b_dtype in ("bfloat16", "float16") else kernel.b_dtype


def widths_of(panels: Sequence[Group]) -> tuple[int, ...]:
    """The width of every panel."""
    return tuple(group.size for group in panels for _ in range(group.count))


@dataclass(frozen=True)
class StoredOperand:
    """A [K, N] operand in memory.

    Attributes
    ----------
    buffer : buffer
        Where its elements are.
    dtype : str
        Their type.
    k, n : int
        Extents.
    index : callable
        (k, column) -> index of an element.
    contiguous : str
        What lies next to each other: "columns", "steps" (of K) or "" (neither).
    """

    buffer: Expr
    dtype: str
    k: Index
    n: Index
    index: Callable[[Index, Index], list[Expr]]
    contiguous: str


def packed_room(count: int, layout: Panels) -> Expr:
    """A buffer for so many packed operands, one behind the other, in the current block."""
    element = element_of_packed(layout.kernel)
    return I.sblock_alloc_buffer((count * layout.size,), element, align=64)


@dataclass
class PackedWords:
    """What packed operands of static and dynamic sizes have in common.

    Parameters
    ----------
    source : StoredOperand
        The operand in memory.
    kernel : Microkernel
        The register tile that reads it.
    """

    source: StoredOperand
    kernel: Microkernel
    buffer: Expr = field(init=False)

    def __post_init__(self) -> None:
        kernel, self.dtype = self.kernel, self.source.dtype
        self.lanes, self.kr, self.group = kernel.lanes, kernel.kr, kernel.lanes * kernel.kr
        self.element = element_of_packed(kernel)
        bits = 16 if self.element == "uint16" else 8
        self.word = "float32" if self.element == "float32" else f"uint{bits * self.kr}"
        self.sums: Expr | None = None

    def column_sum(self, vector: Index) -> Expr:
        """The sums of one vector of columns; int32."""
        assert self.sums is not None
        return self.sums[ex.ramp(vector * self.lanes, self.lanes)]

    def _bits(self, value: Expr) -> Expr:
        """Elements in memory as the bits that a kernel multiplies; f32 as it is."""
        kernel, dtype = self.kernel, self.dtype
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


@dataclass
class PackedOperand(PackedWords, OperandB):
    """An operand packed inside the kernel: [N/nr][K/kr][nr][kr], padded with zeros.

    Elements are converted to what the kernel multiplies on the way: f32 to bfloat16 or float16,
    unsigned 8-bit integers less 128.

    Parameters
    ----------
    source : StoredOperand
        The operand in memory.
    kernel : Microkernel
        The register tile.
    panels : sequence of Group
        How the vectors of columns are cut into panels.
    shelf : Buffer or None
        Where it lies among others (`packed_room`); None: in a buffer of its own.
    number : Expr or int
        Its place there.
    by_panel : bool
        Whether there is room for one panel, which is packed right before it is read.
    """

    panels: Sequence[Group]
    shelf: Expr | None = None
    number: Index = 0
    by_panel: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        source, shelf = self.source, self.shelf
        assert isinstance(source.k, int) and isinstance(source.n, int)
        self.k, self.n = source.k, source.n
        self.layout = Panels(self.kernel, self.k, self.n, widths_of(self.panels))
        self.steps = self.layout.steps
        # Steps of K without one that is cut, and those of a piece: as many rows as a piece of
        # columns has, if these are vectors.
        self.whole_steps = self.k // self.kr
        self.piece_steps = max(1, max(self.lanes, _LEAST_PIECE) // self.kr)
        self.base: Index = 0 if shelf is None else self.number * self.layout.size
        held = self.layout
        if self.by_panel:
            held = replace(held, widths=(max(held.widths),))
        self.buffer = packed_room(1, held) if shelf is None else shelf

    def load(self, panel: Index, width: int, step: Index, j: Index) -> Expr | Address:
        """One vector of a panel, `lanes` columns of kr elements each, as `emit` takes it."""
        start = self._start(panel, width, step, j)
        return self.kernel.b_operand(self.buffer, start, width * self.group)

    def _start(self, panel: Index, width: Index, step: Index, j: Index) -> Index:
        """Where one vector of a panel begins."""
        start = self.layout.start(0 if self.by_panel else panel, width, step, j)
        return start if isinstance(self.base, int) else self.base + start

    def add_up(self) -> None:
        """Adds up the columns, by the kernel's own products with ones."""
        kernel, lanes = self.kernel, self.lanes
        sums = I.sblock_alloc_buffer((self.layout.columns,), "int32", align=64)
        self.sums = sums

        def panel(start: Index, width: int) -> None:
            total = loop_nest.LaneTotals(lanes, 0, width, "int32")
            with I.serial(self.steps) as step:
                for j in range(width):
                    group = self.buffer[ex.ramp(self._start(start, width, step, j), self.group)]
                    total.store(kernel.add_up(total[j], group), j)
            for j in range(width):
                I.buffer_store(sums, total[j], [ex.ramp((start + j) * lanes, lanes)])

        with emission.opaque_block("sums"):
            emission.for_groups(self.panels, panel)

    def pack(self) -> None:
        """Emits the loops that pack it."""
        with emission.opaque_block("pack"):
            emission.for_groups(self.panels, self._pack_panel)

    def begin_panel(self, vector: Expr, vectors: int) -> None:
        """Emits the loops that pack a panel, if there is room for one alone."""
        if self.by_panel:
            with emission.opaque_block("pack"):
                self._pack_panel(vector, vectors)

    def _pack_panel(self, panel: Index, width: int) -> None:
        if self.source.contiguous == "columns":
            if self.whole_steps:
                self._copy_steps(0, self.whole_steps, panel, width)
            self._copy_rest(panel, width)
        else:
            self._each_vector(panel, width, functools.partial(self._vector, panel, width))
        self._pad_vectors(panel, width, range(width))

    @property
    def pieces(self) -> int:
        """Into how many pieces of like size `pack_piece` cuts it: some columns, or some of K."""
        if self.source.contiguous == "columns":
            return max(1, math.ceil(self.whole_steps / self.piece_steps))
        return math.ceil(self.n / self.lanes)

    def pack_piece(self, piece: Expr) -> None:
        """Emits the loops that pack one piece of it, for several threads."""
        with emission.opaque_block("pack"):
            if self.source.contiguous != "columns":
                panel, width = self._panel_of(piece)
                j = piece - panel
                put = functools.partial(self._vector, panel, width, j)
                store_columns(self.n, self.lanes, piece, True, put)
                self._pad_vectors(panel, width, [j])
                return
            if self.whole_steps:
                first = piece * self.piece_steps
                count = tirx.Min(self.piece_steps, self.whole_steps - first)
                copy = functools.partial(self._copy_steps, first, count)
                emission.for_groups(self.panels, copy)
            with I.If(piece == self.pieces - 1), I.Then():

                def last(panel: Index, width: int) -> None:
                    self._copy_rest(panel, width)
                    self._pad_vectors(panel, width, range(width))

                emission.for_groups(self.panels, last)

    def _panel_of(self, vector: Expr) -> tuple[Index, Index]:
        """The first vector of the panel of a vector, and the panel's width."""
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
        """Zeros for the steps that only tiles have."""
        first = math.ceil(self.k / self.kr)
        if first < self.steps:
            zero = ex.constant(0, self.element, self.group)
            with I.serial(self.steps - first) as step:
                for j in vectors:
                    offset = self._start(panel, width, first + step, j)
                    I.buffer_store(self.buffer, zero, [ex.ramp(offset, self.group)])

    def _each_vector(self, panel: Index, width: int, emit: Callable[[int, Columns], None]) -> None:
        """Runs `emit(j, columns)` for every vector of a panel."""
        for j in range(width):
            store_columns(self.n, self.lanes, panel + j, j == width - 1, functools.partial(emit, j))

    def _copy_steps(self, first: Index, count: Index, panel: Index, width: int) -> None:
        """Whole steps; a row is read once for the panel: rows of a head may lie pages apart."""
        with I.serial(count) as step:
            at = step if isinstance(first, int) and first == 0 else first + step
            self._copy_step(panel, width, at, self.kr)

    def _copy_rest(self, panel: Index, width: int) -> None:
        """The step that is cut, if there is one."""
        if self.k % self.kr:
            last = tirx.const(self.whole_steps, "int32")
            self._copy_step(panel, width, last, self.k % self.kr)

    def _copy_step(self, panel: Index, width: int, step: Expr, valid: int) -> None:
        def put(j: int, columns: Columns) -> None:
            parts = []
            for i in range(valid):
                *leading, start = self.source.index(step * self.kr + i, columns.start)
                place = Columns(start, columns.lanes, columns.valid)
                row = load_vector(self.source.buffer, self.dtype, leading, place)
                parts.append(self._bits(row))
            self._put(self._start(panel, width, step, j), merged(parts, self.kr))

        self._each_vector(panel, width, put)

    def _vector(self, panel: Index, width: Index, j: Index, columns: Columns) -> None:
        """A vector of columns that are not next to each other: whole steps of K, and the last."""
        if self.source.contiguous == "steps":
            self._turn(panel, width, j, columns)
        elif self.whole_steps:
            with I.serial(self.whole_steps) as step:
                self._gather_step(panel, width, j, columns, step, self.kr)
        if self.k % self.kr:
            last = tirx.const(self.whole_steps, "int32")
            self._gather_step(panel, width, j, columns, last, self.k % self.kr)

    def _turn(self, panel: Index, width: Index, j: Index, columns: Columns) -> None:
        """Steps of K stored next to each other: square blocks of words transposed in registers.

        Turning pairs or quadruples of rows pays for whole words of K only.
        """
        lanes, kr, whole, word = self.lanes, self.kr, self.whole_steps, self.word

        def block(step: Expr, words: int) -> None:
            rows = []
            for i in range(lanes):
                if i >= columns.valid:
                    rows.append(ex.constant(0, word, lanes))
                    continue
                index = self.source.index(step * kr, columns.start + i)
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

        if whole >= lanes:
            with I.serial(whole // lanes) as square:
                block(square * lanes, lanes)
        if whole % lanes:
            block(tirx.const(whole - whole % lanes, "int32"), whole % lanes)

    def _gather_step(
        self, panel: Index, width: Index, j: Index, columns: Columns, step: Expr, valid: int
    ) -> None:
        """One step of K, element by element."""
        offset = self._start(panel, width, step, j)
        for lane in range(self.lanes):
            for i in range(self.kr):
                value = tirx.const(0, self.element)
                if lane < columns.valid and i < valid:
                    index = self.source.index(step * self.kr + i, columns.start + lane)
                    bits = self._bits(self.source.buffer[tuple(index)])
                    value = bits if self.element != "int8" else ex.reinterpret("int8", bits)
                I.buffer_store(self.buffer, value, [offset + lane * self.kr + i])


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
    """An exact load with as many lanes as wanted; the further ones hold anything."""
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
