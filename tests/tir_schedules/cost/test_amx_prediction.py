"""Predictions for parts of products: blocks, instructions, cache levels, and invariants."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microkernels.amx.instructions import block_rows
from microkernels.amx.scoreboard import LEVELS, TILE_BYTES
from microkernels.amx.tile_shapes import LAYOUTS, ROWS
from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.cost.amx_cost import DEPTH, TilePart, level_of, predict

SPR = Machine("sapphirerapids", isa_named("amx"))
KERNELS = {"2x2": "amx_u8s8s32_32x32", "1x4": "amx_u8s8s32_16x64"}


def plan_of(layout: str, n_vectors: int, steps: int, **fields: int) -> ProductPlan:
    """The plan of a product of bytes."""
    kernel = microkernel_named(KERNELS[layout])
    return ProductPlan(kernel=kernel, n=n_vectors * kernel.lanes, k=steps * kernel.kr, **fields)


@st.composite
def parts(draw: st.DrawFn) -> TilePart:
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    m, tiles = draw(st.integers(1, 300)), draw(st.integers(1, 40))
    plan = plan_of(
        layout,
        m=m,
        n_vectors=draw(st.integers(1, 60)),
        steps=tiles * DEPTH,
        rows=min(m, draw(st.sampled_from([block_rows(layout), 16, 5]))),
        vectors=draw(st.integers(1, LAYOUTS[layout][1])),
        m_block=draw(st.integers(1, 300)),
        k_block=draw(st.integers(1, tiles * DEPTH)),
    )
    return TilePart(plan=plan, started=draw(st.booleans()))


@given(parts())
def test_a_part_is_cut_without_gaps(part: TilePart) -> None:
    assert sum(part.pieces) * DEPTH == part.plan.steps
    assert sum(part.panels) == part.plan.n_vectors and max(part.panels) <= part.plan.vectors
    rows = [block for band in part.bands for block in band]
    assert sum(rows) == part.plan.m and set(rows[:-1]) <= {part.plan.rows}
    assert all(sum(band) <= max(part.plan.m_block, part.plan.rows) for band in part.bands)


@given(parts())
def test_every_result_takes_its_products(part: TilePart) -> None:
    counts = part.counts()
    rows = [block for band in part.bands for block in band]
    assert counts.tdp == sum(math.ceil(r / ROWS) for r in rows) * part.plan.n_vectors * (
        part.plan.steps // DEPTH
    )
    assert counts.ldtilecfg == len(set(rows)) and counts.tilerelease == 1
    assert counts.tilestored == counts.tdp * len(part.pieces) // sum(part.pieces)
    resumed = counts.tilestored - (0 if part.started else counts.tilezero)
    assert counts.tilezero == (0 if part.started else counts.tilestored // len(part.pieces))
    assert resumed >= 0


@settings(deadline=None, max_examples=50)
@given(parts())
def test_a_prediction_stays_below_the_peak_and_loads_every_byte(part: TilePart) -> None:
    found = predict(part, SPR)
    # Blocks overlap at their ends: each kind of block may gain the time of a product.
    kinds = len(set(part.panels)) * 8 * len(part.pieces)
    assert found.cycles >= SPR.tile_core.tdp * (found.counts.tdp - kinds)
    assert 0 < found.share < 1.05
    # All of A for every panel, all of B for every block of rows, C for every block of K but one.
    rows = sum(len(band) for band in part.bands)
    tiles = sum(part.pieces)
    a = 64 * part.plan.m * tiles * len(part.panels)
    b = TILE_BYTES * part.plan.n_vectors * tiles * rows
    c = 64 * part.plan.m * part.plan.n_vectors * (len(part.pieces) - (0 if part.started else 1))
    assert sum(found.bytes_loaded.values()) == a + b + c
    assert found.bytes_stored == 64 * part.plan.m * part.plan.n_vectors * len(part.pieces)


@settings(deadline=None, max_examples=40)
@given(parts(), st.sampled_from(["l1_bytes", "l2_bytes", "l3_bytes"]))
def test_larger_caches_never_cost(part: TilePart, cache: str) -> None:
    larger = SPR.with_numbers(**{cache: 4 * getattr(SPR, cache)})
    few = SPR.tile_core.tdp * 16 * len(part.bands) * len(part.panels) * len(part.pieces)
    # By chance, in-order ports may pair instructions a little better at the ends of blocks.
    assert predict(part, larger).cycles <= predict(part, SPR).cycles + few


@settings(deadline=None, max_examples=40)
@given(parts())
def test_more_work_takes_longer(part: TilePart) -> None:
    once = predict(part, SPR).cycles
    twice = predict(replace(part, plan=replace(part.plan, n=2 * part.plan.n)), SPR).cycles
    longer = predict(replace(part, epilogue=12), SPR).cycles
    assert twice > once and longer >= once * (1 - 1e-12)  # sums in another order


def test_levels_hold_what_fits() -> None:
    assert [level_of(size, SPR) for size in (48 << 10, 49 << 10, 3 << 20, 106 << 20)] == [*LEVELS]


@pytest.mark.parametrize(("rows", "vectors", "layout"), [(32, 2, "2x2"), (16, 4, "1x4")])
@pytest.mark.parametrize("k_bytes", [1024, 2048])
def test_full_blocks_from_1024_on_reach_five_sixths(
    rows: int, vectors: int, layout: str, k_bytes: int
) -> None:
    """The product alone, with the weight in L2 and blocks of K whose panels stay in L1."""
    plan = plan_of(
        layout,
        m=512,
        n_vectors=32,
        steps=k_bytes // 4,
        rows=rows,
        vectors=vectors,
        m_block=512,
        k_block=8 * DEPTH,
    )
    part = TilePart(plan=plan, epilogue=None)
    assert predict(part, SPR).share >= 0.83
    # If the whole panel does not stay, one load per product comes from L2: 1024 bytes in 21
    # cycles, not in 16.
    whole = replace(part, plan=replace(plan, k_block=plan.steps))
    stays = TILE_BYTES * vectors * k_bytes // 64 < SPR.l1_bytes
    assert (predict(whole, SPR).share < 0.8) == (not stays)


@given(parts())
def test_fetching_moves_the_same_bytes_in_no_more_time(part: TilePart) -> None:
    plain, ahead = predict(part, SPR), predict(replace(part, fetches=True), SPR)
    assert ahead.bytes_loaded == plain.bytes_loaded and ahead.counts == plain.counts
    assert ahead.cycles <= plain.cycles


@pytest.mark.parametrize(("m", "gains"), [(128, True), (512, False)])
def test_a_weight_in_l3_is_fetched_while_few_rows_are_multiplied(m: int, gains: bool) -> None:
    """128 rows pass over a panel in four blocks while it is prefetched; 512 rows gain nothing."""
    plan = plan_of("2x2", m=m, n_vectors=192, steps=192, rows=32, vectors=2, m_block=m, k_block=96)
    part = TilePart(plan=plan)
    plain, ahead = predict(part, SPR), predict(replace(part, fetches=True), SPR)
    assert plain.bytes_loaded["L3"] > 0
    assert (ahead.cycles < plain.cycles) == gains
    # No faster than L3 delivers the weight: 10 bytes a cycle.
    assert ahead.cycles >= ahead.bytes_loaded["L3"] / 10
