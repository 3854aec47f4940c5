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

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tvm_compat import llvm_functions
from microkernels.vector.expressions import (
    Expr,
    bind,
    cast,
    constant,
    materialise,
    ramp,
    reinterpret_group,
    splat,
)
from tir_schedules.core.blocking import balanced
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import extent
from tir_schedules.core.group_loops import for_groups
from tir_schedules.core.integer_product import is_integer
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, load_vector
from tir_schedules.product.activations import as_operand
from tir_schedules.product.zero_points import Start, quantize_parameters

from .config import DepthwiseConfig
from .interleave import interleave, staged_order, unpack_llvm_ir
from .problem import DepthwiseProblem
from .results import Accumulators, Corner, Results
from .strips import used_columns
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
        axis, columns = self.problem.rows, self.problem.columns
        self.ring = 1 << (axis.span(self.config.rows) - 1).bit_length()
        self.width = columns.span(columns.outputs)
        self.dtype = "uint8" if self.kernel.kr == 4 else "int16"
        if not is_integer(self.region):
            self.dtype = "uint16"
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

    @property
    def items(self) -> Expr | int:
        """Pieces of work, which threads share: a band of rows of some blocks each."""
        return extent(self.problem.batch) * (self._chunks * self._bands)

    @property
    def _chunks(self) -> int:
        return -(-self.problem.channels // (self.block * self.config.blocks))

    @property
    def _bands(self) -> int:
        return -(-self.problem.rows.outputs // self.config.rows)

    def share(self, first: Expr, last: Expr) -> None:
        """The items from `first` to `last`."""
        # Loops begin at 0: TVM loses what others begin with in the bounds of loops inside.
        with self.prepared(), I.serial(last - first) as number:
            item = bind(first + number)
            band = I.floormod(item, self._bands)
            rest = I.floordiv(item, self._bands)
            batch = extent(self.problem.batch)
            sample, chunk = I.floormod(rest, batch), I.floordiv(rest, batch)
            if not isinstance(batch, int):
                sample, chunk = materialise(sample), materialise(chunk)
            begins = tirx.any(tirx.EQ(number, 0), tirx.EQ(band, 0))
            self._blocks(sample, band, chunk, begins)

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """The scope in which `bands` may be emitted: the ring is there, with its margins."""
        self.stage = I.sblock_alloc_buffer(
            (self.config.blocks * self.ring * self.width * self.block,), self.dtype, align=64
        )
        unpacking = unpack_llvm_ir(self.dtype, self.kernel.kr, self.block)
        with llvm_functions(self.kernel.llvm_ir, unpacking):
            self._margins()
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
        ring = bind(number * (self.ring * self.width * self.block))
        if span > fresh:
            with I.If(begins), I.Then(), I.serial(span - fresh) as line:
                self._stage_row(sample, top + line, ring, block, valid)
        with I.serial(min(fresh, span)) as line:
            self._stage_row(sample, top + (line + max(0, span - fresh)), ring, block, valid)
        rest = axis.outputs % rows
        row, zero = band * rows, tirx.const(0, "int32")
        if not rest:
            self._columns(Corner(sample, row, zero), rows, ring, block, valid)
            return
        with I.If(band < axis.outputs // rows):
            with I.Then():
                self._columns(Corner(sample, row, zero), rows, ring, block, valid)
            with I.Else():
                self._columns(Corner(sample, row, zero), rest, ring, block, valid)

    def _columns(self, corner: Corner, rows: int, ring: Expr, block: Expr, valid: int) -> None:
        axis = self.problem.rows
        lines = {
            offset: materialise(ring + self._line(corner.row * axis.stride + offset))
            for group in self.groups.offsets
            for offset in group
            if offset < axis.span(rows)
        }
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

    def _tile(
        self,
        corner: Corner,
        rows: int,
        columns: int,
        block: Expr,
        valid: int,
        lines: dict[int, Expr],
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
                        bind(self.stage[ramp(lines[y] + place, self.block)])
                        if y in lines
                        else constant(0, self.dtype, self.block)
                        for y in offsets
                    ]
                    taken += [constant(0, self.dtype, self.block)] * (kr - len(taken))
                    for j, x in enumerate(interleave(taken, wanted)):
                        x = bind(x)
                        for pair in pairs:
                            for k, tap in uses:
                                w = self._weight(block, numbers[pair], tap, j)
                                total = self.kernel.multiply_add(tile.get(pair[0], k, j), x, w)
                                tile.set(pair[0], k, j, total)
            self.results.store(tile, corner, block * self.block, valid)

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

    def _line(self, row: Expr) -> Expr:
        """Where a row of padded x begins in the ring."""
        return I.bitwise_and(row, self.ring - 1) * (self.width * self.block)

    def _padding(self) -> Expr:
        """One element of what lies outside of x."""
        if self.start is None:
            return tirx.const(0, self.dtype)
        if self.start.zero_points.a_runtime:
            return cast(self.dtype, self.start.a_zero_point())
        return tirx.const(self.start.zero_points.a, self.dtype)

    def _margins(self) -> None:
        """Fills the columns of the ring before and after x; the first column if there are none.

        TVM moves a buffer that is used in a loop alone into the loop, and gives its memory to
        others that are used after it there. The ring is needed from one iteration to the next.
        """
        axis = self.problem.columns
        after = self.width - axis.before - axis.extent
        value = bind(splat(self._padding(), self.block))
        if axis.before <= 0 and after <= 0:
            I.buffer_store(self.stage, value, [ramp(0, self.block)])
            return
        with I.serial(self.config.blocks * self.ring) as line:
            for start, count in ((0, min(axis.before, self.width)), (self.width - after, after)):
                if count > 0:
                    with I.serial(count) as column:
                        place = (line * self.width + start + column) * self.block
                        I.buffer_store(self.stage, value, [ramp(place, self.block)])

    def _stage_row(self, sample: Expr, row: Expr, ring: Expr, block: Expr, valid: int) -> None:
        """Stages one row of padded x, but for the columns outside."""
        rows, columns = self.problem.rows, self.problem.columns
        line = bind(ring + self._line(row) + columns.before * self.block)
        count = min(columns.extent, self.width - columns.before)
        if count <= 0:
            return

        quantize = quantize_parameters(self.region, self.kernel, self.inputs)

        def fill(vector_of: Callable[[Expr], Expr]) -> None:
            with I.serial(count) as column:
                place = ramp(line + column * self.block, self.block)
                I.buffer_store(self.stage, vector_of(column), [place])

        def copy(column: Expr) -> Expr:
            pixel = self.problem.pixel(sample, row - rows.before, column)
            taken = load_vector(
                self.x,
                self.region.inputs[0].dtype,
                pixel,
                Columns(block * self.block, self.block, valid),
            )
            operand = as_operand(taken, self.region.inputs[0].dtype, self.kernel, quantize)
            return staged_order(cast(self.dtype, operand), self.kernel.kr)

        # The last band may be lower than the others, and stages as much.
        within = rows.span(self._bands * self.config.rows) <= rows.before + rows.extent
        if rows.before == 0 and within:
            fill(copy)
            return
        inside = tirx.all(row >= rows.before, row < rows.before + rows.extent)
        with I.If(inside):
            with I.Then():
                fill(copy)
            with I.Else():
                padding = bind(splat(self._padding(), self.block))
                fill(lambda _column: padding)
