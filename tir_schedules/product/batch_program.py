"""The kernels of batch_matmul.

Static sizes: `StaticBatchEmitter`, whose loops are `TileLoops`

    if all B are packed first: pieces of B                         tasks of a parallel loop
    for each batch, or each chunk of its rows or columns           tasks of a parallel loop
        pack B, unless it is packed: whole, or panel by panel
        row blocks, panels, K blocks, tiles

Dynamic sizes: `DynamicBatchEmitter`. A register tile has code for one height and width only, so
branches choose among a few.

    for each batch, or each chunk of its rows                      tasks of one parallel loop
        pack B: panels of whole vectors of columns, the last one narrower
        for each block of rows, for each panel
            for each register tile: code for its height, chosen by a branch; then one epilogue

If there are fewer batches than threads, threads divide the rows of a batch.

    for each batch, or each chunk of its panels                    if B is packed panel by panel
        for each panel
            pack it
            for each register tile: as above
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, Index, bind, materialise, ramp
from tir_schedules.core import emission, extents
from tir_schedules.core.blocking import balanced, tail_heights
from tir_schedules.core.product_plan import ProductPlan, is_integer
from tir_schedules.core.region import Region
from tir_schedules.core.stored_operand import EqualPanels, PanelCut
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector
from tir_schedules.epilogue.tile_results import RowResults, rest, store_columns

from .activations import Activations
from .batch_problem import BatchMatmulConfig, BatchProblem, StridedProblem, plan_of
from .packed_operand import PackedOperand, packed_room
from .tile_loops import TileLoops
from .zero_points import Start, ZeroPoints, named_inputs, start_of


def build(region: Region, config: BatchMatmulConfig, kernel: Microkernel) -> tirx.PrimFunc:
    """The kernel."""
    kind = DynamicBatchEmitter if region.is_dynamic else StaticBatchEmitter
    with emission.kernel_function("batch_matmul") as builder:
        names = zip(("A", "B", "input2", "input3"), region.inputs, strict=False)
        inputs = [emission.tensor_parameter(name, tensor) for name, tensor in names]
        operands = emission.operand_parameters(region)
        c = emission.tensor_parameter("C", BatchProblem(region).output_tensor())
        kind(region, config, kernel, inputs, operands, c).emit()
    return builder.get()


@dataclass
class _BatchEmitter:
    """Base of both emitters, which prepares the operands of a task before its loops.

    Attributes
    ----------
    region : Region
        The product.
    config : BatchMatmulConfig
        Its configuration.
    kernel : Microkernel
        The register tile.
    inputs, operands : sequence of Buffer
        Parameters.
    c : Buffer
        The result.
    problem : BatchProblem
        Where operands lie.
    panels : sequence of Group, or EqualPanels
        How B is cut.
    shelf, room
        See `PackedOperand`.
    """

    region: Region
    config: BatchMatmulConfig
    kernel: Microkernel
    inputs: Sequence[Expr]
    operands: Sequence[Expr]
    c: Expr
    problem: BatchProblem = field(init=False)
    panels: PanelCut = field(init=False)
    shelf: Expr | None = None
    room: tuple[Index, Index] | None = None

    @property
    def by_panel(self) -> bool:
        """Whether tasks divide columns, and pack B panel by panel."""
        return self.config.column_shares > 0

    def packed(self, batch: Expr) -> PackedOperand:
        """B of one batch."""
        stored = self.problem.stored_b(self.inputs[1], batch)
        given = self.kernel, self.panels, self.shelf, batch, self.by_panel, self.room
        return PackedOperand(stored, *given)

    def begin(self, batch: Expr, most_rows: int) -> tuple[Activations, PackedOperand, Start | None]:
        """A, B and the initial accumulators of a task.

        Packs B, unless that is done before or panel by panel, and adds up its columns if zero
        points need their sums.
        """
        problem, kernel, integers = self.problem, self.kernel, is_integer(self.region)
        packed = self.packed(batch)
        if self.shelf is None and not self.by_panel:
            packed.pack()
        activations = Activations(
            kernel,
            self.region.inputs[0].dtype,
            packed.k,
            most_rows,
            problem.read_a(self.inputs[0], batch),
            problem.contiguous,
            sums=integers and ZeroPoints.of(self.region, kernel).needs_row_sums,
            rows=problem.rows_in_place(self.inputs[0], batch),
            room=0 if self.room is None else self.room[0],
            tile_rows=min(self.config.rows, kernel.mr),
        )
        inputs = named_inputs(self.region, self.inputs[2:])
        sums = packed.column_sum, activations.row_sum
        start = start_of(self.region, kernel, inputs, packed.k, *sums)
        if start is not None and start.zero_points.needs_column_sums:
            packed.add_up()
        return activations, packed, start


class StaticBatchEmitter(_BatchEmitter):
    """Emits the kernel for static sizes."""

    def emit(self) -> None:
        """Emits all tasks."""
        self.problem = problem = BatchProblem(self.region)
        config, kernel = self.config, self.kernel
        plan = plan_of(problem, config)
        cut = plan.column_shares if self.by_panel else plan.row_shares
        count = sum(group.count for group in cut)
        self.epilogue = Epilogue(self.region, self.operands, kernel.narrow)
        self.panels = balanced(plan.n_vectors, config.vectors)
        zero = tirx.const(0, "int32")
        kernel.admit()
        with ExitStack() as scope:
            if config.packs_first:
                scope.enter_context(emission.opaque_block("batch_matmul"))
                self.shelf = packed_room(kernel, problem.k, problem.n, problem.batches)
                pieces = self.packed(zero).pieces
                tasks = problem.batches * pieces
                with emission.task_loop(tasks, config.parallel, "pack", config.threads) as task:
                    batch = bind(I.floordiv(task, pieces))
                    self.packed(batch).pack_piece(bind(I.floormod(task, pieces)))
            tasks = problem.batches * count
            loop = emission.task_loop(tasks, config.parallel, threads=config.threads)
            task = scope.enter_context(loop)
            loops = self._loops(plan, I.floordiv(task, count))

            def share(first: Expr, size: int) -> None:
                if self.by_panel:
                    loops.emit(zero, problem.m, first, size)
                else:
                    loops.emit(first, size, zero, plan.n_vectors)

            emission.for_share(cut, I.floormod(task, count), share)

    def _loops(self, plan: ProductPlan, batch: Expr) -> TileLoops:
        """The loops of one batch."""
        problem, config = self.problem, self.config

        def stored_row(row: Expr) -> list[Expr]:
            leading = problem.logical_row(batch, row)
            return [leading[axis] for axis in problem.out_axes[:-1]]

        most_rows = min(max(config.m_block, config.rows), plan.row_shares[0].size)
        activations, packed, start = self.begin(batch, most_rows)
        before = None if problem.shared else batch * problem.m
        rows = self.epilogue, stored_row, problem.out_pitch, before
        results = RowResults(self.region, self.kernel, self.c, *rows, packs=False)
        return TileLoops(plan, activations, packed, results, start)


class DynamicBatchEmitter(_BatchEmitter):
    """Emits the kernel for dynamic sizes.

    It has loops of its own, as machine code must differ: only at run time are the number of tasks
    and of threads known, and tile loops choose among tiles of a few heights and widths by branches.
    """

    problem: StridedProblem

    def emit(self) -> None:
        """Emits all tasks; one thread runs products of few operations."""
        extents.read_extents()
        self.problem = problem = StridedProblem(self.region)
        a, b, self.c = map(extents.as_elements, (*self.inputs[:2], self.c), problem.tensors)
        self.inputs = a, b, *self.inputs[2:]
        flat = extents.flat_operands(self.region, self.operands)
        self.epilogue = Epilogue(*flat, self.kernel.narrow)
        config, lanes = self.config, self.kernel.lanes
        threads = config.threads if config.parallel else 1
        self.n = n = extents.extent(problem.n)
        self.m, k = (extents.as_expr(extents.extent(size)) for size in (problem.m, problem.k))
        self.vectors = materialise(extents.as_expr(emission.ceil_div(n, lanes)))
        if isinstance(n, int) and not self.by_panel:
            self.panels = balanced(math.ceil(n / lanes), config.vectors)
        else:
            self.panels = EqualPanels(config.vectors, self.vectors)
        columns = config.vectors * lanes if self.by_panel else problem.n
        self.room = extents.allocated(problem.k), extents.allocated(columns)
        batches = extents.as_expr(extents.extent(problem.batches))
        one, most = (tirx.const(number, "int32") for number in (1, threads))
        shares = materialise(tirx.Select(batches < most, most, one)) if threads > 1 else one
        work = tirx.const(2.0, "float32")
        for size in (batches, self.m, extents.as_expr(n), k):
            work = work * tirx.Cast("float32", size)
        alone = work <= tirx.const(float(config.alone_flops), "float32")
        with emission.dynamic_tasks(threads, alone) as (thread, parts):
            first, number = emission.share_of(batches * shares, thread, parts)
            with I.serial(number) as place, emission.opaque_block("task"):
                task = bind(first + place)
                batch = materialise(I.floordiv(task, shares))
                cut = emission.ceil_div(self.vectors, config.vectors) if self.by_panel else self.m
                self._task(batch, *emission.share_of(cut, I.floormod(task, shares), shares))

    def _task(self, batch: Expr, first: Expr, count: Expr) -> None:
        """Multiplies some rows of a batch, or some panels of its columns."""
        problem, kernel, config = self.problem, self.kernel, self.config
        self.c_base, self.first_row = problem.base(problem.c, batch), materialise(batch * self.m)
        height, wide = min(config.rows, kernel.mr), config.vectors
        activations, packed, start = self.begin(batch, max(config.m_block, height))
        shape = height, wide * kernel.lanes
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

        def block(at: Expr, size: Expr, panels: PanelCut, before: Index) -> None:
            activations.begin(at, size)

            def whole(first: Index, width: int) -> None:
                vector = extents.as_expr(before + first)
                packed.begin_panel(vector, width)
                panel(at, size, vector, width)

            def narrow(first: Expr, left: Expr) -> None:
                emission.choose(left, range(1, wide), lambda width: whole(first, width))

            if isinstance(panels, EqualPanels):
                panels.emit(whole, narrow)
            else:
                emission.for_groups(panels, whole)

        def some_rows(start: Expr, size: Expr) -> None:
            block(materialise(first + start), size, self.panels, 0)

        if self.by_panel:
            vector = materialise(first * wide)
            own = EqualPanels(wide, materialise(tirx.Min(count * wide, self.vectors - vector)))
            block(tirx.const(0, "int32"), self.m, own, vector)
        else:
            emission.for_blocks(count, activations.block_rows, some_rows)

    def _store(self, row: Expr, rows: Expr, first: Expr, width: int, scratch: Expr) -> None:
        """The epilogue of rows of a panel, whose accumulators are in `scratch`."""
        lanes, pitch = self.kernel.lanes, extents.extent(self.problem.c.row)
        with I.serial(rows) as i, I.serial(width) as j, emission.opaque_block("store"):
            vector, at = materialise(first + j), materialise(row + i)
            value = bind(scratch[i, ramp(j * lanes, lanes)])

            def put(columns: Columns) -> None:
                finished = self.epilogue(value, self.first_row + at, columns)
                start = self.c_base + at * pitch + columns.start
                place = Columns(start, lanes, columns.valid)
                store_vector(self.c, finished, [], place)

            store_columns(self.n, lanes, vector, True, put)
