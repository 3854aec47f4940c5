"""The loop nest of one matrix product, as `ThreadGrid` emits it.

threads > row block > column panel > K block > row tile > tile
"""

from __future__ import annotations

import math

from tir_schedules.core.loop_nest import (
    Kind,
    Loop,
    LoopNest,
    Tiling,
    balance_of,
    nested,
    product_loops,
)
from tir_schedules.core.product_plan import ProductPlan


def product_nest(plan: ProductPlan) -> LoopNest:
    """The loops of a product on a grid of threads."""
    kernel, m, n, k = plan.kernel, plan.m, plan.n, plan.k
    n_vectors, steps = plan.n_vectors, plan.steps
    threads_m, threads_n = min(plan.threads_m, m), min(plan.threads_n, n_vectors)
    units = math.ceil(steps / plan.k_unit)
    threads_k = min(plan.threads_k, units)
    share = m / threads_m, n_vectors / threads_n, steps / threads_k
    tiling = Tiling(plan.rows, plan.vectors, plan.m_block, plan.k_block)
    loops = product_loops(share, tiling, kernel.lanes)
    threads = threads_m * threads_n * threads_k
    a, b, c = 4.0 * m * steps, 4.0 * kernel.lanes * n_vectors * steps, 4.0 * kernel.lanes * m * n
    balance = balance_of(m, threads_m) * balance_of(n_vectors, threads_n)
    return LoopNest(
        nested([Loop("thread", threads, "parallel", (a, b, c)), *loops]),
        operations=float(m) * n * k,
        useful=n / (n_vectors * kernel.lanes) * k / (steps * kernel.kr),
        balance=balance * balance_of(units, threads_k),
    )


def kind_of(parallel: bool) -> Kind:
    """Of a loop that runs on all threads, or does not."""
    return "parallel" if parallel else "serial"
