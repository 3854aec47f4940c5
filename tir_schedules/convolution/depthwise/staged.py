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

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import (
    Expr,
    bind,
    constant,
    materialise,
    ramp,
    reinterpret_group,
)
from tir_schedules.core.blocking import balanced
from tir_schedules.core.emission import ceil_div, choose, for_groups, opaque_block
from tir_schedules.core.extents import extent
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region
from tir_schedules.product.zero_points import Start

from .config import DepthwiseConfig
from .results import Accumulators, Corner, DepthwiseProblem, Results
from .ring import Ring, interleave, unpack_llvm_ir, used_columns
from .weight import Groups, weight_size


@dataclass
class StagedTiles:
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
            self.region,
            self.problem,
            self.config,
            self.kernel,
            self.x,
            self.inputs,
            self.start,
        )

    @property
    def items(self) -> Expr | int:
        """Pieces of work, which threads share: a band of rows of some blocks each."""
        return extent(self.problem.batch) * (self._chunks * self._bands)

    @property
    def _chunks(self) -> int:
        return -(-self.problem.channels // (self.block * self.config.blocks))

    @property
    def _bands(self) -> Expr | int:
        outputs = extent(self.problem.rows.outputs)
        if isinstance(outputs, int):
            return -(-outputs // self.config.rows)
        return ceil_div(outputs, self.config.rows)

    def share(self, first: Expr, last: Expr) -> None:
        """The items from `first` to `last`."""
        # Loops begin at 0: TVM loses what others begin with in the bounds of loops inside.
        with self.prepared(), I.serial(last - first) as number:
            item = bind(first + number)
            band = I.floormod(item, self._bands)
            rest = I.floordiv(item, self._bands)
            if self.problem.opens_image:
                band, rest = materialise(band), materialise(rest)
            batch = extent(self.problem.batch)
            sample, chunk = I.floormod(rest, batch), I.floordiv(rest, batch)
            if not isinstance(batch, int):
                sample, chunk = materialise(sample), materialise(chunk)
            begins = tirx.any(tirx.EQ(number, 0), tirx.EQ(band, 0))
            self._blocks(sample, band, chunk, begins)

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """The scope in which `bands` may be emitted: the ring is there, with its margins."""
        self.ring.allocate()
        unpacking = unpack_llvm_ir(self.ring.dtype, self.kernel.kr, self.block)
        with llvm_functions(self.kernel.llvm_ir, unpacking):
            self.ring.fill_margins()
            yield

    def bands(self, sample: Expr, first: Expr, count: Expr, begins: Expr) -> None:
        """All channels of `count` neighbouring bands of an image, from `first` on.

        `begins` says that the bands before the first have not been computed just before: with all
        channels in one chunk the ring still holds what they staged.
        """
        with I.serial(self._chunks) as chunk, I.serial(count) as number:
            starts: Expr = tirx.EQ(number, 0)
            if self._chunks == 1:
                starts = tirx.all(starts, begins)
            self._blocks(sample, first + number, chunk, starts)

    def _blocks(self, sample: Expr, band: Expr, chunk: Expr, begins: Expr) -> None:
        """All blocks of a chunk; the last one has what is left over as well."""
        blocks = self.config.blocks
        whole, rest = divmod(self.problem.channels, self.block)
        if whole:
            most = tirx.const(blocks, "int32")
            if whole < self._chunks * blocks:
                most = tirx.Min(most, whole - chunk * blocks)
            with I.serial(most) as number:
                self._band(sample, band, chunk * blocks + number, number, self.block, begins)
        if rest:
            last = self._chunks - 1
            with I.If(tirx.EQ(chunk, last)), I.Then():
                block, within = (tirx.const(n, "int32") for n in (whole, whole - last * blocks))
                self._band(sample, band, block, within, rest, begins)

    def _band(
        self, sample: Expr, band: Expr, block: Expr, number: Expr, valid: int, begins: Expr
    ) -> None:
        """One band of rows: what of x it needs more than the one before is staged first."""
        axis, rows = self.problem.rows, self.config.rows
        top, span, fresh = band * (rows * axis.stride), axis.span(rows), rows * axis.stride
        ring = bind(self.ring.place(number))
        if span > fresh:
            with I.If(begins), I.Then(), I.serial(span - fresh) as line:
                self.ring.stage_row(sample, top + line, ring, block, valid)
        with I.serial(min(fresh, span)) as line:
            self.ring.stage_row(sample, top + (line + max(0, span - fresh)), ring, block, valid)
        row, zero = band * rows, tirx.const(0, "int32")
        if axis.is_open:
            self._open_rows(Corner(sample, materialise(row), zero), ring, block, valid)
            return
        rest = axis.outputs % rows
        if not rest:
            self._columns(Corner(sample, row, zero), rows, ring, block, valid)
            return
        with I.If(band < axis.outputs // rows):
            with I.Then():
                self._columns(Corner(sample, row, zero), rows, ring, block, valid)
            with I.Else():
                self._columns(Corner(sample, row, zero), rest, ring, block, valid)

    def _open_rows(self, corner: Corner, ring: Expr, block: Expr, valid: int) -> None:
        """A band of an open number of rows: all of them at once, or row by row."""
        rows = self.config.rows
        if rows == 1:
            self._columns(corner, 1, ring, block, valid)
            return
        left = materialise(extent(self.problem.rows.outputs) - corner.row)
        with I.If(left >= rows):
            with I.Then():
                self._columns(corner, rows, ring, block, valid)
            with I.Else(), I.serial(left) as number:
                row = materialise(corner.row + number)
                self._columns(Corner(corner.sample, row, corner.column), 1, ring, block, valid)

    def _columns(self, corner: Corner, rows: int, ring: Expr, block: Expr, valid: int) -> None:
        axis = self.problem.rows
        lines = {
            offset: materialise(ring + self.ring.line(corner.row * axis.stride + offset))
            for group in self.groups.offsets
            for offset in group
            if offset < axis.span(rows)
        }
        if self.problem.columns.is_open:
            self._open_columns(corner, rows, block, valid, lines)
            return
        for_groups(
            balanced(self.problem.columns.outputs, self.config.columns),
            lambda start, size: self._tile(
                Corner(corner.sample, corner.row, corner.column + start),
                rows,
                size,
                block,
                valid,
                lines,
            ),
        )

    def _open_columns(
        self, corner: Corner, rows: int, block: Expr, valid: int, lines: dict[int, Expr]
    ) -> None:
        """Columns whose number is known at run time only: whole tiles, of which the last one may
        overlap the one before. A line shorter than a tile has columns that are not stored.
        """
        size = self.config.columns
        outputs = extent(self.problem.columns.outputs)
        assert not isinstance(outputs, int)
        last = materialise(tirx.Max(outputs - size, tirx.const(0, "int32")))
        short = materialise(tirx.Cast("int32", outputs < size))
        with I.serial(ceil_div(outputs, size)) as number, opaque_block("columns"):
            first = materialise(tirx.Min(number * size, last))
            start = Corner(corner.sample, corner.row, first)

            def tile(is_short: int) -> None:
                stored = outputs if is_short else None
                self._tile(start, rows, size, block, valid, lines, stored)

            choose(short, range(2 if size > 1 else 1), tile)

    def _tile(
        self,
        corner: Corner,
        rows: int,
        columns: int,
        block: Expr,
        valid: int,
        lines: dict[int, Expr],
        stored: Expr | None = None,
    ) -> None:
        kr, lanes = self.kernel.kr, self.kernel.lanes
        wanted = -(-valid // lanes)
        axis = self.problem.columns
        with opaque_block("tile"):
            tile = Accumulators(rows, columns, wanted, lanes, self.kernel.acc_dtype)
            tile.fill(lambda j: self._start(block * kr + j))
            users = used_columns(axis.stride, axis.dilation, axis.taps, columns)
            numbers = {pair: number for number, pair in enumerate(self.groups.pairs)}
            for group, offsets in enumerate(self.groups.offsets):
                pairs = [pair for pair in self.groups.pairs if pair[1] == group and pair[0] < rows]
                for offset, uses in users.items() if pairs else ():
                    place = (corner.column * axis.stride + offset) * self.block
                    taken = [
                        bind(self.ring.stage[ramp(lines[y] + place, self.block)])
                        if y in lines
                        else constant(0, self.ring.dtype, self.block)
                        for y in offsets
                    ]
                    taken += [constant(0, self.ring.dtype, self.block)] * (kr - len(taken))
                    for j, x in enumerate(interleave(taken, wanted)):
                        x = bind(x)
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
            return constant(0, self.kernel.acc_dtype, self.kernel.lanes)
        return bind(self.start(tirx.const(0, "int32"), vector))

    def _column_term(self, vector: Expr | int) -> Expr:
        lanes = self.kernel.lanes
        first = weight_size(self.problem, self.config, self.kernel) + vector * (4 * lanes)
        return reinterpret_group("int32", self.w[ramp(first, 4 * lanes)], lanes)
