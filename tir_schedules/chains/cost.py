"""The cost of a chain of regions as separate kernels, by rows, and by columns.

    separate   one kernel per region, each with a call and a barrier; results go through the caches
    rows       one kernel: every thread takes blocks of rows through all regions, one barrier
    columns    one kernel: the regions one after the other on all threads, a barrier each

In every region of a chain, a row of the result depends on the same row of the input only. The
estimate replaces measuring, as in the Graph Compiler's coarse-grain fusion (Li et al., arXiv
2301.01333, section on coarse-grain fusion). A chain saves calls, barriers and traffic between
regions; it loses parallelism, and every block of rows reads the weights again. The constants were
measured on one machine (Zen 4, 2 cores, 3.7 GHz, 1 MB of L2, 32 MB of L3); cache sizes and speeds
come from the Machine. AMX tiles compute up to eight times as fast, so that less of the time of
reading a weight from L3 is hidden; blocks of rows are then whole tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from microkernels.amx.tile_shapes import LAYOUTS, ROWS
from microkernels.machines.machine import Machine
from tir_schedules.core.blocking import shares_of_units
from tir_schedules.core.region import Region
from tir_schedules.core.size import SAMPLE
from tir_schedules.core.template import template_for
from tir_schedules.cost import parallel
from tir_schedules.cost.cost import Cost, has_tiles, norm_us
from tir_schedules.epilogue.epilogue import rows_and_columns
from tir_schedules.product import best_grid, matmul
from tir_schedules.product.tile_config import MatmulConfig
from tir_schedules.rows.normalize import NormalizeConfig
from tir_schedules.rows.normalize import default_config as normalize_config

from .parts import PartConfig, sources_of, with_rows

TALLEST = ROWS * LAYOUTS["2x2"][0]  # rows of the block of tiles that takes the fewest loads

# Fraction of the time to read a weight from memory that shows although the product takes longer.
# Measured on Zen 4 with 4 to 32 rows: reading 32 MB, mostly from memory, takes 1400 us, and makes
# 572..4568 us longer by 215..326. `estimate_cycles` includes reads from L2.
MEMORY_EXPOSED = 0.2
# A result beyond L2 is read before it is written, written, and read by each part that needs it.
STORE_TRANSFERS = 2
# Estimates that differ by no more than this are equal.
RESOLUTION = 0.01


@dataclass(frozen=True)
class Share:
    """The busiest thread's share of one part."""

    compute: float  # microseconds
    passes: int  # times that it reads its columns of the weight
    threads_m: int = 1
    threads_n: int = 1
    threads_k: int = 1

    @property
    def tasks(self) -> int:
        """Threads that have work."""
        return self.threads_m * self.threads_n * self.threads_k


def alone(part: Region, machine: Machine, config: PartConfig | None = None) -> Share:
    """A part as a separate kernel, by default in its default configuration."""
    m, n = rows_and_columns(part.output)
    if part.op != matmul.MATMUL.name:
        norm = config if isinstance(config, NormalizeConfig) else normalize_config(part, machine)
        threads = min(norm.threads, m) if m > norm.alone_rows else 1
        vectors = math.ceil(m / threads) * math.ceil(n / machine.isa.f32_lanes)
        return Share(norm_us(vectors, machine), 1, threads)
    if not isinstance(config, MatmulConfig):
        config = matmul.MATMUL.default_config(part, machine)
    threads_m = min(config.threads_m, m)
    passes = math.ceil(math.ceil(m / threads_m) / config.m_block)
    cycles = matmul.estimated_cycles(part, config, machine)
    compute = cycles / machine.cycles_per_us
    return Share(compute, passes, threads_m, config.threads_n, config.threads_k)


def of_rows(part: Region, rows: int, machine: Machine, config: PartConfig | None = None) -> Share:
    """Some rows of a part on one thread."""
    n = part.output.shape[-1]
    if part.op != matmul.MATMUL.name:
        return Share(norm_us(rows * math.ceil(n / machine.isa.f32_lanes), machine), 1)
    rows_only = with_rows(part, rows).replace(epilogue=())
    if isinstance(config, MatmulConfig):
        config = msgspec.structs.replace(config, threads_m=1, threads_n=1, threads_k=1)
    return alone(rows_only, replace(machine, threads=1), config)


def weight_bytes_of(part: Region) -> int:
    return part.inputs[1].nbytes if part.op == matmul.MATMUL.name else 0


@dataclass(frozen=True)
class ChainPlan:
    """One way to compute a chain.

    Attributes
    ----------
    mode : str
        "rows" or "columns".
    cost : Cost
        Its cost.
    tasks : int
        Threads that have work.
    block : int
        Rows that go through the whole chain together, by "rows"; else all of them.
    alone : int
        If the number of rows is dynamic, up to this number one thread takes them all.
    """

    mode: str
    cost: Cost
    tasks: int
    block: int
    alone: int = 0


