"""The loop nests of templates that multiply matrices.

matmul, weight_only_matmul    threads > row block > column panel > K block > row tile > tile
batch_matmul                  tasks > the same
conv2d_winograd               blocks of tiles > panels > 36 products > the same
attention                     tasks > bands > panels > tile, of the scores and of the product
mlp_chain                     blocks of rows > those of every matmul, or one after the other
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from microkernels.microkernel import microkernel_named
from tir_schedules.attention.config import AttentionConfig, kernels_of
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.chains.mlp_chain_config import MlpChainConfig, blocks_of, rows_of, with_rows
from tir_schedules.convolution.winograd.config import WinogradConfig
from tir_schedules.convolution.winograd.problem import WinogradProblem
from tir_schedules.convolution.winograd.transforms import PRODUCTS
from tir_schedules.core.loop_nest import (
    Bytes,
    Kind,
    Loop,
    LoopNest,
    Tiling,
    balance_of,
    nested,
    pieces,
    product_loops,
)
from tir_schedules.core.region import Region
from tir_schedules.product import matmul_config, weight_only_matmul
from tir_schedules.product.batch_matmul import BatchMatmulConfig
from tir_schedules.product.batch_operands import BatchProblem
from tir_schedules.product.matmul_config import MatmulConfig
from tir_schedules.product.tile_config import TileConfig


def matmul_nests(region: Region, config: MatmulConfig) -> Iterator[LoopNest]:
    """Of the templates "matmul" and "weight_only_matmul"."""
    problem = weight_only_matmul if region.op == "weight_only_matmul" else matmul_config
    m, n, k = problem.dimensions(region)
    yield _product(m, n, k, config, config.threads_m, config.threads_n)


def batch_matmul_nests(region: Region, config: BatchMatmulConfig) -> Iterator[LoopNest]:
    """Of the template "batch_matmul"; packing is left out."""
    problem = BatchProblem(region)
    nest = _product(problem.m, problem.n, problem.k, config, min(config.row_shares, problem.m), 1)
    a, b, c = (size * problem.batches for size in nest.loops[0].touched)
    loops = (Loop("batch", problem.batches, _kind(config.parallel), (a, b, c)), *nest.loops)
    operations = nest.operations * problem.batches
    yield dataclasses.replace(nest, loops=loops, operations=operations)


def winograd_nests(region: Region, config: WinogradConfig) -> Iterator[LoopNest]:
    """Of the template "conv2d_winograd": the products, between the transforms."""
    problem, kernel = WinogradProblem.of(region), microkernel_named(config.kernel)
    geometry, tiles = problem.geometry, problem.tiles
    blocks, each = config.blocks(problem)
    teams, members = config.teams(problem), config.threads_panels
    block = tiles / sum(group.count for group in blocks)
    k, n_vectors = geometry.channels, math.ceil(geometry.out_channels / kernel.lanes)
    share = n_vectors / members
    panels = pieces(share, config.vectors)
    tiling = _tiling(config)
    # The 36 products are between the panels and a product's own loops, whose panel is one.
    inner = product_loops((block, share / panels, k), tiling, kernel.lanes, ("tiles", "panel", "C"))
    weight = 4.0 * PRODUCTS * k * kernel.lanes

    def touched(tiles: float, vectors: float) -> Bytes:
        results = 4.0 * PRODUCTS * tiles * vectors * kernel.lanes
        return 4.0 * PRODUCTS * tiles * k, weight * vectors, results

    loops = [
        Loop("thread", teams * members, "parallel", touched(tiles, n_vectors)),
        Loop("block", each, "serial", touched(tiles / teams, share)),
        Loop("panel", panels, "serial", touched(block, share)),
        Loop("matrix", PRODUCTS, "serial", touched(block, share / panels)),
        *inner,
    ]
    useful = geometry.out_channels / (n_vectors * kernel.lanes)
    useful *= math.prod(geometry.outputs) * geometry.batch / (16 * tiles)
    balance = balance_of(tiles, teams) * balance_of(n_vectors, members)
    yield LoopNest(nested(loops), geometry.flops / 2, useful, balance)


def attention_nests(region: Region, config: AttentionConfig) -> Iterator[LoopNest]:
    """Of the template "attention": its two products; the softmax is alike in all configurations."""
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
            Loop("task", tasks, _kind(config.parallel), (tasks * a, tasks * b, tasks * c)),
            Loop("query block", rows / query_block, "serial", touched(rows, key_blocks)),
            Loop("key block", key_blocks, "serial", touched(query_block, key_blocks)),
            Loop("band", query_block / band, "serial", touched(query_block, 1)),
            *inner,
        ]
        operations = problem.batches * problem.m * problem.n * size
        useful = n / (n_vectors * kernel.lanes) * min(1.0, k / (steps * kernel.kr))
        yield LoopNest(nested(loops), operations, useful)


def chain_nests(region: Region, config: MlpChainConfig) -> Iterator[LoopNest]:
    """Of the template "mlp_chain": one for each matmul; normalisations are left out."""
    blocks, rows = 1, 0
    if config.mode == "rows":
        groups = blocks_of(rows_of(region.parts[0]), config)
        blocks, rows = sum(group.count for group in groups), groups[0].size
    for part, found in zip(region.parts, config.of_parts(region), strict=True):
        if not isinstance(found, MatmulConfig):
            continue
        if not rows:
            yield from matmul_nests(part, found)
            continue
        (nest,) = matmul_nests(with_rows(part, rows), found)
        a, b, c = nest.loops[0].touched
        whole = Loop(
            "row block",
            blocks,
            _kind(config.threads > 1),
            (a * blocks, b, c * blocks),
        )
        # With the others' weights and rows in between, as much passes until a weight comes again.
        yield dataclasses.replace(
            nest,
            loops=(whole, *nest.loops),
            operations=nest.operations / rows * rows_of(part),  # the last block may be cut
            balance=balance_of(blocks, config.threads),
        )


def _product(
    m: int, n: int, k: int, config: TileConfig, threads_m: int, threads_n: int
) -> LoopNest:
    """A product on a grid of threads."""
    kernel = microkernel_named(config.kernel)
    n_vectors, steps = math.ceil(n / kernel.lanes), kernel.steps(k)
    threads_m, threads_n = min(threads_m, m), min(threads_n, n_vectors)
    share = m / threads_m, n_vectors / threads_n, float(steps)
    loops = product_loops(share, _tiling(config), kernel.lanes)
    a, b, c = 4.0 * m * steps, 4.0 * kernel.lanes * n_vectors * steps, 4.0 * kernel.lanes * m * n
    return LoopNest(
        nested([Loop("thread", threads_m * threads_n, "parallel", (a, b, c)), *loops]),
        operations=float(m) * n * k,
        useful=n / (n_vectors * kernel.lanes) * k / (steps * kernel.kr),
        balance=balance_of(m, threads_m) * balance_of(n_vectors, threads_n),
    )


def _tiling(config: TileConfig) -> Tiling:
    return Tiling(config.rows, config.vectors, config.m_block, config.k_block)


def _kind(parallel: bool) -> Kind:
    return "parallel" if parallel else "serial"
