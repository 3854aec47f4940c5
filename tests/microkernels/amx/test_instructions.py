"""The stream of tile instructions: its order, and its counts compared with a plain count."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from microkernels.amx.instructions import (
    InstructionCounts,
    TileBlock,
    block_rows,
    full_then_tail,
    product_counts,
)
from microkernels.amx.tile_shapes import LAYOUTS

layouts = st.sampled_from(sorted(LAYOUTS))


def counted(block: TileBlock) -> dict[str, int]:
    return dict(Counter(instruction.name for instruction in block.stream()))


@st.composite
def blocks(draw: st.DrawFn) -> TileBlock:
    layout = draw(layouts)
    rows, columns = LAYOUTS[layout]
    return TileBlock(
        layout,
        draw(st.integers(1, rows)),
        draw(st.integers(1, columns)),
        draw(st.integers(1, 9)),
        draw(st.booleans()),
    )


def test_a_step_of_a_full_block_alternates_loads_and_products() -> None:
    names = [f"{i.name} {i.operand}".strip() for i in TileBlock("2x2", 2, 2, 1).stream()]
    a, b = "tileloadd A", "tileloadd B"
    step = [a, b, "tdp", b, "tdp", a, "tdp", "tdp"]
    assert names == ["tilezero"] * 4 + step + ["tilestored C"] * 4
    wide = [i.name for i in TileBlock("1x4", 1, 4, 1, resume=True).stream()]
    assert wide == ["tileloadd"] * 5 + ["tileloadd", "tdp"] * 4 + ["tilestored"] * 4


@given(blocks())
def test_products_read_tiles_that_were_loaded_for_them(block: TileBlock) -> None:
    operand: dict[int | None, str] = {}
    for instruction in block.stream():
        if instruction.name == "tdp":
            c, a, b = instruction.sources
            assert c == instruction.target and len({a, b, c}) == 3
            assert (operand[a], operand[b]) == ("A", "B") and operand[c] in ("C", "")
        else:
            operand[instruction.target] = instruction.operand
    assert set(operand) <= {*range(8), None}


@given(blocks())
def test_counts_are_those_of_the_stream(block: TileBlock) -> None:
    assert block.counts().named("tdp") == counted(block)


@given(
    layouts,
    st.integers(1, 100),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(1, 9),
    st.booleans(),
)
def test_counts_of_a_product_are_those_of_its_blocks(
    layout: str, m: int, pieces: list[int], column_tiles: int, started: bool
) -> None:
    rows = full_then_tail(m, block_rows(layout))
    panels = full_then_tail(column_tiles, LAYOUTS[layout][1])
    expected: Counter[str] = Counter()
    for block in rows:
        for panel in panels:
            for number, steps in enumerate(pieces):
                resume = started or number > 0
                expected.update(counted(TileBlock(layout, -(-block // 16), panel, steps, resume)))
    expected.update(ldtilecfg=len(set(rows)), tilerelease=1)
    counts = product_counts(layout, rows, panels, pieces, started=started)
    assert counts.named("tdp") == dict(expected)
    # Every 16 x 16 tile of results takes one product per 64 bytes of K.
    assert counts.tdp == -(-m // 16) * column_tiles * sum(pieces)


def test_a_known_product() -> None:
    # 33 x 48 x 128 bytes: blocks of 32 rows and 1 row, panels of 2 tiles and 1, two steps of K.
    counts = product_counts("2x2", [32, 1], [2, 1], [2])
    assert counts == InstructionCounts(
        ldtilecfg=2,
        tilezero=4 + 2 + 2 + 1,
        tileloadd=2 * (4 + 3 + 3 + 2),
        tdp=2 * 9,
        tilestored=9,
        tilerelease=1,
    )
    assert counts.named("tdpbusd")["tdpbusd"] == 18


def test_pieces_of_a_length() -> None:
    assert full_then_tail(64, 32) == [32, 32]
    assert full_then_tail(5, 32) == [5]
    assert full_then_tail(70, 32) == [32, 32, 6]


def test_blocks_that_a_layout_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="layout 1x4 has no block of 2x1 tiles"):
        TileBlock("1x4", 2, 1, 1)
