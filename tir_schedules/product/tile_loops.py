"""The loops that all GEMM-like templates have inside a thread: row blocks, panels, K blocks, tiles.

    for each block of rows (its part of A stays in L2)
        for each panel of columns
            for each block of K (its part of the panel stays in cache)
                for each register tile: multiply; after the last block of K, store

Sizes are known at compile time, so every loop body has exact sizes; `dynamic_rows` has the loops
over a number of rows that is not. The pieces of one loop differ by at most one (`balanced`), so
there is no thin tail. Between blocks of K the accumulators are stored in a scratch tile.

What the loops call has a class each: what is read (`OperandA`, `OperandB`), what accumulators start
with (`Beginning`), how a tile is multiplied (`RegisterTiles`), where results go (`Results`), when
tiles are stored (`LateStores`), what is prefetched (`PanelPrefetch`). One or two rows read several
panels side by side (`emit_streams`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.tile import Between, Place
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.emission import branch, for_groups, opaque_block
from tir_schedules.core.product_plan import Piece, ProductPlan
from tir_schedules.epilogue.tile_results import Results, rest, store_tile

from . import tile_products
from .prefetch import PanelPrefetch, all_of, steps_of_round
from .tile_products import LateStores, OperandA, OperandB, TileContext, TileTask


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
        What accumulators start with; zero if None. Tile registers start with zero, and it is added
        when results are stored, unless all rows start with the same.
    tiles : RegisterTiles
        How a tile is multiplied; what it reads counts its steps.
    narrow : TileLoops or None
        What fewer than `tiles.fewest_rows` rows of a dynamic number run; the same if None.
    shortcut : Shortcut or None
        Other loops for those blocks of rows that they are right for.
    """

    plan: ProductPlan
    a: OperandA
    b: OperandB
    results: Results
    start: tile_products.Beginning | None = None
    tiles: tile_products.RegisterTiles = tile_products.REGISTERS
    narrow: TileLoops | None = None
    shortcut: Shortcut | None = None

    def emit(
        self,
        row: Expr,
        rows: int,
        vector: Expr,
        vectors: int,
        tiles: TileTask | None = None,
        share: Piece | None = None,
    ) -> None:
        """The loops over `rows` rows from `row` and `vectors` vectors of columns from `vector`.

        `tiles` is the state of a task that goes on afterwards and releases it. The tail is last,
        unless its configuration is there. `share` are the steps of K that are multiplied; all of
        them if None.
        """
        plan, kernel = self.plan, self.plan.kernel
        first, steps = share or (0, plan.steps)
        pieces = [(first + start, size) for start, size in plan.pieces_of(steps)]
        bands, groups = plan.bands(rows), balanced(vectors, plan.vectors)
        scratch = None
        if (len(pieces) > 1 or kernel.by_tiles) and not self.results.in_place:
            # As wide as the widest panel: TVM cuts off columns that nobody visits, and tiles are
            # told the distance of rows before.
            width = groups[0].size * kernel.lanes
            height = bands[0][1][0].size if len(pieces) > 1 else 2 * bands[0][0]
            scratch = I.sblock_alloc_buffer((height, width), kernel.acc_dtype, align=64)

        def emit_block(block: Index, block_rows: int) -> None:
            def multiply(loops: TileLoops) -> None:
                loops.a.begin(row + block, block_rows)
                fetches = share is None
                panels = BlockLoops(loops, row + block, block_rows, pieces, scratch, fetches)
                for group, after in zip(groups, [*groups[1:], None], strict=True):
                    panels.emit(vector, group, 0 if after is None else after.size)

            self.choose(row + block, block_rows, multiply)

        state = tiles or TileTask()
        if state.holds(kernel, bands[-1][0]):  # by the product before, which ended with it
            bands.reverse()
        for tile_rows, blocks in bands:
            state.configure(kernel, tile_rows)
            for_groups(blocks, emit_block)
        if tiles is None:
            state.release()

    def choose(self, row: Expr, rows: Index, run: Callable[[TileLoops], None]) -> None:
        """Runs the loops that are right for a block of rows: these, or a shortcut."""

        def chosen(shortcut: Shortcut | None) -> None:
            if shortcut is None:
                run(self)
                return
            loops, otherwise = shortcut.loops, shortcut.otherwise
            branch(shortcut.fits(row, rows), lambda: run(loops), lambda: chosen(otherwise))

        chosen(self.shortcut)

    def begin_panel(self, vector: Expr, vectors: int) -> None:
        """Emits what has to be done before the tiles of a panel in a block of rows."""
        self.b.begin_panel(vector, vectors)
        if self.start is not None:
            self.start.begin_panel(vector, vectors)

    @property
    def starts_late(self) -> bool:
        """Whether what accumulators start with is added when they are stored."""
        by_tiles = self.plan.kernel.by_tiles and not self.results.in_place
        return by_tiles and self.start is not None and not self.start.by_column

    def finish(self, row: Expr, vector: Expr, value: Expr, last: bool) -> None:
        """Stores a vector of accumulators."""
        if self.starts_late:
            assert self.start is not None
            value = value + self.start(row, vector)
        self.results.store(row, vector, value, last)


