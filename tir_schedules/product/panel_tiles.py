"""The tiles of a panel in a block of rows: which heights have code, where accumulators are stored.

static rows     code for each tile of the block, each with the epilogue
dynamic rows    code for some heights (`tail_heights`), chosen by a branch; one epilogue for all

AMX tiles are in `amx_tiles`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import tvm.tirx.script.builder.ir as I

from microkernels.vector.expressions import Expr, Index, constant, materialise, ramp
from tir_schedules.core.blocking import Group, balanced, tail_heights
from tir_schedules.core.emission import for_groups, for_part, for_tiles, opaque_block
from tir_schedules.core.extents import as_expr
from tir_schedules.epilogue.tile_results import LONG_EPILOGUE, rest

from .few_rows import emit_streams
from .prefetch import DynamicPrefetch, StaticPrefetch
from .tile_products import TileContext

if TYPE_CHECKING:
    from .tile_loops import BlockLoops

MOST_STORES = 40  # vector stores in the code for all heights of a tile; more take long to compile


@dataclass
class PanelTiles:
    """The tiles of panels of one width in a block of rows; subclasses choose and store them.

    Attributes
    ----------
    block : BlockLoops
        The rows.
    group : Group
        The panels.
    following : int
        Vectors of the panel after them; 0 if there is none.
    resting : int
        Tiles whose accumulators are in `scratch` at once, if K is not cut.
    """

    resting: ClassVar[int] = 0

    block: BlockLoops
    group: Group
    following: int

    def __post_init__(self) -> None:
        self.loops = self.block.loops

    def pieces(self, steps: int) -> Sequence[Group]:
        """Cuts `steps` steps of K into blocks; each block has code of its own."""
        return [Group(at, 1, size) for at, size in self.loops.plan.pieces_of(steps)]

    def for_panels(self, body: Callable[[Index, int], None]) -> None:
        """Runs `body(start, vectors)` for the panels, or for the thread's chunk of them."""
        for_part(self.group, self.block.share, body)

    @contextmanager
    def panel(self, start: Index) -> Iterator[None]:
        """The scope around all blocks of K of the panel that begins at vector `start`."""
        yield

    def emit(self, whole: TileContext) -> None:
        """Emits all tiles of a panel in a block of K; `whole` has all rows of the block."""
        raise NotImplementedError


class StaticTiles(PanelTiles):
    """Tiles of a static number of rows: heights differ by at most one, so that no tile is thin."""

    def __post_init__(self) -> None:
        super().__post_init__()
        block, plan, prefetch = self.block, self.loops.plan, self.loops.b.prefetch
        assert isinstance(block.rows, int)
        self.groups = balanced(block.rows, plan.rows)
        self.fetch: StaticPrefetch | None = None
        if prefetch is not None and block.steps is None:
            self.fetch = StaticPrefetch(prefetch, plan, block.rows, self.group.size)

    def for_panels(self, body: Callable[[Index, int], None]) -> None:
        """See `PanelTiles.for_panels`; one or two rows may read several panels at once."""
        if not emit_streams(self.block, self.group):
            super().for_panels(body)

    def emit(self, whole: TileContext) -> None:
        """See `PanelTiles.emit`."""

        def tile(place: Index, rows: int) -> None:
            with opaque_block("tile"):
                self.tile(replace(whole, row=self.block.row + place, rows=rows, place=place))

        for_groups(self.groups, tile)

    def tile(self, tile: TileContext) -> None:
        """Multiplies a tile, and stores it."""
        ahead = None if self.fetch is None else self.fetch.ahead(tile)
        result = self.loops.tiles.emit(replace(tile, ahead=ahead))
        if tile.ends:
            tile.store(result, self.loops.results.cost)
        else:
            rest(result, tile.scratch, tile.place)


class DynamicTiles(PanelTiles):
    """Tiles of a few heights; a branch chooses the code for a tile's height.

    The code for all heights is several times that of one tile. So, unlike in `StaticTiles`, tiles
    do not contain the epilogue unless it is short: they store accumulators in `scratch`, in L1,
    where one epilogue reads them. If K is cut, accumulators also start in `scratch`, so that all
    blocks of K share their code.
    """

    resting = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        plan, results = self.loops.plan, self.loops.results
        self.rows = as_expr(self.block.rows)
        least = max(self.loops.least, self.loops.few_rows.most(plan) + 1)
        # The few panels of another width do not justify more heights.
        usual = max(self.block.groups, key=lambda group: group.count * group.size).size
        self.heights = tail_heights(plan.rows, usual, least)
        few_stores = usual * sum(self.heights.heights) <= MOST_STORES
        self.at_once = results.cost <= LONG_EPILOGUE and few_stores and not self.block.cut
        self.fetch = DynamicPrefetch.begin(self.loops.b.prefetch, plan, self.rows, self.group.size)

    def pieces(self, steps: int) -> Sequence[Group]:
        """See `PanelTiles.pieces`; blocks of equal size share their code."""
        return self.loops.plan.piece_groups(steps)

    @contextmanager
    def panel(self, start: Index) -> Iterator[None]:
        """See `PanelTiles.panel`."""
        self.vector = self.block.vector + start
        if self.block.cut:
            self._fill()
        yield
        if self.block.cut:
            self._store(as_expr(0), self.rows)

    def _fill(self) -> None:
        """Stores the initial accumulators of all rows in `scratch`."""
        kernel, start, row = self.loops.plan.kernel, self.loops.start, self.block.row
        with I.serial(self.rows) as i:
            for j in range(self.group.size):
                value = constant(0, kernel.acc_dtype, kernel.lanes)
                if start is not None:
                    value = start(row + i, self.vector + j)
                place = [i, ramp(j * kernel.lanes, kernel.lanes)]
                I.buffer_store(self.block.scratch, value, place)

    def emit(self, whole: TileContext) -> None:
        """See `PanelTiles.emit`."""

        def tile(place: Expr, height: int) -> None:
            row, resumes = self.block.row + place, self.block.cut
            tile = replace(whole, row=row, rows=height, place=place, resumes=resumes)
            if self.fetch is None:
                self._tile(tile)
            else:
                self.fetch.beside(tile, self._tile)

        after = None if self.block.cut or self.at_once else self._store
        for_tiles(self.rows, self.heights, tile, after)

    def _tile(self, tile: TileContext) -> None:
        # A sum as the row of each access is slow to compile, so the sum is a variable. Rows of a
        # staged block count from its first row: TVM has to see that they differ by `place`.
        if not self.loops.a.begins:
            tile = replace(tile, row=materialise(tile.row))
        result = self.loops.tiles.emit(tile)
        if self.at_once:
            tile.store(result, 0)
        else:
            rest(result, self.block.scratch, tile.place if self.block.cut else 0)

    def _store(self, at: Expr, rows: Expr) -> None:
        """The epilogue of rows whose accumulators lie at the start of `scratch`."""
        lanes, row = self.loops.plan.kernel.lanes, self.block.row + at
        with I.serial(rows) as i:
            for j in range(self.group.size):
                value = self.block.scratch[i, ramp(j * lanes, lanes)]
                last = j == self.group.size - 1
                self.loops.results.store(row + i, self.vector + j, value, last)
