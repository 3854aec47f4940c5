"""How threads divide a product whose number of rows is dynamic.

for each thread: a chunk of the rows, or of the columns, or of the panels of few rows
    for each block of rows, or each piece of one that no other thread has claimed
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.vector.expressions import Expr, materialise
from microkernels.vector.memory import PREFETCH_LLVM_IR
from tir_schedules.core import emission, placement
from tir_schedules.core.blocking import tail_heights
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.core.product_plan import ProductPlan

from .few_rows import FEW_ROWS
from .staged_panels import wide_product_of

if TYPE_CHECKING:
    from .tile_config import MatmulConfig
    from .tile_loops import TileLoops

PanelShare = tuple[Expr, Expr]  # number of a chunk of the panels, and of how many chunks
Blocks = tuple[Expr, Callable[[Expr], tuple[Expr, Expr]]]
"""How many blocks of rows there are, and number of a block -> its first row, and its rows."""

# About how many pieces of a thread's chunk others may claim, if rows are not few. With one piece, a
# thread claims the whole chunk of another that is only late (0.87 of the speed in some runs).
PIECES = 8


@dataclass(frozen=True)
class Turns:
    """Which parts of its blocks of rows a thread multiplies.

    Attributes
    ----------
    share : tuple or None
        A chunk of the panels; all of them if None.
    claims : Claims or None
        The pieces that no other thread has claimed; all of them if None.
    """

    share: PanelShare | None = None
    claims: placement.Claims | None = None

    def each(
        self,
        rows: Expr,
        blocks: Blocks,
        panels: int,
        body: Callable[[Expr, Expr, PanelShare | None], None],
    ) -> None:
        """Runs `body(first row, rows, share of the panels)` for blocks, of `rows` in all."""
        count, block_of = blocks
        if self.claims is None:
            with I.serial(count) as number, emission.opaque_block("block"):
                body(*block_of(number), self.share)
            return
        # Into how many pieces the panels of a block of rows are cut, for threads to claim.
        one = as_expr(1)
        pieces = tirx.Max(I.floordiv(as_expr(PIECES), tirx.Max(count, one)), one)
        cuts = materialise(tirx.Select(rows <= FEW_ROWS, one, tirx.Min(pieces, as_expr(panels))))

        def piece(number: Expr) -> None:
            at, own, parts = materialise(I.floormod(number, cuts)), self.share, cuts
            if own is not None:
                at, parts = own[0] * cuts + at, own[1] * cuts
            body(*block_of(materialise(I.floordiv(number, cuts))), (at, parts))

        self.claims.each(materialise(count * cuts), piece)


def share_dynamic_rows(loops: TileLoops, config: MatmulConfig) -> None:
    """The whole product, in one parallel region over the grid of threads.

    Threads claim pieces of chunks (`core/placement.py`), unless rows are staged first, as those of
    8-bit integers are: a thread that claims a piece would stage its rows again, which was slower.
    """
    plan, whole = loops.plan, config.whole_rows
    columns, threads_m, rows = plan.column_shares, plan.threads_m, as_expr(extent(plan.m))
    tasks = threads_m * sum(group.count for group in columns)
    alone = rows <= config.alone_rows if config.alone_rows else None
    with ExitStack() as scope:
        claims: placement.Claims | None = None
        if tasks == 1 or loops.a.begins or loops.shortcuts:
            task = scope.enter_context(emission.task_loop(tasks, alone=alone))
        else:
            _, claims = scope.enter_context(placement.claimed_shares(tasks, alone))
            task = claims.share
        scope.enter_context(llvm_functions(PREFETCH_LLVM_IR))
        number = I.floormod(task, threads_m)
        row, many = emission.share_of(rows, number, threads_m)
        panels: PanelShare | None = None
        if threads_m > 1 and whole:
            few, zero, one = materialise(rows <= whole), as_expr(0), as_expr(1)
            row = materialise(tirx.Select(few, zero, row))
            many = materialise(tirx.Select(few, rows, many))
            parts = tirx.Select(few, as_expr(threads_m), one)
            panels = materialise(tirx.Select(few, number, zero)), materialise(parts)

        def part(vector: Expr, vectors: int) -> None:
            loops.emit(row, many, vector, vectors, turns=Turns(panels, claims))

        emission.for_share(columns, I.floordiv(task, threads_m), part)


def tile_choices(plan: ProductPlan, whole: int = 0, alone: int = 0) -> str:
    """What is decided at run time about tiles and threads, for `explain`."""

    def tiles(rows: int, least: int) -> str:
        *lower, most = tail_heights(rows, plan.vectors, least).heights
        heights = f"{', '.join(map(str, lower))} and {most} rows" if lower else most
        return f"tiles of {heights}"

    wide, blocks = wide_product_of(plan), f"in blocks of {plan.m_block}"
    rows, least = plan.rows if wide is None else plan.kernel.mr, FEW_ROWS + 1
    found = [f"1 to {FEW_ROWS} rows: panels of columns side by side"]
    if rows <= FEW_ROWS:
        found = [tiles(rows, 1)]
    elif wide is None:
        found.append(f"more: {tiles(rows, least)}, {blocks}")
    else:
        found.append(f"{least} to {wide.fewest_rows - 1}: {tiles(rows, least)}")
    if wide is not None:
        found.append(f"more: widened operands, {tiles(plan.rows, wide.fewest_rows)}, {blocks}")
    if alone:
        found.append(f"up to {alone} rows: one thread")
    if whole and plan.threads_m > 1:
        found.append(f"up to {whole} rows: threads share their columns")
    return "; ".join(found)
