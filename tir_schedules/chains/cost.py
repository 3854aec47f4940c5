"""What a chain of regions costs as separate kernels, by rows, and by columns.

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
from collections.abc import Iterator
from dataclasses import dataclass, replace

from microkernels.amx.tile_shapes import LAYOUTS, ROWS
from microkernels.machines.machine import Machine
from tir_schedules.core.blocking import Group, shares
from tir_schedules.core.region import Region, Tensor
from tir_schedules.cost.cost import Cost
from tir_schedules.cost.merge_estimate import (
    CHAIN,
    CHAIN_FROM_MEMORY,
    Least,
    MergeEstimate,
    on_threads,
)
from tir_schedules.cost.parallel import halves
from tir_schedules.cost.work import has_tiles, norm_us
from tir_schedules.epilogue.epilogue import rows_and_columns
from tir_schedules.product.matmul import MATMUL, estimated_cycles
from tir_schedules.rows.normalize import default_config as normalize_config

from .sources import sources_of

TALLEST = ROWS * LAYOUTS["2x2"][0]  # rows of the block of tiles that takes the fewest loads

# Share of the time to stream a weight from memory that shows although the product takes longer.
# Measured on Zen 4 with 4 to 32 rows: 32 MB, of which most come from memory, in 1400 us make
# 572..4568 us longer by 215..326. From L2: in `estimate_cycles` already.
MEMORY_EXPOSED = 0.2
# A result beyond L2 is read before it is written, written, and read by each that needs it.
STORE_TRANSFERS = 2


@dataclass(frozen=True)
class ChainPlan:
    """One way to compute a chain.

    Attributes
    ----------
    mode : str
        "rows" or "columns".
    cost : Cost
        What it costs.
    tasks : int
        Threads that have work.
    block : int
        Rows that go through the whole chain together, by "rows"; else all of them.
    """

    mode: str
    cost: Cost
    tasks: int
    block: int


@dataclass(frozen=True, kw_only=True)
class ChainEstimate(MergeEstimate):
    """A chain computed in every way; merged in the better one of those that need one kernel.

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
        Of kind "mlp_chain": matmuls and normalisations of rows with equally many rows.
    machine : Machine
        Its threads share the work.
    """
    chain = _Chain(region, machine)
    rows = min(chain.by_rows(), key=lambda plan: plan.cost.total)
    plan = min((rows, *chain.by_columns()), key=lambda plan: plan.cost.total)
    way = f"blocks of {plan.block} rows" if plan.mode == "rows" else "columns"
    return ChainEstimate(
        separate=chain.separate(),
        merged=plan.cost,
        how=f"by {way} {on_threads(plan.tasks)}",
        least=CHAIN,
        plan=plan,
        rows=rows,
    )


@dataclass(frozen=True)
class _Share:
    """What the busiest thread does of one part."""

    compute: float  # microseconds
    passes: int  # times that it streams its columns of the weight
    threads_m: int = 1
    threads_n: int = 1
    threads_k: int = 1


class _Chain:
    """The parts of a chain on a machine."""

    def __init__(self, region: Region, machine: Machine) -> None:
        self.machine = machine
        self.unit = TALLEST if has_tiles(machine) else 1
        self.parts = region.parts
        self.reads = [[s.number for s in found if s.part] for found in sources_of(region)]
        self.m = rows_and_columns(region.output)[0]
        self.weight_bytes = sum(map(_weight_bytes, self.parts))
        self.shares = [_alone(part, machine) for part in self.parts]
        last = len(self.parts) - 1
        self.row_bytes = sum(part.output.nbytes for part in self.parts[:last]) // self.m

    def separate(self) -> Cost:
        """Every part as a kernel of its own."""
        return self._in_turn(self.machine.call_us * len(self.parts))

    def by_columns(self) -> Iterator[ChainPlan]:
        """The parts in turn in one kernel, on several threads."""
        if self.machine.threads > 1:
            tasks = max(map(_tasks, self.shares))
            yield ChainPlan("columns", self._in_turn(self.machine.call_us), tasks, self.m)

    def by_rows(self) -> Iterator[ChainPlan]:
        """Blocks of rows of several sizes, on one thread, on all and on halves of them."""
        for tasks in sorted({1, *(min(n, self.m) for n in halves(self.machine.threads))}):
            rows = math.ceil(self.m / tasks)
            fits = self.machine.l2_bytes // 2 // self.row_bytes
            fewest = math.ceil(rows / max(1, fits))
            sizes = {self._whole(math.ceil(rows / (few * fewest))) for few in (1, 2, 4)}
            for block in sorted({rows, *sizes}, reverse=True):  # few, where all are alike
                yield ChainPlan("rows", self._in_blocks(rows, block, tasks), tasks, block)

    def _whole(self, rows: int) -> int:
        """So many rows or somewhat fewer, whole tiles if the machine has tiles."""
        return rows // self.unit * self.unit if rows > self.unit else rows

    def _in_turn(self, calls: float) -> Cost:
        cost = Cost(barriers=calls)
        for part, share, sources in zip(self.parts, self.shares, self.reads, strict=True):
            fork_join = self.machine.fork_us(_tasks(share))
            moved = sum(self._moved(source, share) for source in sources)
            weights = self._streaming(part, share)
            cost += Cost(share.compute, 0.0, weights, moved, fork_join)
        return cost

    def _in_blocks(self, rows: int, block: int, tasks: int) -> Cost:
        cost = Cost(barriers=self.machine.call_us + self.machine.fork_us(tasks))
        groups = row_groups(rows, math.ceil(rows / block), self.unit if block < rows else 1)
        for part in self.parts:
            pieces = [(group.count, _of_rows(part, group.size, self.machine)) for group in groups]
            compute = sum(count * piece.compute for count, piece in pieces)
            passes = sum(count * piece.passes for count, piece in pieces)
            weights = self._streaming(part, _Share(compute, passes, tasks))
            cost += Cost(compute, weights=weights)
        transfers = STORE_TRANSFERS + 1
        beyond = max(0.0, block * self.row_bytes - self.machine.l2_bytes)
        rate = self.machine.l3_rate(tasks)
        return cost + Cost(between=transfers * beyond * (rows / block) / rate)

    def _streaming(self, part: Region, share: _Share) -> float:
        """Microseconds that reading a weight adds to computing with it."""
        if self.weight_bytes <= self.machine.l2_bytes // 2:
            return 0.0
        rate, exposed = self.machine.l3_rate(_tasks(share)), self.machine.l3_exposed(_tasks(share))
        if self.weight_bytes > self.machine.l3_bytes // 2:
            rate, exposed = self.machine.memory_rate(_tasks(share)), MEMORY_EXPOSED
        time = share.passes * _weight_bytes(part) / (share.threads_n * share.threads_k) / rate
        return max(0.0, time - share.compute) + exposed * min(time, share.compute)

    def _moved(self, source: int, share: _Share) -> float:
        """Microseconds for a part to get rows of an earlier one, and for that one to store them."""
        made = self.shares[source]
        size = self.parts[source].output.nbytes
        beyond = max(0.0, size / _tasks(made) - self.machine.l2_bytes)
        readers = sum(reads.count(source) for reads in self.reads)
        stored = (STORE_TRANSFERS / readers + 1) * beyond / self.machine.l3_rate(_tasks(made))
        own = min(1.0, share.threads_m / made.threads_m) / made.threads_n
        if _tasks(made) < _tasks(share):
            own = 0.0  # that of a thread that had nothing to do before
        return stored + (1 - own) * size / share.threads_m / self.machine.foreign_rate


def row_groups(m: int, blocks: int, unit: int = 1) -> tuple[Group, ...]:
    """Blocks of rows whose sizes differ by one unit at most, but for the tail of the last one.

    >>> row_groups(150, blocks=3, unit=32)
    (Group(start=0, count=2, size=64), Group(start=128, count=1, size=22))
    """
    units = math.ceil(m / unit)
    groups = []
    for group in shares(units, min(units, blocks)):
        start, size = group.start * unit, group.size * unit
        whole = min(group.count, (m - start) // size)
        if whole:
            groups.append(Group(start, whole, size))
        if whole < group.count:
            end = start + whole * size
            groups.append(Group(end, 1, m - end))
    return tuple(groups)


def least_of(weights: int, machine: Machine) -> Least:
    """What a chain has to save in a model with so many bytes of weights."""
    return CHAIN_FROM_MEMORY if weights > machine.l3_bytes else CHAIN


def constant_bytes(region: Region) -> int:
    """Bytes of a region's constant inputs."""
    return sum(tensor.nbytes for tensor in region.inputs if tensor.constant)


