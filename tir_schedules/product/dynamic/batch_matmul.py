"""The program of batch_matmul for sizes that are known at run time only.

    for each batch, or each share of the rows of one               tasks of one parallel loop
        pack B: panels of whole vectors of columns, the last one narrower
        for each block of rows, for each panel
            for each register tile: code for its height, chosen by a branch; then one epilogue

Batches fewer than threads have their rows shared.

    for each batch, or each share of the panels of one             where B is packed by panel
        for each panel
            pack it
            for each register tile: as above
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named
from microkernels.vector.expressions import Expr, bind, materialise, ramp
from tir_schedules.core.blocking import tail_heights
from tir_schedules.core.emission import (
    ceil_div,
    choose,
    for_blocks,
    for_tiles,
    kernel_function,
    opaque_block,
    open_tasks,
    operand_parameters,
    share_of,
    tensor_parameter,
)
from tir_schedules.core.extents import (
    allocated,
    as_expr,
    extent,
    flat_rows,
    flat_view,
    read_extents,
)
from tir_schedules.core.product_plan import TileConfig, is_integer
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import SymbolicSize, is_open
from tir_schedules.epilogue.epilogue import Columns, Epilogue, load_vector, store_vector, unflatten

from ..activations import Activations
from ..batch_operands import BatchProblem
from ..tile_stores import rest
from ..zero_points import Start, ZeroPoints, named_inputs
from .operand import OpenActivations, OpenOperand, OpenPanel


def at_run_time(config: TileConfig, alone: int, threads: int) -> str:
    """What is decided at run time, for `explain`."""
    text = f"tiles of 1 to {config.rows} rows, panels of up to {config.vectors} vectors"
    if threads == 1:
        return text
    return f"{text}; fewer batches than threads: rows are shared; up to {alone} flops: one thread"


def build_open(
    region: Region,
    config: TileConfig,
    isa: Isa,
    threads: int,
    alone: int,
    by_panel: bool = False,
) -> tirx.PrimFunc:
    """The kernel, on so many threads; one thread runs products of so few operations.

    With `by_panel` each panel of B is packed right before all rows are multiplied by it.
    """
    kernel = microkernel_named(config.kernel)
    problem = OpenBatchProblem(region)
    with kernel_function("batch_matmul") as builder:
        a, b, *further = (
            tensor_parameter(name, tensor)
            for name, tensor in zip(("A", "B", "input2", "input3"), region.inputs, strict=False)
        )
        operands = operand_parameters(region)
        c = tensor_parameter("C", problem.stored[-1])
        read_extents()
        a, b, c = (
            flat_view(buffer, tensor, Tensor((math.prod(tensor.shape),), tensor.dtype))
            for buffer, tensor in zip((a, b, c), problem.stored, strict=True)
        )
        seen = flat_rows(region)
        pairs = zip(operands, region.operands, seen.operands, strict=True)
        epilogue = Epilogue(seen, [flat_view(*each) for each in pairs], kernel.narrow)
        inputs = named_inputs(region, further) if is_integer(region) else {}
        OpenBatchMatmul(region, problem, kernel, config, epilogue, inputs, a, b, c, by_panel).emit(
            threads, alone
        )
    return builder.get()


@dataclass
class OpenBatchMatmul:
    """Emits the program.

    Attributes
    ----------
    region : Region
        The product.
    problem : OpenBatchProblem
        Its extents and strides.
    kernel : Microkernel
        The register tile.
    config : TileConfig
        Its heights, and blocks of rows.
    epilogue : Epilogue
        With the operands' parameters.
    inputs : dict
        Zero points that are parameters.
    a, b, c : buffer
        Flat.
    by_panel : bool
        Whether panels of B are packed one by one.
    """

    region: Region
    problem: OpenBatchProblem
    kernel: Microkernel
    config: TileConfig
    epilogue: Epilogue
    inputs: dict[str, Expr]
    a: Expr
    b: Expr
    c: Expr
    by_panel: bool = False

    def emit(self, threads: int, alone: int) -> None:
        """All tasks."""
        problem, lanes = self.problem, self.kernel.lanes
        self.m, self.n, self.k = (
            as_expr(extent(size)) for size in (problem.m, problem.n, problem.k)
        )
        self.vectors = materialise(I.floordiv(self.n + (lanes - 1), lanes))
        self.whole = materialise(I.floordiv(self.n, lanes))
        batches = as_expr(extent(math.prod(problem.batch)))
        one, most = (tirx.const(number, "int32") for number in (1, threads))
        shares = materialise(tirx.Select(batches < most, most, one)) if threads > 1 else one
        work = tirx.const(2.0, "float32")
        for size in (batches, self.m, self.n, self.k):
            work = work * tirx.Cast("float32", size)
        with open_tasks(threads, work <= tirx.const(float(alone), "float32")) as (thread, parts):
            first, number = share_of(batches * shares, thread, parts)
            with I.serial(number) as place, opaque_block("task"):
                task = bind(first + place)
                batch = materialise(I.floordiv(task, shares))
                cut = ceil_div(self.vectors, self.config.vectors) if self.by_panel else self.m
                self._task(batch, *share_of(cut, I.floormod(task, shares), shares))

    def _task(self, batch: Expr, first: Expr, count: Expr) -> None:
        """Some rows of a batch, or some panels of its columns."""
        problem, kernel, config = self.problem, self.kernel, self.config
        index = unflatten(batch, problem.batch)
        self.a_base, b_base, self.c_base = (
            each.base(index) for each in (problem.a, problem.b, problem.c)
        )
        self.first_row = materialise(batch * self.m)
        room = allocated(problem.k), allocated(problem.n)
        k = problem.k if not is_open((problem.k,)) else self.k
        operand = OpenPanel if self.by_panel else OpenOperand
        packed = operand(
            kernel, problem.stored[1].dtype, config.vectors, k, self.n, self.vectors, room
        )
        if not self.by_panel:
            self._pack(packed, b_base)
        height = min(config.rows, kernel.mr)
        activations = self._activations(max(config.m_block, height))
        start = None
        if is_integer(self.region):
            start = Start(
                self.region, kernel, self.inputs, k, packed.column_sum, activations.row_sum
            )
            if start.zero_points.needs_column_sums:
                packed.add_up()
        start = start if start is not None and start.needed else None
        scratch = I.sblock_alloc_buffer(
            (height, config.vectors * kernel.lanes), kernel.acc_dtype, align=64
        )

        def panel(at: Expr, size: Expr, first: Expr, width: int) -> None:
            def tile(place: Expr, known: int) -> None:
                here = materialise(at + place)
                result = kernel.emit(
                    known,
                    width,
                    (packed.steps,),
                    lambda i, ks: activations.load(here + i, ks[0]),
                    lambda j, ks: packed.load(first, width, ks[0], j),
                    None if start is None else lambda i, j: start(here + i, first + j),
                )
                rest(result, scratch, 0)

            def store(place: Expr, known: Expr) -> None:
                self._store(at + place, known, first, width, scratch)

            for_tiles(size, tail_heights(height, width), tile, store)

        wide = config.vectors
        if isinstance(packed, OpenPanel):
            step_of_k = extent(problem.b.row)
            zero = tirx.const(0, "int32")
            activations.begin(zero, self.m)

            def whole_panel(vector: Expr, width: int) -> None:
                packed.pack(self.b, lambda step, at: b_base + step * step_of_k + at, vector, width)
                panel(zero, self.m, vector, width)

            with I.serial(count) as number, opaque_block("panel"):
                vector = materialise((first + number) * wide)
                there = materialise(tirx.Min(self.vectors - vector, tirx.const(wide, "int32")))
                choose(there, range(1, wide + 1), lambda width: whole_panel(vector, width))
            return

        def block(begin: Expr, size: Expr) -> None:
            at = materialise(first + begin)
            activations.begin(at, size)
            with I.serial(I.floordiv(self.vectors, wide)) as number, opaque_block("panel"):
                panel(at, size, materialise(number * wide), wide)
            if wide > 1:
                left = materialise(I.floormod(self.vectors, wide))
                last = self.vectors - left
                with I.If(left > 0), I.Then():
                    choose(left, range(1, wide), lambda width: panel(at, size, last, width))

        most: Expr | int = config.m_block
        if isinstance(activations, OpenActivations):
            most = activations.rows_of_block
        for_blocks(count, most, block)

    def _pack(self, packed: OpenOperand, base: Expr) -> None:
        strides = self.problem.b
        row, column = extent(strides.row), extent(strides.column)
        if strides.column == 1:
            packed.copy(self.b, lambda step, at: base + step * row + at)
        elif strides.row == 1:
            packed.turn(self.b, lambda at, step: base + at * column + step)
        else:
            packed.gather(self.b, lambda at, step: base + at * column + step * row)

    def _activations(self, rows: int) -> Activations:
        strides, dtype = self.problem.a, self.problem.stored[0].dtype
        pitch, column = extent(strides.row), extent(strides.column)

        def read(row: Expr, columns: Columns) -> Expr:
            start = self.a_base + row * pitch + columns.start * column
            if columns.lanes == 1:
                return self.a[start]
            return load_vector(self.a, dtype, [], Columns(start, columns.lanes, columns.valid))

        kernel, contiguous = self.kernel, strides.column == 1
        sums = is_integer(self.region) and ZeroPoints.of(self.region, kernel).needs_row_sums
        if kernel.a_dtype != "float32" and is_open((self.problem.k,)):
            room, height = as_expr(allocated(self.problem.k)), min(self.config.rows, kernel.mr)
            return OpenActivations(
                kernel, dtype, self.k, room, rows, height, read, contiguous=contiguous, sums=sums
            )
        k = self.problem.k
        return Activations(kernel, dtype, k, rows, read, contiguous=contiguous, sums=sums)

    def _store(self, row: Expr, rows: Expr, first: Expr, width: int, scratch: Expr) -> None:
        """The epilogue of rows of a panel, whose accumulators are in `scratch`."""
        lanes, pitch = self.kernel.lanes, extent(self.problem.c.row)
        cut = lanes > 1 and (is_open((self.problem.n,)) or self.problem.n % lanes > 0)
        with I.serial(rows) as i, I.serial(width) as j, opaque_block("store"):
            vector, at = materialise(first + j), materialise(row + i)
            value = bind(scratch[i, ramp(j * lanes, lanes)])

            def put(valid: Expr | int) -> None:
                columns = Columns(vector * lanes, lanes, valid)
                finished = self.epilogue(value, self.first_row + at, columns)
                start = self.c_base + at * pitch + columns.start
                store_vector(self.c, finished, [], Columns(start, lanes, valid))

            if not cut:
                put(lanes)
                return
            with I.If(vector < self.whole):
                with I.Then():
                    put(lanes)
                with I.Else():
                    put(self.n - self.whole * lanes)


@dataclass(frozen=True)
class Strides:
    """Where the elements of an operand lie, in elements.

    Attributes
    ----------
    batch : tuple of int
        From one index of a batch dimension to the next; 0 where all share the operand.
    row, column : int
        Of the last two dimensions.
    """

    batch: tuple[int, ...]
    row: int
    column: int

    @staticmethod
    def of(stored: Tensor, axes: Sequence[int], batch: Sequence[int]) -> Strides:
        """Of a stored tensor whose logical dimensions are `axes`, aligned with a batch."""
        steps = [math.prod(stored.shape[axis + 1 :]) for axis in axes]
        sizes = [stored.shape[axis] for axis in axes]
        own = [
            0 if size == 1 and not isinstance(size, SymbolicSize) else step
            for size, step in zip(sizes[:-2], steps[:-2], strict=True)
        ]
        missing = [0] * (len(batch) - len(own))
        return Strides((*missing, *own), steps[-2], steps[-1])

    def base(self, index: Sequence[Expr]) -> Expr:
        """Where a batch begins."""
        found: Expr = tirx.const(0, "int32")
        for number, step in zip(index, self.batch, strict=True):
            found = found + number * extent(step)
        return materialise(found)


class OpenBatchProblem:
    """Extents and strides of a region; one B for all batches makes them only more rows.

    Attributes
    ----------
    batch : tuple of int
        Batch dimensions.
    m, n, k : int
        Rows of a batch, columns, and what is summed.
    a, b, c : Strides
        Of the stored operands and the stored result.
    """

    def __init__(self, region: Region) -> None:
        problem = BatchProblem(region)
        self.n, self.k, self.m = problem.n, problem.k, region.output.shape[-2]
        self.batch = tuple(problem.batch_shape)
        self.stored = (*region.inputs[:2], problem.output_tensor())
        # A logical dimension of the result is where `out_axes` puts it.
        places = [problem.out_axes.index(axis) for axis in range(len(problem.out_axes))]
        orders = (problem.a_axes, problem.b_axes, places)
        self.a, self.b, self.c = (
            Strides.of(tensor, axes, self.batch)
            for tensor, axes in zip(self.stored, orders, strict=True)
        )
        plain = all(list(axes) == sorted(axes) for axes in (problem.a_axes, places))
        alike = problem.a_shape[:-1] == list(region.output.shape[:-1])
        if problem.shared and plain and alike:
            self.m = math.prod(region.output.shape[:-1])
            self.batch = ()
            self.a, self.b, self.c = (
                Strides((), each.row, each.column) for each in (self.a, self.b, self.c)
            )
