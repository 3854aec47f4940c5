"""The loop nest of one matrix product, as `TileLoops` emits it on a grid of threads.

threads > row block > column panel > K block > row tile > tile
"""

from __future__ import annotations

import math

from microkernels.microkernel import microkernel_named
from tir_schedules.core.loop_nest import (
    Kind,
    Loop,
    LoopNest,
    Tiling,
    balance_of,
    nested,
    product_loops,
)
from tir_schedules.core.product import TileConfig


def product_nest(
    m: int, n: int, k: int, config: TileConfig, threads_m: int, threads_n: int
) -> LoopNest:
    """A product of so many rows, columns and elements of K."""
    kernel = microkernel_named(config.kernel)
    n_vectors, steps = math.ceil(n / kernel.lanes), kernel.steps(k)
    threads_m, threads_n = min(threads_m, m), min(threads_n, n_vectors)
    share = m / threads_m, n_vectors / threads_n, float(steps)
    loops = product_loops(share, tiling_of(config), kernel.lanes)
    a, b, c = 4.0 * m * steps, 4.0 * kernel.lanes * n_vectors * steps, 4.0 * kernel.lanes * m * n
    return LoopNest(
        nested([Loop("thread", threads_m * threads_n, "parallel", (a, b, c)), *loops]),
        operations=float(m) * n * k,
        useful=n / (n_vectors * kernel.lanes) * k / (steps * kernel.kr),
        balance=balance_of(m, threads_m) * balance_of(n_vectors, threads_n),
    )


def tiling_of(config: TileConfig) -> Tiling:
    """How a configuration blocks a product."""
    return Tiling(config.rows, config.vectors, config.m_block, config.k_block)


def kind_of(parallel: bool) -> Kind:
    """Of a loop that runs on all threads, or does not."""
    return "parallel" if parallel else "serial"
