"""AMX tiles in a block of rows: configured for a height, stored late, prefetching in between.

Accumulators are tile registers, which can only be loaded from memory and stored to it. So a tile is
stored unchanged: as the result if accumulators are the result, else where the epilogue reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import Between, Place, Tile
from microkernels.vector.expressions import Expr, Index, bind
from tir_schedules.core.emission import for_groups
from tir_schedules.core.product_plan import ProductPlan

from .panel_tiles import StaticTiles
from .tile_products import TileContext


class TileTask:
    """The tile registers' configuration along straight-line code; nothing for vector kernels."""

    def __init__(self) -> None:
        self._kernel: Microkernel | None = None
        self._rows = 0

    def for_blocks(self, plan: ProductPlan, rows: int, body: Callable[[Index, int], None]) -> None:
        """Runs `body(start, size)` for blocks of rows, each configured for its tiles.

        The tail is last, unless the tile registers are configured for it already.
        """
        bands = plan.bands(rows)
        if self._holds(plan.kernel, bands[-1][0]):  # since the product before
            bands.reverse()
        for tile_rows, blocks in bands:
            self.configure(plan.kernel, tile_rows)
            for_groups(blocks, body)

    def configure(self, kernel: Microkernel, rows: int) -> None:
        """Configures the tile registers for `rows` rows, unless they already are."""
        if not kernel.by_tiles:
            return
        if not self._holds(kernel, rows):
            kernel.configure(rows)
        self._kernel, self._rows = kernel, rows

    def _holds(self, kernel: Microkernel, rows: int) -> bool:
        """Whether the tile registers are configured for a kernel and a number of rows."""
        same = self._kernel is not None and self._kernel.mr == kernel.mr
        return same and self._rows == rows

    def release(self) -> None:
        """Releases the tile registers."""
        if self._kernel is not None:
            self._kernel.release()
        self._kernel = None


