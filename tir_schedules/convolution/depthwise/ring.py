"""The ring of staged rows of a depthwise convolution whose taps are interleaved.

Rows of padded x lie one behind the other, each a block of channels for every column; a row comes to
the place of the one that is as many rows before it as the ring has lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx

from microkernels.microkernel import Microkernel
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core.extents import allocated, extent
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, load_vector
from tir_schedules.product.activations import as_operand
from tir_schedules.product.zero_points import Start, quantize_parameters

from .config import DepthwiseConfig, DepthwiseProblem


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
        self.width: Index = columns.span(columns.outputs)
        if columns.is_open:
            self.width = ex.materialise(self._open_width(extent(columns.outputs)))
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

    def _open_width(self, outputs: Index) -> Expr:
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
            return ex.cast(self.dtype, self.start.a_zero_point())
        return ex.scalar(self.start.zero_points.a, self.dtype)

    def fill_margins(self) -> None:
        """Fills the columns of the ring before and after x; the first column if there are none.

        TVM moves a buffer that is used in a loop alone into the loop, and gives its memory to
        others that are used after it there. The ring is needed from one iteration to the next.
        """
        axis = self.problem.columns
        after = self.width - axis.before - extent(axis.extent)
        value = ex.bind(ex.splat(self._padding(), self.block))
        before: Index = axis.before
        if isinstance(self.width, int):
            before = min(before, self.width)
        else:
            before = tirx.Min(self.width, tirx.const(axis.before, "int32"))
            after = ex.materialise(tirx.Max(after, tirx.const(0, "int32")))
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

    def stage_row(self, sample: Expr, row: Expr, ring: Expr, block: Expr, valid: int) -> None:
        """Stages one row of padded x, but for the columns outside."""
        rows, columns = self.problem.rows, self.problem.columns
        line = ex.bind(ring + self.line(row) + columns.before * self.block)
        count: Index = self.width - columns.before  # columns of x that windows reach
        if isinstance(count, int):
            count = min(columns.extent, count)
            if count <= 0:
                return
        else:
            count = tirx.Max(tirx.Min(extent(columns.extent), count), tirx.const(0, "int32"))

        quantize = quantize_parameters(self.region, self.kernel, self.inputs)

        def fill(vector_of: Callable[[Expr], Expr]) -> None:
            with I.serial(count) as column:
                place = ex.ramp(line + column * self.block, self.block)
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
            return staged_order(ex.cast(self.dtype, operand), self.kernel.kr)

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
                padding = ex.bind(ex.splat(self._padding(), self.block))
                fill(lambda _column: padding)


# Interleaves rows of an image, so that one multiply-add takes kr taps of every channel.
#
#     kr = 4    64 bytes of four rows   ->   4 vectors of 16 channels with 4 taps each
#     kr = 2    32 words of two rows    ->   2 vectors of 16 channels with 2 taps each
#
# x86's unpack instructions work within 128 bits. So a vector is staged with its groups of kr
# elements in an order from which unpacking makes neighbouring channels.


_LANE_BITS = 128


def staged_order(vector: Expr, kr: int) -> Expr:
    """A vector of channels in the order that `interleave` takes.

    In a lane of 128 bits stand kr groups of elements, each of which goes to another result.
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
    """kr vectors in staged order as kr vectors of neighbouring channels, kr taps each.

    Parameters
    ----------
    rows : sequence of Expr
        1, 2 or 4 vectors of the same type.
    wanted : int
        How many of the results are needed, from the first on.
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
    """Groups of `size` elements by turns from a half of every lane of two vectors."""
    dtype = str(a.ty.dtype)
    # Not a pure call: TVM would put it in the place of its name, however often that is used.
    return I.call_extern(dtype, _name(half, size, int(a.ty.dtype.bits), ex.lanes_of(a)), a, b)


def _name(half: int, size: int, bits: int, count: int) -> str:
    return f"tvm_hybrid_unpack_{'high' if half else 'low'}_{size}_v{count}i{bits}"


def _function(half: int, size: int, bits: int, count: int) -> str:
    """The LLVM function called by that name; one shuffle in it, and one instruction of x86."""
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

    A shuffle of 64 bytes in TIR has 64 numbers, which every pass visits: with these functions a
    kernel compiles in half the time.
    """
    bits = int(DataType(dtype).bits)
    sizes = [1 << level for level in range(kr.bit_length() - 1)]
    found = [_function(half, size, bits, count) for size in sizes for half in range(2)]
    return "".join(found) + "attributes #0 = { alwaysinline nounwind }\n" if found else ""
