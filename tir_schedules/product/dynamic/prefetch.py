"""Fetches the next panel of a weight while the panel before is multiplied, for any number of rows.

    rows   8 of tiles of 8x3 vectors  ->  1 tile: it fetches three lines in every step of K
    rows   6                          ->  1 tile: its products would not hide the fetching
    rows  24                          ->  3 tiles: each fetches one
    rows 128                          ->  16 tiles: none does; the panel before takes long enough
    large weights                     ->  all tiles fetch it together, each a part, where
                                          `ProductPlan.fetches_evenly` says so

As `TileLoops.fetch`. How many lines a tile fetches is decided at run time: in place of those that
it has code for and shall not fetch, it asks for what it is about to load anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from microkernels.vector.expressions import Expr, materialise
from tir_schedules.core.emission import ceil_div
from tir_schedules.core.product_plan import PANELS_AHEAD, PRODUCTS_PER_FETCH

from ..tile_loops import TileLoops, most_lines

Ahead = Callable[[Expr | int], None]
Fetch = Callable[[Expr, Expr | int, Expr | int], None]
_WHOLE_BITS = 12
_WHOLE = 1 << _WHOLE_BITS
_INT32 = (1 << 31) - 1


@dataclass(frozen=True)
class OpenFetch:
    """What tiles of a block of rows fetch.

    Attributes
    ----------
    loops : TileLoops
        What they do with a tile.
    vectors : int
        Of the panel.
    width : int
        Lines of a step of it.
    tiles, lines : Expr
        Tiles of the block, and lines that each fetches in every step of K.
    rows : Expr
        Of the block.
    row_lines : Expr
        Lines of the next panel for each row of the block, in fractions of `_WHOLE`.
    """

    loops: TileLoops
    vectors: int
    width: int
    tiles: Expr
    lines: Expr
    rows: Expr
    row_lines: Expr

    @staticmethod
    def of(loops: TileLoops, rows: Expr, vectors: int) -> OpenFetch | None:
        """Emits how many lines tiles fetch, for a block of some rows; None if none ever does."""
        if loops.fetch is None or loops.plan.rows * vectors < PRODUCTS_PER_FETCH:
            return None
        if vectors % loops.line_vectors and not loops.plan.fetches_evenly:
            return None
        width, one = vectors // loops.line_vectors, tirx.const(1, "int32")
        tiles = materialise(tirx.Max(ceil_div(rows, loops.plan.rows), one))
        share = tirx.floordiv(tiles + (width - 1), tiles)
        lines = tirx.Select(tiles <= PANELS_AHEAD * width, share, tirx.const(0, "int32"))
        # Of a K beyond half a million only a part of the panel is fetched.
        panel = min(vectors * loops.plan.steps * _WHOLE // loops.line_vectors, _INT32)
        row_lines = tirx.floordiv(tirx.const(panel, "int32"), tirx.Max(rows, one))
        return OpenFetch(
            loops, vectors, width, tiles, materialise(lines), rows, materialise(row_lines)
        )

    def ahead(self, vector: Expr, at: Expr, height: int, first: Expr | int) -> Ahead | None:
        """(step) -> None; fetches a share of the panel that begins behind a tile's vectors.

        Parameters
        ----------
        vector : Expr
            First one of the panel that is multiplied.
        at : Expr
            The tile's first row within the block.
        height : int
            Its rows.
        first : Expr or int
            First step of the block of K.
        """
        fetch, plan = self.loops.fetch, self.loops.plan
        if fetch is not None and plan.fetches_evenly:
            return self._evenly(fetch, vector, at, height, first)
        most = min(self.width, height * self.vectors // PRODUCTS_PER_FETCH)
        lower = height <= plan.rows // 2 and most < self.width  # only ever a single tile
        if fetch is None or not most or lower:
            return None
        zero = tirx.const(0, "int32")
        lines = materialise(tirx.Select(self.lines <= most, self.lines, zero))
        # Whole tiles come first; a piece of the tail may fetch lines that another one fetches, too.
        number = tirx.floordiv(at * self.tiles, tirx.Max(self.rows, tirx.const(1, "int32")))
        width, steps = tirx.const(self.width, "int32"), plan.steps
        next_panel = self.width * steps + (number * steps + first) * lines
        some = lines > 0
        begin = materialise(tirx.Select(some, next_panel, first * width))
        stride = materialise(tirx.Select(some, lines, width))
        last = tirx.Max(lines - 1, zero)
        offsets = [materialise(tirx.Min(tirx.const(j, "int32"), last)) for j in range(most)]

        def emit(step: Expr | int) -> None:
            for offset in offsets:
                fetch(vector, begin + step * stride + offset, 0)

        return emit

    def _evenly(
        self, fetch: Fetch, vector: Expr, at: Expr, height: int, first: Expr | int
    ) -> Ahead | None:
        """As `ahead`; all tiles together fetch the next panel once, each a share that is as large
        as its share of the rows.

        A block of rows divides once: a division for each tile shows where K is short.
        """
        plan, in_line, one = self.loops.plan, self.loops.line_vectors, tirx.const(1, "int32")
        most, bits = most_lines(height, self.vectors, in_line), tirx.const(_WHOLE_BITS, "int32")
        if not most:
            return None
        stride = materialise(tirx.floordiv(self.row_lines * height, plan.steps))
        before = tirx.shift_right(at * self.row_lines, bits)
        before = before + tirx.shift_right(stride * first, bits)
        begin = materialise(before + self.vectors * plan.steps // in_line)
        count = tirx.Max(tirx.Min(ceil_div(stride, _WHOLE), tirx.const(most, "int32")), one)
        numbers = [tirx.Min(tirx.const(each, "int32"), count - 1) for each in range(most)]
        offsets = [materialise(tirx.floordiv(each * stride, count)) for each in numbers]

        def emit(step: Expr | int) -> None:
            for offset in offsets:
                fetch(vector, begin + tirx.shift_right(step * stride + offset, bits), 0)

        return emit
