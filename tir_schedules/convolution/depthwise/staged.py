"""Depthwise tiles of integers and bfloat16: rows of x are staged, and their taps interleaved.

A block of channels of each row of x is copied once into a ring of rows in cache. The copy is
widened or shifted as the kernel needs it, has padding on either side, and has the order that
`interleave` takes. So no tile needs code for edges, and one multiply-add takes kr taps of a column.
A column is interleaved once for all taps of its row and all rows of the tile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.microkernel import Microkernel
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core.blocking import balanced
from tir_schedules.core.emission import ceil_div, choose, for_groups, opaque_block
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region
from tir_schedules.product.zero_points import Start

from .config import DepthwiseConfig, DepthwiseProblem
from .results import Accumulators, Corner, DepthwiseTiles, Results
from .ring import Ring, interleave, unpack_llvm_ir
from .weight import Groups


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
        The image, and the weight as `convolution.depthwise.weight` packs it.
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
        self.ring = Ring(
            self.region, self.problem, self.config, self.kernel, self.x, self.inputs, self.start
        )

    @property
    def chunks(self) -> int:
        """Chunks of blocks of channels."""
        return -(-self.problem.channels // (self.block * self.config.blocks))

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """The scope in which `bands` may be emitted: the ring is there, with its margins."""
        self.ring.allocate()
        unpacking = unpack_llvm_ir(self.ring.dtype, self.kernel.kr, self.block)
        with llvm_functions(self.kernel.llvm_ir, unpacking):
            self.ring.fill_margins()
            yield

    def band(self, sample: Expr, band: Expr, chunk: Expr, begins: Expr) -> None:
        """All blocks of a chunk; the last one has what is left over as well."""
        blocks = self.config.blocks
        whole, rest = divmod(self.problem.channels, self.block)
        if whole:
            most = tirx.const(blocks, "int32")
            if whole < self.chunks * blocks:
                most = tirx.Min(most, whole - chunk * blocks)
            with I.serial(most) as number:
                self._band(sample, band, chunk * blocks + number, number, self.block, begins)
        if rest:
            last = self.chunks - 1
            with I.If(tirx.EQ(chunk, last)), I.Then():
                block, within = (tirx.const(n, "int32") for n in (whole, whole - last * blocks))
                self._band(sample, band, block, within, rest, begins)

    def _band(
        self, sample: Expr, band: Expr, block: Expr, number: Expr, valid: int, begins: Expr
    ) -> None:
        """One band of rows: what of x it needs more than the one before is staged first."""
        axis, rows = self.problem.rows, self.config.rows
        top, span, fresh = band * (rows * axis.stride), axis.span(rows), rows * axis.stride
        ring = ex.bind(self.ring.place(number))
        if span > fresh:
            with I.If(begins), I.Then(), I.serial(span - fresh) as line:
                self.ring.stage_row(sample, top + line, ring, block, valid)
        with I.serial(min(fresh, span)) as line:
            self.ring.stage_row(sample, top + (line + max(0, span - fresh)), ring, block, valid)
        row = band * rows

        def rows_from(first: Expr, count: int) -> None:
            lines = {
                offset: ex.materialise(ring + self.ring.line(first * axis.stride + offset))
                for group in self.groups.offsets
                for offset in group
                if offset < axis.span(count)
            }
            self._columns(_Rows(sample, first, count, block, valid, lines))

        if axis.is_open:
            row = ex.materialise(row)
            if rows == 1:
                rows_from(row, 1)
                return
            left = ex.materialise(extent(axis.outputs) - row)
            with I.If(left >= rows):
                with I.Then():
                    rows_from(row, rows)
                with I.Else(), I.serial(left) as line:
                    rows_from(ex.materialise(row + line), 1)
            return
        rest = axis.outputs % rows
        if not rest:
            rows_from(row, rows)
            return
        with I.If(band < axis.outputs // rows):
            with I.Then():
                rows_from(row, rows)
            with I.Else():
                rows_from(row, rest)

    def _columns(self, rows: _Rows) -> None:
        """All columns of some rows.

        Of a dynamic number: whole tiles, of which the last one may overlap the one before. A line
        shorter than a tile has columns that are not stored.
        """
        size, outputs = self.config.columns, extent(self.problem.columns.outputs)
        if isinstance(outputs, int):
            for_groups(balanced(outputs, size), lambda start, size: self._tile(rows, start, size))
            return
        last = ex.materialise(tirx.Max(outputs - size, tirx.const(0, "int32")))
        short = ex.materialise(tirx.Cast("int32", outputs < size))
        with I.serial(ceil_div(outputs, size)) as number, opaque_block("columns"):
            first = ex.materialise(tirx.Min(number * size, last))

            def tile(is_short: int) -> None:
                self._tile(rows, first, size, outputs if is_short else None)

            choose(short, range(2 if size > 1 else 1), tile)

    def _tile(self, rows: _Rows, column: Index, columns: int, stored: Expr | None = None) -> None:
        corner = Corner(rows.sample, rows.row, as_expr(column))
        block, valid, lines = rows.block, rows.valid, rows.lines
        kr, lanes = self.kernel.kr, self.kernel.lanes
        wanted = -(-valid // lanes)
        axis = self.problem.columns
        with opaque_block("tile"):
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
                        ex.bind(self.ring.stage[ex.ramp(lines[y] + place, self.block)])
                        if y in lines
                        else ex.constant(0, self.ring.dtype, self.block)
                        for y in offsets
                    ]
                    taken += [ex.constant(0, self.ring.dtype, self.block)] * (kr - len(taken))
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
