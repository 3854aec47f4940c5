"""The ring of staged rows of a depthwise convolution whose taps are interleaved.

Rows of padded x lie one behind the other, each a block of channels for every column; a row comes to
the place of the one that is as many rows before it as the ring has lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, bind, cast, materialise, ramp, scalar, splat
from tir_schedules.core.extents import allocated, extent
from tir_schedules.core.integer_product import is_integer
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, load_vector
from tir_schedules.product.activations import as_operand
from tir_schedules.product.zero_points import Start, quantize_parameters

from .config import DepthwiseConfig
from .interleave import staged_order
from .problem import DepthwiseProblem


@dataclass
class Ring:
    """The rows of x that tiles of a region read.

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
    x : Buffer
        The image, as a matrix of pixels.
    inputs : dict
        The inputs after image and weight, by `zero_point_inputs`.
    start : Start or None
        Of sums of integers: it knows the value of what lies outside of x.
    """

    region: Region
    problem: DepthwiseProblem
    config: DepthwiseConfig
    kernel: Microkernel
    x: Expr
    inputs: dict[str, Expr]
    start: Start | None

    def __post_init__(self) -> None:
        axis, columns = self.problem.rows, self.problem.columns
        self.block = self.kernel.lanes * self.kernel.kr
        self.lines = 1 << (axis.span(self.config.rows) - 1).bit_length()
        self.width: Expr | int = columns.span(columns.outputs)
        if columns.is_open:
            self.width = materialise(self._open_width(extent(columns.outputs)))
        self.dtype = "uint8" if self.kernel.kr == 4 else "int16"
        if not is_integer(self.region):
            self.dtype = "uint16"

    def allocate(self) -> None:
        """Makes room, for every block of channels of a chunk."""
        columns, width = self.problem.columns, self.width
        if columns.is_open:
            width = self._open_width(allocated(columns.outputs))
        size = width * (self.config.blocks * self.lines * self.block)
        self.stage = I.sblock_alloc_buffer((size,), self.dtype, align=64)

    def place(self, number: Expr) -> Expr:
        """Where the rows of a block of channels begin."""
        return number * (self.width * (self.lines * self.block))

    def _open_width(self, outputs: Expr | int) -> Expr:
        """Columns of padded x that tiles read; the first tile may be wider than the result."""
        least = tirx.const(self.config.columns, "int32")
        axis = self.problem.columns
        return (tirx.Max(outputs, least) - 1) * axis.stride + axis.span(1)

    def line(self, row: Expr) -> Expr:
        """Where a row of padded x begins in the ring."""
        return I.bitwise_and(row, self.lines - 1) * (self.width * self.block)

    def _padding(self) -> Expr:
        """One element of what lies outside of x."""
        if self.start is None:
            return tirx.const(0, self.dtype)
        if self.start.zero_points.a_runtime:
            return cast(self.dtype, self.start.a_zero_point())
        return scalar(self.start.zero_points.a, self.dtype)

    def fill_margins(self) -> None:
        """Fills the columns of the ring before and after x; the first column if there are none.

        TVM moves a buffer that is used in a loop alone into the loop, and gives its memory to
        others that are used after it there. The ring is needed from one iteration to the next.
        """
        axis = self.problem.columns
        after = self.width - axis.before - extent(axis.extent)
        value = bind(splat(self._padding(), self.block))
        before: Expr | int = axis.before
        if isinstance(self.width, int):
            before = min(before, self.width)
        else:
            before = tirx.Min(self.width, tirx.const(axis.before, "int32"))
            after = materialise(tirx.Max(after, tirx.const(0, "int32")))
        if not axis.is_open and axis.before <= 0 and after <= 0:
            I.buffer_store(self.stage, value, [ramp(0, self.block)])
            return
        with I.serial(self.config.blocks * self.lines) as line:
            for start, count in ((0, before), (self.width - after, after)):
                if isinstance(count, int) and count <= 0:
                    continue
                with I.serial(count) as column:
                    place = (line * self.width + start + column) * self.block
                    I.buffer_store(self.stage, value, [ramp(place, self.block)])

    @property
    def _staged_columns(self) -> Expr | int:
        """Columns of x that windows reach."""
        columns = self.problem.columns
        if not isinstance(self.width, int):
            reached = self.width - columns.before
            return tirx.Max(tirx.Min(extent(columns.extent), reached), tirx.const(0, "int32"))
        return min(columns.extent, self.width - columns.before)

    def stage_row(self, sample: Expr, row: Expr, ring: Expr, block: Expr, valid: int) -> None:
        """Stages one row of padded x, but for the columns outside."""
        rows, columns = self.problem.rows, self.problem.columns
        line = bind(ring + self.line(row) + columns.before * self.block)
        count = self._staged_columns
        if isinstance(count, int) and count <= 0:
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
                [pixel],
                Columns(block * self.block, self.block, valid),
            )
            operand = as_operand(taken, self.region.inputs[0].dtype, self.kernel, quantize)
            return staged_order(cast(self.dtype, operand), self.kernel.kr)

        # The last band may be lower than the others, and stages as much.
        if not rows.is_open and rows.before == 0:
            lines = -(-rows.outputs // self.config.rows) * self.config.rows
            if rows.span(lines) <= rows.extent:
                fill(copy)
                return
        inside = tirx.all(row >= rows.before, row < rows.before + extent(rows.extent))
        with I.If(inside):
            with I.Then():
                fill(copy)
            with I.Else():
                padding = bind(splat(self._padding(), self.block))
                fill(lambda _column: padding)
