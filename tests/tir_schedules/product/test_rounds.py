"""On AVX2, tiles of a large weight take several steps of K between two branches."""

from __future__ import annotations

import re

import pytest

from tests.tir_schedules.product.test_matmul import check, matmul_region
from tests.tir_schedules.run_region import machine_for
from tir_schedules.product.matmul import MATMUL, MatmulConfig
from tir_schedules.product.prefetch import ROUND, steps_of_round
from tir_schedules.product.tile_config import plan_of

pytestmark = pytest.mark.turns


@pytest.mark.parametrize(
    ("isa", "n", "steps"), [("avx2", 320, 4), ("avx2", 16, 1), ("avx512", 320, 1)]
)
def test_steps_of_one_branch(isa: str, n: int, steps: int) -> None:
    """A tile's loop over a large weight takes four steps of K a turn on AVX2."""
    machine, k = machine_for(isa), 1021
    region = matmul_region((48,), k, n)
    kernel = MATMUL.build(region, MATMUL.default_config(region, machine), machine.isa)
    loops = {int(extent) for extent in re.findall(r"in range\((\d+)\)", str(kernel.body))}
    assert k // steps in loops
    assert steps == 1 or k not in loops


@pytest.mark.sampled
@pytest.mark.parametrize("k_block", [531, 180, 9], ids=["whole", "cut", "short"])
@pytest.mark.parametrize("m", [6, 13, 40])
def test_steps_behind_the_last_round_are_multiplied(m: int, k_block: int) -> None:
    """Blocks of K that are no multiple of a round; an unmapped page follows the arrays."""
    region = matmul_region((m,), 531, 130)
    config = MatmulConfig(
        kernel="avx2_f32_6x16", rows=min(m, 6), vectors=2, m_block=min(m, 24), k_block=k_block
    )
    plan = plan_of(region, config)
    for _, steps in plan.pieces:
        assert steps_of_round(plan, steps) == ROUND and steps % ROUND
    check(region, "avx2", config=config)
