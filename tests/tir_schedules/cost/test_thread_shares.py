"""Threads of any number split products: all of the work once, in nearly even chunks."""

from __future__ import annotations

import itertools
import math

import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.examples import some
from tir_schedules.core.blocking import Group
from tir_schedules.core.region import Region, Tensor
from tir_schedules.cost.cost import flops_us
from tir_schedules.product.matmul import MATMUL
from tir_schedules.product.tile_config import plan_of

ROWS = (1, 8, 32, 128, 384, 1000, 4096)
COLUMNS = (64, 768, 1000, 3072)
# Minimal work of each thread, in times of a fork and a join.
ENOUGH = 8.0
# The largest chunk over the mean.
MOST = 1.25


def matmul(m: int, n: int, k: int) -> Region:
    inputs = Tensor((m, k), "float32"), Tensor((k, n), "float32", constant=True)
    return Region(op="matmul", inputs=inputs, output=Tensor((m, n), "float32"))


@pytest.mark.sampled
@pytest.mark.parametrize("k", [64, 768, 3072])
@pytest.mark.parametrize("name", ["sapphirerapids", "znver4"])
def test_threads_share_all_of_a_product_once_and_nearly_evenly(name: str, k: int) -> None:
    found = []
    for number, (m, n) in enumerate(itertools.product(ROWS, COLUMNS)):
        for threads in counts_for(number):
            region, machine = matmul(m, n, k), Machine(name, isa_named("avx512"), threads)
            config = MATMUL.default_config(region, machine)
            plan = plan_of(region, config)
            shares = plan.row_shares, plan.column_shares, plan.k_shares
            sizes = m, plan.n_vectors, plan.steps
            for groups, size in zip(shares, sizes, strict=True):
                assert pieces_of(groups) == list(range(size))
            parts = math.prod(sum(group.count for group in groups) for groups in shares)
            assert parts == config.threads <= threads
            each_us = flops_us(2.0 * m * n * k, machine) / threads
            if threads > 1 and each_us >= ENOUGH * machine.fork_us(threads):
                largest = math.prod(groups[0].size for groups in shares)
                found.append(largest * threads / math.prod(sizes))
    assert len(found) > 20 and max(found) <= MOST


def counts_for(number: int) -> list[int]:
    """Some numbers of threads; a sequence of 24 products covers all numbers from 1 to 128."""
    counts, first = range(1 + number % 8, 129, 8), number // 8 % 3
    return some([*counts[first:], *counts[:first]])


def test_products_meet_every_number_of_threads() -> None:
    numbers = range(len(ROWS) * len(COLUMNS))
    met = {count for number in numbers for count in counts_for(number)}
    assert met == set(range(1, 129))


def pieces_of(groups: tuple[Group, ...]) -> list[int]:
    """All indices that groups of pieces cover, in order."""
    starts = [(g.start + i * g.size, g.size) for g in groups for i in range(g.count)]
    return [at for start, size in starts for at in range(start, start + size)]


# With hundreds of columns or more, rows and columns suffice; with few, threads split K.
@pytest.mark.parametrize("threads", [12, 16, 28, 31, 48])
@pytest.mark.parametrize(("m", "n", "k"), [(16, 64, 4096), (8, 128, 2048), (4, 40, 4096)])
def test_threads_share_k_where_there_are_few_results(m: int, n: int, k: int, threads: int) -> None:
    region, machine = matmul(m, n, k), Machine("sapphirerapids", isa_named("avx512"), threads)
    config = MATMUL.default_config(region, machine)
    assert config.threads_k > 1 and config.threads >= 12


@pytest.mark.parametrize("threads", [28, 31, 47, 53, 56, 112, 128])
@pytest.mark.parametrize("m", [1, 16, 32, 128])
def test_no_number_of_threads_leaves_a_layer_of_bert_to_one(m: int, threads: int) -> None:
    region = matmul(m, 768, 768)
    machine = Machine("sapphirerapids", isa_named("amx"), threads)
    config = MATMUL.default_config(region, machine)
    assert 20 <= config.threads <= threads
