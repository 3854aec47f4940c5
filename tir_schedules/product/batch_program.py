"""The programs of batch_matmul.

Sizes are known: `StaticProgram`, whose loops are `TileLoops`

    if all B are packed first: pieces of B                         tasks of a parallel loop
    for each batch, or each share of the rows, or the columns, of one      tasks
        pack B, unless it is packed: whole, or panel by panel
        row blocks, panels, K blocks, tiles

Sizes are known at run time only: `DynamicProgram`. A register tile has code for one height and
width only, so branches choose among some.

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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, Index, bind, materialise, ramp
from tir_schedules.core import emission
from tir_schedules.core.blocking import Panels, balanced, tail_heights
from tir_schedules.core.extents import (
    allocated,
    as_expr,
    as_vector,
    extent,
    flat_rows,
    flat_view,
    read_extents,
)
from tir_schedules.core.product_plan import ProductPlan, TileConfig, is_integer
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import SymbolicSize, is_open
from tir_schedules.epilogue.epilogue import Columns, Epilogue, load_vector, store_vector, unflatten

from .activations import Activations, InPlace, OpenActivations
from .open_operand import OpenOperand, OpenPanel
from .packed_operand import PackedOperand, StoredOperand, packed_room, widths_of
from .tile_loops import TileLoops
from .tile_products import direct_store, rest, store_columns
from .zero_points import Start, ZeroPoints, named_inputs


class BatchMatmulConfig(TileConfig, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    row_shares : int
        Tasks that the rows of one batch are cut into.
    packs_first : bool
        Whether all B are packed before the first task, by all threads; otherwise each task packs
        its own.
    parallel : bool
        Whether the tasks run on several threads.
    threads : int
        On how many; 0: on all.
    alone_flops : int
        Up to so many operations, where sizes are open, one thread runs all.
    column_shares : int
        Tasks that the columns of one batch are cut into. They pack B panel by panel, each panel
        right before it is multiplied by all rows. 0: B is packed whole.
    """

    row_shares: int = 1
    packs_first: bool = False
    parallel: bool = False
    threads: int = 0
    alone_flops: int = 0
    column_shares: int = 0


def plan_of(problem: BatchProblem, config: BatchMatmulConfig) -> ProductPlan:
    """How a configuration cuts the product of one batch."""
    return ProductPlan.of(
        config,
        problem.m,
        problem.n,
        problem.k,
        threads_m=config.row_shares,
        threads_n=max(1, config.column_shares),
    )


def build(region: Region, config: BatchMatmulConfig, kernel: Microkernel) -> tirx.PrimFunc:
    """The kernel."""
    kind = DynamicProgram if region.is_open else StaticProgram
    with emission.kernel_function("batch_matmul") as builder:
        names = zip(("A", "B", "input2", "input3"), region.inputs, strict=False)
        inputs = [emission.tensor_parameter(name, tensor) for name, tensor in names]
        operands = emission.operand_parameters(region)
        c = emission.tensor_parameter("C", BatchProblem(region).output_tensor())
        kind(region, config, kernel, inputs, operands, c).emit()
    return builder.get()


@dataclass
class _Program:
    """What both programs work on.

    Attributes
    ----------
    region : Region
        The product.
    config : BatchMatmulConfig
        Its numbers.
    kernel : Microkernel
        The register tile.
    inputs, operands : sequence of Buffer
        Parameters.
    c : Buffer
        The result.
    """

    region: Region
    config: BatchMatmulConfig
    kernel: Microkernel
    inputs: Sequence[Expr]
    operands: Sequence[Expr]
    c: Expr

    @property
    def sums_rows(self) -> bool:
        """Whether the rows of A are added up."""
        integers = is_integer(self.region)
        return integers and ZeroPoints.of(self.region, self.kernel).needs_row_sums

    def start(
        self, k: Index, packed: PackedOperand | OpenOperand, activations: Activations
    ) -> Start | None:
        """What accumulators start with; emits the sums of the columns of B, if they take part."""
        if not is_integer(self.region):
            return None
        inputs = named_inputs(self.region, self.inputs[2:])
        sums = packed.column_sum, activations.row_sum
        start = Start(self.region, self.kernel, inputs, k, *sums)
        if start.zero_points.needs_column_sums:
            packed.add_up()
        return start if start.needed else None


