"""Caches of static size: new rows of each sequence are written after its rows so far.

    out[b, h, j] = new[b, h, j - before[b]]  where there is such a row, else past[b, h, j], else 0

    for each head of each sequence                                        tasks of a parallel loop
        copies its rows of the past, and fills up, unless past and out are one tensor
        writes the new rows that have a place

A cache may have room for more rows than it holds, and be written in place: see `cache_parameter`.
"""

from __future__ import annotations

import math

import tvm.tirx.script.builder.ir as I
from tvm import DataType, tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.vector.expressions import Expr, cast, materialise, ramp, splat
from microkernels.vector.memory import ADDRESS_LLVM_IR, address_of
from tir_schedules.core import emission, placement
from tir_schedules.core.extents import as_elements, as_expr, extent, read_extents
from tir_schedules.core.region import Tensor

ALONE_BYTES = 1 << 16  # written bytes up to which one thread is faster
_VECTOR_BYTES = 32


def build_row_update(
    past: Tensor | None, new: Tensor, before: Tensor, out: Tensor, threads: int
) -> tirx.PrimFunc:
    """The kernel: past rows if any, new rows, the number of rows before them; the result.

    Parameters
    ----------
    past, new, out : Tensor
        [batch, ..., rows, columns] of one type, whose rows may differ in number.
    before : Tensor
        Integers, one for each of the batch.
    threads : int
        Threads that share heads.
    """
    with emission.kernel_function("row_update") as builder:
        given = None if past is None else placement.cache_parameter("past", past)
        rows, counts = map(emission.tensor_parameter, ("new", "before"), (new, before))
        result, apart = placement.cache_parameter("out", out)
        read_extents()
        update = _Update(new, out, as_elements(result, out), apart)
        with llvm_functions(ADDRESS_LLVM_IR):
            if past is not None and given is not None:
                update.has_past(past, as_elements(given[0], past), given[1])
            update.emit(as_elements(rows, new), as_elements(counts, before), threads)
    return builder.get()


class _Update:
    """Emits the kernel."""

    def __init__(self, new: Tensor, out: Tensor, result: Expr, apart: int) -> None:
        self.columns, self.result, self.dtype = out.shape[-1], result, out.dtype
        sizes = out.shape[-2], new.shape[-2], math.prod(out.shape[:-2]), math.prod(out.shape[1:-2])
        self.rows, self.new_rows, self.heads, self.of_sequence, self.apart = (
            as_expr(extent(size)) for size in (*sizes, apart)
        )
        self.lanes = max(1, _VECTOR_BYTES // int(DataType(out.dtype).itemsize))
        self.past: tuple[Expr, Expr, Expr] | None = None
        self.in_place: Expr = tirx.const(False, "bool")

    def has_past(self, past: Tensor, buffer: Expr, apart: int) -> None:
        """Stores the past, and whether it is the result's own tensor."""
        rows, distance = as_expr(extent(past.shape[-2])), as_expr(extent(apart))
        self.past = buffer, rows, distance
        begin, own = (materialise(address_of(each[0])) for each in (buffer, self.result))
        same = tirx.And(tirx.EQ(begin, own), tirx.EQ(distance, self.apart))
        self.in_place = emission.evaluated(same)

    def emit(self, new: Expr, before: Expr, threads: int) -> None:
        """Emits the update of all heads."""
        item = int(DataType(self.dtype).itemsize)
        few = self.heads * self.rows * (self.columns * item) <= ALONE_BYTES
        with emission.dynamic_tasks(threads, few) as (thread, parts):
            first, number = emission.share_of(self.heads, thread, parts)
            with I.serial(number) as place, emission.opaque_block("head"):
                self._head(materialise(first + place), new, before)

    def _head(self, head: Expr, new: Expr, before: Expr) -> None:
        begin = materialise(head * self.apart)
        with I.If(tirx.Not(self.in_place)), I.Then(), emission.opaque_block("apart"):
            kept = tirx.const(0, "int32")
            if self.past is not None:
                buffer, rows, distance = self.past
                kept = materialise(tirx.Min(rows, self.rows))
                self._copy(buffer, head * distance, begin, kept)
            self._copy(None, begin, begin + kept * self.columns, self.rows - kept)
        # The number is clamped so that an int32 holds it; a clamped number is no place either.
        sequence = I.floordiv(head, tirx.Max(self.of_sequence, tirx.const(1, "int32")))
        least, most = (cast("int64", each) for each in (-self.new_rows, self.rows))
        given = tirx.Max(tirx.Min(cast("int64", before[sequence]), most), least)
        start = materialise(cast("int32", given))
        skipped = materialise(tirx.Max(-start, tirx.const(0, "int32")))
        end = tirx.Min(self.new_rows, self.rows - start)
        source = (head * self.new_rows + skipped) * self.columns
        self._copy(new, source, begin + (start + skipped) * self.columns, end - skipped)

    def _copy(self, buffer: Expr | None, source: Expr, goal: Expr, rows: Expr) -> None:
        """Copies `rows` contiguous rows; zeros without a buffer."""
        source, goal = materialise(source), materialise(goal)
        total = materialise(tirx.Max(rows, tirx.const(0, "int32")) * self.columns)

        def store(at: Expr, lanes: int) -> None:
            index: Expr = ramp(source + at, lanes)
            value = splat(tirx.const(0, self.dtype), lanes) if buffer is None else buffer[index]
            I.buffer_store(self.result, value, [ramp(goal + at, lanes)])

        whole = materialise(I.floordiv(total, self.lanes))
        with I.serial(whole) as vector, emission.opaque_block("vector"):
            store(vector * self.lanes, self.lanes)
        with I.serial(total - whole * self.lanes) as rest, emission.opaque_block("rest"):
            store(whole * self.lanes + rest, 1)
