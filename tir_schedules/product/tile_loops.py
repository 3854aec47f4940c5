"""The loops that all GEMM-like templates have inside a thread: row blocks, panels, K blocks, tiles.

    for each block of rows (its part of A stays in L2)
        for each panel of columns
            for each block of K (its part of the panel stays in cache)
                for each register tile: multiply; after the last block of K, store

Sizes are known at compile time, so every loop body has exact sizes; `dynamic_rows` has the loops
over a number of rows that is not. The pieces of one loop differ by at most one (`balanced`), so
there is no thin tail. Between blocks of K the accumulators are stored in a scratch tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import Address, Between, Place, Tile
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.emission import branch, for_groups, opaque_block
from tir_schedules.core.product_plan import Piece, ProductPlan

from .prefetch import (
    Ahead,
    PanelPrefetch,
    Prefetch,
    TilePrefetch,
    all_of,
    known_streams,
    steps_of_round,
)
from .tile_products import REGISTERS, LoadPanel, RegisterTiles, TileContext, rest, store_tile


class TileTask:
    """The tile registers' configuration along straight-line code; nothing of it without tiles."""

    def __init__(self) -> None:
        self._kernel: Microkernel | None = None
        self._rows = 0

    def configure(self, kernel: Microkernel, rows: int) -> None:
        """Emits the configuration for so many rows, unless it is there."""
        if not kernel.by_tiles:
            return
        if not self.holds(kernel, rows):
            kernel.configure(rows)
        self._kernel, self._rows = kernel, rows

    def holds(self, kernel: Microkernel, rows: int) -> bool:
        """Whether the configuration is there."""
        same = self._kernel is not None and self._kernel.mr == kernel.mr
        return same and self._rows == rows

    def release(self) -> None:
        """Emits the end of it."""
        if self._kernel is not None:
            self._kernel.release()
        self._kernel = None


