"""Activations of a product whose K is known at run time only: blocks of rows, staged.

As `Activations` that are staged, but rows are as long as K turns out to be, and a block has as many
of them as fit in cache.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import Address
from microkernels.vector.expressions import Expr, bind, constant, like, materialise, ramp
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.open_loops import ceil_div
from tir_schedules.core.reduce_lanes import add, reduce_lanes
from tir_schedules.epilogue.epilogue import Columns

from .activations import Activations, Read, as_operand, converts

# Of a staged block, which every panel of B reads anew: half of a small second-level cache.
_BLOCK_BYTES = 128 << 10


class OpenActivations(Activations):
    """The A operand.

    Parameters
    ----------
    kernel, dtype, most_rows, read, contiguous, sums
        As of Activations.
    k : Expr
        Elements of a row.
    room : Expr
        The same, as of `extents.allocated`.
    tile_rows : int
        Rows of a register tile; a block has as many at least.
    """

    def __init__(
        self,
        kernel: Microkernel,
        dtype: str,
        k: Expr,
        room: Expr,
        most_rows: int,
        tile_rows: int,
        read: Read,
        contiguous: bool = True,
        sums: bool = False,
    ) -> None:
        self.kernel, self.dtype, self.length, self.read = kernel, dtype, k, read
        self.contiguous, self.vector = contiguous, kernel.lanes * kernel.kr
        self.block: Expr = tirx.const(0, "int32")
        elements = _BLOCK_BYTES // int(DataType(kernel.operand_dtype).itemsize)
        self.stride = materialise(ceil_div(k, self.vector) * self.vector)
        tiles = I.floordiv(elements, tirx.Max(self.stride, self.vector) * tile_rows)
        self.rows_of_block = materialise(
            tirx.Min(tirx.Max(tiles, 1) * tile_rows, tirx.const(most_rows, "int32"))
        )
        tile = ceil_div(room, self.vector) * (self.vector * tile_rows)
        self.buffer = I.sblock_alloc_buffer(
            (tirx.Max(tile, tirx.const(elements, "int32")),), kernel.operand_dtype, align=64
        )
        self.sums = I.sblock_alloc_buffer((most_rows,), "int32") if sums else None

    def load(self, row: Expr, step: Expr | int) -> Expr | Address:
        """kr elements of a row, as the kernel's `emit` takes them."""
        at = self.within(row) * self.stride + step * self.kernel.kr
        return self.kernel.a_operand(self.buffer, [at], 0)

    def begin(self, block: Expr, rows: int | Expr) -> None:
        """Stages a block of rows, and adds each up."""
        self.block = block
        with opaque_block("stage"), I.serial(rows) as row:
            start = materialise(row * self.stride)
            self._stage_row(bind(block + row), start)
            if self.sums is not None:
                self._sum_row(row, start)

    def _stage_row(self, row: Expr, start: Expr) -> None:
        """One row, padded with zeros."""
        kernel = self.kernel
        unit = kernel.lanes if converts(self.dtype, kernel) else self.vector
        if not self.contiguous:
            unit = 1
        whole = materialise(I.floordiv(self.length, unit))

        def put(first: Expr, valid: Expr | int) -> None:
            columns = Columns(first, unit, valid)
            value = as_operand(self.read(row, columns), self.dtype, kernel)
            if columns.mask is not None:
                value = tirx.Select(columns.mask, bind(value), like(0, value))
            I.buffer_store(self.buffer, value, [ramp(start + first, unit)])

        with I.serial(whole) as number, opaque_block("vector"):
            put(bind(number * unit), unit)
        left = materialise(I.floordiv(self.stride, unit) - whole)
        with I.serial(left) as number, opaque_block("cut"):
            first = materialise((whole + number) * unit)
            if unit > 1:
                put(first, materialise(self.length - first))
            else:
                zero = constant(0, kernel.operand_dtype, 1)
                I.buffer_store(self.buffer, zero, [start + first])

    def _sum_row(self, row: Expr, start: Expr) -> None:
        """The sum of one row, by the kernel's own products with ones."""
        assert self.sums is not None
        kernel = self.kernel
        total = I.sblock_alloc_buffer((kernel.lanes,), "int32")
        every = ramp(0, kernel.lanes)
        I.buffer_store(total, constant(0, "int32", kernel.lanes), [every])
        with I.serial(I.floordiv(self.stride, self.vector)) as vector, opaque_block("sum"):
            value = self.buffer[ramp(start + vector * self.vector, self.vector)]
            I.buffer_store(total, kernel.add_up(total[every], value), [every])
        I.buffer_store(self.sums, reduce_lanes(bind(total[every]), add), [row])
