"""Prefetches the next panel of a weight while the panel before it is multiplied.

    few rows        the tiles of a panel prefetch the next panel, some lines in every step of K
    large weights   all tiles prefetch the next panel together, each a part of it, if
                    `ProductPlan.fetches_evenly`
    AMX tiles       lines between products, see `AmxTiles`
    dynamic rows    how many lines a tile prefetches is decided at run time, see `DynamicPrefetch`

With many rows, or with too few products to hide it, nothing is prefetched.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tvm import tirx

from microkernels.vector.expressions import Expr, Index, materialise
from tir_schedules.core import product_plan
from tir_schedules.core.blocking import balanced
from tir_schedules.core.emission import branch, ceil_div
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.core.size import is_dynamic

if TYPE_CHECKING:
    from .tile_products import TileContext

Fetch = Callable[[Index, Index], None]
"""(line of a panel, element from there on) -> None; prefetches the line that holds the element."""

Ahead = Callable[[Sequence[Index]], None]
"""Loop variables of a step of K -> None; prefetches before that step."""

ROUND = 4
"""Steps of K between two branches of a tile's loop, see `tile_products.RegisterTiles`."""


def steps_of_round(plan: ProductPlan, steps: int) -> int:
    """How many steps of K a round has; 1 if rounds are not worth their code.

    They are worth it if f32 vectors of 256 bits multiply a static number of rows by a large weight.
    """
    kernel = plan.kernel
    shared = kernel.isa_name == "avx2" and kernel.b_dtype == "float32" and not is_dynamic((plan.m,))
    return ROUND if shared and plan.fetches_evenly and steps >= 2 * ROUND else 1


