"""Threads of any number split packed products: each row once, in nearly even chunks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.tir_schedules.attention_regions import case, of_kind
from tir_schedules.attention.config import AttentionConfig, kernels_of
from tir_schedules.attention.decode.plan import DecodePlan
from tir_schedules.attention.problem import AttentionProblem, row_shares, row_unit
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.cost.cost import flops_us
from tir_schedules.cost.parallel import PackedShares, PackedWork, estimated_us, share_packed_work
from tir_schedules.product.batch_matmul import plan_of
from tir_schedules.product.batch_problem import BatchProblem

pytestmark = pytest.mark.turns

THREADS = (*range(1, 17), 20, 24, 28, 31, 32, 40, 47, 48, 53, 56, 64, 96, 112, 127, 128)
# Minimal work of each thread, in times of a fork and a join.
ENOUGH = 8.0
MOST = 1.25  # largest chunk over the mean
# With tiles, reading operands that another core packed takes as long as multiplying them: an
# even chunk of two heads may end later than an uneven one of one head.
MOST_ON_TILES = 1.32
WORK = PackedWork(
    operands=12, members=1, rows=128, unit=1, row_us=1.0, stored=1 << 16, packed=1 << 16
)


def machine_with(threads: int, isa: str = "avx512") -> Machine:
    return Machine("sapphirerapids", isa_named(isa), threads)


def largest_of(tasks: int, threads: int) -> int:
    """Tasks of the busiest thread, as TVM or `task_loop` assigns them."""
    return math.ceil(tasks / threads)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("heads", [1, 2, 5, 12, 16, 96])
@pytest.mark.parametrize("rows", [32, 128, 197, 512, 2048])
def test_threads_share_all_queries_once_and_nearly_evenly(kind: str, heads: int, rows: int) -> None:
    region = of_kind(case(batch=1, heads=heads, m=rows, n=rows, d=64), kind).region
    problem = AttentionProblem(region)
    for threads in THREADS:
        machine = machine_with(threads, "amx")
        config = template_for("attention").default_config(region, machine)
        assert isinstance(config, AttentionConfig)
        used = (config.threads or threads) if config.parallel else 1
        shares = row_shares(rows, config.row_shares, row_unit(kernels_of(config)))
        assert sum(share.count * share.size for share in shares) == rows
        tasks = heads * sum(share.count for share in shares)
        each_us = flops_us(problem.flops, machine) / threads
        # Tiles multiply some eight times as fast; the rest of the time is the softmax.
        if each_us / (4 if kind == "bf16" else 1) >= ENOUGH * machine.fork_us(threads) > 0:
            unit = row_unit(kernels_of(config))
            tiles = largest_of(heads * math.ceil(rows / unit), threads) * unit
            mean = heads * rows / threads
            most = max((MOST if kind == "f32" else MOST_ON_TILES) * mean, tiles)
            assert largest_of(tasks, used) * shares[0].size <= most, (threads, config)


@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_no_number_of_threads_takes_attention_from_tiles(kind: str) -> None:
    """The estimate takes all tasks of a thread: more and smaller tasks are no advantage."""
    region = of_kind(case(batch=1, heads=12, m=512, n=512, d=64), kind).region
    for threads in THREADS:
        config = template_for("attention").default_config(region, machine_with(threads, "amx"))
        assert isinstance(config, AttentionConfig)
        assert all(kernel.by_tiles for kernel in kernels_of(config)), (threads, config)


@pytest.mark.sampled
@pytest.mark.parametrize("batches", [1, 3, 12, 40])
@pytest.mark.parametrize("size", [(128, 64, 128), (512, 64, 512), (1000, 256, 300)])
def test_threads_share_all_rows_of_batches(batches: int, size: tuple[int, int, int]) -> None:
    m, k, n = size
    inputs = Tensor((batches, m, k), "float32"), Tensor((batches, k, n), "float32")
    region = Region(op="batch_matmul", inputs=inputs, output=Tensor((batches, m, n), "float32"))
    template = template_for("batch_matmul")
    for threads in THREADS:
        machine = machine_with(threads)
        config = template.default_config(region, machine)
        used = (config.threads or threads) if config.parallel else 1
        shares = plan_of(BatchProblem(region), config).row_shares
        assert sum(share.count * share.size for share in shares) == m
        each_us = flops_us(template.flops(region), machine) / threads
        if each_us >= ENOUGH * machine.fork_us(threads) > 0:
            tasks = batches * sum(share.count for share in shares)
            mean = batches * m / threads
            assert largest_of(tasks, used) * shares[0].size <= MOST * mean, (threads, config)


@pytest.mark.sampled
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("sets", [1, 2, 3, 8, 12, 32])
@pytest.mark.parametrize("keys", [256, 1000, 8192, 65536])
def test_threads_share_all_keys_of_a_cache(layout: str, sets: int, keys: int) -> None:
    region = case(batch=1, heads=sets, m=1, n=keys, d=64, layout=layout).region
    problem = AttentionProblem(region)
    for threads in THREADS:
        machine = machine_with(threads)
        config = template_for("attention").default_config(region, machine)
        assert isinstance(config, AttentionConfig) and config.skinny
        plan = DecodePlan(problem, machine.isa, config, {})
        assert plan.tasks * plan.side == sets
        assert plan.shares * plan.per_share >= plan.vectors > (plan.shares - 1) * plan.per_share
        if threads == 1 or threads > 56:
            continue  # more threads do not raise the bandwidth of one socket
        read = sets * keys * 2 * 64 * 4
        if read / threads / machine.memory_rate(threads) >= 3 * ENOUGH * machine.fork_us(threads):
            used = config.threads or threads
            largest = largest_of(plan.tasks * plan.shares, used)
            mean = plan.tasks * plan.vectors / used
            assert largest * plan.per_share <= max(MOST * mean, math.ceil(mean)), (threads, config)
            # Fewer threads only if they read as fast.
            rates = [n * machine.memory_rate(n) for n in (used, threads)]
            assert rates[0] >= rates[1] / MOST


def test_packing_is_not_repeated_where_forking_costs_less() -> None:
    one = replace(WORK, operands=1, rows=4096, stored=1 << 22, packed=1 << 22)
    assert share_packed_work(one, machine_with(53), 4096.0).packs_first
    # With as many operands as threads, each thread packs its own.
    many = replace(WORK, operands=53)
    assert share_packed_work(many, machine_with(53), 53 * 128.0) == PackedShares(53, 1, False)
    # Packing a small operand takes less time than a barrier.
    small = replace(WORK, stored=1 << 10, packed=1 << 10)
    assert not share_packed_work(small, machine_with(53), 12 * 128.0).packs_first


def test_small_work_gets_few_threads_and_the_least_work_one() -> None:
    machine = machine_with(112)
    small = replace(WORK, row_us=0.05)
    found = share_packed_work(small, machine, 12 * 128 * 0.05)
    assert 1 < found.threads < 112
    assert found.fields(machine)["threads"] == found.threads
    assert share_packed_work(small, machine, 1.0) == PackedShares()


def test_what_is_chosen_ends_first() -> None:
    machine = machine_with(53)
    found = share_packed_work(WORK, machine, 12 * 128.0)
    least = estimated_us(WORK, found, machine)
    for shares in range(1, 54):
        for packs_first in (False, True):
            other = PackedShares(53, shares, packs_first)
            assert least <= estimated_us(WORK, other, machine)
    # Never faster than the products alone on all threads.
    assert least > 12 * 128 / 53
