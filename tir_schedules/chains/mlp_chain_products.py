"""The products of a chain before they are built: their loops, their sizes, their kernels.

blocks of rows > the loops of every matmul, or those one after the other
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from microkernels.machines.machine import Machine
from tir_schedules.core.loop_nest import Loop, LoopNest, balance_of
from tir_schedules.core.product import Product
from tir_schedules.core.region import Region
from tir_schedules.cost.product_nest import kind_of
from tir_schedules.product.matmul import MATMUL, estimated_cycles, product_of
from tir_schedules.product.matmul_config import MatmulConfig

from .mlp_chain_config import MlpChainConfig, blocks_of, rows_of, with_rows


def nests(region: Region, config: MlpChainConfig) -> Iterator[LoopNest]:
    """The loops of every matmul; normalisations are left out."""
    rows = 0
    if config.mode == "rows":
        groups = blocks_of(rows_of(region.parts[0]), config)
        blocks, rows = sum(group.count for group in groups), groups[0].size
        share = rows_of(region.parts[0]) / rows  # a last block that is cut counts in part
    for part, found in zip(region.parts, config.of_parts(region), strict=True):
        if not isinstance(found, MatmulConfig):
            continue
        if not rows:
            yield from MATMUL.nests(part, found)
            continue
        (nest,) = MATMUL.nests(with_rows(part, rows), found)
        a, b, c = nest.loops[0].touched
        whole = Loop(
            "row block",
            share,
            kind_of(config.threads > 1),
            (a * share, b, c * share),
        )
        # With the others' weights and rows in between, as much passes until a weight comes again.
        yield dataclasses.replace(
            nest,
            loops=(whole, *nest.loops),
            operations=nest.operations * share,
            balance=balance_of(blocks, config.threads),
        )


def estimate(region: Region, config: MlpChainConfig, machine: Machine) -> float:
    """Cycles of the busiest thread's products; barriers, traffic and norms are left out."""
    groups = [(1, 0)]
    parts = list(zip(region.parts, config.of_parts(region), strict=True))
    if config.mode == "rows":
        blocks = blocks_of(rows_of(region.parts[0]), config)
        tasks = [group.size for group in blocks for _ in range(group.count)]
        mine = tasks[:: config.threads]
        groups = [(mine.count(size), size) for size in sorted(set(mine))]
    return sum(
        count * estimated_cycles(with_rows(part, size) if size else part, found, machine)
        for count, size in groups
        for part, found in parts
        if isinstance(found, MatmulConfig)
    )


def products(region: Region, config: MlpChainConfig, machine: Machine) -> Iterator[Product]:
    """Every matmul: of a block of rows, or as if it stood alone."""
    for number, (part, found) in enumerate(zip(region.parts, config.of_parts(region), strict=True)):
        if not isinstance(found, MatmulConfig):
            continue
        name = f"part {number}"
        if config.mode == "columns":
            yield dataclasses.replace(product_of(part, found, machine), name=name)
            continue
        blocks = blocks_of(rows_of(part), config)
        one = dataclasses.replace(machine, threads=1)
        sized = part if part.is_open else with_rows(part, blocks[0].size)
        product = product_of(sized, found, one)
        copies = sum(group.count for group in blocks)
        yield dataclasses.replace(product, part=part, copies=copies, name=name)
