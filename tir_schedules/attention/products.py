"""The two products of an attention before they are built: their loops, their sizes, their kernels.

tasks > query blocks > key blocks > bands > panels > tile
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from microkernels.machines.machine import Machine
from tir_schedules.core.loop_nest import (
    Bytes,
    Loop,
    LoopNest,
    Tiling,
    nested,
    pieces,
    product_loops,
)
from tir_schedules.core.product import Product
from tir_schedules.core.region import Region
from tir_schedules.cost.amx_cost import LEAST_GAIN
from tir_schedules.cost.product_nest import kind_of
from tir_schedules.cost.why_vectors import reasons

from .config import (
    AttentionConfig,
    busiest_cycles,
    candidates,
    estimated_cycles,
    kernels_of,
    plans_of,
)
from .problem import AttentionProblem
from .tiled.rows import row_shares, row_unit

SKINNY = "few queries: K and V are read once, where they are stored, and not packed for tiles"


def nests(region: Region, config: AttentionConfig) -> Iterator[LoopNest]:
    """The loops of the two products; the softmax is alike in all configurations."""
    problem, kernels = AttentionProblem(region), kernels_of(config)
    key_vectors = math.ceil(problem.n / kernels[0].lanes)
    key_blocks, tasks_of_one = 1, config.key_shares
    rows = float(problem.m)
    if not config.skinny:
        shares = row_shares(problem.m, config.row_shares, row_unit(kernels))
        tasks_of_one = sum(group.count for group in shares)
        rows /= tasks_of_one
        if config.key_block:
            key_blocks = pieces(key_vectors, config.key_block // kernels[0].lanes)
    parts = key_blocks * (config.key_shares if config.skinny else 1)
    query_blocks = pieces(rows, config.query_block) if key_blocks > 1 else 1
    query_block = rows / query_blocks
    bands = pieces(query_block, config.band)
    band = query_block / bands
    tasks = problem.batches * tasks_of_one
    for kernel, n, n_parts, k, k_parts, most in (
        (kernels[0], problem.n, parts, problem.d, 1, config.score_vectors),
        (kernels[1], problem.e, 1, problem.n, parts, config.product_vectors),
    ):
        all_vectors, all_steps = math.ceil(n / kernel.lanes), kernel.steps(k)
        vectors, steps = all_vectors / n_parts, all_steps / k_parts
        tiling = Tiling(min(kernel.mr, band), most, band, steps)
        width = kernel.lanes * vectors

        def touched(rows: float, blocks: float, width: float = width, k: float = steps) -> Bytes:
            return 4 * rows * k, 4 * width * k * blocks, 4 * rows * width

        a, b, c = touched(rows, key_blocks)
        loops = [
            Loop("task", tasks, kind_of(config.parallel), (tasks * a, tasks * b, tasks * c)),
            Loop("query block", query_blocks, "serial", touched(rows, key_blocks)),
            Loop("key block", key_blocks, "serial", touched(query_block, key_blocks)),
            Loop("band", bands, "serial", touched(query_block, 1)),
            *product_loops((band, vectors, steps), tiling, kernel.lanes),
        ]
        operations = problem.batches * problem.m * n * k
        useful = n / (all_vectors * kernel.lanes) * k / (all_steps * kernel.kr)
        yield LoopNest(nested(loops), operations, useful)


def estimate(region: Region, config: AttentionConfig, machine: Machine) -> float:
    """Cycles of one attention's products."""
    return estimated_cycles(AttentionProblem(region), config, machine)


def products(region: Region, config: AttentionConfig, machine: Machine) -> Iterator[Product]:
    """Both products, unless K and V are read where they are stored.

    How much is multiplied is not known beforehand where hidden keys are left out or the softmax
    runs on from block to block. Estimated are both together, for tiles may want the queries cut
    otherwise.
    """
    if config.skinny:
        return
    problem = AttentionProblem(region)
    shares = row_shares(problem.m, config.row_shares, row_unit(kernels_of(config)))
    copies = problem.batches * sum(group.count for group in shares)
    known = not config.key_block and problem.causal is None

    def cycles(config: AttentionConfig) -> float:
        return estimated_cycles(problem, config, machine, LEAST_GAIN)

    # Others may cut the rows otherwise: their whole times are compared.
    scale = cycles(config) / busiest_cycles(problem, config, machine, LEAST_GAIN) / LEAST_GAIN

    def others(field: str) -> list[tuple[str, float]]:
        return [
            (getattr(other, field), scale * busiest_cycles(problem, other, machine, LEAST_GAIN))
            for other in candidates(problem, machine)
        ]

    parts = {"scores": problem.scores, "product": problem.product}
    for (name, part), plan in zip(parts.items(), plans_of(problem, config), strict=True):
        yield Product(
            part=part,
            plan=plan,
            copies=copies if known else 0,
            cycles=cycles(config),
            others=partial(others, f"{name}_kernel"),
            name=name,
        )


def why_vectors(region: Region, config: AttentionConfig, machine: Machine) -> str:
    """Why products stay on vectors."""
    return SKINNY if config.skinny else reasons(products(region, config, machine), machine)
