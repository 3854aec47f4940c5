"""The two products of an attention before they are built: their loops, their sizes, their kernels.

tasks > query blocks > key blocks > bands > panels > tile
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from tir_schedules.core.loop_nest import (
    Bytes,
    Loop,
    LoopNest,
    Tiling,
    nested,
    pieces,
    product_loops,
)
from tir_schedules.core.machine import Machine
from tir_schedules.core.product import Product
from tir_schedules.core.region import Region
from tir_schedules.cost.amx_cost import LEAST_GAIN
from tir_schedules.cost.product_nest import kind_of
from tir_schedules.cost.why_vectors import reasons

from .config import AttentionConfig, candidates, estimated_cycles, kernels_of, plans_of
from .problem import AttentionProblem
from .tiled.rows import row_shares, row_unit

SKINNY = "few queries: K and V are read once, where they are stored, and not packed for tiles"


def nests(region: Region, config: AttentionConfig) -> Iterator[LoopNest]:
    """The loops of the two products; the softmax is alike in all configurations."""
    problem = AttentionProblem(region)
    shares = min(problem.m, config.row_shares)
    rows = problem.m / shares
    keys = float(problem.n)
    tasks = problem.batches * shares
    if config.skinny:
        keys /= config.key_shares
        tasks *= config.key_shares
    elif 0 < config.key_block < problem.n:
        keys = config.key_block
    band = min(float(config.band), rows)
    key_blocks, bands = pieces(problem.n, keys), pieces(rows, band)
    query_block = max(band, min(float(config.query_block), rows)) if key_blocks > 1 else rows
    band = rows / bands
    scores, product = kernels_of(config)
    for kernel, k, n, vectors, size in (
        (scores, problem.d, keys, config.score_vectors, problem.d),
        (product, keys, problem.e, config.product_vectors, problem.e),
    ):
        n_vectors, steps = math.ceil(n / kernel.lanes), kernel.steps(math.ceil(k))
        tiling = Tiling(min(kernel.mr, band), vectors, band, steps)
        inner = product_loops((band, n_vectors, steps), tiling, kernel.lanes)

        def touched(rows: float, blocks: float, width: float = n, depth: float = k) -> Bytes:
            return 4 * rows * depth, 4 * width * depth * blocks, 4 * rows * width

        a, b, c = touched(rows, key_blocks)
        loops = [
            Loop("task", tasks, kind_of(config.parallel), (tasks * a, tasks * b, tasks * c)),
            Loop("query block", rows / query_block, "serial", touched(rows, key_blocks)),
            Loop("key block", key_blocks, "serial", touched(query_block, key_blocks)),
            Loop("band", query_block / band, "serial", touched(query_block, 1)),
            *inner,
        ]
        operations = problem.batches * problem.m * problem.n * size
        useful = n / (n_vectors * kernel.lanes) * min(1.0, k / (steps * kernel.kr))
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

    def others(field: str) -> list[tuple[str, float]]:
        found = candidates(problem, machine)
        return [(getattr(other, field), cycles(other) / LEAST_GAIN) for other in found]

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
