"""How products are shared by any number of threads: all of it once, and nearly evenly."""

from __future__ import annotations

import itertools

import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tir_schedules.core.region import Region, Tensor
from tir_schedules.cost.work import flops_us
from tir_schedules.product.matmul import MATMUL, plan_of

ROWS = (1, 8, 32, 128, 384, 1000, 4096)
COLUMNS = (64, 768, 1000, 3072)
THREADS = (*range(1, 17), 24, 28, 31, 32, 47, 48, 53, 56, 64, 96, 112, 127, 128)
# Times of a fork and a join that every thread computes.
ENOUGH = 8.0
# The largest share over the mean: of 32x48 vectors, 31 threads get tiles of 32x2, for 28% more.
MOST = 1.3


def matmul(m: int, n: int, k: int) -> Region:
    inputs = Tensor((m, k), "float32"), Tensor((k, n), "float32", constant=True)
    return Region(op="matmul", inputs=inputs, output=Tensor((m, n), "float32"))


@pytest.mark.parametrize("k", [64, 768, 3072])
@pytest.mark.parametrize("name", ["sapphirerapids", "znver4"])
def test_threads_share_all_of_a_product_once_and_nearly_evenly(name: str, k: int) -> None:
    found = []
    for m, n, threads in itertools.product(ROWS, COLUMNS, THREADS):
        region, machine = matmul(m, n, k), Machine(name, isa_named("avx512"), threads)
        plan = plan_of(region, MATMUL.default_config(region, machine))
        rows, columns = plan.row_shares, plan.column_shares
        assert sum(share.count * share.size for share in rows) == m
        assert sum(share.count * share.size for share in columns) == plan.n_vectors
        assert sum(r.count for r in rows) * sum(c.count for c in columns) <= threads
        each_us = flops_us(2.0 * m * n * k, machine) / threads
        if threads > 1 and each_us >= ENOUGH * machine.fork_us(threads):
            found.append(rows[0].size * columns[0].size * threads / (m * plan.n_vectors))
    assert len(found) > 100 and max(found) <= MOST


@pytest.mark.parametrize("threads", [28, 31, 47, 53, 56, 112, 128])
@pytest.mark.parametrize("m", [1, 16, 32, 128])
def test_no_number_of_threads_leaves_a_layer_of_bert_to_one(m: int, threads: int) -> None:
    region = matmul(m, 768, 768)
    machine = Machine("sapphirerapids", isa_named("amx"), threads)
    config = MATMUL.default_config(region, machine)
    assert 20 <= config.threads_m * config.threads_n <= threads
