"""The tiles of a panel in a block of rows: whose code is how high, and what becomes of their sums.

A known number of rows is cut into tiles here; what differs for a dynamic number is in `open_tiles`,
for tile registers in `amx_tiles`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from microkernels.vector.expressions import Index
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.emission import for_groups, for_part, opaque_block
from tir_schedules.epilogue.tile_results import rest

from .few_rows import emit_streams
from .prefetch import KnownPrefetch
from .tile_products import TileContext

if TYPE_CHECKING:
    from .tile_loops import BlockLoops


@dataclass
class PanelTiles:
    """The tiles of panels of one width in a block of rows; subclasses say which, and store them.

    Attributes
    ----------
    block : BlockLoops
        The rows.
    group : Group
        The panels.
    following : int
        Vectors of the panel behind them; 0 if there is none.
    resting : int
        Tiles of which accumulators are in memory at the same time, if K is not cut.
    """

    resting: ClassVar[int] = 0

    block: BlockLoops
    group: Group
    following: int

    def __post_init__(self) -> None:
        self.loops = self.block.loops

    def pieces(self, steps: int) -> Sequence[Group]:
        """The blocks of so many steps of K; each has code of its own."""
        return [Group(at, 1, size) for at, size in self.loops.plan.pieces_of(steps)]

    def for_panels(self, body: Callable[[Index, int], None]) -> None:
        """Runs `body(start, vectors)` for the panels, or the block's share of them."""
        for_part(self.group, self.block.share, body)

    @contextmanager
    def panel(self, start: Index) -> Iterator[None]:
        """The scope of all blocks of K of a panel; `start` counts the vectors before it."""
        yield

    def emit(self, whole: TileContext) -> None:
        """Emits all tiles in a block of K of a panel; `whole` is of all rows."""
        raise NotImplementedError


class KnownTiles(PanelTiles):
    """Tiles of a known number of rows: they differ by one at most, so that none of them is thin."""

    def __post_init__(self) -> None:
        super().__post_init__()
        block, plan, prefetch = self.block, self.loops.plan, self.loops.b.prefetch
        assert isinstance(block.rows, int)
        self.groups = balanced(block.rows, plan.rows)
        self.fetch: KnownPrefetch | None = None
        if prefetch is not None and block.steps is None:
            self.fetch = KnownPrefetch(prefetch, plan, block.rows, self.group.size)

    def for_panels(self, body: Callable[[Index, int], None]) -> None:
        """As of `PanelTiles`, unless one or two rows read several panels at once."""
        if not emit_streams(self.block, self.group):
            super().for_panels(body)

    def emit(self, whole: TileContext) -> None:
        """As of `PanelTiles`."""

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