@dataclass(frozen=True, kw_only=True)
class ChainEstimate(parallel.MergeEstimate):
    """A chain computed in every way; `merged` is the better way with one kernel.

    Attributes
    ----------
    plan : ChainPlan
        The merged way.
    rows : ChainPlan
        One kernel in its best blocks of rows.
    """

    plan: ChainPlan
    rows: ChainPlan


def estimate_chain(region: Region, machine: Machine) -> ChainEstimate:
    """The cost of a chain's regions, separate and merged.

    Parameters
    ----------
    region : Region
        A region of kind "mlp_chain": matmuls and normalisations with equally many rows.
    machine : Machine
        Its threads share the work.
    """
    chain = ChainCost(region, machine)
    rows = min(chain.by_rows(), key=lambda plan: plan.cost.total)
    ways = [rows]
    if machine.threads > 1:  # the parts in turn in one kernel
        tasks = max(share.tasks for share in chain.shares)
        ways.append(ChainPlan("columns", chain.in_turn(machine.call_us), tasks, chain.m))
    plan = min(ways, key=lambda plan: plan.cost.total)
    way = f"blocks of {plan.block} rows" if plan.mode == "rows" else "columns"
    return ChainEstimate(
        separate=chain.separate(),
        merged=plan.cost,
        how=f"by {way} {parallel.on_threads(plan.tasks)}",
        least=parallel.CHAIN,
        plan=plan,
        rows=rows,
    )


class ChainCost:
    """The costs of a chain's parts on a machine.

    `configs` are those of the parts as separate kernels, if they are not the defaults.
    """

    def __init__(
        self, region: Region, machine: Machine, configs: Sequence[PartConfig] | None = None
    ) -> None:
        self.machine = machine
        self.unit = TALLEST if has_tiles(machine) and configs is None else 1
        self.parts = region.parts
        self.configs: Sequence[PartConfig | None] = configs or [None] * len(region.parts)
        self.reads = [[s.number for s in found if s.part] for found in sources_of(region)]
        self.m = rows_and_columns(region.output)[0]
        self.weight_bytes = sum(map(weight_bytes_of, self.parts))
        pairs = zip(self.parts, self.configs, strict=True)
        self.shares = [alone(part, machine, config) for part, config in pairs]
        last = len(self.parts) - 1
        self.row_bytes = sum(part.output.nbytes for part in self.parts[:last]) // self.m

    def separate(self) -> Cost:
        """Every part as a separate kernel."""
        return self.in_turn(self.machine.call_us * len(self.parts))

    def by_rows(self) -> Iterator[ChainPlan]:
        """Blocks of rows of several sizes, on one thread, on all, and on halves of all."""
        for tasks in sorted({1, *(min(n, self.m) for n in parallel.halves(self.machine.threads))}):
            rows = math.ceil(self.m / tasks)
            fits = self.machine.l2_bytes // 2 // self.row_bytes
            fewest = math.ceil(rows / max(1, fits))
            sizes = {self._whole(math.ceil(rows / (few * fewest))) for few in (1, 2, 4)}
            for block in sorted({rows, *sizes}, reverse=True):  # few blocks, if costs are equal
                yield ChainPlan("rows", self.in_blocks(rows, block, tasks), tasks, block)

    def _whole(self, rows: int) -> int:
        """`rows` or somewhat fewer, whole tiles if the machine has tiles."""
        return rows // self.unit * self.unit if rows > self.unit else rows

    def in_turn(self, calls: float) -> Cost:
        """The parts one after the other, each on its threads."""
        cost = Cost(barriers=calls)
        for part, share, sources in zip(self.parts, self.shares, self.reads, strict=True):
            fork_join = self.machine.fork_us(share.tasks)
            moved = sum(self._moved(source, share) for source in sources)
            weights = self._streaming(part, share)
            cost += Cost(share.compute, 0.0, weights, moved, fork_join)
        return cost

    def in_blocks(self, rows: int, block: int, tasks: int) -> Cost:
        """`rows` rows for each of `tasks` threads, block by block."""
        cost = Cost(barriers=self.machine.call_us + self.machine.fork_us(tasks))
        unit = self.unit if block < rows else 1
        groups = shares_of_units(rows, math.ceil(rows / block), unit)
        for part, config in zip(self.parts, self.configs, strict=True):
            pieces = [(g.count, of_rows(part, g.size, self.machine, config)) for g in groups]
            compute = sum(count * piece.compute for count, piece in pieces)
            passes = sum(count * piece.passes for count, piece in pieces)
            weights = self._streaming(part, Share(compute, passes, tasks))
            cost += Cost(compute, weights=weights)
        transfers = STORE_TRANSFERS + 1
        beyond = max(0.0, block * self.row_bytes - self.machine.l2_bytes)
        rate = self.machine.l3_rate(tasks)
        return cost + Cost(between=transfers * beyond * (rows / block) / rate)

    def _streaming(self, part: Region, share: Share) -> float:
        """Microseconds that reading a weight adds to computing with it."""
        if self.weight_bytes <= self.machine.l2_bytes // 2:
            return 0.0
        rate, exposed = self.machine.l3_rate(share.tasks), self.machine.l3_exposed(share.tasks)
        if self.weight_bytes > self.machine.l3_bytes // 2:
            rate, exposed = self.machine.memory_rate(share.tasks), MEMORY_EXPOSED
        time = share.passes * weight_bytes_of(part) / (share.threads_n * share.threads_k) / rate
        return max(0.0, time - share.compute) + exposed * min(time, share.compute)

    def _moved(self, source: int, share: Share) -> float:
        """Microseconds for a part to get rows of an earlier part, and for that to store them."""
        made = self.shares[source]
        size = self.parts[source].output.nbytes
        beyond = max(0.0, size / made.tasks - self.machine.l2_bytes)
        readers = sum(reads.count(source) for reads in self.reads)
        stored = (STORE_TRANSFERS / readers + 1) * beyond / self.machine.l3_rate(made.tasks)
        own = min(1.0, share.threads_m / made.threads_m) / made.threads_n
        if made.tasks < share.tasks:
            own = 0.0  # for a thread without work in the earlier part
        return stored + (1 - own) * size / share.threads_m / self.machine.foreign_rate


