"""The loops that all GEMM-like templates have inside a thread: row blocks, panels, K blocks, tiles.

    for each block of rows (its part of A stays in L2)
        for each panel of columns (several of them side by side for one or two rows)
            for each block of K (its part of the panel stays in cache)
                for each register tile: multiply; after the last block of K, store

The number of rows is an int or, if it is dynamic, an expression. Pieces of one loop
differ by at most one (`balanced`), so there is no thin tail. Between blocks of K the accumulators
are stored in a scratch tile.

The loops call one class for each concern: operands (`OperandA`, `OperandB`), initial accumulators
(`Beginning`), how a tile is multiplied (`RegisterTiles`), where results go (`Results`). Where
machine code has to differ, a class emits the tiles of a panel: `StaticTiles`, `DynamicTiles`,
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
        Initial accumulators; zeros if None.
    tiles : RegisterTiles
        How a tile is multiplied; `a` and `b` are read by its steps of K.
    shortcuts : sequence of Shortcut
        Other loops for some blocks of rows; a block takes the first shortcut that fits.
    few_rows : FewRows
        Multiplies few rows of a dynamic number.
    least : int
        Least rows of a block of a dynamic number of rows.
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
            The tile configuration of a task that goes on afterwards and releases it.
        steps : tuple or None
            The steps of K that are multiplied; all of them if None.
        turns : Turns or None
            Which part of a dynamic number of rows the thread multiplies; all rows if None.
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
        """Allocates the buffer for accumulators that tiles store; None if none is needed."""
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
        # As wide as the widest panel: TVM cuts off columns that no access visits, but AMX tiles get
        # the distance of rows as a number before that.
        shape = height, width * plan.kernel.lanes
        return I.sblock_alloc_buffer(shape, plan.kernel.acc_dtype, align=64)

    def choose(self, row: Expr, rows: Index, run: Callable[[TileLoops], None]) -> None:
        """Runs the loops for a block of rows: of the first shortcut that fits, else these."""
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
    """The class that emits the tiles of `rows` rows."""
    if not isinstance(rows, int):
        return DynamicTiles
    return AmxTiles if plan.kernel.by_tiles else StaticTiles


@dataclass(frozen=True)
class Shortcut:
    """Loops for the blocks of rows that meet a condition at run time.

    Attributes
    ----------
    fits : callable
        (first row, rows) -> condition; emits what the condition needs. If that runs `begin` for
        the rows, no later loops run it again.
    loops : TileLoops
        The loops of these blocks.
    """

    fits: Callable[[Expr, Index], Expr]
    loops: TileLoops


@dataclass(frozen=True)
class BlockLoops:
    """The panels of a block of rows.

    Attributes
    ----------
    loops : TileLoops
        The loops around the block.
    row, rows : Expr, int or Expr
        Its first row, and number of rows.
    vector : Expr
        First vector of columns.
    groups : sequence of Group
        The panels of each width.
    cut : bool
        Whether K is cut, so that accumulators are stored between its blocks.
    scratch : Buffer or None
        The buffer for accumulators.
    steps : tuple or None
        The steps of K that are multiplied; all of them if None.
    share : tuple or None
        The thread's chunk of the panels; all of them if None.
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
        """Emits panels side by side for few rows of a dynamic number, else panel by panel."""
        loops = self.loops
        loops.a.begin(self.row, self.rows)
        most = loops.few_rows.most(loops.plan)
        if isinstance(self.rows, int) or most < loops.least:
            self._panels()
        else:
            branch(self.rows <= most, partial(loops.few_rows.emit, self), self._panels)

    def _panels(self) -> None:
        """Emits the panels of each width."""
        kind, following = tiles_of(self.loops.plan, self.rows), [g.size for g in self.groups[1:]]
        for group, after in zip(self.groups, [*following, 0], strict=True):
            tiles = kind(self, group, after)
            tiles.for_panels(partial(self._panel, tiles))

    def _panel(self, tiles: PanelTiles, start: Index, vectors: int) -> None:
        """Emits one panel, `start` vectors after the first one."""
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