@dataclass(frozen=True)
class Prefetch:
    """How the lines of a packed weight are prefetched.

    Attributes
    ----------
    fetch : callable
        (first vector of a panel, line of the panel, element from there on) -> None; prefetches the
        line that holds the element.
    line_vectors : int
        Vectors of one step of packed B that a line holds.
    """

    fetch: Callable[[Expr, Index, Index], None]
    line_vectors: int = 1

    def most_lines(self, rows: int, vectors: int) -> int:
        """Most lines of the next panel that a step of a tile prefetches, if all tiles divide it."""
        lines = math.ceil(vectors / self.line_vectors)
        return min(lines, rows * vectors // product_plan.PRODUCTS_PER_SHARE)


@dataclass
class StaticPrefetch:
    """How the tiles of a static block of rows prefetch the panel after the one they multiply.

    Attributes
    ----------
    of : Prefetch
        How a line is prefetched.
    plan : ProductPlan
        How the product is cut.
    rows, vectors : int
        Rows of the block, vectors of a panel.
    """

    of: Prefetch
    plan: ProductPlan
    rows: int
    vectors: int

    def __post_init__(self) -> None:
        self.groups = balanced(self.rows, self.plan.rows)
        self.tiles = sum(group.count for group in self.groups)
        self.width = self.vectors // self.of.line_vectors  # lines of a step of the panel

    def is_few(self, rows: int) -> bool:
        """Whether a panel has too few products to hide a prefetch, or tiles enough to need none."""
        lines = math.ceil(self.width / self.tiles)
        few = lines * product_plan.PRODUCTS_PER_FETCH > rows * self.vectors
        return few or self.tiles > product_plan.PANELS_AHEAD * self.width

    def ahead(self, tile: TileContext) -> Ahead | None:
        """Emits what a tile prefetches before each step of its block of K; None if nothing."""
        plan, place, rows, first = self.plan, tile.place, tile.rows, tile.piece[0]
        group = next(group for group in self.groups if group.size == rows)
        before = sum(each.count for each in self.groups if each.start < group.start)
        number = before + (place - group.start) // rows
        fetch = functools.partial(self.of.fetch, tile.vector + self.vectors)
        if plan.fetches_evenly:
            return self._even(fetch, tile, number)
        if self.vectors % self.of.line_vectors or self.is_few(rows):
            return None
        # Lines for each step, with which all tiles together prefetch the next panel.
        lines = math.ceil(self.width / self.tiles)

        def emit(ks: Sequence[Index]) -> None:
            at = (number * plan.steps + first + ks[0]) * lines
            for line in range(lines):
                fetch(at + line, 0)

        return emit

    def _even(self, fetch: Fetch, tile: TileContext, number: Index) -> Ahead | None:
        """Returns a tile's part of the next panel's prefetches; None if it prefetches nothing."""
        plan, vectors, (first, size) = self.plan, self.vectors, tile.piece
        most, parts = self.of.most_lines(tile.rows, vectors), self.of.line_vectors * self.tiles
        rounds = steps_of_round(plan, size)
        # A tile's step prefetches vectors / parts lines.
        count = min(math.ceil(rounds * vectors / parts), rounds * most)
        if not count or 0 < plan.most_shares < self.tiles:
            return None
        # All tiles together prefetch the next panel once. Rounds count elements, not lines, so that
        # addresses are only sums: counting lines takes a multiplication in each step, on a port of
        # the FMAs.
        width = vectors * plan.kernel.lanes * plan.kernel.kr  # elements of a step of a panel
        of_tile, of_round = (math.ceil(steps * width / self.tiles) for steps in (plan.steps, ROUND))

        def by_rounds(ks: Sequence[Index]) -> None:
            start = number * of_tile
            start += first * of_round // ROUND + ks[0] * of_round
            for each in range(count):
                if each * ROUND // count == ks[1]:
                    fetch(0, start + each * of_round // count)

        def by_steps(ks: Sequence[Index]) -> None:
            place = number * plan.steps + first + ks[0]
            for each in range(count):
                fetch((place * count + each) * vectors // (parts * count), 0)

        return by_rounds if rounds > 1 else by_steps


_WHOLE_BITS = 12
_WHOLE = 1 << _WHOLE_BITS
_INT32 = (1 << 31) - 1


@dataclass
class DynamicPrefetch:
    """How the tiles of a block with a dynamic number of rows prefetch the next panel.

        rows   8 of tiles of 8x3 vectors  ->  1 tile: it prefetches three lines in every step of K
        rows   6                          ->  1 tile: its products would not hide the prefetch
        rows  24                          ->  3 tiles: each prefetches one line
        rows 128                          ->  16 tiles: none does; the panel before takes long
                                              enough

    These are the numbers of `StaticPrefetch`, as expressions. A tile has code for a fixed number of
    lines: instead of a line that it should not prefetch, it asks for one that it is about to load.

    Parameters
    ----------
    of : Prefetch
        How a line is prefetched.
    plan : ProductPlan
        How the product is cut.
    rows : Expr
        Rows of the block.
    vectors : int
        Vectors of the panel.
    """

    of: Prefetch
    plan: ProductPlan
    rows: Expr
    vectors: int

    def __post_init__(self) -> None:
        plan, vectors, in_line = self.plan, self.vectors, self.of.line_vectors
        one, zero = (tirx.const(number, "int32") for number in (1, 0))
        # Lines of a step of the panel, tiles of the block, lines that each prefetches in a step.
        self.width = vectors // in_line
        self.tiles = materialise(tirx.Max(ceil_div(self.rows, plan.rows), one))
        whole = materialise(tirx.Max(tirx.floordiv(self.rows, plan.rows), one))
        share = tirx.floordiv(whole + (self.width - 1), whole)
        # Blocks of at most this many tiles prefetch; 0: all blocks.
        ahead = product_plan.PANELS_AHEAD * self.width
        self.most = plan.most_shares if plan.fetches_evenly else ahead
        lines = tirx.Select(self.tiles <= ahead, share, zero)
        # Lines of the next panel for each row of the block, in units of 1 / `_WHOLE`. If K exceeds
        # half a million, only a part of the panel is prefetched.
        panel = tirx.const(min(vectors * plan.steps * _WHOLE // in_line, _INT32), "int32")
        row_lines = tirx.floordiv(panel, tirx.Max(self.rows, one))
        self.lines, self.row_lines = materialise(lines), materialise(row_lines)

    @staticmethod
    def begin(
        of: Prefetch | None, plan: ProductPlan, rows: Expr, vectors: int
    ) -> DynamicPrefetch | None:
        """How the tiles of a block of rows prefetch; None if they never do."""
        if of is None or plan.rows * vectors < product_plan.PRODUCTS_PER_FETCH:
            return None
        if vectors % of.line_vectors and not plan.fetches_evenly:
            return None
        return DynamicPrefetch(of, plan, rows, vectors)

    def beside(self, tile: TileContext, emit: Callable[[TileContext], None]) -> None:
        """Emits a tile that prefetches and, unless all blocks prefetch, one that does not.

        Only whole tiles have both. Pieces of a tail are few: they always prefetch.
        """

        def fetching() -> None:
            emit(replace(tile, ahead=self._ahead(tile)))

        if not self.most or tile.rows < self.plan.rows:
            fetching()
            return
        branch(self.tiles <= self.most, fetching, lambda: emit(tile))

    def _ahead(self, tile: TileContext) -> Ahead | None:
        """Returns how a tile prefetches the panel after its own; None if it prefetches nothing."""
        plan, vectors, rows, first = self.plan, self.vectors, tile.rows, tile.piece[0]
        zero, one, wide = (tirx.const(number, "int32") for number in (0, 1, self.width))
        panel, even = vectors * plan.steps // self.of.line_vectors, plan.fetches_evenly
        if even:
            most = self.of.most_lines(rows, vectors)
        else:
            most = min(self.width, rows * vectors // product_plan.PRODUCTS_PER_FETCH)
        single = rows <= plan.rows // 2 and most < self.width  # only ever a single tile
        if not most or (single and not even):
            return None
        # Each step prefetches equally many lines.
        if even:
            # A tile's part of the panel follows from the lines for a row, for which a block divides
            # once: one division for each tile would show if K is short.
            share = tirx.floordiv(self.row_lines * rows, plan.steps)
            stride = lines = materialise(tirx.Max(ceil_div(share, _WHOLE), one))
            before = tirx.shift_right(tile.place * self.row_lines, tirx.const(_WHOLE_BITS, "int32"))
            begin = materialise(before + stride * first + panel)
        else:
            lines = materialise(tirx.Min(self.lines, tirx.const(most, "int32")))
            # Whole tiles come first, and divide the panel; a tail prefetches what it can.
            before = tirx.floordiv(tile.place, plan.rows) * plan.steps * self.lines
            some = lines > 0
            begin = materialise(tirx.Select(some, panel + before + first * lines, first * wide))
            stride = materialise(tirx.Select(some, lines, wide))
        last = tirx.Max(lines - 1, zero)
        offsets = [materialise(tirx.Min(tirx.const(j, "int32"), last)) for j in range(most)]
        fetch = functools.partial(self.of.fetch, tile.vector)

        def emit(ks: Sequence[Index]) -> None:
            for offset in offsets:
                fetch(begin + ks[0] * stride + offset, 0)

        return emit
