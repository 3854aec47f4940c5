"""All tiles of a panel together prefetch the next panel of a large weight."""

from __future__ import annotations

import math

import pytest
import tvm
from tvm import tirx

from microkernels.registry import microkernel_named
from microkernels.tile import Between
from tests.tir_schedules.dynamic_regions import LENGTH
from tests.tir_schedules.product.test_matmul import matmul_region
from tests.tir_schedules.run_region import machine_for
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.product_plan import PRODUCTS_PER_SHARE, Piece, ProductPlan
from tir_schedules.epilogue.tile_results import Results
from tir_schedules.product import amx_tiles
from tir_schedules.product.amx_tiles import AmxTiles
from tir_schedules.product.matmul import MATMUL, MatmulConfig
from tir_schedules.product.matmul_product import plan_of
from tir_schedules.product.prefetch import Prefetch, StaticPrefetch, steps_of_round
from tir_schedules.product.tile_loops import BlockLoops, TileLoops
from tir_schedules.product.tile_products import OperandA, OperandB, TileContext


def loops_of(plan: ProductPlan, fetch: Prefetch) -> TileLoops:
    """Loops of a plan that prefetches its panels."""
    weight = OperandB()
    weight.prefetch = fetch
    return TileLoops(plan, OperandA(), weight, Results())


def tile_at(loops: TileLoops, panel: Group, place: int, rows: int, piece: Piece) -> TileContext:
    """A tile of a panel that begins at row `place`."""
    zero, vector = (tirx.const(number, "int32") for number in (0, panel.start))
    given = loops, zero, rows, vector, panel.size, piece, loops.b.load
    return TileContext(*given, place=place)


def lines_between(panel: AmxTiles, number: int, piece: Piece) -> Between | None:
    """The lines that tile `number` prefetches."""
    rows = panel.loops.plan.rows
    tile = tile_at(panel.loops, panel.group, number * rows, rows, piece)
    return panel.lines_between(tile, number)


@pytest.mark.parametrize(
    ("isa", "m", "fetched"),
    [("avx2", 512, True), ("avx512", 512, True), ("avx512", 4, True), ("avx512", 2, False)],
)
def test_a_panel_of_a_large_weight_is_fetched_by_all_its_tiles(
    isa: str, m: int, fetched: bool
) -> None:
    machine = machine_for(isa)
    region = matmul_region((m,), 256, 320)
    kernel = MATMUL.build(region, MATMUL.default_config(region, machine), machine.isa)
    assert ("tvm_hybrid_prefetch" in str(kernel.body)) == fetched


def test_a_long_k_of_any_number_of_rows_has_code() -> None:
    """Lines are counted in fractions, as 32-bit numbers."""
    machine = machine_for("avx2")
    region = matmul_region((LENGTH,), 600_000, 16)
    kernel = MATMUL.build(region, MATMUL.default_config(region, machine), machine.isa)
    assert "tvm_hybrid_prefetch" in str(kernel.body)


@pytest.mark.parametrize(
    "kernel", ["avx2_f32_6x16", "avx2_f32_4x24", "avx2_f32_3x32", "avx512_f32_8x48"]
)
@pytest.mark.parametrize("m", [4, 7, 13, 26, 100])
def test_tiles_fetch_every_line_of_the_next_panel(m: int, kernel: str) -> None:
    """All tiles of a panel together prefetch its lines; a step or round may prefetch one twice."""
    tile = microkernel_named(kernel)
    rows, vectors, in_line = tile.mr, tile.vectors, 16 // tile.lanes
    config = MatmulConfig(kernel=kernel, rows=rows, vectors=vectors, m_block=m, k_block=256)
    plan = plan_of(matmul_region((m,), 256, 320), config)
    asked: list[int] = []
    fetch = Prefetch(lambda _, line, at: asked.append(int(line) + int(at) // 16), in_line)
    groups, before, length = balanced(m, rows), 0, steps_of_round(plan, 256)
    panel, loops = StaticPrefetch(fetch, plan, m, vectors), loops_of(plan, fetch)
    for group in groups:
        for number in range(group.count):
            place = group.start + number * group.size
            ahead = panel.ahead(tile_at(loops, Group(0, 1, vectors), place, group.size, (0, 256)))
            for step in range(256 if ahead is not None else 0):
                assert ahead is not None
                ahead(divmod(step, length))
        before += group.count
    lines, rounded = 256 * vectors // in_line, 0
    assert (length > 1) == (tile.isa_name == "avx2")
    if length == 1:
        assert asked == sorted(asked)
    else:  # tiles begin at ends of rounded fractions, which sum up to a few lines more
        rounded = math.ceil(256 / length * before / 16)
    assert asked[0] == 0 and max(asked) < lines + rounded
    if min(group.size for group in groups) * vectors >= PRODUCTS_PER_SHARE * -(-vectors // in_line):
        assert set(range(lines)) <= set(asked)


@pytest.mark.parametrize("kernel", ["amx_u8s8s32_32x32", "amx_u8s8s32_16x64", "amx_bf16_32x32"])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
@pytest.mark.parametrize(("n", "pieces"), [(256, 1), (160, 1), (256, 3)])
def test_tile_registers_fetch_the_next_panel_once(
    kernel: str, blocks: int, n: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of the next panel is prefetched once, except for rounding.

    After the last panel, the tiles prefetch lines of that panel, which exist.
    """
    monkeypatch.setattr(amx_tiles, "bind", lambda number: number)
    tile = microkernel_named(kernel)
    m, steps = tile.mr * blocks, 4 * tile.depth * pieces
    vectors = tile.nr // tile.lanes
    config = MatmulConfig(
        kernel=kernel, rows=tile.mr, vectors=vectors, m_block=m, k_block=steps // pieces
    )
    plan = ProductPlan.of(config, m, n, steps * tile.kr)
    asked: list[tuple[int, int]] = []
    simplify = tvm.sym.Analyzer().simplify
    fetch = Prefetch(lambda panel, line, _: asked.append((int(panel), int(simplify(line)))))
    widths, first, loops = plan.panels.widths, 0, loops_of(plan, fetch)
    zero = tirx.const(0, "int32")
    products = min(tile.mr, 32) // 16 * vectors
    for width, after in zip(widths, (*widths[1:], 0), strict=True):
        asked.clear()
        group = Group(first, 1, width)
        block = BlockLoops(loops, zero, m, zero, (group,), cut=pieces > 1, scratch=None)
        panel = AmxTiles(block, group, following=0)
        panel.after = 0
        assert lines_between(panel, 0, plan.pieces[0]) is None
        panel.after = tirx.const(after, "int32")
        if lines_between(panel, 0, plan.pieces[0]) is None:
            assert blocks > 2 * width
            continue
        for piece in plan.pieces:
            for number in range(blocks):
                part = lines_between(panel, number, piece)
                assert part is not None
                for step in range(piece[1] // tile.depth):
                    sizes = []
                    for product in range(products):
                        before = len(asked)
                        part(tirx.const(step, "int32"), product, products)
                        sizes.append(len(asked) - before)
                    assert max(sizes) <= max(16 * width // blocks // products + 1, 1)
        first += width
        assert {panel for panel, _ in asked} == {first}
        lines = [line for _, line in asked]
        if after:
            assert set(lines) == set(range(after * steps))
            if after == width:
                assert len(lines) <= after * steps * 1.1
        else:
            assert -steps * width <= min(lines) and max(lines) < 0