def _alone(part: Region, machine: Machine) -> _Share:
    """A part as a kernel of its own, in its default configuration."""
    m, n = rows_and_columns(part.output)
    if part.op != MATMUL.name:
        threads = normalize_config(part, machine).threads
        return _Share(_norm_us(math.ceil(m / threads), n, machine), 1, min(threads, m))
    config = MATMUL.default_config(part, machine)
    passes = math.ceil(math.ceil(m / config.threads_m) / config.m_block)
    cycles = estimated_cycles(part, config, machine)
    compute = cycles / machine.cycles_per_us
    return _Share(compute, passes, config.threads_m, config.threads_n, config.threads_k)


def _of_rows(part: Region, rows: int, machine: Machine) -> _Share:
    """Some rows of a part on one thread."""
    n = part.output.shape[-1]
    if part.op != MATMUL.name:
        return _Share(_norm_us(rows, n, machine), 1)
    a = part.inputs[0]
    a = Tensor((rows, a.shape[-1]), a.dtype)
    output = Tensor((rows, n), part.output.dtype)
    rows_only = Region(op=part.op, inputs=(a, *part.inputs[1:]), output=output, attrs=part.attrs)
    return _alone(rows_only, replace(machine, threads=1))


def _norm_us(rows: int, n: int, machine: Machine) -> float:
    return norm_us(rows * math.ceil(n / machine.isa.f32_lanes), machine)


def _tasks(share: _Share) -> int:
    return share.threads_m * share.threads_n * share.threads_k


def _weight_bytes(part: Region) -> int:
    return part.inputs[1].nbytes if part.op == MATMUL.name else 0
