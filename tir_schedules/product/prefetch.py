"""Prefetches the next panel of a weight while the panel before it is multiplied.

    few rows        the tiles of a panel prefetch all of the next one, some lines in every step of K
    large weights   all tiles prefetch it together, each a share, where
                    `ProductPlan.fetches_evenly` says so
    AMX tiles       lines between products, see `PanelPrefetch`
    dynamic rows    how many lines a tile prefetches is decided at run time, see `DynamicPrefetch`

With many rows, or with too few products to hide it, nothing is prefetched.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.tile import Between
from microkernels.vector.expressions import Expr, Index, bind, materialise
from tir_schedules.core import product_plan
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import ceil_div
from tir_schedules.core.product_plan import Piece, ProductPlan

Ahead = Callable[[Sequence[Index]], None]
"""Loop variables of a step of K -> None; prefetches before that step."""

ROUND = 4
"""Steps of K between two branches of a tile's loop, see `tile_products.RegisterTiles`."""


def steps_of_round(plan: ProductPlan, steps: int) -> int:
    """How many of so many steps of K a round has; 1 where rounds are not worth their code.

    They are where f32 vectors of 256 bits multiply a large weight.
    """
    kernel = plan.kernel
    shared = kernel.isa_name == "avx2" and kernel.b_dtype == "float32"
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
        """The most lines of the next panel that a step of a tile prefetches, if all share it."""
        lines = math.ceil(vectors / self.line_vectors)
        return min(lines, rows * vectors // product_plan.PRODUCTS_PER_SHARE)


@dataclass(frozen=True)
class PanelPrefetch:
    """What the tiles of a panel of a known number of rows prefetch of the next panel.

    AMX tiles do so between their products:

        panel of two tiles, two blocks of rows, 64 bytes of K: 16 lines for each block

        4 lines, A0 B0 A0*B0   4 lines, B1 A0*B1   4 lines, A1 A1*B0   4 lines, A1*B1

    A core has 16 buffers for lines that are on their way to L1; a tile load from L2 takes all of
    them while it lasts. So lines are prefetched a few at a time. Every block of rows prefetches a
    part of its own, and none of what lies behind the next panel: there it asks once more for lines
    that are there.

    Attributes
    ----------
    of : Prefetch
    plan : ProductPlan
        How the product is cut.
    vector : Expr
        First vector of the panel.
    vectors : int
        Vectors of the panel.
    groups : sequence of Group
        The tiles' rows.
    after : Expr or int
        Vectors of the next panel; 0 if there is none.
    """

    of: Prefetch
    plan: ProductPlan
    vector: Expr
    vectors: int
    groups: Sequence[Group]
    after: Index

    @property
    def _tiles(self) -> int:
        return sum(group.count for group in self.groups)

    def _few(self, rows: int) -> bool:
        """Whether a panel has too few products to prefetch the next one, or too many."""
        lines_of_panel = self.vectors // self.of.line_vectors
        lines = math.ceil(lines_of_panel / self._tiles)
        few = lines * product_plan.PRODUCTS_PER_FETCH > rows * self.vectors
        return few or self._tiles > product_plan.PANELS_AHEAD * lines_of_panel

    def between(self, block: Index, piece: Piece) -> Between | None:
        """What a block of rows prefetches between products of AMX tiles, in a block of K."""
        depth, in_line = self.plan.kernel.depth, self.of.line_vectors
        last = isinstance(self.after, int) and not self.after
        if not self.plan.kernel.by_tiles or self._few(self.groups[-1].size) or last:
            return None
        # Lines for each tile of K and each block of rows, and all of the next panel.
        share = math.ceil(depth // in_line * self.vectors / self._tiles)
        lines = self.plan.steps // in_line * self.after
        before = block * (self.plan.steps // depth) + piece[0] // depth
        first: list[Expr] = []

        def part(step: Index, product: int, products: int) -> None:
            if product == 0:
                first[:] = [bind(tirx.Min((before + step) * share, lines - share))]
            ends = [number * share // products for number in (product, product + 1)]
            for line in range(*ends):
                self.of.fetch(self.vector + self.vectors, first[0] + line, 0)

        return part

    def ahead(self, piece: Piece, place: Index, rows: int) -> Ahead | None:
        """What the tile of so many rows from `place` on prefetches before each step of a block.

        None if nothing, and of AMX tiles.
        """
        plan = self.plan
        if plan.kernel.by_tiles:
            return None
        group = next(group for group in self.groups if group.size == rows)
        before = sum(each.count for each in self.groups if each.start < group.start)
        number = before + (place - group.start) // rows
        if plan.fetches_evenly:
            return self._even(piece, number, rows)
        if self.vectors % self.of.line_vectors or self._few(rows):
            return None
        # As many lines in each step as the tiles need for all of the next panel.
        lines = math.ceil(self.vectors // self.of.line_vectors / self._tiles)

        def emit(ks: Sequence[Index]) -> None:
            first = (number * plan.steps + piece[0] + ks[0]) * lines
            for line in range(lines):
                self.of.fetch(self.vector + self.vectors, first + line, 0)

        return emit

    def _even(self, piece: Piece, number: Index, rows: int) -> Ahead | None:
        """All tiles prefetch the next panel once.

        In rounds, places are elements, not lines, so that they are sums alone: to count lines takes
        a multiplication in each step, on a port of the FMAs.
        """
        plan, vectors, tiles = self.plan, self.vectors, self._tiles
        fetch = functools.partial(self.of.fetch, self.vector + vectors)
        most, parts = self.of.most_lines(rows, vectors), self.of.line_vectors * tiles
        rounds = steps_of_round(plan, piece[1]) > 1
        # A tile's step prefetches vectors / parts lines.
        steps = ROUND if rounds else 1
        count = min(math.ceil(steps * vectors / parts), steps * most)
        if not count or 0 < plan.most_shares < tiles:
            return None
        width = vectors * plan.kernel.lanes * plan.kernel.kr  # elements of a step of a panel
        of_tile, of_round = math.ceil(plan.steps * width / tiles), math.ceil(ROUND * width / tiles)

        def by_rounds(ks: Sequence[Index]) -> None:
            start = number * of_tile
            start += piece[0] * of_round // ROUND + ks[0] * of_round
            for each in range(count):
                if each * ROUND // count == ks[1]:
                    fetch(0, start + each * of_round // count)

        def by_steps(ks: Sequence[Index]) -> None:
            place = number * plan.steps + piece[0] + ks[0]
            for each in range(count):
                fetch((place * count + each) * vectors // (parts * count), 0)

        return by_rounds if rounds else by_steps


def all_of(parts: Iterable[Between | None]) -> Between | None:
    """What does several things between products; None if there are none."""
    found = [part for part in parts if part is not None]
    if not found:
        return None

    def together(step: Index, product: int, products: int) -> None:
        for part in found:
            part(step, product, products)

    return together


_WHOLE_BITS = 12
_WHOLE = 1 << _WHOLE_BITS
_INT32 = (1 << 31) - 1


@dataclass
class DynamicPrefetch:
    """What tiles of a block of rows prefetch whose number is known at run time only.

        rows   8 of tiles of 8x3 vectors  ->  1 tile: it fetches three lines in every step of K
        rows   6                          ->  1 tile: its products would not hide the fetching
        rows  24                          ->  3 tiles: each fetches one
        rows 128                          ->  16 tiles: none does; the panel before takes long
                                              enough

    In place of lines that a tile has code for and shall not prefetch, it asks for what it is about
    to load anyway.

    Emits how many lines tiles prefetch, for a block of some rows.

    Parameters
    ----------
    of : Prefetch
    plan : ProductPlan
        How the product is cut.
    rows : Expr
        Of the block.
    vectors : int
        Of the panel.
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
        share = tirx.floordiv(self.tiles + (self.width - 1), self.tiles)
        lines = tirx.Select(self.tiles <= product_plan.PANELS_AHEAD * self.width, share, zero)
        # Lines of the next panel for each row of the block, in fractions of `_WHOLE`. Of a K beyond
        # half a million only a part of the panel is fetched.
        panel = tirx.const(min(vectors * plan.steps * _WHOLE // in_line, _INT32), "int32")
        row_lines = tirx.floordiv(panel, tirx.Max(self.rows, one))
        self.lines, self.row_lines = materialise(lines), materialise(row_lines)

    @staticmethod
    def begin(
        of: Prefetch | None, plan: ProductPlan, rows: Expr, vectors: int
    ) -> DynamicPrefetch | None:
        """What tiles of a block of rows prefetch; None if none ever does."""
        if of is None or plan.rows * vectors < product_plan.PRODUCTS_PER_FETCH:
            return None
        if vectors % of.line_vectors and not plan.fetches_evenly:
            return None
        return DynamicPrefetch(of, plan, rows, vectors)

    def ahead(self, vector: Expr, at: Expr, height: int, first: Index) -> Ahead | None:
        """What a tile prefetches of the panel that begins behind its vectors; None if nothing.

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
        plan, fetch = self.plan, functools.partial(self.of.fetch, vector)
        if plan.fetches_evenly:
            return self._even(fetch, at, height, first)
        most = min(self.width, height * self.vectors // product_plan.PRODUCTS_PER_FETCH)
        lower = height <= plan.rows // 2 and most < self.width  # only ever a single tile
        if not most or lower:
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

        def emit(ks: Sequence[Index]) -> None:
            for offset in offsets:
                fetch(begin + ks[0] * stride + offset, 0)

        return emit

    def _even(
        self, fetch: Callable[[Index, Index], None], at: Expr, height: int, first: Index
    ) -> Ahead | None:
        """As `ahead`; all tiles together prefetch the next panel once, each a share that is as
        large as its share of the rows.

        A block of rows divides once: a division for each tile shows where K is short.
        """
        plan, in_line, one = self.plan, self.of.line_vectors, tirx.const(1, "int32")
        most, bits = self.of.most_lines(height, self.vectors), tirx.const(_WHOLE_BITS, "int32")
        if not most:
            return None
        stride = materialise(tirx.floordiv(self.row_lines * height, plan.steps))
        before = tirx.shift_right(at * self.row_lines, bits)
        before = before + tirx.shift_right(stride * first, bits)
        begin = materialise(before + self.vectors * plan.steps // in_line)
        count = tirx.Max(tirx.Min(ceil_div(stride, _WHOLE), tirx.const(most, "int32")), one)
        numbers = [tirx.Min(tirx.const(each, "int32"), count - 1) for each in range(most)]
        offsets = [materialise(tirx.floordiv(each * stride, count)) for each in numbers]

        def emit(ks: Sequence[Index]) -> None:
            for offset in offsets:
                fetch(begin + tirx.shift_right(ks[0] * stride + offset, bits), 0)

        return emit


# How many panels of a weight one or two rows read at once, each as a stream of memory.
#
# A panel is as wide as suits a high tile. One row of it would wait for the latency of each product,
# and memory gives less to one stream than to several: on Zen 3 a core reads 10 GB/s in one, 16 GB/s
# in five. Prefetching 8 to 64 lines ahead in each stream does not pay there: it is mostly slower,
# by up to a quarter.


FEW_ROWS = 2


def streams(kernel: Microkernel, rows: int, width: int, panels: int) -> tuple[int, Microkernel]:
    """How many of some panels are multiplied at once, and by which kernel.

    Parameters
    ----------
    kernel : Microkernel
        That the panels are packed for.
    rows, width : int
        Rows, and vectors of a panel.
    panels : int
        How many there are.
    """
    tiles = kernels_for(kernel.isa, kernel.a_dtype, kernel.b_dtype)
    shape = kernel.lanes, kernel.kr
    fitting = (each for each in tiles if each.mr >= rows and (each.lanes, each.kr) == shape)
    widest = max(fitting, key=lambda each: each.vectors)
    same = replace(widest, multiply_add=kernel.multiply_add)  # of a byte tile: not registered
    return max(1, min(panels, widest.vectors // width)), same


def known_streams(plan: ProductPlan, rows: int, width: int, panels: int) -> tuple[int, Microkernel]:
    """As `streams`, for rows whose number is known; a single one where that is not measured."""
    kernel = plan.kernel
    if kernel.isa_name != "avx2" or rows > FEW_ROWS or kernel.b_dtype == "int16":
        return 1, kernel
    return streams(kernel, rows, width, panels)