@dataclass(frozen=True)
class TileLoops:
    """The loops for one problem; `emit` puts them into the PrimFunc under construction.

    Attributes
    ----------
    plan : ProductPlan
        How the product is cut.
    load_a : callable
        (row, step of K) -> A as the kernel's `emit` takes it.
    load_b : callable
        How a panel of packed B is read.
    store : callable
        (row, vector, accumulators, whether the vector ends its panel) -> None; emits the epilogue.
    epilogue_cost : int
        Instructions of the epilogue for one vector. A long one is not repeated for every row of the
        tile, which would cost LLVM seconds: the tile passes through L1 and a loop runs over its
        rows.
    stage_b : callable or None
        (first vector of the panel, its width, block of K) -> the load_b for that block; emits what
        has to be done once before the tiles of a block, such as expanding a compressed panel.
    tiles : RegisterTiles
        How a tile is multiplied; `load_a` and the panel's load_b count its steps.
    begin : callable or None
        (first row, rows) of a block -> None; emits what has to be done before it is multiplied. The
        number of rows may be an expression.
    begin_panel : callable or None
        (first vector of a panel, its width) -> None; emits what has to be done before the tiles of
        a panel in a block of rows.
    start : callable or None
        (row, vector) -> what the accumulators start with; zero if None. Tile registers start with
        zero, and it is added when results are stored, unless all rows start with the same.
    start_columns : callable or None
        vector -> the same where it does not depend on the row, or where it is in memory.
    peel : bool
        As of `Microkernel.emit`, for the last block of K.
    direct : callable or None
        (row, vector) -> where tiles are stored as they are, in place of `store`.
    prefetch : Prefetch or None
        How packed B is prefetched a panel ahead, if it is.
    share : tuple or None
        First step and number of steps of the K that is multiplied; all of it if None.
    narrow : TileLoops or None
        What fewer than `tiles.fewest_rows` rows of a dynamic number run; the same if None.
    shortcut : Shortcut or None
        Other loops for those blocks of rows that they are right for.
    """

    plan: ProductPlan
    load_a: Callable[[Expr, Index], Expr | Address]
    load_b: LoadPanel
    store: Callable[[Expr, Expr, Expr, bool], None]
    epilogue_cost: int = 0
    stage_b: Callable[[Expr, int, Piece], LoadPanel] | None = None
    tiles: RegisterTiles = REGISTERS
    begin: Callable[[Expr, Index], None] | None = None
    begin_panel: Callable[[Expr, int], None] | None = None
    start: Callable[[Expr, Expr], Expr] | None = None
    start_columns: Callable[[Expr], Expr | Address] | None = None
    peel: bool = False
    direct: Callable[[Expr, Expr], Place] | None = None
    prefetch: Prefetch | None = None
    share: Piece | None = None
    narrow: TileLoops | None = None
    shortcut: Shortcut | None = None

    def emit(
        self, row: Expr, rows: int, vector: Expr, vectors: int, tiles: TileTask | None = None
    ) -> None:
        """The loops over `rows` rows from `row` and `vectors` vectors of columns from `vector`.

        `tiles` is the state of a task that goes on afterwards and releases it. The tail is last,
        unless its configuration is there.
        """
        plan, kernel = self.plan, self.plan.kernel
        first, steps = self.share or (0, plan.steps)
        pieces = [(first + start, size) for start, size in plan.pieces_of(steps)]
        bands, groups = plan.bands(rows), balanced(vectors, plan.vectors)
        scratch = None
        if (len(pieces) > 1 or kernel.by_tiles) and self.direct is None:
            # As wide as the widest panel: TVM cuts off columns that nobody visits, and tiles are
            # told the distance of rows before.
            width = groups[0].size * kernel.lanes
            height = bands[0][1][0].size if len(pieces) > 1 else 2 * bands[0][0]
            scratch = I.sblock_alloc_buffer((height, width), kernel.acc_dtype, align=64)

        def emit_block(block: Index, block_rows: int) -> None:
            def multiply(loops: TileLoops) -> None:
                if loops.begin is not None:
                    loops.begin(row + block, block_rows)
                panels = _Panels(loops, row + block, block_rows, pieces, scratch)
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

    def panel(self, vector: Expr, vectors: int, piece: Piece) -> LoadPanel:
        """How tiles read a block of K of a panel; emits what has to be done before."""
        return self.load_b if self.stage_b is None else self.stage_b(vector, vectors, piece)

    def side_by_side(
        self, row: Expr, rows: int, vector: Expr, width: int, panels: int, piece: Piece
    ) -> TileContext:
        """Several panels as one wide tile."""

        def load_b(_panel: Index, _width: int, step: Index, j: int) -> Expr | Address:
            return self.load_b(vector + j // width * width, width, step, j % width)

        return TileContext(self, row, rows, vector, panels * width, piece, load_b)

    @property
    def starts_late(self) -> bool:
        """Whether what accumulators start with is added when they are stored."""
        by_tiles = self.plan.kernel.by_tiles and self.direct is None
        return by_tiles and self.start is not None and self.start_columns is None

    def finish(self, row: Expr, vector: Expr, value: Expr, last: bool) -> None:
        """Stores a vector of accumulators."""
        if self.starts_late:
            assert self.start is not None
            value = value + self.start(row, vector)
        self.store(row, vector, value, last)


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


@dataclass
class LateStores:
    """Stores the results of a block of tiles while the next block is multiplied.

        multiply block 0
        multiply block 1, and between its products the epilogue of block 0
        multiply block 2, and between its products the epilogue of block 1
        the epilogue of block 2

    A core multiplies tiles and works on vectors at the same time only if both are near each other
    in the program: an epilogue of 64 vectors fills the reorder buffer. oneDNN interleaves them, too
    (brgemm, `interleave_tilestores`). Measured on Granite Rapids: 128 rows, K = 768, 8-bit: 15%.

    Blocks of equal size, one after the other.

    Attributes
    ----------
    panels : _Panels
        The panels that the blocks are tiles of.
    vector, vectors : Expr, int
        The first vector of the first panel, and how many each has.
    slots : int
        Blocks that there is room for; a block's is not that of the block before.
    """

    panels: _Panels
    vector: Expr
    vectors: int
    slots: int

    def __post_init__(self) -> None:
        (group,) = balanced(self.panels.rows, self.panels.loops.plan.rows)
        self.rows, self.tiles = group.size, group.count

    def slot(self, block: Index) -> Index:
        """The first row of a block in `scratch`."""
        return block % self.slots * self.rows

    def between(self, block: Index, steps: int) -> Between | None:
        """Emits, in each of so many steps, a part of what the block before left."""
        if isinstance(block, int) and block == 0:
            return None
        height = math.ceil(self.rows / steps)

        def part(step: Index, product: int, _products: int) -> None:
            if product:
                return
            with I.If(block > 0), I.Then(), I.serial(height) as offset:
                row = step * height + offset
                if height * steps == self.rows:
                    self._row(block - 1, row)
                else:
                    with I.If(row < self.rows), I.Then():
                        self._row(block - 1, row)

        return part

    def finish(self, block: Index) -> None:
        """Emits the epilogue of the last block."""
        with I.serial(self.rows) as row:
            self._row(block, row)

    def _row(self, block: Index, row: Expr) -> None:
        loops, scratch = self.panels.loops, self.panels.scratch
        assert scratch is not None
        first = self.panels.row + block % self.tiles * self.rows + row
        vector = self.vector + block // self.tiles * self.vectors
        place = Place(scratch, self.slot(block))
        tile = Tile(self.rows, self.vectors, loops.plan.kernel.lanes, place=place)
        for j in range(self.vectors):
            loops.finish(first, vector + j, tile.value(row, j), j == self.vectors - 1)


@dataclass(frozen=True)
class _Panels:
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
    """

    loops: TileLoops
    row: Expr
    rows: int
    pieces: Sequence[Piece]
    scratch: Expr | None

    @property
    def _tiles(self) -> int:
        return math.ceil(self.rows / self.loops.plan.rows)

    def emit(self, vector: Expr, group: Group, following: int) -> None:
        """Panels of equal width; where K is not cut, stores are late across all of them.

        `following` is the width of the panel behind them; 0 if there is none.
        """
        late = None
        if len(self.pieces) == 1:
            if self._streams(vector, group):
                return
            late = self._late(vector + group.start, group.size, 2)

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
            late.finish(group.count * self._tiles - 1)

    def _streams(self, vector: Expr, group: Group) -> bool:
        """One or two rows read several panels at once; False if panels are read one by one."""
        loops, width = self.loops, group.size
        most, kernel = known_streams(loops.plan, self.rows, width, group.count)
        if most == 1 or loops.prefetch is None or loops.stage_b is not None:
            return False

        def emit(first: Index, panels: int) -> None:
            begin = vector + group.start + first * width
            with opaque_block("streams"):
                tile = loops.side_by_side(self.row, self.rows, begin, width, panels, self.pieces[0])

                def store(i: Index, j: int, value: Expr, _last: bool) -> None:
                    loops.store(self.row + i, begin + j, value, (j + 1) % width == 0)

                store_tile(tile.multiply(kernel), kernel, loops.epilogue_cost, store)

        for_groups(balanced(group.count, most), emit)
        return True

    def _late(self, vector: Expr, vectors: int, slots: int) -> LateStores | None:
        """What stores tiles, panel by panel; None if every tile stores its own."""
        by_tiles = self.loops.plan.kernel.by_tiles and self.loops.direct is None
        return LateStores(self, vector, vectors, slots) if by_tiles else None

    def _panel(
        self, vector: Expr, vectors: int, after: Index, late: LateStores | None, before: Index
    ) -> None:
        """One panel; `before` of its width are before it, and the next has `after` vectors."""
        loops, plan, cut = self.loops, self.loops.plan, len(self.pieces) > 1
        if loops.begin_panel is not None:
            loops.begin_panel(vector, vectors)
        groups, fetch, between = balanced(self.rows, plan.rows), None, None
        if loops.prefetch is not None:
            fetch = PanelPrefetch(loops.prefetch, plan, vector, vectors, groups)
            between = fetch.between(after)
        # The tiles that are stored late before these.
        first = 0 if cut else before * self._tiles
        for number, piece in enumerate(self.pieces):
            last = number == len(self.pieces) - 1
            if cut and last:
                late = self._late(vector, vectors, self._tiles)
            load_b, tiles = loops.panel(vector, vectors, piece), 0
            block = self.row, self.rows, vector, vectors
            whole = replace(
                TileContext(loops, *block, piece, load_b, self.scratch),
                resumes=number > 0,
                rounds=steps_of_round(plan, piece[1]) > 1,
                peel=loops.peel and last,
                passing=plan.passing(self.rows, piece[1]),
            )
            for group in groups:
                ahead = None if fetch is None else fetch.ahead(piece, group, tiles)
                for_groups([group], partial(self._tile, whole, ahead, between, late, first))
                tiles += group.count
            if cut and late is not None:
                late.finish(self._tiles - 1)

    def _tile(
        self,
        whole: TileContext,
        ahead: Callable[[Index], Ahead] | None,
        fetching: TilePrefetch | None,
        late: LateStores | None,
        before: Index,
        place: Index,
        rows: int,
    ) -> None:
        """Multiplies and stores one tile; `before` counts the tiles that are stored late."""
        loops, kernel, direct = self.loops, self.loops.plan.kernel, self.loops.direct
        number, row = before + place // rows, self.row + place
        into: Place | None = None
        others: list[Between | None] = []
        with opaque_block("tile"):
            if fetching is not None:
                block = place // loops.plan.rows
                others.append(fetching.of_block(block, whole.piece, kernel.depth))
            if direct is not None:
                into = direct(row, whole.vector)
            elif kernel.by_tiles:
                assert self.scratch is not None
                into = Place(self.scratch, place if late is None else late.slot(number))
                if late is not None:
                    others.append(late.between(number, whole.piece[1] // kernel.depth))
            own = None if ahead is None else ahead(place)
            tile = replace(whole, row=row, rows=rows, place=place, ahead=own)
            tile = replace(tile, into=into, between=all_of(others))
            result, last = loops.tiles.emit(tile), whole.piece is self.pieces[-1]
            if not last and result.place is None:
                assert self.scratch is not None
                rest(result, self.scratch, place)
            if not last or direct is not None or late is not None:
                return

            def store(i: Index, j: int, value: Expr, ends: bool) -> None:
                loops.finish(row + i, whole.vector + j, value, ends)

            store_tile(result, kernel, loops.epilogue_cost, store)
