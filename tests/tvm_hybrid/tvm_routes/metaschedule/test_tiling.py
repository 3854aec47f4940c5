"""Tiles of one size that cover an extent, close to the configuration's tile."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from microkernels.base.errors import ConfigError
from microkernels.registry import microkernel_named
from tir_schedules.core.config import Config
from tir_schedules.product.tile_config import MatmulConfig
from tvm_hybrid.tvm_routes.metaschedule.tiling import tiling_of

KERNELS = ("avx512_f32_8x48", "avx2_f32_4x24", "avx512_vnni_u8s8s32_8x48")
ALL, NONE = (True, True, True), (False, False, False)


def config(kernel: str = "avx512_f32_8x48", **fields: int) -> MatmulConfig:
    """A configuration without cache blocks by default."""
    numbers = {"rows": 8, "vectors": 3, "m_block": 1 << 20, "k_block": 1 << 20, **fields}
    return MatmulConfig(kernel=kernel, **numbers)


@given(
    kernel=st.sampled_from(KERNELS[::2]),
    m=st.integers(2, 400),
    n=st.integers(1, 400),
    k=st.integers(1, 5000),
    rows=st.integers(2, 8),
    vectors=st.integers(1, 3),
    m_block=st.integers(1, 400),
    k_block=st.integers(1, 5000),
)
def test_tiles_cover_and_fit_the_kernel(
    kernel: str, m: int, n: int, k: int, rows: int, vectors: int, m_block: int, k_block: int
) -> None:
    numbers = config(kernel, rows=rows, vectors=vectors, m_block=m_block, k_block=k_block)
    tiling = tiling_of(numbers, m, n, k, ALL)
    tile = microkernel_named(kernel)
    assert 2 <= tiling.rows <= tile.mr and tiling.columns <= vectors * tile.lanes
    assert tiling.columns % tile.lanes == tiling.k % tile.kr == 0
    steps = math.ceil(k / tile.kr) * tile.kr
    assert steps % tiling.k == 0  # blocks of K are full
    tiles = math.ceil(m / tiling.rows)
    assert tiles % tiling.row_tiles == 0
    # Padding costs less than tiles of half the size.
    assert tiles * tiling.rows <= m + tiling.rows - 1
    assert math.ceil(n / tiling.columns) * tiling.columns < n + tiling.columns


@pytest.mark.parametrize(
    ("m", "n", "rows", "columns"),
    [(128, 96, 8, 48), (12, 96, 6, 48), (37, 100, 8, 48), (9, 64, 5, 32), (7, 1000, 7, 48)],
)
def test_the_largest_that_divides_or_else_padding(m: int, n: int, rows: int, columns: int) -> None:
    tiling = tiling_of(config(), m, n, 64, ALL)
    assert (tiling.rows, tiling.columns) == (rows, columns)


def test_without_padding_a_tile_divides() -> None:
    tiling = tiling_of(config(rows=4), 7, 80, 64, NONE)
    assert (tiling.rows, tiling.columns) == (7, 16)  # the kernel has 8 rows
    for m, n, k, reason in ((11, 64, 64, "1 rows"), (8, 40, 64, "40 is not a multiple of 16")):
        with pytest.raises(ConfigError, match=reason):
            tiling_of(config(), m, n, k, NONE)
    with pytest.raises(ConfigError, match=r"66 steps, which .* takes 4 at a time"):
        tiling_of(config("avx512_vnni_u8s8s32_8x48"), 8, 64, 66, NONE)


def test_blocks_follow_the_configuration() -> None:
    tiling = tiling_of(config(k_block=500, m_block=64), 128, 96, 2000, ALL)
    assert (tiling.k, tiling.row_tiles, tiling.parallel) == (500, 8, False)
    shared = tiling_of(config(threads_m=2), 128, 96, 64, ALL)
    assert (shared.row_tiles, shared.parallel) == (8, True)
    prime = tiling_of(config(k_block=1000), 128, 96, 1999, ALL)
    assert prime.k == 1999  # no number of blocks is near two


def test_what_has_no_tile_is_refused() -> None:
    class Other(Config, frozen=True):
        block: int

    with pytest.raises(ConfigError, match=r"an? Other has no register tile"):
        tiling_of(Other(block=4), 8, 64, 64, ALL)
    with pytest.raises(ConfigError, match="a schedule cannot configure"):
        tiling_of(config("amx_bf16_32x32", rows=32), 32, 64, 64, ALL)
