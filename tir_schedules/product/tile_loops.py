"""The loops that all GEMM-like templates have inside a thread: row blocks, panels, K blocks, tiles.

    for each block of rows (its part of A stays in L2)
        for each panel of columns (several of them side by side for one or two rows)
            for each block of K (its part of the panel stays in cache)
                for each register tile: multiply; after the last block of K, store

The number of rows is an int, or an expression if it is known at run time only. Pieces of one loop
differ by at most one (`balanced`), so there is no thin tail. Between blocks of K the accumulators
are stored in a scratch tile.

What the loops call has a class each: what is read (`OperandA`, `OperandB`), what accumulators start
with (`Beginning`), how a tile is multiplied (`RegisterTiles`), where results go (`Results`). Where
machine code has to differ, a class has the tiles of a panel: `StaticTiles`, `DynamicTiles`,
`AmxTiles`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tvm.tirx.script.builder.ir as I

from microkernels.vector.expressions import Expr, Index
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.emission import balanced_blocks, branch, for_groups
from tir_schedules.core.product_plan import Piece, ProductPlan
from tir_schedules.epilogue.tile_results import Results

from . import tile_products
from .amx_tiles import AmxTiles, TileTask
from .dynamic_rows import PanelShare, Turns
from .few_rows import SIDE_BY_SIDE, FewRows
from .panel_tiles import DynamicTiles, PanelTiles, StaticTiles
from .tile_products import OperandA, OperandB, TileContext


@dataclass(frozen=True)
class TileLoops:
    """The loops for one problem; `emit` puts them into the PrimFunc under construction.

    Attributes
    ----------
    plan : ProductPlan
        How the product is cut.
    a, b : OperandA, OperandB
        What is multiplied.
    results : Results
        Where results go.
    start : Beginning or None
        What accumulators start with; zero if None.
    tiles : RegisterTiles
        How a tile is multiplied; what it reads counts its steps.
    shortcuts : sequence of Shortcut
        Other loops for those blocks of rows that they are right for; the first one that is.
    few_rows : FewRows
        What runs few rows of a dynamic number.
    least : int
        No block of a dynamic number of rows has fewer.
    """

    plan: ProductPlan
    a: OperandA
    b: OperandB
    results: Results
    start: tile_products.Beginning | None = None
    tiles: tile_products.RegisterTiles = tile_products.REGISTERS
    shortcuts: Sequence[Shortcut] = ()
    few_rows: FewRows = SIDE_BY_SIDE
    least: int = 1

    def emit(
        self,
        row: Expr,
        rows: Index,
        vector: Expr,
        vectors: int,
        tiles: TileTask | None = None,
        steps: Piece | None = None,
        turns: Turns | None = None,
    ) -> None:
        """The loops over `rows` rows from `row` and `vectors` vectors of columns from `vector`.

        Parameters
        ----------
        tiles : TileTask or None
            The state of a task that goes on afterwards and releases it.
        steps : tuple or None
            The steps of K that are multiplied; all of them if None.
        turns : Turns or None
            Which part of a dynamic number of rows the thread multiplies; all of it if None.
        """
        plan, groups = self.plan, balanced(vectors, self.plan.vectors)
        cut = len(plan.pieces_of(steps[1] if steps else plan.steps)) > 1
        scratch = self._scratch(rows, groups, cut)

        def block(start: Index, size: Index, share: PanelShare | None = None) -> None:
            def run(loops: TileLoops) -> None:
                place = row + start, size, vector, groups
                BlockLoops(loops, *place, cut, scratch, steps, share).emit()

            self.choose(row + start, size, run)

        if not isinstance(rows, int):
            blocks = balanced_blocks(rows, plan.m_block, plan.rows)
            (turns or Turns()).each(rows, blocks, sum(group.count for group in groups), block)
            return
        task = tiles or TileTask()
        task.for_blocks(plan, rows, block)
        if tiles is None:
            task.release()

    def _scratch(self, rows: Index, groups: Sequence[Group], cut: bool) -> Expr | None:
        """Room for accumulators that rest.

        It is as wide as the widest panel: TVM cuts off columns that nobody visits, and AMX tiles
        are told the distance of rows before.
        """
        plan, width = self.plan, groups[0].size
        if isinstance(rows, int):
            most = plan.bands(rows)[0][1][0].size
        else:
            most = max(plan.m_block, plan.rows)
        height = most if cut else tiles_of(plan, rows).resting * min(plan.rows, most)
        if not isinstance(rows, int):
            few = self.few_rows
            height, width = max(height, few.most(plan)), max(width, few.widest(plan, groups))
        if not height or self.results.in_place:
            return None
        shape = height, width * plan.kernel.lanes
        return I.sblock_alloc_buffer(shape, plan.kernel.acc_dtype, align=64)

    def choose(self, row: Expr, rows: Index, run: Callable[[TileLoops], None]) -> None:
        """Runs the loops that are right for a block of rows: these, or a shortcut."""
        if not self.shortcuts:
            run(self)
            return
        shortcut, *others = self.shortcuts
        fits, otherwise = shortcut.fits(row, rows), replace(self, shortcuts=others)
        branch(fits, lambda: run(shortcut.loops), lambda: otherwise.choose(row, rows, run))

    def begin_panel(self, vector: Expr, vectors: int) -> None:
        """Emits what has to be done before the tiles of a panel in a block of rows."""
        self.b.begin_panel(vector, vectors)
        if self.start is not None:
            self.start.begin_panel(vector, vectors)


def tiles_of(plan: ProductPlan, rows: Index) -> type[PanelTiles]:
    """What the code for tiles of so many rows is made by."""
    if not isinstance(rows, int):
        return DynamicTiles
    return AmxTiles if plan.kernel.by_tiles else StaticTiles


@dataclass(frozen=True)
class Shortcut:
    """Loops for blocks of rows that turn out to be right for them.

    Attributes
    ----------
    fits : callable
        (first row, rows) -> condition; begins the rows, and emits what has to be done to know it.
        Where it does not hold, the rows have begun for the shortcuts after it.
    loops : TileLoops
        What they run.
    """

    fits: Callable[[Expr, Index], Expr]
    loops: TileLoops


@dataclass(frozen=True)
class BlockLoops:
    """The panels of a block of rows.

    Attributes
    ----------
    loops : TileLoops
        What they are multiplied by.
    row, rows : Expr, int or Expr
        The block.
    vector : Expr
        First vector of columns.
    groups : sequence of Group
        The panels of each width.
    cut : bool
        Whether K is cut, so that accumulators rest between its blocks.
    scratch : Buffer or None
        Room for accumulators.
    steps : tuple or None
        The steps of K that are multiplied; all of them if None.
    share : tuple or None
        The share of the panels that is multiplied; all of them if None.
    """

    loops: TileLoops
    row: Expr
    rows: Index
    vector: Expr
    groups: Sequence[Group]
    cut: bool
    scratch: Any
    steps: Piece | None = None
    share: PanelShare | None = None

    def emit(self) -> None:
        """Panels side by side for few rows of a dynamic number, else panel by panel."""
        loops = self.loops
        loops.a.begin(self.row, self.rows)
        most = loops.few_rows.most(loops.plan)
        if isinstance(self.rows, int) or most < loops.least:
            self._panels()
        else:
            branch(self.rows <= most, partial(loops.few_rows.emit, self), self._panels)

    def _panels(self) -> None:
        """Panels of each width."""
        kind, following = tiles_of(self.loops.plan, self.rows), [g.size for g in self.groups[1:]]
        for group, after in zip(self.groups, [*following, 0], strict=True):
            tiles = kind(self, group, after)
            tiles.for_panels(partial(self._panel, tiles))

    def _panel(self, tiles: PanelTiles, start: Index, vectors: int) -> None:
        """One panel, `start` vectors behind the first one."""
        loops, vector = self.loops, self.vector + start
        loops.begin_panel(vector, vectors)
        begin, count = self.steps or (0, loops.plan.steps)
        pieces = tiles.pieces(count)
        with tiles.panel(start):
            for number, group in enumerate(pieces):

                def products(first: Index, steps: int, number: int = number) -> None:
                    """A block of K."""
                    piece = begin + first, steps
                    load_b = loops.b.stage(vector, vectors, piece)
                    place = self.row, 0, vector, vectors, piece, load_b, self.scratch
                    resumes, ends = number > 0, number == len(pieces) - 1
                    tiles.emit(TileContext(loops, *place, resumes=resumes, ends=ends))

                for_groups([group], products)