class AmxTiles(StaticTiles):
    """Stores the results of a tile while the next tile is multiplied.

        multiply tile 0
        multiply tile 1, and between its products the epilogue of tile 0
        multiply tile 2, and between its products the epilogue of tile 1
        the epilogue of tile 2

    A core multiplies tiles and works on vectors at the same time only if both are near each other
    in the program: an epilogue of 64 vectors fills the reorder buffer. oneDNN interleaves them, too
    (brgemm, `interleave_tilestores`). Measured on Granite Rapids: 128 rows, K = 768, 8-bit: 15%.

    This sequence runs over the tiles of all panels of a width or, if K is cut, of one panel. Tile
    registers start with zeros: other initial values are added in the epilogue, unless they are
    equal in all rows, or there is no epilogue.

    Lines of the next panel are prefetched between products:

        panel of two tiles, two blocks of rows, 64 bytes of K: 16 lines for each block

        4 lines, A0 B0 A0*B0   4 lines, B1 A0*B1   4 lines, A1 A1*B0   4 lines, A1*B1

    A core has 16 buffers for lines that are on their way to L1; a tile load from L2 takes all of
    them while it lasts. So lines are prefetched a few at a time. Every block of rows prefetches a
    part of its own. Beyond the end of the next panel it asks again for lines that are in cache.
    """

    resting = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        (self.tiles,) = self.groups
        self.rows = self.tiles.count * self.tiles.size

    def for_panels(self, body: Callable[[Index, int], None]) -> None:
        """See `PanelTiles.for_panels`."""
        super().for_panels(body)
        if not self.block.cut:
            self._store(self.group.count * self.tiles.count - 1)

    @contextmanager
    def panel(self, start: Index) -> Iterator[None]:
        """See `PanelTiles.panel`."""
        group, size = self.group, self.group.size
        # The first vector of the tiles that are stored late, and the number of tiles before these.
        self.first = self.block.vector + (start if self.block.cut else group.start)
        self.before = 0 if self.block.cut else (start - group.start) // size * self.tiles.count
        self.after: Index = self.following
        if not isinstance(start, int):
            ends = group.start + (group.count - 1) * size
            widths = (tirx.const(width, "int32") for width in (size, self.following))
            self.after = tirx.Select(start < ends, *widths)
        yield
        if self.block.cut:
            self._store(self.tiles.count - 1)

    def tile(self, tile: TileContext) -> None:
        """See `StaticTiles.tile`."""
        loops, plan, number = self.loops, self.loops.plan, tile.place // tile.rows
        start, steps, in_place = loops.start, tile.piece[1], loops.results.in_place
        parts = [self.lines_between(tile, number)]  # other work, done between products
        if in_place:
            into = loops.results.place(tile.row, tile.vector)
        elif tile.ends:
            into = Place(self.block.scratch, self._slot(self.before + number))
            parts.append(self._stores_between(self.before + number, steps // plan.kernel.depth))
        else:
            into = Place(self.block.scratch, tile.place)
        init = columns = None
        if start is not None and not tile.resumes:
            init = tile.init if in_place and not start.by_column else None
            columns = tile.columns if start.by_column else None
        tile = replace(tile, passing=plan.passing(self.rows, steps))
        others = [part for part in parts if part is not None]

        def between(step: Index, product: int, products: int) -> None:
            for part in others:
                part(step, product, products)

        given = tile.rows, tile.vectors, (steps,), tile.read_a, tile.read_b, init, into
        peel = loops.a.tail and tile.ends
        plan.kernel.emit(*given, tile.resumes, peel, between if others else None, columns)

    def lines_between(self, tile: TileContext, number: Index) -> Between | None:
        """Prefetches lines of the next panel between the products of tile `number`."""
        fetch, after, plan = self.fetch, self.after, self.loops.plan
        last = isinstance(after, int) and not after
        if fetch is None or last or fetch.is_few(self.tiles.size):
            return None
        depth, in_line, vectors = plan.kernel.depth, fetch.of.line_vectors, tile.vectors
        # Lines for each tile of K and each block of rows, and lines of the whole next panel.
        share = math.ceil(depth // in_line * vectors / self.tiles.count)
        lines = plan.steps // in_line * after
        before = number * (plan.steps // depth) + tile.piece[0] // depth
        first: list[Expr] = []

        def part(step: Index, product: int, products: int) -> None:
            if product == 0:
                first[:] = [bind(tirx.Min((before + step) * share, lines - share))]
            ends = [number * share // products for number in (product, product + 1)]
            for line in range(*ends):
                fetch.of.fetch(tile.vector + vectors, first[0] + line, 0)

        return part

    def _stores_between(self, number: Index, steps: int) -> Between | None:
        """Emits a part of the previous tile's epilogue in each of `steps` steps."""
        if isinstance(number, int) and number == 0:
            return None
        rows = self.tiles.size
        height = math.ceil(rows / steps)

        def part(step: Index, product: int, _products: int) -> None:
            if product:
                return
            with I.If(number > 0), I.Then(), I.serial(height) as offset:
                row = step * height + offset
                if height * steps == rows:
                    self._store_row(number - 1, row)
                else:
                    with I.If(row < rows), I.Then():
                        self._store_row(number - 1, row)

        return part

    def _store(self, number: Index) -> None:
        """The epilogue of a tile."""
        if self.loops.results.in_place:
            return
        with I.serial(self.tiles.size) as row:
            self._store_row(number, row)

    def _store_row(self, number: Index, row: Expr) -> None:
        loops, rows, vectors = self.loops, self.tiles.size, self.group.size
        first = self.block.row + number % self.tiles.count * rows + row
        vector = self.first + number // self.tiles.count * vectors
        tile = Tile(
            rows,
            vectors,
            loops.plan.kernel.lanes,
            place=Place(self.block.scratch, self._slot(number)),
        )
        for j in range(vectors):
            value = tile.value(row, j)
            if loops.start is not None and not loops.start.by_column:
                value = value + loops.start(first, vector + j)
            loops.results.store(first, vector + j, value, j == vectors - 1)

    def _slot(self, number: Index) -> Index:
        """The first row of a tile in `scratch`, where the previous tile is not."""
        return number % (self.tiles.count if self.block.cut else 2) * self.tiles.size
