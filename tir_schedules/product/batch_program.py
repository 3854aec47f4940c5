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
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, Index, bind, materialise, ramp
from tir_schedules.core import emission, extents
from tir_schedules.core.blocking import Group, Panels, balanced, tail_heights
from tir_schedules.core.product_plan import ProductPlan, is_integer
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_open
from tir_schedules.epilogue.epilogue import Columns, Epilogue, load_vector, store_vector, unflatten
from tir_schedules.epilogue.tile_results import RowResults, rest

from .activations import Activations
from .batch_problem import BatchMatmulConfig, BatchProblem, OpenBatchProblem, plan_of
from .packed_operand import EqualPanels, PackedOperand, StoredOperand, packed_room, widths_of
from .tile_loops import TileLoops
from .zero_points import Start, ZeroPoints, named_inputs, start_of


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

    def start(self, k: Index, packed: PackedOperand, activations: Activations) -> Start | None:
        """What accumulators start with; emits the sums of the columns of B, if they take part."""
        inputs = named_inputs(self.region, self.inputs[2:])
        sums = packed.column_sum, activations.row_sum
        start = start_of(self.region, self.kernel, inputs, k, *sums)
        if start is not None and start.zero_points.needs_column_sums:
            packed.add_up()
        return start


class StaticProgram(_Program):
    """Emits the program for sizes that are known."""

    def emit(self) -> None:
        """All tasks."""
        self.problem = problem = BatchProblem(self.region)
        config, kernel = self.config, self.kernel
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
            loop = emission.task_loop(tasks, config.parallel, threads=config.threads)
            task = scope.enter_context(loop)
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
        a, dtype = self.inputs[0], region.inputs[0].dtype

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

        packed = self._packed(batch)
        if self.shelf is None and not self.by_panel:
            packed.pack()
        contiguous = problem.a_axes[-1] == len(problem.a_axes) - 1
        most_rows = min(max(config.m_block, config.rows), plan.row_shares[0].size)
        given = kernel, dtype, problem.k, most_rows, read_a, contiguous
        in_place = problem.rows_in_place(a, logical_row)
        activations = Activations(*given, sums=self.sums_rows, rows=in_place)
        start = self.start(problem.k, packed, activations)
        before = None if problem.shared else batch * problem.m
        rows = self.epilogue, stored_row, problem.out_pitch, before
        results = RowResults(region, kernel, self.c, *rows, packs=False)
        return TileLoops(plan, activations, packed, results, start)


class DynamicProgram(_Program):
    """Emits the program for sizes that are known at run time only."""

    def emit(self) -> None:
        """All tasks; one thread runs products of few operations."""
        extents.read_extents()
        self.problem = problem = OpenBatchProblem(self.region)
        parameters = zip((*self.inputs[:2], self.c), problem.stored, strict=True)
        flat = extents.flat_view
        self.a, self.b, self.c = (flat(*each, extents.as_vector(each[1])) for each in parameters)
        seen = extents.flat_rows(self.region)
        pairs = zip(self.operands, self.region.operands, seen.operands, strict=True)
        self.epilogue = Epilogue(seen, [flat(*each) for each in pairs], self.kernel.narrow)
        config, lanes = self.config, self.kernel.lanes
        threads, self.by_panel = config.threads if config.parallel else 1, config.column_shares > 0
        sizes = (extents.extent(size) for size in (problem.m, problem.n, problem.k))
        self.m, self.n, self.k = map(extents.as_expr, sizes)
        self.vectors = materialise(I.floordiv(self.n + (lanes - 1), lanes))
        self.whole = materialise(I.floordiv(self.n, lanes))
        batches = extents.as_expr(extents.extent(math.prod(problem.batch)))
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
        strides = problem.a, problem.b, problem.c
        self.a_base, b_base, self.c_base = (each.base(index) for each in strides)
        self.first_row = materialise(batch * self.m)
        columns = config.vectors * kernel.lanes if self.by_panel else problem.n
        room = extents.allocated(problem.k), extents.allocated(columns)
        k = problem.k if not is_open((problem.k,)) else self.k
        n, wide = extents.extent(problem.n), config.vectors
        panels: Sequence[Group] | EqualPanels = EqualPanels(wide, self.vectors)
        if isinstance(n, int) and not self.by_panel:
            panels = balanced(math.ceil(n / kernel.lanes), wide)
        stored = self._stored_b(k, n, b_base)
        packed = PackedOperand(stored, kernel, panels, by_panel=self.by_panel, room=room)
        if not self.by_panel:
            packed.pack()
        height = min(config.rows, kernel.mr)
        activations = self._activations(k, max(config.m_block, height))
        start = self.start(k, packed, activations)
        shape = height, config.vectors * kernel.lanes
        scratch = I.sblock_alloc_buffer(shape, kernel.acc_dtype, align=64)

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

        if self.by_panel:
            zero = tirx.const(0, "int32")
            activations.begin(zero, self.m)

            def whole_panel(vector: Expr, width: int) -> None:
                packed.begin_panel(vector, width)
                panel(zero, self.m, vector, width)

            with I.serial(count) as number, emission.opaque_block("panel"):
                vector = materialise((first + number) * wide)
                there = materialise(tirx.Min(self.vectors - vector, tirx.const(wide, "int32")))
                emission.choose(there, range(1, wide + 1), lambda width: whole_panel(vector, width))
            return

        def block(begin: Expr, size: Expr) -> None:
            at = materialise(first + begin)
            activations.begin(at, size)

            def whole(first: Index, width: int) -> None:
                panel(at, size, extents.as_expr(first), width)

            def narrow(first: Expr, left: Expr) -> None:
                emission.choose(left, range(1, wide), lambda width: whole(first, width))

            if isinstance(panels, EqualPanels):
                panels.emit(whole, narrow)
            else:
                emission.for_groups(panels, whole)

        emission.for_blocks(count, activations.block_rows, block)

    def _stored_b(self, k: Index, n: Index, base: Expr) -> StoredOperand:
        """B of one batch."""
        strides = self.problem.b
        row, column = extents.extent(strides.row), extents.extent(strides.column)
        contiguous = "columns" if strides.column == 1 else "steps" if strides.row == 1 else ""

        def index(step: Index, at: Index) -> list[Expr]:
            of_step, of_column = step * row, at * column
            by_columns = contiguous == "columns"
            return [base + of_step + of_column if by_columns else base + of_column + of_step]

        dtype = self.problem.stored[1].dtype
        return StoredOperand(self.b, dtype, k, n, index, contiguous)

    def _activations(self, k: Index, rows: int) -> Activations:
        strides, dtype = self.problem.a, self.problem.stored[0].dtype
        pitch, column = extents.extent(strides.row), extents.extent(strides.column)

        def read(row: Expr, columns: Columns) -> Expr:
            start = self.a_base + row * pitch + columns.start * column
            if columns.lanes == 1:
                return self.a[start]
            return load_vector(self.a, dtype, [], Columns(start, columns.lanes, columns.valid))

        room, tile_rows = extents.allocated(self.problem.k), min(self.config.rows, self.kernel.mr)
        given = self.kernel, dtype, k, rows, read, strides.column == 1
        return Activations(*given, sums=self.sums_rows, room=room, tile_rows=tile_rows)

    def _store(self, row: Expr, rows: Expr, first: Expr, width: int, scratch: Expr) -> None:
        """The epilogue of rows of a panel, whose accumulators are in `scratch`."""
        lanes, pitch = self.kernel.lanes, extents.extent(self.problem.c.row)
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
            rest = self.n - self.whole * lanes
            emission.branch(vector < self.whole, lambda: put(lanes), lambda: put(rest))