class StaticProgram(_Program):
    """Emits the program for sizes that are known."""

    @cached_property
    def problem(self) -> BatchProblem:
        """The region's sizes."""
        return BatchProblem(self.region)

    def emit(self) -> None:
        """All tasks."""
        problem, config, kernel = self.problem, self.config, self.kernel
        plan, self.by_panel = plan_of(problem, config), config.column_shares > 0
        cut = plan.column_shares if self.by_panel else plan.row_shares
        count = sum(group.count for group in cut)
        self.epilogue = Epilogue(self.region, self.operands, kernel.narrow)
        self.panels = balanced(plan.n_vectors, config.vectors)
        kernel.admit()
        with ExitStack() as scope:
            self.shelf = None
            if config.packs_first:
                scope.enter_context(emission.opaque_block("batch_matmul"))
                layout = Panels(kernel, problem.k, problem.n, widths_of(self.panels))
                self.shelf = packed_room(problem.batches, layout)
                pieces = self._packed(tirx.const(0, "int32")).pieces
                tasks = problem.batches * pieces
                with emission.task_loop(tasks, config.parallel, "pack", config.threads) as task:
                    batch = bind(I.floordiv(task, pieces))
                    self._packed(batch).pack_piece(bind(I.floormod(task, pieces)))
            tasks = problem.batches * count
            task = scope.enter_context(
                emission.task_loop(tasks, config.parallel, threads=config.threads)
            )
            loops = self._loops(plan, I.floordiv(task, count))
            zero = tirx.const(0, "int32")

            def share(first: Expr, size: int) -> None:
                if self.by_panel:
                    loops.emit(zero, problem.m, first, size)
                else:
                    loops.emit(first, size, zero, plan.n_vectors)

            emission.for_share(cut, I.floormod(task, count), share)

    def _packed(self, batch: Expr) -> PackedOperand:
        """B of one batch."""
        source = self.problem.stored_b(self.inputs[1], batch)
        return PackedOperand(source, self.kernel, self.panels, self.shelf, batch, self.by_panel)

    def _loops(self, plan: ProductPlan, batch: Expr) -> TileLoops:
        """The loops of one batch; B is packed unless all are."""
        region, problem, kernel, config = self.region, self.problem, self.kernel, self.config
        a, c, dtype = self.inputs[0], self.c, region.inputs[0].dtype

        def logical_row(row: Expr) -> list[Expr]:
            """Leading logical indices of a row of this batch."""
            if problem.shared:
                return unflatten(row, region.output.shape[:-1])
            return [*unflatten(batch, problem.batch_shape), row]

        def read_a(row: Expr, columns: Columns) -> Expr:
            place = [*logical_row(row), columns.start]
            index = problem.stored(problem.a_axes, problem.a_shape, place)
            if columns.lanes == 1:
                return a[tuple(index)]
            return load_vector(a, dtype, index[:-1], columns)

        def stored_row(row: Expr) -> list[Expr]:
            leading = logical_row(row)
            return [leading[axis] for axis in problem.out_axes[:-1]]

        def store(row: Expr, vector: Expr, value: Expr, last: bool) -> None:
            flat = row if problem.shared else batch * problem.m + row
            order = stored_row(row)

            def put(columns: Columns) -> None:
                store_vector(c, self.epilogue(value, flat, columns), order, columns)

            store_columns(problem.n, kernel.lanes, vector, last, put)

        packed = self._packed(batch)
        if self.shelf is None and not self.by_panel:
            packed.pack()
        activations = Activations(
            kernel,
            dtype,
            problem.k,
            min(max(config.m_block, config.rows), plan.row_shares[0].size),
            read_a,
            contiguous=problem.a_axes[-1] == len(problem.a_axes) - 1,
            sums=self.sums_rows,
            rows=problem.rows_in_place(a, logical_row),
            peels=True,
        )
        start = self.start(problem.k, packed, activations)
        return TileLoops(
            plan,
            activations.load,
            packed.load,
            store,
            self.epilogue.cost,
            begin=activations.begin,
            begin_panel=packed.pack_panel if self.by_panel else None,
            start=start,
            start_columns=start.columns if start is not None and start.by_column else None,
            peel=activations.tail,
            direct=direct_store(region, kernel, c, stored_row, problem.out_pitch),
        )


