"""The tiles of a block of rows whose number is known at run time only.

    for each tile: code for its height, chosen by a branch; then one epilogue for all heights

A register tile has code for one height only. There is code for some heights (`tail_heights`), each
in all blocks of K, so that whatever else would be in all of them is outside, and written once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import tvm.tirx.script.builder.ir as I

from microkernels.vector.expressions import Expr, Index, constant, materialise, ramp
from tir_schedules.core import emission
from tir_schedules.core.blocking import Group, tail_heights
from tir_schedules.core.extents import as_expr
from tir_schedules.epilogue.tile_results import LONG_EPILOGUE, rest

from .panel_tiles import PanelTiles
from .prefetch import OpenPrefetch
from .tile_products import TileContext

MOST_STORES = 40  # of vectors, in the code for all heights of a tile: more take long to compile


class OpenTiles(PanelTiles):
    """Tiles of some heights; a branch chooses the code for a tile's height.

    All of these heights together are several times the code of one tile. So the code around them is
    not that of `KnownTiles`, where each tile in each block of K starts and stores its accumulators
    itself: these pass through L1, where one epilogue reads them, unless it is short. If K is cut,
    they start in `scratch`, go on from there in all of its blocks alike, and end there.
    """

    resting = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        plan, results = self.loops.plan, self.loops.results
        self.rows = as_expr(self.block.rows)
        least = max(self.loops.least, self.loops.few_rows.most(plan) + 1)
        # Panels of another width, of which there are few, are no reason for more heights.
        usual = max(self.block.groups, key=lambda group: group.count * group.size).size
        self.heights = tail_heights(plan.rows, usual, least)
        few_stores = usual * sum(self.heights.heights) <= MOST_STORES
        self.at_once = results.cost <= LONG_EPILOGUE and few_stores and not self.block.cut
        self.fetch = OpenPrefetch.begin(self.loops.b.prefetch, plan, self.rows, self.group.size)

    def pieces(self, steps: int) -> Sequence[Group]:
        """As of `PanelTiles`; those of one size have the same code."""
        return self.loops.plan.piece_groups(steps)

    @contextmanager
    def panel(self, start: Index) -> Iterator[None]:
        """As of `PanelTiles`."""
        self.vector = self.block.vector + start
        if self.block.cut:
            self._fill()
        yield
        if self.block.cut:
            self._store(as_expr(0), self.rows)

    def _fill(self) -> None:
        """What the accumulators of all rows start with, into `scratch`."""
        kernel, start, row = self.loops.plan.kernel, self.loops.start, self.block.row
        with I.serial(self.rows) as i:
            for j in range(self.group.size):
                value = constant(0, kernel.acc_dtype, kernel.lanes)
                if start is not None:
                    value = start(row + i, self.vector + j)
                place = [i, ramp(j * kernel.lanes, kernel.lanes)]
                I.buffer_store(self.block.scratch, value, place)

    def emit(self, whole: TileContext) -> None:
        """As of `PanelTiles`."""

        def tile(place: Expr, height: int) -> None:
            row, resumes = self.block.row + place, self.block.cut
            tile = replace(whole, row=row, rows=height, place=place, resumes=resumes)
            if self.fetch is None:
                self._tile(tile)
            else:
                self.fetch.beside(tile, self._tile)

        after = None if self.block.cut or self.at_once else self._store
        emission.for_tiles(self.rows, self.heights, tile, after)

    def _tile(self, tile: TileContext) -> None:
        # Each access adds to the row; a sum in each of them is slow to compile. Rows of a staged
        # block count from its first one: TVM has to see that they differ by `place`.
        if not self.loops.a.begins:
            tile = replace(tile, row=materialise(tile.row))
        result = self.loops.tiles.emit(tile)
        if self.at_once:
            tile.store(result, 0)
        else:
            rest(result, self.block.scratch, tile.place if self.block.cut else 0)

    def _store(self, at: Expr, rows: Expr) -> None:
        """The epilogue of rows whose accumulators are the first of `scratch`."""
        lanes, row = self.loops.plan.kernel.lanes, self.block.row + at
        with I.serial(rows) as i:
            for j in range(self.group.size):
                value = self.block.scratch[i, ramp(j * lanes, lanes)]
                last = j == self.group.size - 1
                self.loops.results.store(row + i, self.vector + j, value, last)
