"""Which grid of threads ends a product soonest: along rows, columns and, if these are few, K."""

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

# Share of a product's time that it takes to fetch, in the next one, rows of which another core
# wrote a part (measured: 512x13x512 before 512x512x256, two threads).
FOREIGN_ROWS = 0.16
# What a grid of smaller pieces, or of shares of K, has to be faster than one of whole tiles: less
# is within the error of the estimates. It only has to be faster if the other is uneven.
GAIN = 1.1
# Rows that a grid is chosen for where their number is known at run time only.
OPEN_ROWS = (1, 8, 32, 128, 1024)
IMAGE_ROWS = 1 << 16  # of a product that only so many, pixels of images, are worth sharing
SMALL_WEIGHT = 1 << 13  # numbers that stay in L1 from row to row
MOST_WHOLE_ROWS = 64  # of such a number, for which threads may share columns instead of rows


def best_grid(
    tile: Fields, m: int, n: int, k: int, machine: Machine, flops: float, k_unit: int | None = None
) -> Fields:
    """The grid of threads for a tile, as fields of a configuration; one if there is little work.

    The best grid along rows and columns, counted in whole tiles, unless a grid along K too, or one
    that cuts tiles, is better by far.

    Parameters
    ----------
    tile : dict
        Fields of a TileConfig.
    m, n, k : int
        Rows, columns and elements of K.
    machine : Machine
        What it is for.
    flops : float
        Multiplications and additions, less those that one instruction does for a group of kr.
    k_unit : int or None
        Steps of K that are not cut; None if all threads multiply all of K.
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


def open_grid(tile: Fields, n: int, k: int, machine: Machine, row_flops: float) -> Fields:
    """The grid of threads that is good for any number of rows, as fields of a configuration.

    The one with the least time, in the geometric mean of those of `OPEN_ROWS` that are worth more
    threads than one.

    Parameters
    ----------
    tile, n, k, machine
        As of `best_grid`.
    row_flops : float
        `flops` of `best_grid`, of one row.
    """
    alone = flops_us(row_flops, machine)
    # One row of a larger weight takes as long as reading that, which threads share.
    below = alone_below(machine, alone) if n * k <= SMALL_WEIGHT else 0
    sizes = [rows for rows in OPEN_ROWS if rows > below] or [IMAGE_ROWS]
    if threads_worth(machine, alone * sizes[-1]) == 1:
        return {}
    kernel = microkernel_named(tile["kernel"])
    n_vectors = math.ceil(n / kernel.lanes)
    costs = [_GridCost(tile, (rows, n_vectors, 1), k, machine, alone * rows) for rows in sizes]
    tried = [(1, 1), *grids_of(halves(machine.threads))]
    grids = sorted({(rows, min(columns, n_vectors)) for rows, columns in tried})

    def along_columns(grid: tuple[int, int]) -> tuple[int, int, int]:
        """The grid of few rows, without threads that would be idle."""
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
    """Microseconds of a product on grids of threads.

    A part takes the time of its products, more where much of A, B and C is moved for few of them,
    and at least that of reading its columns of a weight beyond L2. The first is after the Graph
    Compiler's split choice (Li et al., arXiv 2301.01333), with the bytes of A, B and C in place of
    fitted constants. Sums of shares of K come from the cores that wrote them.

    Attributes
    ----------
    tile : dict
        Fields of a TileConfig.
    whole : tuple
        Rows, vectors of columns and units of K of all threads.
    k : int
        Elements of K.
    machine : Machine
        What it is for.
    alone_us : float
        The products on one thread.
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
        """The time if a tile that is not full takes as long as one that is."""
        m, n_vectors, _ = self.whole
        part = divided(self.whole, grid)
        m_tiles, n_tiles = math.ceil(m / self.rows), math.ceil(n_vectors / self.vectors)
        # Where there are more threads than tiles, these get lower or narrower.
        high = self.rows if grid[0] <= m_tiles else part[0]
        wide = self.vectors if grid[1] <= n_tiles else part[1]
        tiles = math.ceil(part[0] / self.rows) * math.ceil(part[1] / self.vectors)
        step = tiles * self._step_cycles(high, wide)
        full = m_tiles * n_tiles * self._step_cycles(self.rows, self.vectors)
        return self._us(grid, part, step / full)

    def of_pieces(self, grid: Box) -> float:
        """The time with tiles as they are cut."""
        part = divided(self.whole, grid)
        step = self.cycles(part[0], part[1]) / self.cycles(self.whole[0], self.whole[1])
        return self._us(grid, part, step)

    def _us(self, grid: Box, part: Box, step: float) -> float:
        """The time of the busiest thread, with that part of the products of a step of K."""
        threads_m, threads_n, threads_k = grid
        m_part, n_part, k_part = part
        threads = threads_m * threads_n * threads_k
        lanes, of_k = self.kernel.lanes, k_part / self.whole[2]
        m_share, n_share = self.whole[0] / threads_m, self.whole[1] * lanes / threads_n
        moved = (m_share + n_share) * (1 / (self.k * of_k) + 1 / (m_share * n_share))
        foreign = 1 + FOREIGN_ROWS * (1 - 1 / (threads_n * threads_k))
        us = self.alone_us * step * of_k * (1 + 0.05 * moved) * foreign
        us = max(us, self.reading_us(part, threads))
        if threads_k > 1:
            us += sums_us(m_part * n_part * lanes, threads_k, self.machine)
        return us + self.rates(threads)[1]

    def reading_us(self, part: Box, threads: int) -> float:
        """The time in which each of so many threads reads its part of a weight beyond L2."""
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
        """Cycles of a step of K of one tile; on AMX, of a tile of 16 rows each."""
        if self.kernel.by_tiles:
            return float(math.ceil(rows / ROWS) * vectors)
        return max(rows * vectors / self.rate, self.latency)


