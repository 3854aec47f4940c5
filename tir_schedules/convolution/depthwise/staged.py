"""Depthwise tiles of integers and bfloat16: rows of x are staged, and their taps interleaved.

A block of channels of each row of x is copied once into a ring of rows in cache. The copy is
widened or shifted for the kernel, has padding on either side, and is in the order that `interleave`
needs. So no tile needs code for edges, and one multiply-add takes kr taps of a column. A column is
interleaved once for all taps of its row and all rows of the tile.

Rows of an image are interleaved so that one multiply-add takes kr taps of every channel:

    kr = 4    64 bytes of four rows   ->   4 vectors of 16 channels with 4 taps each
    kr = 2    32 words of two rows    ->   2 vectors of 16 channels with 2 taps each

x86's unpack instructions work within 128 bits. So a vector is staged with its groups of kr
elements in an order from which unpacking makes neighbouring channels.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.microkernel import Microkernel
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import emission
from tir_schedules.core.blocking import balanced
from tir_schedules.core.extents import allocated, as_expr, extent
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, load_vector
from tir_schedules.product.activations import as_operand
from tir_schedules.product.zero_points import Start, quantize_parameters

from .config import DepthwiseConfig, DepthwiseProblem
from .results import Accumulators, Corner, DepthwiseTiles, Results


@dataclass(frozen=True)
class Groups:
    """Rows of x in groups of kr, and the taps that use them.

    A vector of interleaved channels has kr taps of a column in every lane. A tile has R rows of
    pixels, and all of them use the same groups of kr neighbouring rows of x. A pair is a row of the
    tile with one such group; taps that this row does not use are 0.

        3x3, kr = 4, R = 2    rows 0 to 3 of x, with w0 w1 w2 0 for one result, 0 w0 w1 w2 for the
                              next
    """

    offsets: tuple[tuple[int, ...], ...]  # rows of each group, from the tile's first window on
    pairs: tuple[tuple[int, int], ...]  # (row of the tile, group), in order
    taps: dict[tuple[int, int], tuple[int | None, ...]]  # pair -> the tap of each of the kr rows

    @staticmethod
    def of(problem: DepthwiseProblem, rows: int, kr: int) -> Groups:
        """The groups of a tile with `rows` rows."""
        axis = problem.rows
        if rows == 1:
            needed = [tap * axis.dilation for tap in range(axis.taps)]
        else:
            needed = list(range(axis.span(rows)))
        offsets = tuple(tuple(needed[start : start + kr]) for start in range(0, len(needed), kr))
        taps: dict[tuple[int, int], tuple[int | None, ...]] = {}
        for row in range(rows):
            tap_of = {row * axis.stride + tap * axis.dilation: tap for tap in range(axis.taps)}
            for number, group in enumerate(offsets):
                wanted = [tap_of.get(offset) for offset in group]
                if any(tap is not None for tap in wanted):
                    taps[row, number] = tuple(wanted + [None] * (kr - len(group)))
        return Groups(offsets, tuple(taps), taps)

    def elements(self, problem: DepthwiseProblem, unit: int) -> int:
        """Elements of an interleaved weight in blocks of `unit` channels, without its terms."""
        channels = math.ceil(problem.channels / unit) * unit
        kr = len(next(iter(self.taps.values())))
        return len(self.pairs) * problem.columns.taps * channels * kr


_LANE_BITS = 128


def staged_order(vector: Expr, kr: int) -> Expr:
    """A vector of channels in the order that `interleave` takes.

    A lane of 128 bits holds kr groups of elements, one for each vector that `interleave` returns.
    """
    if kr == 1:
        return vector
    bits = int(vector.ty.dtype.bits) * ex.lanes_of(vector)
    group, lanes = _LANE_BITS // kr, bits // _LANE_BITS
    if lanes == 1:
        return vector
    words = I.reinterpret(f"int{group}x{lanes * kr}", vector)
    order = [number * lanes + lane for lane in range(lanes) for number in range(kr)]
    return I.reinterpret(str(vector.ty.dtype), ex.shuffle([ex.bind(words)], order))


def interleave(rows: Sequence[Expr], wanted: int) -> list[Expr]:
    """kr vectors in staged order as vectors of neighbouring channels, with kr taps in each lane.

    `rows` are 1, 2 or 4 vectors of one type; only the first `wanted` results are returned.
    """
    if len(rows) == 1:
        return list(rows)
    if len(rows) == 2:
        halves = range(2)[:wanted]
        return [_unpack(rows[0], rows[1], 1, half) for half in halves]
    found = []
    for half in range(2)[: (wanted + 1) // 2]:
        upper = ex.bind(_unpack(rows[0], rows[1], 1, half))
        lower = ex.bind(_unpack(rows[2], rows[3], 1, half))
        for quarter in range(2)[: wanted - 2 * half]:
            found.append(_unpack(upper, lower, 2, quarter))
    return found


def _unpack(a: Expr, b: Expr, size: int, half: int) -> Expr:
    """Groups of `size` elements, taken in turn from a half of every lane of two vectors."""
    dtype = str(a.ty.dtype)
    # Not a pure call: TVM would inline that at every use of its name.
    return I.call_extern(dtype, _name(half, size, int(a.ty.dtype.bits), ex.lanes_of(a)), a, b)


def _name(half: int, size: int, bits: int, count: int) -> str:
    return f"tvm_hybrid_unpack_{'high' if half else 'low'}_{size}_v{count}i{bits}"


def _function(half: int, size: int, bits: int, count: int) -> str:
    """The LLVM function of `_name`: one shuffle, which is one instruction of x86."""
    within = _LANE_BITS // bits
    order = [
        source * count + lane + half * within // 2 + first + element
        for lane in range(0, count, within)
        for first in range(0, within // 2, size)
        for source in range(2)
        for element in range(size)
    ]
    vector = f"<{count} x i{bits}>"
    mask = ", ".join(f"i32 {number}" for number in order)
    return f"""