@dataclass(frozen=True)
class Shortcut:
    """Loops for blocks of rows that turn out to be right for them.

    Attributes
    ----------
    fits : callable
        (first row, rows) -> condition; begins the rows, and emits what has to be done to know it.
    loops : TileLoops
        Of the same plan.
    otherwise : Shortcut or None
        What other blocks may take; its rows have begun.
    """

    fits: Callable[[Expr, Index], Expr]
    loops: TileLoops
    otherwise: Shortcut | None = None


@dataclass(frozen=True)
class BlockLoops:
    """The panels of a block of rows.

    Attributes
    ----------
    loops : TileLoops
        What they are multiplied by.
    row, rows : Expr, int
        The block.
    pieces : sequence of tuple
        Its blocks of K.
    scratch : Buffer or None
        Room for accumulators.
    fetches : bool
        Whether panels are prefetched.
    """

    loops: TileLoops
    row: Expr
    rows: int
    pieces: Sequence[Piece]
    scratch: Expr | None
    fetches: bool

    @property
    def tiles(self) -> int:
        """Tiles of a panel."""
        return math.ceil(self.rows / self.loops.plan.rows)

    def emit(self, vector: Expr, group: Group, following: int) -> None:
        """Panels of equal width; where K is not cut, stores are late across all of them.

        `following` is the width of the panel behind them; 0 if there is none.
        """
        late = None
        if len(self.pieces) == 1:
            if tile_products.emit_streams(self, vector, group):
                return
            late = LateStores.of(self, vector + group.start, group.size, 2)

        def emit_panel(panel: Index, size: int) -> None:
            before = (panel - group.start) // size
            after: Index = following
            if not isinstance(panel, int):
                ends = group.start + (group.count - 1) * size
                widths = (tirx.const(width, "int32") for width in (size, following))
                after = tirx.Select(panel < ends, *widths)
            self._panel(vector + panel, size, after, late, before)

        for_groups([group], emit_panel)
        if late is not None:
            late.finish(group.count * self.tiles - 1)

    def _panel(
        self, vector: Expr, vectors: int, after: Index, late: LateStores | None, before: Index
    ) -> None:
        """One panel; `before` of its width are before it, and the next has `after` vectors."""
        loops, plan, cut = self.loops, self.loops.plan, len(self.pieces) > 1
        loops.begin_panel(vector, vectors)
        groups, fetch = balanced(self.rows, plan.rows), None
        if loops.b.prefetch is not None and self.fetches:
            fetch = PanelPrefetch(loops.b.prefetch, plan, vector, vectors, groups, after)
        # The tiles that are stored late before these.
        first = 0 if cut else before * self.tiles
        for number, piece in enumerate(self.pieces):
            last = number == len(self.pieces) - 1
            if cut and last:
                late = LateStores.of(self, vector, vectors, self.tiles)
            load_b = loops.b.stage(vector, vectors, piece)
            block = self.row, self.rows, vector, vectors
            whole = replace(
                TileContext(loops, *block, piece, load_b, self.scratch),
                resumes=number > 0,
                rounds=steps_of_round(plan, piece[1]) > 1,
                peel=loops.a.tail and last,
                passing=plan.passing(self.rows, piece[1]),
            )
            for_groups(groups, partial(self._tile, whole, fetch, late, first))
            if cut and late is not None:
                late.finish(self.tiles - 1)

    def _tile(
        self,
        whole: TileContext,
        fetch: PanelPrefetch | None,
        late: LateStores | None,
        before: Index,
        place: Index,
        rows: int,
    ) -> None:
        """Multiplies and stores one tile; `before` counts the tiles that are stored late."""
        loops, plan, results = self.loops, self.loops.plan, self.loops.results
        number, row, into = before + place // rows, self.row + place, None
        tile = replace(whole, row=row, rows=rows, place=place)
        with opaque_block("tile"):
            parts: list[Between | None] = []
            if fetch is not None:
                parts.append(fetch.between(place // plan.rows, whole.piece))
                tile = replace(tile, ahead=fetch.ahead(whole.piece, place, rows))
            if results.in_place:
                into = results.place(row, whole.vector)
            elif plan.kernel.by_tiles:
                assert self.scratch is not None
                into = Place(self.scratch, place if late is None else late.slot(number))
                if late is not None:
                    parts.append(late.between(number, whole.piece[1] // plan.kernel.depth))
            result = loops.tiles.emit(replace(tile, into=into, between=all_of(parts)))
            last = whole.piece is self.pieces[-1]
            if not last and result.place is None:
                assert self.scratch is not None
                rest(result, self.scratch, place)
            if not last or results.in_place or late is not None:
                return

            def store(i: Index, j: int, value: Expr, ends: bool) -> None:
                loops.finish(row + i, whole.vector + j, value, ends)

            store_tile(result, plan.kernel, results.cost, store)