_LINE = 16  # int32 of a cache line; each counter has its own


class ThreadGrid:
    """ThreadGrid: one product cut among threads, by rows, by columns and, if these are few, by K.

    Every thread along K writes the sums of its share to a buffer and counts that it has. The one
    that counts last adds up the shares, always in the same order, and runs the epilogue. So there
    is one fork, and nobody waits.

    Rows, vectors of columns and steps of K of a plan, cut among its threads.
    """

    def __init__(self, plan: ProductPlan) -> None:
        self.plan = plan
        self.rows, self.columns, self.steps = plan.row_shares, plan.column_shares, plan.k_shares
        self.threads_m = sum(group.count for group in self.rows)
        self.threads_k = sum(group.count for group in self.steps)
        self.blocks = self.threads_m * sum(group.count for group in self.columns)
        self.tasks = self.blocks * self.threads_k
        self.most_rows = self.rows[0].size  # of the largest share

    @contextmanager
    def task(self) -> Iterator[Expr]:
        """The loop over tasks; around it, what the shares of K need."""
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
        """The loops over one thread's share."""
        block = task if self.threads_k == 1 else bind(I.floormod(task, self.blocks))

        def part(row: Expr, rows: int, vector: Expr, vectors: int) -> None:
            if self.threads_k == 1:
                loops.emit(row, rows, vector, vectors)
                return
            number = bind(I.floordiv(task, self.blocks))
            start = None
            if loops.start is not None:  # that of the first share alone
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
        """Adds the shares of a block of results and stores them."""
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
        """Where the sums of a share lie."""
        lanes = self.plan.kernel.lanes
        return ramp(((number * self.plan.m + row) * self.plan.n_vectors + vector) * lanes, lanes)


@dataclass(frozen=True)
class _Sums(Results):
    """The sums of a share of K, which the last thread adds up."""

    grid: ThreadGrid
    number: Expr

    def store(self, row: Expr, vector: Index, value: Expr, last: bool) -> None:
        """As of `Results`."""
        I.buffer_store(self.grid.sums, value, [self.grid.place(self.number, row, vector)])


@dataclass(frozen=True)
class _FirstStart(Beginning):
    """What accumulators of the first share of K start with; zeros of the others."""

    start: Beginning
    number: Expr
    kernel: Microkernel

    @property
    def by_column(self) -> bool:
        """As of `Beginning`."""
        return self.start.by_column

    def columns(self, vector: Index) -> Expr:
        """As of `Beginning`."""
        return self(tirx.const(0, "int32"), vector)

    def __call__(self, row: Index, vector: Index) -> Expr:
        """As of `Beginning`."""
        lanes, dtype = self.kernel.lanes, self.kernel.acc_dtype
        first = tirx.EQ(splat(self.number, lanes), constant(0, "int32", lanes))
        return tirx.Select(first, self.start(row, vector), constant(0, dtype, lanes))
