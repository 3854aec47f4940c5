"""Activations of a product: the kernel reads A directly, or from a staged copy of a block.

A block of rows is staged if the kernel cannot multiply its elements in place: f32 to be quantised
or rounded to 16 bits, rows whose length is no multiple of kr (64 bytes for AMX tiles), elements
that are not contiguous, rows of tiles at distances at which they would displace each other in L1
(`core.extents`). Staging costs one pass over the block for all columns of the weight. If only the
last step of K is incomplete, AMX tiles need a copy of that step alone (`tail`). Signed 8-bit
activations are shifted by 128 for kernels that multiply u8 by s8 (see zero_points.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx
from tvm.sym import Analyzer

from microkernels.base.arrays import SHIFT
from microkernels.microkernel import Microkernel
from microkernels.tile import Address
from microkernels.vector import bfloat16
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import emission, extents
from tir_schedules.core.loop_nest import LaneTotals
from tir_schedules.epilogue.epilogue import Columns, load_vector, store_vector
from tir_schedules.epilogue.quantize_steps import Number, emit_quantize

from .staged_panels import WideProduct
from .tile_products import OperandA

Read = Callable[[Expr, Columns], Expr]


def read_flat(buffer: Expr, dtype: str, place: Callable[[Expr, Index], Index]) -> Read:
    """A reader of a flat buffer, in which the element of a row and a column is at `place`."""

    def read(row: Expr, columns: Columns) -> Expr:
        start = place(row, columns.start)
        if columns.lanes == 1:
            return buffer[start]
        return load_vector(buffer, dtype, [], Columns(start, columns.lanes, columns.valid))

    return read


@dataclass(frozen=True)
class InPlace:
    """Rows in memory, for kernels that take addresses.

    Attributes
    ----------
    buffer : Buffer
        Where they are.
    index : callable
        (row, column of K) -> indices of an element.
    pitch : int
        Elements from one row to the next.
    padded : bool
        Whether zeros fill the rows up to whole steps of tiles.
    crowded : bool
        Whether rows lie at a distance at which tiles should read a copy.
    """

    buffer: Expr
    index: Callable[[Expr, Index], Sequence[Index]]
    pitch: int
    padded: bool = False
    crowded: bool = False


# Bytes of the staged block of a dynamic K, which every panel of B reads again: half of a small L2.
_BLOCK_BYTES = 128 << 10


@dataclass
class Activations(OperandA):
    """The A operand of one product.

    K is a number or, for vector kernels, an expression. The staged block of a dynamic K is a flat
    buffer, as the columns of a 2-D buffer must be static, and it has as many rows as fit in cache.

    Parameters
    ----------
    kernel : Microkernel
        The register tile.
    dtype : str
        Element type in memory.
    k : int or Expr
        Elements of a row.
    most_rows : int
        Rows of the largest block.
    read : callable
        (row, columns of K) -> elements in memory; with `contiguous` false, one at a time.
    contiguous : bool
        Whether the elements of a row lie next to each other.
    quantize : tuple or None
        Scale and zero point with which f32 elements become uint8.
    sums : bool
        Whether the sums of the rows are needed.
    rows : InPlace or None
        The rows in memory, if all are equally far apart.
    wide : WideProduct or None
        What multiplies them, if they are staged in a wider type.
    vectors : bool
        Whether rows have to be whole vectors of lanes * kr elements.
    room : Expr or int
        `extents.allocated` of a dynamic k.
    tile_rows : int
        Rows of a register tile, if k is dynamic; a block has at least as many.

    Attributes
    ----------
    block_rows : int or Expr
        Most rows that `begin` takes.
    """

    kernel: Microkernel
    dtype: str
    k: Any
    most_rows: int
    read: Read
    contiguous: bool = True
    quantize: tuple[Number, Number] | None = None
    sums: bool = False
    rows: InPlace | None = None
    wide: WideProduct | None = None
    vectors: bool = False
    room: Index = 0
    tile_rows: int = 1

    def __post_init__(self) -> None:
        kernel, wide = self.kernel, self.wide
        self.element = kernel.operand_dtype if wide is None else wide.dtype
        self.vector = kernel.lanes * kernel.kr
        self.padded = kernel.by_tiles and self.rows is not None and self.rows.padded
        as_is = kernel.kr == 1 and self.quantize is None and kernel.a_dtype == "float32"
        self.staged = wide is not None or not (as_is or self._fits())
        self.block: Expr = tirx.const(0, "int32")
        self.block_rows: Index = self.most_rows
        self.pitch: Any = 0
        if not isinstance(self.k, int):
            if self.staged:
                self._make_room()
        else:
            self.pitch = self.vector if self.tail else math.ceil(self.k / self.vector) * self.vector
            if kernel.by_tiles:
                self.pitch = extents.uncrowded(self.pitch, int(DataType(kernel.a_dtype).itemsize))
            if self.staged or self.tail:
                shape = self.most_rows, self.pitch
                self.buffer = I.sblock_alloc_buffer(shape, self.element, align=64)
        self.totals: Expr | None = None
        if self.sums:
            self.totals = I.sblock_alloc_buffer((self.most_rows,), "int32")
        # Whether anything happens before a block of rows is multiplied.
        self.begins = self.staged or self.tail or self.sums

    def _fits(self) -> bool:
        """Whether the kernel reads elements in place, or all but the `tail` of tiles."""
        kernel, k, rows = self.kernel, self.k, self.rows
        if not isinstance(k, int) or not self.contiguous or self.quantize is not None:
            return False
        matching = not converts(self.dtype, kernel)
        if kernel.by_tiles:
            in_place = rows is not None and not rows.crowded
            matching = matching and self.dtype == kernel.a_dtype and in_place
        steps = kernel.steps(k) * kernel.kr == k or self.padded
        whole = k % self.vector == 0 if self.vectors else steps
        self.tail = kernel.by_tiles and matching and not whole and k > self.vector
        return matching and (whole or self.tail)

    def _make_room(self) -> None:
        """Allocates the block of rows of dynamic length, and computes how many rows it has."""
        vector, tile_rows = self.vector, self.tile_rows
        elements = _BLOCK_BYTES // int(DataType(self.element).itemsize)
        self.pitch = ex.materialise(emission.ceil_div(self.k, vector) * vector)
        tiles = I.floordiv(elements, tirx.Max(self.pitch, vector) * tile_rows)
        most = tirx.const(self.most_rows, "int32")
        self.block_rows = ex.materialise(tirx.Min(tirx.Max(tiles, 1) * tile_rows, most))
        tile = emission.ceil_div(self.room, vector) * (vector * tile_rows)
        size = tirx.Max(tile, tirx.const(elements, "int32"))
        self.buffer = I.sblock_alloc_buffer((size,), self.element, align=64)

    def _place(self, row: Expr, column: Index) -> list[Any]:
        """The index of an element of a row in the staged block."""
        return [row, column] if isinstance(self.pitch, int) else [row * self.pitch + column]

    def load(self, row: Expr, step: Index) -> Expr | Address:
        """kr elements of a row, as the kernel's `emit` takes them."""
        kr = self.kernel.kr
        if self.wide is not None:
            return self.wide.spread(self.buffer, [self.within(row), step * self.wide.kernel.kr])
        last = self.tail and isinstance(step, int)  # other steps are variables
        if self.staged or last:
            column = tirx.const(0, "int32") if last else step * kr
            place = self._place(self.within(row), column)
            return self.kernel.a_operand(self.buffer, place, self.pitch)
        if self.kernel.by_tiles:
            assert self.rows is not None
            index = self.rows.index(row, step * kr)
            return self.kernel.a_operand(self.rows.buffer, index, self.rows.pitch)
        return self.kernel.spread(self._as_operand(self.read(row, Columns(step * kr, kr, kr))))

    def operand(self, row: Expr, columns: Columns) -> Expr:
        """Elements of a row of the block as the kernel multiplies them."""
        if self.staged:
            *leading, start = self._place(self.within(row), columns.start)
            place = Columns(start, columns.lanes, columns.valid)
            return load_vector(self.buffer, self.element, leading, place)
        return self._as_operand(self.read(row, columns))

    def begin(self, block: Expr, rows: Index) -> None:
        """Stages a block of rows and adds up its rows, if the kernel needs that."""
        self.block = block
        if not self.begins:
            return
        with emission.opaque_block("stage"), I.serial(rows) as row:
            if self.staged:
                self._stage(block + row, row, 0)
            if self.tail:
                self._stage(block + row, row, self.k // self.pitch * self.pitch)
            if self.sums:
                self._sum(block + row, row)

    def row_sum(self, row: Index) -> Expr:
        """The sum of a row's elements, as the kernel multiplies them; int32."""
        assert self.totals is not None
        return self.totals[self.within(row)]

    def within(self, row: Index) -> Expr:
        """A row's number within its block, simplified: TVM aborts on differences under an If."""
        return Analyzer().simplify(row - self.block)

    def _as_operand(self, value: Expr) -> Expr:
        """Elements in memory as the kernel multiplies them."""
        return as_operand(value, self.dtype, self.kernel, self.quantize)

    def _stage(self, row: Expr, to: Expr, first: int) -> None:
        """Copies one row, from column `first` on, to the staged block; pads it with zeros."""
        lanes = self.kernel.lanes * (1 if converts(self.dtype, self.kernel) else self.kernel.kr)
        if not self.contiguous:
            lanes = 1

        def zeros(start: Index) -> None:
            *leading, place = self._place(to, start)
            zero = ex.constant(0, self.element, lanes)
            I.buffer_store(self.buffer, zero, [*leading, ex.ramp(place, lanes)])

        def store(start: Expr, valid: Index) -> None:
            *leading, place = self._place(to, start)
            columns = Columns(place, lanes, valid)
            if isinstance(valid, int) and valid < lanes:
                zeros(start)
            value = self._as_operand(self.read(row, Columns(first + start, lanes, valid)))
            value = value if self.wide is None else self.wide.widen(value)
            if columns.mask is not None and not isinstance(valid, int):
                # One store: later loads would wait for a vector that two stores have written.
                value = tirx.Select(columns.mask, ex.bind(value), ex.like(0, value))
                columns = Columns(place, lanes, lanes)
            store_vector(self.buffer, value, leading, columns)

        k = self.k - first
        emission.for_vectors(k, lanes, "vector", store)
        if isinstance(k, int):
            for start in range(math.ceil(k / lanes) * lanes, self.pitch, lanes):
                zeros(start)
            return
        filled = ex.materialise(emission.ceil_div(k, lanes))
        with I.serial(I.floordiv(self.pitch, lanes) - filled) as number:
            zeros((filled + number) * lanes)

    def _sum(self, row: Expr, to: Expr) -> None:
        """The sum of one row, by the kernel's own products with ones."""
        assert self.totals is not None
        kernel = self.kernel if self.wide is None else self.wide.kernel
        lanes = kernel.lanes * kernel.kr
        total = LaneTotals(kernel.lanes, 0, dtype="int32")

        def take(start: Expr) -> None:
            if self.staged:
                *leading, place = self._place(to, start)
                value = self.buffer[(*leading, ex.ramp(place, lanes))]
            else:
                value = self._as_operand(self.read(row, Columns(start, lanes, lanes)))
            if self.wide is None:
                total.store(kernel.add_up(total[0], value))
            else:
                total.store(kernel.multiply_add(total[0], value, ex.like(1, value)))

        filled = self.staged or self.padded
        rest = 0 if filled else self.k % lanes
        whole, _ = emission.divided(self.pitch if filled else self.k, lanes)
        if not isinstance(whole, int) or whole:
            with I.serial(whole) as vector:
                take(vector * lanes)
        parts = [total.buffer[tirx.const(lane, "int32")] for lane in range(kernel.lanes)]
        while len(parts) > 1:
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
        I.buffer_store(self.totals, parts[0], [to])
        if rest:
            with I.serial(rest) as i:
                element = self.read(row, Columns(self.k - rest + i, 1, 1))
                term = ex.cast("int32", self._as_operand(element))
                I.buffer_store(self.totals, self.totals[to] + term, [to])


class Begun(OperandA):
    """Rows for which `begin` has already run, for the condition of a shortcut."""

    def __init__(self, rows: Activations) -> None:
        self.rows = rows

    def load(self, row: Expr, step: Index) -> Expr | Address:
        """See `OperandA.load`."""
        return self.rows.load(row, step)


def converts(dtype: str, kernel: Microkernel) -> bool:
    """Whether elements of A change their width on the way from memory to a kernel."""
    return dtype not in (kernel.a_dtype, "int8" if kernel.a_dtype == "uint8" else "")


def as_operand(
    value: Expr, dtype: str, kernel: Microkernel, quantize: tuple[Number, Number] | None = None
) -> Expr:
    """Elements of A in memory, of type `dtype`, as a kernel multiplies them.

    `quantize` is that of `Activations`.
    """
    if kernel.a_dtype == "float32":
        if dtype == "bfloat16":
            return bfloat16.widen(bfloat16.bits_of(value))
        return ex.cast("float32", value)
    if quantize is not None:
        return ex.cast(kernel.a_dtype, emit_quantize(value, *quantize, kernel.a_dtype))
    if (dtype, kernel.a_dtype) == ("int8", "uint8"):
        value = ex.reinterpret("uint8", value)
        return value ^ ex.like(SHIFT, value)
    if kernel.a_dtype == "bfloat16":
        return bfloat16.bits_of(value) if dtype == "bfloat16" else kernel.rounded(value)
    return kernel.rounded(value) if kernel.a_dtype == "float16" else value


_HIGH = 0x80808080 - (1 << 32)  # the highest bit of four bytes, as int32


class HighBits:
    """Emits a search for bytes beyond 127.

    Parameters
    ----------
    lanes : int
        Bytes that are searched together, a multiple of four.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.seen = I.sblock_alloc_buffer((lanes,), "uint8", align=64)

    def clear(self) -> None:
        """Begins a search."""
        I.buffer_store(self.seen, ex.constant(0, "uint8", self.lanes), [ex.ramp(0, self.lanes)])

    def add(self, value: Expr) -> None:
        """Searches `lanes` bytes."""
        everything = [ex.ramp(0, self.lanes)]
        I.buffer_store(self.seen, self.seen[tuple(everything)] | value, everything)

    def none(self) -> Expr:
        """Whether no byte was beyond 127."""
        starts = range(0, self.lanes, 4)
        fours = [ex.reinterpret_group("int32", self.seen[ex.ramp(at, 4)], 1) for at in starts]
        while len(fours) > 1:
            fours = [a | b for a, b in zip(fours[::2], fours[1::2], strict=True)]
        return tirx.EQ(fours[0] & tirx.const(_HIGH, "int32"), tirx.const(0, "int32"))


def find_high_bits(rows: Activations, first: Expr, count: Index) -> Expr:
    """Whether no byte of a block of rows, in whole vectors, is beyond 127; after `begin`."""
    search = HighBits(rows.kernel.lanes * rows.kernel.kr)
    vectors = -(-rows.k // search.lanes)
    with emission.opaque_block("find_high_bits"):
        search.clear()
        with I.serial(count) as row, I.serial(vectors) as vector:
            columns = Columns(vector * search.lanes, search.lanes, search.lanes)
            search.add(rows.operand(first + row, columns))
    return search.none()
