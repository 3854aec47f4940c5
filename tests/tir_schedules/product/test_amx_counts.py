"""Whole matmuls on AMX tiles execute as many tile instructions of each kind as the model says."""

from __future__ import annotations

import numpy as np
import pytest

from microkernels.kernels.amx_tiles import AmxMicrokernel
from microkernels.registry import microkernel_named
from tests.amx_emulator import emulator
from tests.tir_schedules.run_region import expected, random_inputs, run
from tir_schedules.core.region import Region, Tensor
from tir_schedules.cost.amx_cost import TilePart
from tir_schedules.product.tile_config import MatmulConfig, plan_of

pytestmark = pytest.mark.isa("amx")

# (m, n, k), kernel, (rows, vectors, m_block, k_block), zero point of A
CASES = [
    # Two blocks of rows and a tail of 6; a last panel of one tile; three blocks of K.
    ((70, 100, 300), "amx_u8s8s32_32x32", (32, 2, 64, 32), 0),
    # Zero points: accumulators load their initial values.
    ((40, 90, 256), "amx_s8s8s32_32x32", (32, 2, 64, 1000), 3),
    # Blocks lower than the kernel's, one tile wide, in several blocks of rows.
    ((40, 48, 128), "amx_s8u8s32_32x32", (16, 1, 16, 16), 0),
    # Panels of three and two tiles, blocks of 2 x 16 rows.
    ((64, 128, 500), "amx_u8u8s32_16x64", (16, 3, 32, 80), 0),
    ((1, 16, 20), "amx_u8s8s32_16x64", (16, 4, 16, 16), 0),
    ((48, 96, 200), "amx_bf16_32x32", (32, 2, 100, 48), 0),
]


@pytest.mark.parametrize(("sizes", "name", "blocks", "zero_point"), CASES)
def test_executed_instructions_are_the_predicted_ones(
    sizes: tuple[int, int, int], name: str, blocks: tuple[int, int, int, int], zero_point: int
) -> None:
    (m, n, k), kernel = sizes, microkernel_named(name)
    assert isinstance(kernel, AmxMicrokernel)
    region = Region(
        op="matmul",
        inputs=(Tensor((m, k), kernel.a_dtype), Tensor((k, n), kernel.b_dtype, True)),
        output=Tensor((m, n), kernel.acc_dtype),
        attrs={"a_zero_point": zero_point} if zero_point else {},
    )
    rows, vectors, m_block, k_block = blocks
    config = MatmulConfig(kernel=name, rows=rows, vectors=vectors, m_block=m_block, k_block=k_block)
    arrays = random_inputs(region)
    emulator.reset()
    result = run(region, arrays, "amx", config)
    part = TilePart(plan=plan_of(region, config), started=zero_point != 0)
    executed = emulator.counts()
    if executed is not None:  # hardware has no counters
        counted = {instruction: count for instruction, count in executed.items() if count}
        assert counted == part.counts().named(kernel.product)
    exact = expected(region, arrays)
    if kernel.acc_dtype == "int32":
        assert np.array_equal(result, exact)
    else:
        # 200 products of bfloat16, exact in f32; each of 200 sums rounds by 2**-24 of at most all.
        bound = k * 2.0**-23 * np.abs(arrays[0].astype("f8")) @ np.abs(arrays[1].astype("f8"))
        assert (np.abs(result - exact) <= bound).all()
