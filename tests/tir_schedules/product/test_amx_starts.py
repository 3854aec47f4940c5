"""Initial values of tile accumulators: loaded if all rows are equal, else added at the end."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir, tirx

from tests.amx_emulator import emulator
from tests.tir_schedules.integer_regions import matmul_region, product, values
from tests.tir_schedules.on_tiles import counted, on_tiles
from tests.tir_schedules.run_region import machine_for, run
from tir_schedules.core.emission import children
from tir_schedules.core.product_plan import TileConfig
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for

SIZES = (33, 320, 37)
CASES = [
    # zero points of A and B, vectors stored before a block of 32 x 32 is multiplied, tiles zeroed
    ((0, 0), 0, True),
    ((3, 0), 0, False),  # loaded from the weight's packed terms, one row 16 times
    (("input", 0), 2, False),  # one row of two vectors
    ((0, 3), 0, True),  # added when results are stored
    ((3, "input"), 0, True),
]


def region_of(zeros: tuple[int | str, int | str], plain: bool) -> Region:
    """An integer product, stored as int32 or as f32."""
    m, k, n = SIZES
    steps = () if plain else (EpilogueOp("cast", (0,)),)
    output = Tensor((m, n), "int32" if plain else "float32")
    return matmul_region((m,), k, n, "uint8", "int8", *zeros, epilogue=steps, output=output)


def stored_before(region: Region, config: TileConfig) -> int:
    """Vectors of int32 that a block stores before its first tile load of an operand."""
    kernel = template_for(region.op).build(region, config, machine_for("amx").isa)
    counts: list[int] = []

    def visit(statement: tirx.Stmt, times: int, inside: bool) -> None:
        if isinstance(statement, s_tir.SBlock) and str(statement.name_hint) == "tile":
            counts.append(0)
            inside = True
        if inside and isinstance(statement, tirx.BufferStore):
            counts[-1] += times * (str(statement.value.ty.dtype) == "int32x16")
        if isinstance(statement, tirx.For):
            times *= int(statement.extent) if inside else 1
            if inside and "tdpb" in str(statement.body):
                return
        for each in children(statement):
            visit(each, times, inside)

    visit(kernel.body, 1, False)
    return counts[0]


@pytest.mark.sampled
@pytest.mark.isa("amx")
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(("zeros", "stores", "zeroed"), CASES)
def test_starts(zeros: tuple[int | str, int | str], stores: int, zeroed: bool, plain: bool) -> None:
    """Formerly a block stored 64 vectors and loaded them, whatever its initial values."""
    region = region_of(zeros, plain)
    config = on_tiles(region)
    assert stored_before(region, config) == stores
    arrays = values(region)
    emulator.reset()
    result = run(region, arrays, "amx", config)
    np.testing.assert_array_equal(result, product(region, arrays).astype(result.dtype))
    executed = emulator.counts()
    if executed is not None:
        assert executed[counted(config)] > 0
        assert (executed["tilezero"] > 0) == zeroed


@pytest.mark.isa("amx")
@pytest.mark.parametrize("zeros", [(3, 0), ("input", 0), (3, "input")])
def test_starts_of_pieces_and_shares_of_k(zeros: tuple[int | str, int | str]) -> None:
    """Initial values go to the first block of K, and to the first of the threads that split K."""
    region = region_of(zeros, False)
    arrays = values(region)
    wanted = product(region, arrays).astype(np.float32)
    for config in (on_tiles(region, k_block=32), on_tiles(region, threads_k=2, k_block=16)):
        np.testing.assert_array_equal(run(region, arrays, "amx", config), wanted)


@pytest.mark.isa("amx")
def test_results_in_place_that_start_with_their_row() -> None:
    """Such results have no epilogue, so each row is first written with its initial values."""
    region = matmul_region((20,), 128, 32, "uint8", "int8", 3, 5)
    arrays = values(region)
    result = run(region, arrays, "amx", on_tiles(region))
    np.testing.assert_array_equal(result, product(region, arrays))