class DynamicProgram(_Program):
    """Emits the program for sizes that are known at run time only."""

    def emit(self) -> None:
        """All tasks; one thread runs products of few operations."""
        read_extents()
        self.problem = problem = OpenBatchProblem(self.region)
        parameters = zip((*self.inputs[:2], self.c), problem.stored, strict=True)
        self.a, self.b, self.c = (flat_view(*each, as_vector(each[1])) for each in parameters)
        seen = flat_rows(self.region)
        pairs = zip(self.operands, self.region.operands, seen.operands, strict=True)
        self.epilogue = Epilogue(seen, [flat_view(*each) for each in pairs], self.kernel.narrow)
        config, lanes = self.config, self.kernel.lanes
        threads, self.by_panel = config.threads if config.parallel else 1, config.column_shares > 0
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
        alone = work <= tirx.const(float(config.alone_flops), "float32")
        with emission.open_tasks(threads, alone) as (thread, parts):
            first, number = emission.share_of(batches * shares, thread, parts)
            with I.serial(number) as place, emission.opaque_block("task"):
                task = bind(first + place)
                batch = materialise(I.floordiv(task, shares))
                cut = emission.ceil_div(self.vectors, config.vectors) if self.by_panel else self.m
                self._task(batch, *emission.share_of(cut, I.floormod(task, shares), shares))

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
        packed = operand(self._stored_b(k, b_base), kernel, config.vectors, self.vectors, room)
        if not self.by_panel:
            packed.pack()
        height = min(config.rows, kernel.mr)
        activations = self._activations(max(config.m_block, height))
        start = self.start(k, packed, activations)
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

            emission.for_tiles(size, tail_heights(height, width), tile, store)

        wide = config.vectors
        if isinstance(packed, OpenPanel):
            zero = tirx.const(0, "int32")
            activations.begin(zero, self.m)

            def whole_panel(vector: Expr, width: int) -> None:
                packed.pack_panel(vector, width)
                panel(zero, self.m, vector, width)

            with I.serial(count) as number, emission.opaque_block("panel"):
                vector = materialise((first + number) * wide)
                there = materialise(tirx.Min(self.vectors - vector, tirx.const(wide, "int32")))
                emission.choose(there, range(1, wide + 1), lambda width: whole_panel(vector, width))
            return

        def block(begin: Expr, size: Expr) -> None:
            at = materialise(first + begin)
            activations.begin(at, size)
            with I.serial(I.floordiv(self.vectors, wide)) as number, emission.opaque_block("panel"):
                panel(at, size, materialise(number * wide), wide)
            if wide > 1:
                left = materialise(I.floormod(self.vectors, wide))
                last = self.vectors - left
                with I.If(left > 0), I.Then():
                    emission.choose(
                        left, range(1, wide), lambda width: panel(at, size, last, width)
                    )

        most: Index = config.m_block
        if isinstance(activations, OpenActivations):
            most = activations.rows_of_block
        emission.for_blocks(count, most, block)

    def _stored_b(self, k: Index, base: Expr) -> StoredOperand:
        """B of one batch."""
        strides = self.problem.b
        row, column = extent(strides.row), extent(strides.column)
        contiguous = ""

        def index(step: Index, at: Index) -> list[Expr]:
            if contiguous == "columns":
                return [base + step * row + at]
            if contiguous == "steps":
                return [base + at * column + step]
            return [base + at * column + step * row]

        if strides.column == 1:
            contiguous = "columns"
        elif strides.row == 1:
            contiguous = "steps"
        dtype = self.problem.stored[1].dtype
        return StoredOperand(self.b, dtype, k, self.n, index, contiguous)

    def _activations(self, rows: int) -> Activations:
        strides, dtype = self.problem.a, self.problem.stored[0].dtype
        pitch, column = extent(strides.row), extent(strides.column)

        def read(row: Expr, columns: Columns) -> Expr:
            start = self.a_base + row * pitch + columns.start * column
            if columns.lanes == 1:
                return self.a[start]
            return load_vector(self.a, dtype, [], Columns(start, columns.lanes, columns.valid))

        kernel, contiguous = self.kernel, strides.column == 1
        if kernel.a_dtype != "float32" and is_open((self.problem.k,)):
            room, height = as_expr(allocated(self.problem.k)), min(self.config.rows, kernel.mr)
            return OpenActivations(
                kernel,
                dtype,
                self.k,
                room,
                rows,
                height,
                read,
                contiguous=contiguous,
                sums=self.sums_rows,
            )
        k = self.problem.k
        return Activations(kernel, dtype, k, rows, read, contiguous=contiguous, sums=self.sums_rows)

    def _store(self, row: Expr, rows: Expr, first: Expr, width: int, scratch: Expr) -> None:
        """The epilogue of rows of a panel, whose accumulators are in `scratch`."""
        lanes, pitch = self.kernel.lanes, extent(self.problem.c.row)
        cut = lanes > 1 and (is_open((self.problem.n,)) or self.problem.n % lanes > 0)
        with I.serial(rows) as i, I.serial(width) as j, emission.opaque_block("store"):
            vector, at = materialise(first + j), materialise(row + i)
            value = bind(scratch[i, ramp(j * lanes, lanes)])

            def put(valid: Index) -> None:
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


