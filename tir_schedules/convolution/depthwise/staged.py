"""Depthwise tiles of integers and bfloat16: rows of x are staged, and their taps interleaved.

A block of channels of each row of x is copied once into a ring of rows in cache. The copy is
widened or shifted as the kernel needs it, has padding on either side, and has the order that
`interleave` takes. So no tile needs code for edges, and one multiply-add takes kr taps of a column.
A column is interleaved once for all taps of its row and all rows of the tile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import tvm.tirx.script.builder.ir as I
from tvm import tirx

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
from .interleave import Groups, interleave, staged_order, unpack_llvm_ir
from .results import Accumulators, Corner, DepthwiseTiles, Results


class _Rows(NamedTuple):
    """Rows of results of a block of channels, of which `valid` exist.

    `lines` has the place in the ring of each row of x, by its offset from the first one.
    """

    sample: Expr
    row: Expr
    height: int
    block: Expr
    valid: int
    lines: dict[int, Expr]


@dataclass
class StagedTiles(DepthwiseTiles):
    """The tiles of a region.

    Attributes
    ----------
    region : Region
        The convolution.
    problem : DepthwiseProblem
        Its geometry.
    config : DepthwiseConfig
        Its numbers.
    kernel : Microkernel
        Its multiply-add.
    x, w : Buffer
        The image, and the weight as `DepthwiseWeight` packs it.
    inputs : dict
        The inputs after them, by `zero_point_inputs`.
    results : Results
        Where they go.
    """

    region: Region
    problem: DepthwiseProblem
    config: DepthwiseConfig
    kernel: Microkernel
    x: Expr
    w: Expr
    inputs: dict[str, Expr]
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
        axis, columns = self.problem.rows, self.problem.columns
        self.lines = 1 << (axis.span(self.config.rows) - 1).bit_length()  # of the ring
        self.width: Index = columns.span(columns.outputs)
        if columns.is_open:
            self.width = ex.materialise(self._open_width(extent(columns.outputs)))
        self.dtype = "uint8" if self.kernel.kr == 4 else "int16"
        if not is_integer(self.region):
            self.dtype = "uint16"

    @property
    def chunks(self) -> int:
        """Chunks of blocks of channels."""
        return -(-self.problem.channels // (self.block * self.config.blocks))

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """The scope in which `bands` may be emitted: the ring is there, with its margins."""
        self._allocate()
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
        """One band of rows: what of x it needs more than the one before is staged first."""
        axis, rows = self.problem.rows, self.config.rows
        top, span, fresh = band * (rows * axis.stride), axis.span(rows), rows * axis.stride
        ring = ex.bind(self._place(number))
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

        row = ex.materialise(row) if axis.is_open else row
        if rows == 1 or not (axis.is_open or axis.outputs % rows):
            rows_from(row, rows)
        elif axis.is_open:
            left = ex.materialise(extent(axis.outputs) - row)
            emission.branch(left >= rows, lambda: rows_from(row, rows), one_by_one)
        else:
            whole, rest = divmod(axis.outputs, rows)
            emission.branch(
                band < whole, lambda: rows_from(row, rows), lambda: rows_from(row, rest)
            )

    def _columns(self, rows: _Rows) -> None:
        """All columns of some rows.

        Of a dynamic number: whole tiles, of which the last one may overlap the one before. A line
        shorter than a tile has columns that are not stored.
        """
        size, outputs = self.config.columns, extent(self.problem.columns.outputs)
        if isinstance(outputs, int):
            emission.for_groups(
                balanced(outputs, size), lambda start, size: self._tile(rows, start, size)
            )
            return
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
            tile.fill(lambda j: self._start(block * kr + j))
            users = axis.used_columns(columns)
            numbers = {pair: number for number, pair in enumerate(self.groups.pairs)}
            for group, offsets in enumerate(self.groups.offsets):
                pairs = [
                    pair for pair in self.groups.pairs if pair[1] == group and pair[0] < rows.height
                ]
                for offset, uses in users.items() if pairs else ():
                    place = (corner.column * axis.stride + offset) * self.block
                    taken = [
                        ex.bind(self.stage[ex.ramp(lines[y] + place, self.block)])
                        if y in lines
                        else ex.constant(0, self.dtype, self.block)
                        for y in offsets
                    ]
                    taken += [ex.constant(0, self.dtype, self.block)] * (kr - len(taken))
                    for j, x in enumerate(interleave(taken, wanted)):
                        x = ex.bind(x)
                        for pair in pairs:
                            for k, tap in uses:
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

    def _start(self, vector: Expr) -> Expr:
        if self.start is None or not self.start.needed:
            return ex.constant(0, self.kernel.acc_dtype, self.kernel.lanes)
        return ex.bind(self.start(tirx.const(0, "int32"), vector))

    def _column_term(self, vector: Index) -> Expr:
        lanes = self.kernel.lanes
        first = self.groups.elements(self.problem, self.block) + vector * (4 * lanes)
        return ex.reinterpret_group("int32", self.w[ex.ramp(first, 4 * lanes)], lanes)

    # The ring of staged rows. Rows of padded x lie one behind the other, each a block of channels
    # for every column; a row comes to the place of the one that is as many rows before it as the
    # ring has lines.

    def _allocate(self) -> None:
        """Makes room, for every block of channels of a chunk."""
        columns, width = self.problem.columns, self.width
        if columns.is_open:
            width = self._open_width(allocated(columns.outputs))
        size = width * (self.config.blocks * self.lines * self.block)
        self.stage = I.sblock_alloc_buffer((size,), self.dtype, align=64)

    def _place(self, number: Expr) -> Expr:
        """Where the rows of a block of channels begin."""
        return number * (self.width * (self.lines * self.block))

    def _open_width(self, outputs: Index) -> Expr:
        """Columns of padded x that tiles read; the first tile may be wider than the result."""
        least = tirx.const(self.config.columns, "int32")
        axis = self.problem.columns
        return (tirx.Max(outputs, least) - 1) * axis.stride + axis.span(1)

    def _line(self, row: Expr) -> Expr:
        """Where a row of padded x begins in the ring."""
        return I.bitwise_and(row, self.lines - 1) * (self.width * self.block)

    def _padding(self) -> Expr:
        """One element of what lies outside of x."""
        if self.start is None:
            return tirx.const(0, self.dtype)
        if self.start.zero_points.a_runtime:
            return ex.cast(self.dtype, self.start.a_zero_point())
        return ex.scalar(self.start.zero_points.a, self.dtype)

    def _fill_margins(self) -> None:
        """Fills the columns of the ring before and after x; the first column if there are none.

        TVM moves a buffer that is used in a loop alone into the loop, and gives its memory to
        others that are used after it there. The ring is needed from one iteration to the next.
        """
        axis = self.problem.columns
        value = ex.bind(ex.splat(self._padding(), self.block))
        before = emission.smallest(self.width, axis.before)
        after = emission.named(emission.largest(self.width - axis.before - extent(axis.extent), 0))
        if not axis.is_open and axis.before <= 0 and after <= 0:
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
        """Stages one row of padded x, but for the columns outside."""
        rows, columns = self.problem.rows, self.problem.columns
        line = ex.bind(ring + self._line(row) + columns.before * self.block)
        # Columns of x that windows reach.
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

        # The last band may be lower than the others, and stages as much.
        if not rows.is_open and rows.before == 0:
            lines = -(-rows.outputs // self.config.rows) * self.config.rows
            if rows.span(lines) <= rows.extent:
                fill(copy)
                return
        inside = tirx.all(row >= rows.before, row < rows.before + extent(rows.extent))

        def outside() -> None:
            padding = ex.bind(ex.splat(self._padding(), self.block))
            fill(lambda _column: padding)

        emission.branch(inside, lambda: fill(copy), outside)
