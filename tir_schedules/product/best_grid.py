"""The fastest grid of threads for a product: along rows, columns and, if these are few, K."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.amx.tile_shapes import ROWS
from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named
from microkernels.vector.expressions import Expr, Index, bind, constant, ramp, splat
from microkernels.vector.memory import ARRIVAL_LLVM_IR, count_arrival
from tir_schedules.core.blocking import Box, balanced, choose_thread_grid, divided, grids_of
from tir_schedules.core.emission import for_groups, for_share, opaque_block, task_loop
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.cost.cost import flops_us, product_rate
from tir_schedules.cost.parallel import MOST_UNEVEN, alone_below, halves, threads_worth
from tir_schedules.epilogue.tile_results import Results

from .tile_config import Fields, on_grid, sums_us
from .tile_loops import TileLoops
from .tile_products import Beginning

# Fraction of a product's time that it takes the next product to fetch rows of which another core
# wrote a part (measured: 512x13x512 before 512x512x256, two threads).
FOREIGN_ROWS = 0.16
# By how much a grid that cuts tiles or K has to be faster than a grid of whole tiles: less is
# within the error of the estimates. If the grid of whole tiles is uneven, any gain is enough.
GAIN = 1.1
# Numbers of rows for which a grid is chosen if the number is dynamic.
DYNAMIC_ROWS = (1, 8, 32, 128, 1024)
IMAGE_ROWS = 1 << 16  # pixels of images: assumed if a smaller number is not worth several threads
SMALL_WEIGHT = 1 << 13  # elements of a weight that stays in L1 from row to row
MOST_WHOLE_ROWS = 64  # up to this dynamic number, threads may divide columns instead of rows


def best_grid(
    tile: Fields, m: int, n: int, k: int, machine: Machine, flops: float, k_unit: int | None = None
) -> Fields:
    """The grid of threads for a tile, as fields of a configuration; empty for one thread.

    The best grid along rows and columns in whole tiles, unless a grid that also divides K, or one
    that cuts tiles, is faster by `GAIN`.

    Parameters
    ----------
    tile : dict
        Fields of a TileConfig.
    m, n, k : int
        Rows, columns and elements of K.
    machine : Machine
        The target.
    flops : float
        Multiplications and additions, divided by kr, as one instruction multiplies a group of kr.
    k_unit : int or None
        Steps of K that threads may not divide; None if all threads multiply all of K.
    """
    alone = flops_us(flops, machine)
    kernel = microkernel_named(tile["kernel"])
    steps, n_vectors = kernel.steps(k), math.ceil(n / kernel.lanes)
    k_units = 1 if k_unit is None else math.ceil(steps / k_unit)
    whole = (m, n_vectors, k_units)
    cost = _GridCost(tile, whole, k, machine, alone)
    if threads_worth(machine, max(alone, cost.reading_us(whole, 1))) == 1:
        return {}
    threads = list(halves(machine.threads))
    found = choose_thread_grid((m, n_vectors, 1), threads, cost.of_tiles)
    even = choose_thread_grid(whole, threads, cost.of_pieces)
    largest = math.prod(divided(whole, found)) * machine.threads
    gain = GAIN if largest < MOST_UNEVEN * math.prod(whole) else 1.0
    if cost.of_pieces(even) * gain < cost.of_pieces(found):
        found = even
    return on_grid(found)


def dynamic_grid(tile: Fields, n: int, k: int, machine: Machine, row_flops: float) -> Fields:
    """The grid of threads for a dynamic number of rows, as fields of a configuration.

    It has the least geometric mean of the times for those `DYNAMIC_ROWS` that are worth more than
    one thread.

    Parameters
    ----------
    tile, n, k, machine
        See `best_grid`.
    row_flops : float
        `flops` of `best_grid` for one row.
    """
    alone = flops_us(row_flops, machine)
    # For a larger weight, one row takes as long as reading the weight, which threads divide.
    below = alone_below(machine, alone) if n * k <= SMALL_WEIGHT else 0
    sizes = [rows for rows in DYNAMIC_ROWS if rows > below] or [IMAGE_ROWS]
    if threads_worth(machine, alone * sizes[-1]) == 1:
        return {}
    kernel = microkernel_named(tile["kernel"])
    n_vectors = math.ceil(n / kernel.lanes)
    costs = [_GridCost(tile, (rows, n_vectors, 1), k, machine, alone * rows) for rows in sizes]
    tried = [(1, 1), *grids_of(halves(machine.threads))]
    grids = sorted({(rows, min(columns, n_vectors)) for rows, columns in tried})

    def along_columns(grid: tuple[int, int]) -> tuple[int, int, int]:
        """The grid along columns for few rows, without idle threads."""
        panels = math.ceil(n_vectors / tile["vectors"] / grid[1])
        return 1, panels // math.ceil(panels / grid[0]) * grid[1], 1

    def time(grid: tuple[int, int]) -> float:
        found = 1.0
        for cost, rows in zip(costs, sizes, strict=True):
            us = cost.of_pieces((min(grid[0], rows), grid[1], 1))
            if rows <= MOST_WHOLE_ROWS:
                us = min(us, cost.of_pieces(along_columns(grid)))
            found *= us
        return found

    threads_m, threads_n = min(grids, key=time)
    gain, most, whole = 0.0, 0.0, 0
    for rows in range(below + 1, MOST_WHOLE_ROWS + 1):
        cost = _GridCost(tile, (rows, n_vectors, 1), k, machine, alone * rows)
        by_rows = cost.of_pieces((min(threads_m, rows), threads_n, 1))
        gain += math.log(by_rows / cost.of_pieces(along_columns((threads_m, threads_n))))
        if gain > most:
            most, whole = gain, rows
    if threads_m * threads_n == 1:
        return {}
    grid = {"threads_m": threads_m, "threads_n": threads_n, "whole_rows": whole}
    return {**grid, "alone_rows": below}


@dataclass
class _GridCost:
    """Estimates the microseconds of a product on grids of threads.

    Attributes
    ----------
    tile : dict
        Fields of a TileConfig.
    whole : tuple
        Rows, vectors of columns and units of K of all threads.
    k : int
        Elements of K.
    machine : Machine
        The target.
    alone_us : float
        Time of all products on one thread.
    """

    tile: Fields
    whole: Box
    k: int
    machine: Machine
    alone_us: float

    def __post_init__(self) -> None:
        self.rows, self.vectors = self.tile["rows"], self.tile["vectors"]
        self.kernel = microkernel_named(self.tile["kernel"])
        self.rate = product_rate(self.kernel, self.machine)
        self.latency = self.machine.fma_latency
        # Bytes of a vector of columns.
        self.column = 4.0 * self.kernel.lanes * self.kernel.steps(self.k)
        self.streamed = self.column * self.whole[1] > self.machine.l2_bytes // 2
        self.cycles = functools.cache(self._cycles)
        machine = self.machine
        self.rates = functools.cache(lambda n: (machine.l3_rate(n), machine.fork_us(n)))

    def of_tiles(self, grid: Box) -> float:
        """The time if a partial tile takes as long as a full one."""
        m, n_vectors, _ = self.whole
        part = divided(self.whole, grid)
        m_tiles, n_tiles = math.ceil(m / self.rows), math.ceil(n_vectors / self.vectors)
        # With more threads than tiles, tiles get lower or narrower.
        high = self.rows if grid[0] <= m_tiles else part[0]
        wide = self.vectors if grid[1] <= n_tiles else part[1]
        tiles = math.ceil(part[0] / self.rows) * math.ceil(part[1] / self.vectors)
        step = tiles * self._step_cycles(high, wide)
        full = m_tiles * n_tiles * self._step_cycles(self.rows, self.vectors)
        return self._us(grid, part, step / full)

    def of_pieces(self, grid: Box) -> float:
        """The time with tiles of their actual sizes."""
        part = divided(self.whole, grid)
        step = self.cycles(part[0], part[1]) / self.cycles(self.whole[0], self.whole[1])
        return self._us(grid, part, step)

    def _us(self, grid: Box, part: Box, step: float) -> float:
        """The time of the busiest thread; `step` is its fraction of the products of a step of K."""
        threads_m, threads_n, threads_k = grid
        m_part, n_part, k_part = part
        threads = threads_m * threads_n * threads_k
        lanes, of_k = self.kernel.lanes, k_part / self.whole[2]
        m_share, n_share = self.whole[0] / threads_m, self.whole[1] * lanes / threads_n
        moved = (m_share + n_share) * (1 / (self.k * of_k) + 1 / (m_share * n_share))
        foreign = 1 + FOREIGN_ROWS * (1 - 1 / (threads_n * threads_k))
        # A thread's products take longer if many bytes of A, B and C are moved for few products.
        # This follows the Graph Compiler's split choice (Li et al., arXiv 2301.01333), with the
        # bytes of A, B and C in place of fitted constants.
        us = self.alone_us * step * of_k * (1 + 0.05 * moved) * foreign
        # A thread takes at least the time to read its columns of a weight larger than half of L2.
        us = max(us, self.reading_us(part, threads))
        if threads_k > 1:  # partial sums are read from the cores that wrote them
            us += sums_us(m_part * n_part * lanes, threads_k, self.machine)
        return us + self.rates(threads)[1]

    def reading_us(self, part: Box, threads: int) -> float:
        """The time in which each thread reads its part of the weight; 0 if the weight is small."""
        share = part[1] * part[2] / self.whole[2] if self.streamed else 0.0
        return share * self.column / self.rates(threads)[0]

    def _cycles(self, m: int, n_vectors: int) -> float:
        """Cycles of a step of K."""
        if self.kernel.by_tiles:
            heights = [(m // self.rows, self.rows), (1, m % self.rows)]
        else:
            heights = [(group.count, group.size) for group in balanced(m, self.rows)]
        panels = balanced(n_vectors, self.vectors)
        return sum(
            count * panel.count * self._step_cycles(rows, panel.size)
            for count, rows in heights
            for panel in panels
            if count and rows
        )

    def _step_cycles(self, rows: int, vectors: int) -> float:
        """Cycles of a step of K of one tile; on AMX, its number of tile registers."""
        if self.kernel.by_tiles:
            return float(math.ceil(rows / ROWS) * vectors)
        return max(rows * vectors / self.rate, self.latency)


_LINE = 16  # int32 of a cache line; each counter has its own


class ThreadGrid:
    """One product divided among threads by rows, by columns and, if these are few, by K.

    Every thread along K writes its partial sums to a buffer and increments a counter. The thread
    that increments it last adds up all partial sums, in a fixed order, and runs the epilogue. So
    there is one fork, and no thread waits.
    """

    def __init__(self, plan: ProductPlan) -> None:
        self.plan = plan
        self.rows, self.columns, self.steps = plan.row_shares, plan.column_shares, plan.k_shares
        self.threads_m = sum(group.count for group in self.rows)
        self.threads_k = sum(group.count for group in self.steps)
        self.blocks = self.threads_m * sum(group.count for group in self.columns)
        self.tasks = self.blocks * self.threads_k
        self.most_rows = self.rows[0].size  # of the largest chunk

    @contextmanager
    def task(self) -> Iterator[Expr]:
        """The loop over tasks, with the buffers for partial sums if K is divided."""
        if self.threads_k == 1:
            with task_loop(self.tasks) as task:
                yield task
            return
        kernel = self.plan.kernel
        pitch = self.plan.n_vectors * kernel.lanes
        with opaque_block("shares"):
            size = self.threads_k * self.plan.m * pitch
            self.sums = I.sblock_alloc_buffer((size,), kernel.acc_dtype, align=64)
            self.counters = I.sblock_alloc_buffer((self.blocks * _LINE,), "int32", align=64)
            with I.serial(self.blocks) as block:
                I.buffer_store(self.counters, tirx.const(0, "int32"), [block * _LINE])
            # TVM would give every task its own buffer if nothing outside of the loop used it.
            I.buffer_store(self.sums, tirx.const(0, kernel.acc_dtype), [tirx.const(0, "int32")])
            with task_loop(self.tasks) as task, llvm_functions(ARRIVAL_LLVM_IR):
                yield task

    def emit(self, task: Expr, loops: TileLoops) -> None:
        """The loops over one thread's chunk."""
        block = task if self.threads_k == 1 else bind(I.floormod(task, self.blocks))

        def part(row: Expr, rows: int, vector: Expr, vectors: int) -> None:
            if self.threads_k == 1:
                loops.emit(row, rows, vector, vectors)
                return
            number = bind(I.floordiv(task, self.blocks))
            start = None
            if loops.start is not None:  # only the first chunk of K starts with it
                start = _FirstStart(loops.start, number, self.plan.kernel)
            partial = replace(loops, results=_Sums(self, number), start=start)

            def share(first: Expr, steps: int) -> None:
                partial.emit(row, rows, vector, vectors, steps=(first, steps))

            for_share(self.steps, number, share)
            with opaque_block("arrive"):
                before = I.sblock_alloc_buffer((1,), "int32")
                zero = tirx.const(0, "int32")
                I.buffer_store(before, count_arrival(self.counters[block * _LINE]), [zero])
                with I.If(before[zero] == self.threads_k - 1), I.Then():
                    self._add(loops, row, rows, vector, vectors)

        def in_columns(row: Expr, rows: int) -> None:
            number = I.floordiv(block, self.threads_m)
            for_share(self.columns, number, functools.partial(part, row, rows))

        for_share(self.rows, I.floormod(block, self.threads_m), in_columns)

    def _add(self, loops: TileLoops, row: Expr, rows: int, vector: Expr, vectors: int) -> None:
        """Adds up the partial sums of a block of results and stores the results."""
        lanes, dtype = self.plan.kernel.lanes, self.plan.kernel.acc_dtype
        lane = ramp(0, lanes)

        def total(at: Expr, column: Expr) -> Expr:
            result = I.sblock_alloc_buffer((lanes,), dtype)
            first = self.sums[self.place(tirx.const(0, "int32"), at, column)]
            I.buffer_store(result, first, [lane])
            with I.serial(self.threads_k - 1) as other:
                term = self.sums[self.place(other + 1, at, column)]
                I.buffer_store(result, result[lane] + term, [lane])
            return bind(result[lane])

        def panel(start: Index, size: int) -> None:
            with I.serial(rows) as i, opaque_block("add"):
                for j in range(size):
                    column = vector + start + j
                    loops.results.store(row + i, column, total(row + i, column), j == size - 1)

        for_groups(balanced(vectors, self.plan.vectors), panel)

    def place(self, number: Expr, row: Expr, vector: Index) -> Expr:
        """The index of the partial sums of a chunk of K."""
        lanes = self.plan.kernel.lanes
        return ramp(((number * self.plan.m + row) * self.plan.n_vectors + vector) * lanes, lanes)


@dataclass(frozen=True)
class _Sums(Results):
    """The partial sums of a chunk of K, which the last thread adds up."""

    grid: ThreadGrid
    number: Expr

    def store(self, row: Expr, vector: Index, value: Expr, last: bool) -> None:
        """See `Results.store`."""
        I.buffer_store(self.grid.sums, value, [self.grid.place(self.number, row, vector)])


@dataclass(frozen=True)
class _FirstStart(Beginning):
    """Initial accumulators, which are `start` for the first chunk of K and zeros for the others."""

    start: Beginning
    number: Expr
    kernel: Microkernel

    @property
    def by_column(self) -> bool:
        """See `Beginning.by_column`."""
        return self.start.by_column

    def columns(self, vector: Index) -> Expr:
        """See `Beginning.columns`."""
        return self(tirx.const(0, "int32"), vector)

    def __call__(self, row: Index, vector: Index) -> Expr:
        """See `Beginning.__call__`."""
        lanes, dtype = self.kernel.lanes, self.kernel.acc_dtype
        first = tirx.EQ(splat(self.number, lanes), constant(0, "int32", lanes))
        return tirx.Select(first, self.start(row, vector), constant(0, dtype, lanes))
