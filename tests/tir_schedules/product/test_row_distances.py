"""Rows that tiles load together lie in different sets of L1 if we choose their distance."""

from __future__ import annotations

import re

import numpy as np
import pytest

from microkernels.registry import microkernel_named
from tests.amx_emulator import emulator
from tests.tir_schedules.integer_regions import matmul_region
from tests.tir_schedules.on_tiles import counted, on_tiles
from tests.tir_schedules.run_region import expected, machine_for, random_inputs, run
from tir_schedules.chains.parts import row_pitch
from tir_schedules.core import extents
from tir_schedules.core.extents import uncrowded, worth_copying
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for

SETS, LINE = 64, 64


def sets_of(pitch: int) -> int:
    """Number of L1 sets that hold the first lines of a tile's 16 rows."""
    return len({row * pitch // LINE % SETS for row in range(16)})


def test_our_own_distances_use_a_set_for_each_row() -> None:
    for lines in range(1, 300):
        assert sets_of(uncrowded(LINE * lines, 1)) >= 4
    assert (sets_of(4096), sets_of(uncrowded(4096, 1))) == (1, 16)
    assert (sets_of(2048), sets_of(2 * uncrowded(1024, 2))) == (2, 16)


def test_only_large_products_copy_for_it() -> None:
    assert worth_copying(4096, 1, 1024, 512) and worth_copying(2048, 2, 1024, 512)
    assert not worth_copying(4160, 1, 1024, 512)
    assert not worth_copying(4096, 1, 1023, 512) and not worth_copying(4096, 1, 1024, 511)


def test_rows_between_products_are_spread() -> None:
    kernel = microkernel_named("amx_u8s8s32_32x32")
    assert row_pitch(Tensor((4, 2000), "uint8"), kernel) == 2048 + 64
    assert row_pitch(Tensor((4, 2048), "uint8"), microkernel_named("avx2_f32_6x16")) == 2048


def distances(region: Region) -> set[int]:
    """Distances in bytes between rows that a kernel's tiles load."""
    kernel = template_for(region.op).build(region, on_tiles(region), machine_for("amx").isa)
    loads = re.findall(r"tileloadd\w*\"?, .*?T\.int64\((\d+)\)", kernel.script())
    return {int(distance) for distance in loads}


@pytest.mark.isa("amx")
@pytest.mark.parametrize("copied", [False, True])
def test_a_copy_at_another_distance_gives_the_same(
    copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = matmul_region((40,), 4096, 16, "uint8", "int8")
    if copied:
        monkeypatch.setattr(extents, "_MANY_ROWS", 40)
        monkeypatch.setattr(extents, "_MANY_COLUMNS", 16)
    found = distances(region)
    assert (4096 in found, 4160 in found) == (not copied, copied)
    arrays = random_inputs(region)
    config = on_tiles(region)
    emulator.reset()
    np.testing.assert_array_equal(run(region, arrays, "amx", config), expected(region, arrays))
    executed = emulator.counts()
    assert executed is None or executed[counted(config)] == 3 * 4096 // 64
