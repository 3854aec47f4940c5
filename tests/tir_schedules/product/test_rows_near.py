"""The rows of a block on machines with a slow L3, where writing results to it shows."""

from __future__ import annotations

import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.tir_schedules.product.test_matmul import matmul_region
from tir_schedules.product.matmul import default_config

EMERALD, ZEN4 = (Machine(name, isa_named("avx512")) for name in ("emeraldrapids", "znver4"))


def test_results_of_a_block_stay_near_where_l3_is_slow() -> None:
    region = matmul_region((3136,), 64, 256)
    assert default_config(region, EMERALD).m_block == EMERALD.l2_bytes // 2 // (4 * (64 + 2 * 256))
    assert default_config(region, ZEN4).m_block == ZEN4.l2_bytes // 2 // (4 * 64)


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(3136, 256, 256), (3136, 64, 64), (784, 64, 256), (12544, 16, 96)],
    ids=["much to compute", "one panel", "results in L2", "a short K"],
)
def test_blocks_stay_as_large_as_a_allows(m: int, k: int, n: int) -> None:
    block = EMERALD.l2_bytes // 2 // (4 * k)
    assert default_config(matmul_region((m,), k, n), EMERALD).m_block == min(m, block)
