"""The reason that `explain` gives for kernels that leave threads idle."""

from __future__ import annotations

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.tir_schedules.cost.test_thread_shares import matmul
from tir_schedules.cost.amx_cost import why_fewer_threads
from tir_schedules.product.batch_matmul import BatchMatmulConfig
from tir_schedules.product.matmul import MATMUL


def test_fewer_threads_come_with_the_cost_of_a_fork() -> None:
    region = matmul(1, 768, 768)
    for threads, said in [(1, ""), (16, ""), (56, "48 of 56 threads: all are no faster")]:
        machine = Machine("sapphirerapids", isa_named("avx512"), threads)
        reason = why_fewer_threads(MATMUL.default_config(region, machine), machine)
        assert reason.startswith(said) and bool(reason) == bool(said)
        assert not said or f"{machine.fork_us(threads):.1f} us" in reason


def test_little_work_stays_in_one_thread() -> None:
    region, machine = matmul(1, 16, 16), Machine("sapphirerapids", isa_named("avx512"), 56)
    reason = why_fewer_threads(MATMUL.default_config(region, machine), machine)
    assert reason == "1 of 56 threads: all are no faster, as a fork takes 2.9 us"


def test_no_number_of_threads_stands_for_all_or_for_none() -> None:
    machine = Machine("sapphirerapids", isa_named("avx512"), 56)
    tile = {"kernel": "avx512_f32_6x64", "rows": 6, "vectors": 4, "m_block": 6, "k_block": 8}
    assert why_fewer_threads(BatchMatmulConfig(**tile, parallel=True), machine) == ""
    few = BatchMatmulConfig(**tile, parallel=True, threads=28)
    assert why_fewer_threads(few, machine).startswith("28 of 56 threads")
    assert why_fewer_threads(BatchMatmulConfig(**tile), machine).startswith("1 of 56 threads")
