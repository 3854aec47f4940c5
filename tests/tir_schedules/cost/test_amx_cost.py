"""Tiles or vectors: the choice for few rows, many rows, and weights outside the caches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microkernels.amx.tile_shapes import LAYOUTS
from microkernels.isa import isa_named
from microkernels.kernels.amx_tiles import AmxMicrokernel
from microkernels.machines.machine import Machine
from microkernels.registry import all_microkernels, microkernel_named
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.cost.amx_cost import (
    LEAST_GAIN,
    amx_blocks,
    amx_cycles,
    vector_cycles,
    why_not_amx,
)

SPR = Machine("sapphirerapids", isa_named("amx"))
VNNI = "avx512_vnni_u8s8s32_6x64"
TILES = {
    kernel.layout: kernel
    for kernel in all_microkernels()
    if isinstance(kernel, AmxMicrokernel) and kernel.name.startswith("amx_u8s8s32_")
}


def tiles(m: int, n: int, k_bytes: int, layout: str = "2x2") -> float:
    kernel = TILES[layout]
    blocks = amx_blocks(kernel, m, n, k_bytes, SPR)
    return amx_cycles(ProductPlan(kernel=kernel, m=m, n=n, k=k_bytes, **blocks), SPR)


def vectors(m: int, n: int, k_bytes: int) -> float:
    """Cycles with a tile of 6 x 64, or of one row and 256 columns."""
    rows, width = (1, 16) if m == 1 else (min(m, 6), 4)
    plan = ProductPlan(
        kernel=microkernel_named(VNNI),
        m=m,
        n=n,
        k=k_bytes,
        rows=rows,
        vectors=width,
        m_block=m,
        k_block=k_bytes // 4,
    )
    return vector_cycles(plan, SPR)


def reason(m: int, n: int, k_bytes: int) -> str | None:
    best = min(tiles(m, n, k_bytes, layout) for layout in LAYOUTS)
    return why_not_amx(m, best, vectors(m, n, k_bytes), VNNI)


def test_the_rates_are_eight_to_one() -> None:
    m = n = k = 512
    # 1024 multiply-adds a cycle at a lower clock; two vector products of 64.
    slower = SPR.cycles_per_us / SPR.tile_core.clock
    assert tiles(m, n, k) >= slower * m * n * k / 1024
    assert slower * vectors(m, n, k) / tiles(m, n, k) == pytest.approx(8, rel=0.25)


@pytest.mark.parametrize("size", [(768, 768), (768, 3072), (3072, 768)])
@pytest.mark.parametrize("width", [1, 2])
def test_layers_of_bert_go_to_tiles_unless_they_have_one_row(
    size: tuple[int, int], width: int
) -> None:
    n, k = size
    for m in (32, 128, 384):
        assert reason(m, n, k * width) is None
    assert reason(1, n, k * width) is not None


def test_few_rows_and_small_products_stay_on_vectors() -> None:
    assert reason(2, 768, 768) is not None
    assert reason(8, 64, 64) is not None  # the configuration alone takes 200 cycles
    # If the weight comes from memory, only reading it counts, on tiles and on vectors.
    far = reason(4, 32768, 8192)
    assert far is not None and "1.00x as fast" in far


@pytest.mark.parametrize(
    ("m", "units", "text"),
    [
        (3, 1080, f"3 rows fill 19% of AMX tiles; they are estimated 1.08x as fast as {VNNI}"),
        (1, 500, f"1 row fills 6% of AMX tiles; {VNNI} is estimated 2.0x as fast"),
        (20, 800, f"20 rows fill 62% of AMX tiles; {VNNI} is estimated 1.2x as fast"),
    ],
)
def test_reasons_are_told(m: int, units: float, text: str) -> None:
    assert (why_not_amx(m, 1000, units, VNNI) or "").startswith(text)


def test_what_gains_enough_has_no_reason() -> None:
    assert why_not_amx(3, 1000, 1000 * LEAST_GAIN, VNNI) is None
    assert why_not_amx(3, 1000, 999 * LEAST_GAIN, VNNI) is not None


shapes = st.tuples(st.integers(1, 400), st.integers(1, 1200), st.integers(1, 60))


@settings(deadline=None, max_examples=40)
@given(shapes, st.sampled_from(sorted(LAYOUTS)))
def test_blocks_are_legal_and_not_worse_than_whole_sums(
    shape: tuple[int, int, int], layout: str
) -> None:
    m, n, depth = shape
    kernel, steps = TILES[layout], 16 * depth
    found = amx_blocks(kernel, m, n, 4 * steps, SPR)
    assert 1 <= found["rows"] <= m and 1 <= found["vectors"] <= LAYOUTS[layout][1]
    assert found["m_block"] >= found["rows"] and found["k_block"] % 16 == 0
    assert 1 <= found["k_block"] <= steps
    best = ProductPlan(kernel=kernel, m=m, n=n, k=4 * steps, **found)
    assert amx_cycles(best, SPR) <= amx_cycles(replace(best, k_block=steps), SPR)


@settings(deadline=None, max_examples=40)
@given(shapes)
def test_more_columns_never_take_less(shape: tuple[int, int, int]) -> None:
    m, n, depth = shape
    once = tiles(m, n, 64 * depth)
    # Another choice of blocks may differ by the ends of a block.
    assert tiles(m, 2 * n, 64 * depth) >= once - 2 * SPR.tile_core.tdp * 16
    assert vectors(m, 2 * n, 64 * depth) >= vectors(m, n, 64 * depth)


def test_many_rows_fetch_half_of_the_loads_from_l1() -> None:
    """From 64 rows on, blocks of a panel are read again and have to stay in L1 while A passes."""
    found = amx_blocks(TILES["2x2"], 512, 1024, 2048, SPR)
    assert found["k_block"] < 512
    piece = found["k_block"] // 16
    assert 1024 * 2 * piece <= SPR.l1_bytes * 2 / 3
    # A single block of rows reads a panel once.
    assert amx_blocks(TILES["2x2"], 16, 1024, 2048, SPR)["k_block"] == 512


def test_sums_rest_in_l1_where_k_is_cut() -> None:
    """512 rows of two vectors would be 64 KB, more than L1; the weight is prefetched."""
    found = amx_blocks(TILES["2x2"], 512, 1024, 2048, SPR, fetches=True)
    assert found["m_block"] * found["vectors"] * 64 <= SPR.l1_bytes // 3
    plan = ProductPlan(kernel=TILES["2x2"], m=512, n=1024, k=2048, **found)
    whole = replace(plan, m_block=512)
    assert amx_cycles(plan, SPR, True) < 0.98 * amx_cycles(whole, SPR, True)
