"""Threads split among independent kernels: each kernel once, no thread twice, equal results."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.stand_ins import running
from tests.tir_schedules.run_region import machine_for, packed, tensor_of
from tests.tir_schedules.test_many_threads import ISA, REGIONS, inputs_of
from tir_schedules.assembled.side_by_side import Piece, combine, estimate, tasks_of
from tir_schedules.assembled.task_parts import (
    Share,
    assign,
    longest,
    parallel_tasks,
    shares_of,
    threads_of,
)
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

THREADS = (1, 2, 3, 5, 16, 53, 128)
# Their sums are exact in any order, or rows are summed alike on any number of threads.
NAMES = (
    "matmul",
    "softmax",
    "conv2d",
    "elementwise",
    "matmul of one row",
    "batch_matmul",
    "layer_norm",
    "mlp_chain of few rows",
)


def no_fork(threads: int) -> float:
    return 0.0


def test_threads_go_where_time_is() -> None:
    times = [30.0, 10.0, 2.0, 2.0]
    shares = shares_of(times, [8] * 4, 8, no_fork)
    assert threads_of(shares) == 8
    assert longest(shares, times, [8] * 4) <= 1.25 * sum(times) / 8
    assert shares_of([8.0, 8.0], [8, 8], 4, no_fork) in (
        (Share((0, 1), 4),),
        (Share((0,), 2), Share((1,), 2)),
    )
    # A kernel for one thread keeps that thread; the other kernel takes the others.
    found = shares_of([8.0, 8.0], [1, 8], 8, no_fork)
    assert longest(found, [8.0, 8.0], [1, 8]) == 8.0


def test_a_fork_of_more_threads_has_to_pay() -> None:
    assert shares_of([1.0, 1.0], [8, 8], 8, lambda threads: 1.0 * threads) == (Share((0, 1)),)
    found = shares_of([20.0, 20.0], [64, 64], 64, lambda threads: 0.1 * threads)
    assert 12 <= threads_of(found) <= 28  # the square root of 40 / 0.1 is 20


@pytest.mark.parametrize("threads", range(1, 129, 7))
def test_every_kernel_is_in_one_share(threads: int) -> None:
    rng = random.Random(threads)
    for count in (1, 2, 3, 7, 16):
        times = [rng.uniform(0.1, 50) for _ in range(count)]
        most = [rng.choice((1, 4, threads)) for _ in range(count)]
        shares = shares_of(times, most, threads, no_fork)
        assert sorted(n for share in shares for n in share.kernels) == list(range(count))
        assert len(shares) <= threads_of(shares) <= threads
        # Neither one thread for each kernel nor all threads for each in turn ends sooner.
        turns = sum(time / min(threads, m) for time, m in zip(times, most, strict=True))
        alone = longest(assign(times, threads), times, most)
        assert longest(shares, times, most) <= 1.000001 * min(turns, alone)


def test_the_estimate_shares_threads_out() -> None:
    machine = Machine("sapphirerapids", isa_named("avx512"), 56)
    found = estimate([Piece(60.0, 14, 1000, 56), Piece(20.0, 7, 1000, 56)], machine)
    assert found.pays and 8 < threads_of(found.shares) <= 56
    assert f"on {threads_of(found.shares)} threads an estimated" in str(found)
    two = replace(machine, threads=2)
    assert estimate([Piece(60.0, 1, 0, 2), Piece(20.0, 1, 0, 2)], two).shares == (
        Share((0,)),
        Share((1,)),
    )


def built(region: Region, threads: int) -> tuple[tirx.PrimFunc, Config]:
    machine = machine_for(ISA, threads)
    machine = machine.with_numbers(fork_us=0) if threads > 1 else machine
    template = template_for(region.op)
    config = template.default_config(region, machine)
    function = template.build(region, config, machine.isa)
    if threads > 1 and parallel_tasks(function) == 1:
        return built(region, 1)
    return function, config


@pytest.mark.parametrize("name", NAMES)
def test_templates_can_be_shared_beside_others(name: str) -> None:
    assert parallel_tasks(built(REGIONS[name], 1)[0]) == 1
    machine = machine_for(ISA, 3).with_numbers(fork_us=0)
    config = template_for(REGIONS[name].op).default_config(REGIONS[name], machine)
    # The tail of a flat tensor follows its parallel loop, on one thread.
    # A chain in mode "columns" has several loops.
    apart = name == "elementwise" or config.to_dict().get("mode") == "columns"
    assert (parallel_tasks(built(REGIONS[name], 3)[0]) > 1) != apart


@pytest.mark.sampled
@pytest.mark.parametrize("threads", THREADS)
def test_results_are_those_of_kernels_alone(threads: int) -> None:
    regions = [REGIONS[name] for name in NAMES]
    isa = machine_for(ISA).isa
    rng = random.Random(threads)
    times = [rng.uniform(1, 20) for _ in regions]
    shares = shares_of(times, [threads] * len(regions), threads, no_fork)
    each = {number: share.threads for share in shares for number in share.kernels}
    kernels = [built(region, each[i]) for i, region in enumerate(regions)]
    together = combine([kernel for kernel, _ in kernels], shares)
    assert tasks_of(together) == threads_of(shares)
    alone = [built(region, 1) for region in regions]
    module = {f"k{i}": kernel for i, (kernel, _) in enumerate(alone)} | {"all": together}
    named = {name: f.with_attr("global_symbol", name) for name, f in module.items()}
    library = running.compiled(tvm.IRModule(named), ISA)
    read, wanted, results = [], [], []
    for i, region in enumerate(regions):
        arrays = inputs_of(region)
        outputs = [tvm.runtime.empty(region.output.shape, region.output.dtype) for _ in range(2)]
        tensors, others = (
            [tensor_of(np.ascontiguousarray(a)) for a in packed(region, config, isa, arrays)]
            for config in (alone[i][1], kernels[i][1])
        )
        library[f"k{i}"](*tensors, outputs[0])
        read += others
        wanted.append(outputs[0])
        results.append(outputs[1])
    library["all"](*read, *results)
    for one, other in zip(wanted, results, strict=True):
        np.testing.assert_array_equal(other.numpy(), one.numpy())