define linkonce_odr {vector} @{_name(half, size, bits, count)}({vector} %a, {vector} %b) #0 {{
  %mixed = shufflevector {vector} %a, {vector} %b, <{count} x i32> <{mask}>
  ret {vector} %mixed
}}
"""


def unpack_llvm_ir(dtype: str, kr: int, count: int) -> str:
    """LLVM functions that `interleave` calls for vectors of a type; they are always inlined.

    A shuffle of 64 bytes in TIR has 64 numbers, which every pass visits. With these functions a
    kernel compiles in half the time.
    """
    bits = int(DataType(dtype).bits)
    sizes = [1 << level for level in range(kr.bit_length() - 1)]
    found = [_function(half, size, bits, count) for size in sizes for half in range(2)]
    return "".join(found) + "attributes #0 = { alwaysinline nounwind }\n" if found else ""


class _Rows(NamedTuple):
    """Rows of results for a block of channels."""

    sample: Expr
    row: Expr  # the first row
    height: int  # number of rows
    block: Expr
    valid: int  # channels of the block that exist
    lines: dict[int, Expr]  # offset of a row of x from the first one -> its place in the ring


@dataclass
class StagedTiles(DepthwiseTiles):
    """The tiles of a region that read x from a ring of staged rows."""

    region: Region
    problem: DepthwiseProblem
    config: DepthwiseConfig
    kernel: Microkernel  # its multiply-add is used
    x: Expr
    w: Expr  # the weight as `DepthwiseWeight` packs it
    inputs: dict[str, Expr]  # the inputs after the weight, by `zero_point_inputs`
    results: Results

    def __post_init__(self) -> None:
        self.groups = Groups.of(self.problem, self.config.rows, self.kernel.kr)
        self.block = self.kernel.lanes * self.kernel.kr
        self.start = None
        if is_integer(self.region):
            self.start = Start(
                self.region,
                self.kernel,
                self.inputs,
                self.problem.taps,
                self._column_term,
                lambda _row: tirx.const(0, "int32"),
            )
        self.lines = 1 << (self.problem.rows.span(self.config.rows) - 1).bit_length()  # of the ring
        self.width = emission.named(self._width(extent(self.problem.columns.outputs)))
        self.dtype = "uint8" if self.kernel.kr == 4 else "int16"
        if not is_integer(self.region):
            self.dtype = "uint16"

    @property
    def chunks(self) -> int:
        """Number of chunks of blocks of channels."""
        return -(-self.problem.channels // (self.block * self.config.blocks))

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """The scope that `bands` are emitted in: allocates the ring and fills its margins."""
        # The ring has room for every block of channels of a chunk.
        width = self._width(allocated(self.problem.columns.outputs))
        size = width * (self.config.blocks * self.lines * self.block)
        self.stage = I.sblock_alloc_buffer((size,), self.dtype, align=64)
        unpacking = unpack_llvm_ir(self.dtype, self.kernel.kr, self.block)
        with llvm_functions(self.kernel.llvm_ir, unpacking):
            self._fill_margins()
            yield

    def band(self, sample: Expr, band: Expr, chunk: Expr, begins: Expr) -> None:
        def of_block(block: Expr, number: Expr, valid: int) -> None:
            self._band(sample, band, block, number, valid, begins)

        self.over_channels(chunk, self.block, of_block)

    def _band(
        self, sample: Expr, band: Expr, block: Expr, number: Expr, valid: int, begins: Expr
    ) -> None:
        """Emits one band of rows, after staging the rows of x that the band before did not need."""
        axis, rows = self.problem.rows, self.config.rows
        top, span, fresh = band * (rows * axis.stride), axis.span(rows), rows * axis.stride
        ring = ex.bind(number * (self.width * (self.lines * self.block)))  # this block's rows
        if span > fresh:
            with I.If(begins), I.Then(), I.serial(span - fresh) as line:
                self._stage_row(sample, top + line, ring, block, valid)
        with I.serial(min(fresh, span)) as line:
            self._stage_row(sample, top + (line + max(0, span - fresh)), ring, block, valid)
        row = band * rows

        def rows_from(first: Expr, count: int) -> None:
            lines = {
                offset: ex.materialise(ring + self._line(first * axis.stride + offset))
                for group in self.groups.offsets
                for offset in group
                if offset < axis.span(count)
            }
            self._columns(_Rows(sample, first, count, block, valid, lines))

        def one_by_one() -> None:
            with I.serial(left) as line:
                rows_from(ex.materialise(row + line), 1)

        row = ex.materialise(row) if axis.is_dynamic else row
        if rows == 1 or not (axis.is_dynamic or axis.outputs % rows):
            rows_from(row, rows)
        elif axis.is_dynamic:
            left = ex.materialise(extent(axis.outputs) - row)
            emission.branch(left >= rows, lambda: rows_from(row, rows), one_by_one)
        else:
            whole, rest = divmod(axis.outputs, rows)
            emission.branch(
                band < whole, lambda: rows_from(row, rows), lambda: rows_from(row, rest)
            )

    def _columns(self, rows: _Rows) -> None:
        """Emits all columns of some rows."""
        size, outputs = self.config.columns, extent(self.problem.columns.outputs)
        if isinstance(outputs, int):
            emission.for_groups(
                balanced(outputs, size), lambda start, size: self._tile(rows, start, size)
            )
            return
        # All tiles are whole, and the last one may overlap the one before. In a line shorter than a
        # tile, surplus columns are not stored.
        last = ex.materialise(tirx.Max(outputs - size, tirx.const(0, "int32")))
        short = ex.materialise(tirx.Cast("int32", outputs < size))
        with I.serial(emission.ceil_div(outputs, size)) as number, emission.opaque_block("columns"):
            first = ex.materialise(tirx.Min(number * size, last))

            def tile(is_short: int) -> None:
                self._tile(rows, first, size, outputs if is_short else None)

            emission.choose(short, range(2 if size > 1 else 1), tile)

    def _tile(self, rows: _Rows, column: Index, columns: int, stored: Expr | None = None) -> None:
        corner = Corner(rows.sample, rows.row, as_expr(column))
        block, valid, lines = rows.block, rows.valid, rows.lines
        kr, lanes = self.kernel.kr, self.kernel.lanes
        wanted = -(-valid // lanes)
        axis = self.problem.columns
        with emission.opaque_block("tile"):
            tile = Accumulators(rows.height, columns, wanted, lanes, self.kernel.acc_dtype)
            start, nothing = self.start, ex.constant(0, self.kernel.acc_dtype, lanes)
            if start is None or not start.needed:
                tile.fill(lambda _: nothing)
            else:
                begin = functools.partial(start, tirx.const(0, "int32"))
                tile.fill(lambda j: ex.bind(begin(block * kr + j)))
            users = axis.used_columns(columns)
            numbers = {pair: number for number, pair in enumerate(self.groups.pairs)}
            for group, offsets in enumerate(self.groups.offsets):
                pairs = [
                    pair for pair in self.groups.pairs if pair[1] == group and pair[0] < rows.height
                ]
                for offset, uses in users.items() if pairs else ():
                    place = (corner.column * axis.stride + offset) * self.block
                    taken = [ex.constant(0, self.dtype, self.block)] * kr
                    for number, y in enumerate(offsets):
                        if y in lines:
                            at = ex.ramp(lines[y] + place, self.block)
                            taken[number] = ex.bind(self.stage[at])
                    for j, x in enumerate(map(ex.bind, interleave(taken, wanted))):
                        for pair, (k, tap) in itertools.product(pairs, uses):
                            w = self._weight(block, numbers[pair], tap, j)
                            total = self.kernel.multiply_add(tile.get(pair[0], k, j), x, w)
                            tile.set(pair[0], k, j, total)
            self.results.store(tile, corner, block * self.block, valid, stored)

    def _weight(self, block: Expr, pair: int, tap: int, j: int) -> Expr:
        kr, taps = self.kernel.kr, self.problem.columns.taps
        vector = ((block * len(self.groups.pairs) + pair) * taps + tap) * kr + j
        weight = self.kernel.b_operand(self.w, vector * self.block, self.block)
        assert isinstance(weight, Expr)
        return weight

    def _column_term(self, vector: Index) -> Expr:
        lanes = self.kernel.lanes
        first = self.groups.elements(self.problem, self.block) + vector * (4 * lanes)
        return ex.reinterpret_group("int32", self.w[ex.ramp(first, 4 * lanes)], lanes)

    # The ring of staged rows. Rows of padded x follow each other in the ring, each with a block of
    # channels for every column. A row replaces the row that is `lines` rows before it.

    def _width(self, outputs: Index) -> Index:
        """Columns of padded x that tiles read; the first tile may be wider than the result."""
        axis, used = self.problem.columns, emission.largest(outputs, self.config.columns)
        return (used - 1) * axis.stride + axis.span(1)

    def _line(self, row: Expr) -> Expr:
        """Where a row of padded x begins in the ring."""
        return I.bitwise_and(row, self.lines - 1) * (self.width * self.block)

    def _padding(self) -> Expr:
        """One element with the value outside of x."""
        if self.start is None:
            return tirx.const(0, self.dtype)
        if self.start.zero_points.a_runtime:
            return ex.cast(self.dtype, self.start.a_zero_point())
        return ex.scalar(self.start.zero_points.a, self.dtype)

    def _fill_margins(self) -> None:
        """Fills the columns of the ring before and after x; the first column if there are none."""
        axis = self.problem.columns
        value = ex.bind(ex.splat(self._padding(), self.block))
        before = emission.smallest(self.width, axis.before)
        after = emission.named(emission.largest(self.width - axis.before - extent(axis.extent), 0))
        # TVM moves a buffer that only a loop uses into the loop, and gives its memory to buffers
        # used after it there. But the ring is needed from one iteration to the next.
        if not axis.is_dynamic and axis.before <= 0 and after <= 0:
            I.buffer_store(self.stage, value, [ex.ramp(0, self.block)])
            return
        with I.serial(self.config.blocks * self.lines) as line:
            for start, count in ((0, before), (self.width - after, after)):
                if isinstance(count, int) and count <= 0:
                    continue
                with I.serial(count) as column:
                    place = (line * self.width + start + column) * self.block
                    I.buffer_store(self.stage, value, [ex.ramp(place, self.block)])

    def _stage_row(self, sample: Expr, row: Expr, ring: Expr, block: Expr, valid: int) -> None:
        """Stages one row of padded x, without the columns outside of x."""
        rows, columns = self.problem.rows, self.problem.columns
        line = ex.bind(ring + self._line(row) + columns.before * self.block)
        # Number of columns of x that windows reach.
        count = emission.largest(
            emission.smallest(extent(columns.extent), self.width - columns.before), 0
        )
        if isinstance(count, int) and count == 0:
            return
        dtype = self.region.inputs[0].dtype
        quantize = quantize_parameters(self.region, self.kernel, self.inputs)

        def fill(vector_of: Callable[[Expr], Expr]) -> None:
            with I.serial(count) as column:
                place = ex.ramp(line + column * self.block, self.block)
                I.buffer_store(self.stage, vector_of(column), [place])

        def copy(column: Expr) -> Expr:
            pixel = self.problem.pixel(sample, row - rows.before, column)
            channels = Columns(block * self.block, self.block, valid)
            taken = load_vector(self.x, dtype, [pixel], channels)
            operand = as_operand(taken, dtype, self.kernel, quantize)
            return staged_order(ex.cast(self.dtype, operand), self.kernel.kr)

        # The last band may be lower than the others, but stages as many rows.
        if not rows.is_dynamic and rows.before == 0:
            lines = -(-rows.outputs // self.config.rows) * self.config.rows
            if rows.span(lines) <= rows.extent:
                fill(copy)
                return
        inside = tirx.all(row >= rows.before, row < rows.before + extent(rows.extent))

        def outside() -> None:
            padding = ex.bind(ex.splat(self._padding(), self.block))
            fill(lambda _column: padding)

        emission.branch(inside, lambda: fill(copy), outside)