def least_of(weights: int, machine: Machine) -> parallel.Least:
    """What a chain has to save in a model whose weights have `weights` bytes."""
    return parallel.CHAIN_FROM_MEMORY if weights > machine.l3_bytes else parallel.CHAIN


def constant_bytes(region: Region) -> int:
    """Bytes of a region's constant inputs."""
    return sum(tensor.nbytes for tensor in region.inputs if tensor.constant)


def estimate_dynamic_chain(region: Region, machine: Machine) -> ChainEstimate:
    """The cost of a chain with a dynamic number of rows: separate, and by rows.

        estimates for 1, 8, 32, 128 and 1024 rows (`DYNAMIC_ROWS`)
            one of them is over 1% slower as one kernel  ->  it is the result: merging does not pay
            none is                                      ->  the mean; every number counts alike

    The separate kernels, too, have one configuration for any number of rows.

    Parameters
    ----------
    region : Region
        A region of kind "mlp_chain" with a dynamic number of rows.
    machine : Machine
        Its threads share the work.
    """
    configs = [template_for(part.op).default_config(part, machine) for part in region.parts]
    chains = {}
    for rows in best_grid.DYNAMIC_ROWS:  # operands of epilogues keep their sample sizes
        parts = tuple(
            with_rows(part, rows).replace(operands=part.sampled().operands) for part in region.parts
        )
        known = region.replace(parts=parts, output=parts[-1].output)
        chains[rows] = ChainCost(known, machine, configs)
    separate = {rows: chain.separate() for rows, chain in chains.items()}
    unit = max(config.rows for config in configs if isinstance(config, MatmulConfig))
    row_bytes = chains[best_grid.DYNAMIC_ROWS[0]].row_bytes
    fits = min(SAMPLE, machine.l2_bytes // 2 // row_bytes)
    blocks = sorted({max(unit, fits // few // unit * unit) for few in (1, 2, 4)}, reverse=True)

    def of(block: int, tasks: int) -> tuple[dict[int, Cost], ChainPlan]:
        alone = 0
        if tasks > 1:
            us = chains[SAMPLE].in_blocks(SAMPLE, SAMPLE, 1).total / SAMPLE
            alone = parallel.alone_below(machine, us)
        costs = {}
        for rows, chain in chains.items():
            threads = 1 if rows <= alone else min(tasks, rows)
            mine = math.ceil(rows / threads)
            costs[rows] = chain.in_blocks(mine, min(block, mine), threads)
        plan = ChainPlan("rows", _mean(costs, separate), tasks, block, alone)
        return costs, plan

    ways = [of(block, tasks) for tasks in sorted({1, machine.threads}) for block in blocks]
    costs, plan = min(ways, key=lambda way: way[1].cost.total)
    worst = min(
        best_grid.DYNAMIC_ROWS, key=lambda rows: 1 - costs[rows].total / separate[rows].total
    )
    how = f"by blocks of at most {plan.block} rows {parallel.on_threads(plan.tasks)}"
    before, after = _mean(separate, separate), plan.cost
    if costs[worst].total > (1 + RESOLUTION) * separate[worst].total:
        before, after, how = separate[worst], costs[worst], f"{worst} rows {how}"
    plan = replace(plan, cost=after)
    return ChainEstimate(
        separate=before, merged=after, how=how, least=parallel.CHAIN, plan=plan, rows=plan
    )


def _mean(costs: dict[int, Cost], separate: dict[int, Cost]) -> Cost:
    """The mean of times over those of separate kernels, in microseconds of `SAMPLE` rows."""
    usual = separate[SAMPLE].total / len(costs)
    scaled = (cost.times(usual / separate[rows].total) for rows, cost in costs.items())
    return sum(scaled, Cost())