class BatchProblem:
    """Logical shapes of a region: batches over which B varies, rows, columns, K."""

    def __init__(self, region: Region) -> None:
        self.region = region
        a, b = region.inputs[:2]
        self.a_axes = list(region.numbers("a_axes", range(len(a.shape))))
        self.b_axes = list(region.numbers("b_axes", range(len(b.shape))))
        self.out_axes = list(region.numbers("out_axes", range(len(region.output.shape))))
        self.a_shape = [a.shape[axis] for axis in self.a_axes]
        self.b_shape = [b.shape[axis] for axis in self.b_axes]
        self.n, self.k = self.b_shape[-1], self.b_shape[-2]
        self.batch_shape = list(region.output.shape[:-2])
        # With one B for all batches they are only more rows.
        self.shared = all(size == 1 for size in self.b_shape[:-2])
        self.batches = 1 if self.shared else math.prod(self.batch_shape)
        rows = region.output.shape[:-1]
        self.m = math.prod(rows) if self.shared else rows[-1]

    def stored(
        self, axes: Sequence[int], shape: Sequence[int], logical: Sequence[Any]
    ) -> list[Expr]:
        """Index into a stored operand from a logical index of the output's rank."""
        aligned = logical[len(logical) - len(shape) :]
        index: list[Expr] = [tirx.const(0, "int32")] * len(shape)
        for axis, size, value in zip(axes, shape, aligned, strict=True):
            index[axis] = tirx.const(0, "int32") if size == 1 else value
        return index

    def stored_b(self, buffer: Expr, batch: Expr) -> StoredOperand:
        """B of one batch."""
        zeros: list[Expr] = [tirx.const(0, "int32")] * len(self.batch_shape)
        leading = zeros if self.shared else unflatten(batch, self.batch_shape)
        contiguous = self.b_axes.index(len(self.b_axes) - 1) - len(self.b_axes)
        return StoredOperand(
            buffer,
            self.region.inputs[1].dtype,
            self.k,
            self.n,
            lambda k, column: self.stored(self.b_axes, self.b_shape, [*leading, k, column]),
            {-1: "columns", -2: "steps"}.get(contiguous, ""),
        )

    def rows_in_place(
        self, buffer: Expr, logical_row: Callable[[Expr], list[Expr]]
    ) -> InPlace | None:
        """A's rows where they are, if the same distance lies between all; else None.

        `logical_row` maps a row of a batch to the leading logical indices of the output.
        """
        a = self.region.inputs[0]
        if self.shared:
            folds = self.a_axes == sorted(self.a_axes)
            folds = folds and self.a_shape[:-1] == list(self.region.output.shape[:-1])
            pitch = self.k if folds else 0
        else:
            pitch = math.prod(a.shape[self.a_axes[-2] + 1 :])
        if not pitch:
            return None
        return InPlace(
            buffer,
            lambda row, column: self.stored(self.a_axes, self.a_shape, [*logical_row(row), column]),
            pitch,
        )

    @property
    def out_pitch(self) -> int:
        """Elements from one row of the stored output to the next; 0 if that differs."""
        rows = self.out_axes.index(len(self.out_axes) - 2)
        if self.shared and self.out_axes != sorted(self.out_axes):
            return 0
        return math.prod(self.output_tensor().shape[rows + 1 :])

    def output_tensor(self) -> Tensor:
        """The output as it is stored."""
        shape = self.region.output.shape
        return Tensor(tuple(shape[axis] for axis in self.out_axes), self.region.output.dtype)
