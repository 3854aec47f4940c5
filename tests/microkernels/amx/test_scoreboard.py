"""The scoreboard: shares of peak known from elsewhere, and invariants."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microkernels.amx.instructions import TileBlock
from microkernels.amx.scoreboard import ALL_L1, LEVELS, Core, Scoreboard, block_cycles
from microkernels.amx.tile_shapes import LAYOUTS
from microkernels.isa import isa_named
from microkernels.machines.machine import Machine

SPR = Machine("sapphirerapids", isa_named("amx")).tile_core
levels = st.fixed_dictionaries({operand: st.sampled_from(LEVELS) for operand in "ABC"})


@st.composite
def blocks(draw: st.DrawFn, most_steps: int = 20) -> TileBlock:
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    rows, columns = LAYOUTS[layout]
    sizes = draw(st.integers(1, rows)), draw(st.integers(1, columns))
    return TileBlock(layout, *sizes, draw(st.integers(1, most_steps)), draw(st.booleans()))


def stream_cycles(block: TileBlock, core: Core = SPR) -> float:
    """Predicted cycles of a block's instructions, from an idle core to an idle core."""
    board = Scoreboard(core, ALL_L1)
    board.run(block.stream())
    return board.retired


def share(block: TileBlock, cycles: float) -> float:
    return SPR.tdp * block.row_tiles * block.column_tiles * block.steps / cycles


@pytest.mark.parametrize(
    ("layout", "rows", "columns", "by_load"),
    [
        ("2x2", 2, 2, {8: 0.98, 16: 0.97, 32: 0.50}),
        ("1x4", 1, 4, {8: 0.98, 16: 0.79, 32: 0.40}),
        ("2x2", 1, 2, {8: 0.60, 16: 0.60, 32: 0.33}),
    ],
)
def test_shares_of_peak_by_cycles_of_a_tile_load(
    layout: str, rows: int, columns: int, by_load: dict[float, float]
) -> None:
    """An independent scoreboard with a window of 64 instructions gives these shares, ends included.

    Our scoreboard also counts the last stores, 16 to 64 cycles of 2048 or 4096: 2% at most.
    """
    block = TileBlock(layout, rows, columns, 64)
    for load, expected in by_load.items():
        core = replace(SPR, load=load)
        found = share(block, stream_cycles(block, core))
        assert found == pytest.approx(expected, abs=0.02)


def test_full_blocks_reach_nine_tenths_of_peak_where_b_is_in_l1() -> None:
    near = {"A": "L2", "B": "L1", "C": "L2"}
    for layout, (rows, columns) in LAYOUTS.items():
        for steps in (16, 32, 64):  # 1024, 2048, 4096 bytes of K
            block = TileBlock(layout, rows, columns, steps)
            assert share(block, block_cycles(block, SPR, near)) >= 0.9
    # One load per product: four tiles of 1 KB from L2, at 48 bytes a cycle, against 64 cycles.
    block = TileBlock("2x2", 2, 2, 32)
    far = {"A": "L2", "B": "L2", "C": "L2"}
    assert share(block, block_cycles(block, SPR, far)) == pytest.approx(
        64 / (4 * 1024 / 48), abs=0.01
    )


@settings(deadline=None, max_examples=60)
@given(blocks(), levels)
def test_no_block_beats_its_products_or_its_loads(block: TileBlock, where: dict[str, str]) -> None:
    cycles = block_cycles(block, SPR, where)
    loads = block.counts().tileloadd
    # Each simulated block may begin and end at another point of the machine's rhythm.
    slack = SPR.tdp
    assert cycles >= SPR.tdp * block.counts().tdp - slack
    assert cycles >= SPR.load * loads - slack


@settings(deadline=None, max_examples=60)
@given(blocks(), levels, st.sampled_from("ABC"))
def test_a_level_further_away_is_never_faster(
    block: TileBlock, where: dict[str, str], operand: str
) -> None:
    nearer = {**where, operand: LEVELS[max(LEVELS.index(where[operand]) - 1, 0)]}
    # In-order ports may pair instructions a little better by chance: one product's time.
    assert block_cycles(block, SPR, nearer) <= block_cycles(block, SPR, where) + SPR.tdp


@settings(deadline=None, max_examples=40)
@given(blocks(), levels, st.integers(0, 12))
def test_work_behind_the_product_and_longer_sums_cost(
    block: TileBlock, where: dict[str, str], operations: int
) -> None:
    plain = block_cycles(block, SPR, where)
    assert block_cycles(block, SPR, where, operations) >= plain - SPR.tdp
    assert block_cycles(replace(block, steps=block.steps + 1), SPR, where) > plain - SPR.tdp


def test_long_sums_go_on_at_their_pace() -> None:
    block = TileBlock("2x2", 2, 2, 48)
    longer = replace(block, steps=96)
    more = block_cycles(longer, SPR, ALL_L1, 4) - block_cycles(block, SPR, ALL_L1, 4)
    assert more == pytest.approx(48 * 4 * SPR.tdp, rel=0.01)
    whole = stream_cycles(longer)
    assert share(longer, whole) == pytest.approx(0.98, abs=0.01)
