"""What a chain costs whose number of rows is known at run time only: separate, and by rows.

    estimates for 1, 8, 32, 128 and 1024 rows (`OPEN_ROWS`)
        one of them is slower as one kernel  ->  that one is the answer: it does not pay
        none is                              ->  the mean, in which every number counts alike

The separate kernels are those of open rows, too: one configuration for any number.
"""

from __future__ import annotations

import math
from dataclasses import replace

from microkernels.machines.machine import Machine
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import SAMPLE
from tir_schedules.core.template import template_for
from tir_schedules.cost.cost import Cost
from tir_schedules.cost.merge_estimate import CHAIN, on_threads
from tir_schedules.cost.parallel import alone_below
from tir_schedules.product.best_grid import OPEN_ROWS
from tir_schedules.product.matmul_config import MatmulConfig

from .cost import ChainCost, ChainEstimate, ChainPlan


def estimate_open_chain(region: Region, machine: Machine) -> ChainEstimate:
    """The cost of a chain's regions, separate and merged, for any number of rows.

    Parameters
    ----------
    region : Region
        Of kind "mlp_chain", its rows open.
    machine : Machine
        Its threads share the work.
    """
    configs = [template_for(part.op).default_config(part, machine) for part in region.parts]
    chains = {rows: ChainCost(_with_rows(region, rows), machine, configs) for rows in OPEN_ROWS}
    separate = {rows: chain.separate() for rows, chain in chains.items()}
    unit = max(config.rows for config in configs if isinstance(config, MatmulConfig))
    row_bytes = chains[OPEN_ROWS[0]].row_bytes
    fits = min(SAMPLE, machine.l2_bytes // 2 // row_bytes)
    blocks = sorted({max(unit, fits // few // unit * unit) for few in (1, 2, 4)}, reverse=True)

    def of(block: int, tasks: int) -> tuple[dict[int, Cost], ChainPlan]:
        alone = 0
        if tasks > 1:
            us = chains[SAMPLE].in_blocks(SAMPLE, SAMPLE, 1).total / SAMPLE
            alone = alone_below(machine, us)
        costs = {}
        for rows, chain in chains.items():
            threads = 1 if rows <= alone else min(tasks, rows)
            mine = math.ceil(rows / threads)
            costs[rows] = chain.in_blocks(mine, min(block, mine), threads)
        plan = ChainPlan("rows", _mean(costs, separate), tasks, block, alone)
        return costs, plan

    ways = [of(block, tasks) for tasks in sorted({1, machine.threads}) for block in blocks]
    costs, plan = min(ways, key=lambda way: way[1].cost.total)
    worst = min(OPEN_ROWS, key=lambda rows: 1 - costs[rows].total / separate[rows].total)
    how = f"by blocks of at most {plan.block} rows {on_threads(plan.tasks)}"
    before, after = _mean(separate, separate), plan.cost
    if costs[worst].total > separate[worst].total:
        before, after, how = separate[worst], costs[worst], f"{worst} rows {how}"
    plan = replace(plan, cost=after)
    return ChainEstimate(separate=before, merged=after, how=how, least=CHAIN, plan=plan, rows=plan)


def _mean(costs: dict[int, Cost], separate: dict[int, Cost]) -> Cost:
    """The mean of shares of the time of separate kernels, in microseconds of the usual rows."""
    usual = separate[SAMPLE].total / len(costs)
    scaled = (cost.times(usual / separate[rows].total) for rows, cost in costs.items())
    return sum(scaled, Cost())


def _with_rows(region: Region, rows: int) -> Region:
    """The chain as if it had so many rows; what its steps read besides is left at a sample."""

    def part(each: Region) -> Region:
        x, *further = each.inputs
        return each.replace(
            inputs=(Tensor((rows, x.shape[-1]), x.dtype), *further),
            output=Tensor((rows, each.output.shape[-1]), each.output.dtype),
            operands=each.sampled().operands,
        )

    parts = tuple(map(part, region.parts))
    return region.replace(parts=parts, output=parts[-1].output)
