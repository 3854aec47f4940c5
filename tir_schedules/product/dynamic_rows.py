"""The loops of a product whose number of rows is known at run time only.

    for each block of rows
        one or two rows: several panels of columns side by side
        more: for each panel, for each block of K
            for each register tile: code for its height, chosen by a branch; then one epilogue

As `TileLoops`, but for the branches: a register tile has code for one height only. The accumulators
pass through L1, so that the epilogue is written once for all heights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.microkernel import Microkernel
from microkernels.tile import Tile
from microkernels.vector.expressions import Expr, Index, constant, materialise, ramp
from microkernels.vector.memory import PREFETCH_LLVM_IR
from tir_schedules.core import emission, placement, product_plan
from tir_schedules.core.blocking import Group, balanced, tail_heights
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.epilogue.tile_results import LONG_EPILOGUE, rest, store_tile

from .prefetch import FEW_ROWS, DynamicPrefetch, streams
from .staged_panels import wide_product_of
from .tile_config import MatmulConfig
from .tile_loops import TileLoops
from .tile_products import TileContext

PanelShare = tuple[Expr, Expr]  # which share of the panels, of how many

# Pieces of a thread's share, which others may take: about so many, if rows are not few. With one,
# a thread takes the whole share of another that is only late (0.87 of the speed in some runs).
PIECES = 8
MOST_STORES = 40  # of vectors, in the code for all heights of a tile: more take long to compile


def tile_choices(plan: product_plan.ProductPlan, whole: int = 0, alone: int = 0) -> str:
    """What is decided at run time about tiles and threads, for `explain`."""
    wide = wide_product_of(plan)
    if wide is None:
        text = _few_and_more(plan.rows, plan.vectors, f"; more: {{}}, in blocks of {plan.m_block}")
    else:
        between = f"; {FEW_ROWS + 1} to {wide.fewest_rows - 1}: {{}}"
        some = _few_and_more(plan.kernel.mr, plan.vectors, between)
        tiles = _written_out(plan.rows, plan.vectors, wide.fewest_rows)
        text = f"{some}; more: widened operands, {tiles}, in blocks of {plan.m_block}"
    if alone:
        text += f"; up to {alone} rows: one thread"
    if whole and plan.threads_m > 1:
        text += f"; up to {whole} rows: threads share their columns"
    return text


def _few_and_more(rows: int, vectors: int, more: str) -> str:
    """Tiles of at most so many rows, for few rows and for what `more` says."""
    if rows <= FEW_ROWS:
        return _written_out(rows, vectors, 1)
    few = f"1 to {FEW_ROWS} rows: panels of columns side by side"
    return few + more.format(_written_out(rows, vectors, FEW_ROWS + 1))


def _written_out(rows: int, vectors: int, least: int) -> str:
    """Of which heights there are tiles of at most so many rows."""
    *lower, most = tail_heights(rows, vectors, least).heights
    return f"tiles of {', '.join(map(str, lower))} and {most} rows" if lower else f"tiles of {most}"


@dataclass
class FewRows:
    """One or two rows of a product whose number is known at run time: panels side by side.

    As many as `streams` says. There is code for each number of rows and of panels, chosen by
    branches, and one epilogue for all.

    Attributes
    ----------
    loops : TileLoops
        What they do with a tile.
    groups : sequence of Group
        The panels.
    fewest : int
        How many rows are few.
    """

    loops: TileLoops
    groups: Sequence[Group]
    fewest: int = FEW_ROWS

    @property
    def most(self) -> int:
        """Up to so many rows; none if a tile has no more."""
        return self.fewest if self.loops.plan.rows > self.fewest else 0

    @property
    def widest(self) -> int:
        """Vectors of all panels that are side by side, at most."""
        rows = range(1, self.most + 1)
        return max((self.side(r, g)[0] * g.size for r in rows for g in self.groups), default=0)

    def side(self, rows: int, group: Group) -> tuple[int, Microkernel]:
        """How many panels of a group are multiplied at once, and by which kernel.

        Threads along rows share the panels: each gets as many.
        """
        plan = self.loops.plan
        side, kernel = streams(plan.kernel, rows, group.size, group.count)
        if plan.threads_m == 1:
            return side, kernel
        pieces = math.ceil(group.count / side)
        pieces += -pieces % plan.threads_m
        return math.ceil(group.count / pieces), kernel

    def emit(self, block: Block) -> None:
        """All panels, or a share, for a number of rows that is one of those from 1 to `most`."""
        for group in self.groups:
            self._group(block, group)

    def _group(self, block: Block, group: Group) -> None:
        """Panels of one width: accumulators of some side by side, then their epilogue."""
        lanes, whole = self.loops.plan.kernel.lanes, (0, self.loops.plan.steps)
        sides = [self.side(known, group) for known in range(1, self.most + 1)]
        side = _of(block.rows, [count for count, _ in sides])
        pieces = _of(block.rows, [math.ceil(group.count / count) for count, _ in sides])
        before, own = (
            (0, pieces) if block.share is None else emission.share_of(pieces, *block.share)
        )
        with I.serial(own) as at, emission.opaque_block("few"):
            piece = before + at
            first = materialise(block.vector + group.start + piece * (side * group.size))
            panels = materialise(tirx.Min(side, group.count - piece * side))

            def chosen(rows: int) -> None:
                side, kernel = sides[rows - 1]
                left = group.count % side
                counts = [side] if not left else [left, side] if group.count > side else [left]

                def tile(count: int) -> None:
                    place = block.row, rows, first, group.size, count, whole
                    context = TileContext.side_by_side(self.loops, *place)
                    rest(self.multiply(context, group.size, kernel), block.scratch, 0)

                emission.choose(panels, counts, tile)

            emission.choose(block.rows, range(1, len(sides) + 1), chosen)
            with I.serial(block.rows) as i, I.serial(panels) as panel:
                for j in range(group.size):
                    column = panel * group.size + j
                    value = block.scratch[i, ramp(column * lanes, lanes)]
                    last = j == group.size - 1
                    self.loops.results.store(block.row + i, first + column, value, last)

    def multiply(self, tile: TileContext, width: int, kernel: Microkernel) -> Tile:
        """Accumulators of panels that have `width` vectors each, side by side."""
        return tile.multiply(kernel)


def _of(rows: Expr, numbers: Sequence[int]) -> Expr:
    """The number of so many rows, of those for 1, 2 and so on."""
    found = as_expr(numbers[0])
    for known, number in enumerate(numbers[1:], 2):
        found = tirx.Select(rows < known, found, as_expr(number))
    return materialise(found)


@dataclass(frozen=True)
class OpenRows:
    """The loops over a number of rows that is an expression.

    Attributes
    ----------
    loops : TileLoops
        What they do with a tile.
    few_rows : callable
        What runs few rows.
    """

    loops: TileLoops
    few_rows: Callable[[TileLoops, Sequence[Group]], FewRows] = FewRows

    def share(self, config: MatmulConfig) -> None:
        """The whole product, in one parallel region over the grid of threads.

        Threads claim pieces of their shares (`core/placement.py`), unless rows are staged first, as
        those of 8-bit integers are: whoever takes a piece would stage them once more, and was
        slower.
        """
        plan, whole = self.loops.plan, config.whole_rows
        columns, threads_m, rows = plan.column_shares, plan.threads_m, as_expr(extent(plan.m))
        tasks = threads_m * sum(group.count for group in columns)
        alone = rows <= config.alone_rows if config.alone_rows else None
        with ExitStack() as scope:
            claims: placement.Claims | None = None
            if tasks == 1 or self.loops.a.begins or self.loops.shortcut is not None:
                task = scope.enter_context(emission.task_loop(tasks, alone=alone))
            else:
                _, claims = scope.enter_context(placement.claimed_shares(tasks, alone))
                task = claims.share
            scope.enter_context(llvm_functions(PREFETCH_LLVM_IR))
            number = I.floormod(task, threads_m)
            row, many = emission.share_of(rows, number, threads_m)
            panels: PanelShare | None = None
            if threads_m > 1 and whole:
                few = materialise(rows <= whole)
                row = materialise(tirx.Select(few, as_expr(0), row))
                many = materialise(tirx.Select(few, rows, many))
                panels = (
                    materialise(tirx.Select(few, number, as_expr(0))),
                    materialise(tirx.Select(few, as_expr(threads_m), as_expr(1))),
                )

            def part(vector: Expr, vectors: int) -> None:
                self.emit(row, many, vector, vectors, panels, claims)

            emission.for_share(columns, I.floordiv(task, threads_m), part)

    def emit(
        self,
        row: Expr,
        rows: Expr,
        vector: Expr,
        vectors: int,
        share: PanelShare | None = None,
        claims: placement.Claims | None = None,
    ) -> None:
        """The loops over `rows` rows from `row` and `vectors` vectors of columns from `vector`.

        Of these columns, only a share of the panels if one is given; of the pieces that these loops
        are, only those that are claimed.
        """
        plan, loops = self.loops.plan, self.loops
        groups = balanced(vectors, plan.vectors)

        def few_of(loops: TileLoops) -> FewRows:
            return self.few_rows(loops.narrow or loops, groups)

        few = few_of(loops)
        height = max(plan.m_block if len(plan.pieces) > 1 else plan.rows, few.most)
        width = max(groups[0].size, few.widest) * plan.kernel.lanes
        scratch = I.sblock_alloc_buffer((height, width), plan.kernel.acc_dtype, align=64)

        def block(start: Expr, size: Expr, share: PanelShare | None = share) -> None:
            def run(chosen: TileLoops) -> None:
                own_few = few if chosen is loops else few_of(chosen)
                many = Block(chosen, row + start, size, vector, groups, scratch, share)
                fewest, narrow = chosen.tiles.fewest_rows, chosen.narrow
                if fewest == 1 or narrow is None:
                    many.emit(own_few)
                    return
                emission.branch(
                    size < fewest,
                    lambda: replace(many, loops=narrow).emit(own_few),
                    lambda: many.emit(None, fewest),
                )

            loops.choose(row + start, size, run)

        count, block_of = emission.balanced_blocks(rows, plan.m_block, plan.rows)
        if claims is None:
            with I.serial(count) as number, emission.opaque_block("block"):
                block(*block_of(number))
            return
        # Into how many pieces the panels of a block of rows are cut, for threads to claim.
        one, panels = as_expr(1), as_expr(sum(group.count for group in groups))
        pieces = tirx.Max(I.floordiv(as_expr(PIECES), tirx.Max(count, one)), one)
        cuts = materialise(tirx.Select(rows <= FEW_ROWS, one, tirx.Min(pieces, panels)))

        def piece(number: Expr) -> None:
            at = materialise(I.floormod(number, cuts))
            own, shares = (at, cuts) if share is None else (share[0] * cuts + at, share[1] * cuts)
            block(*block_of(materialise(I.floordiv(number, cuts))), (own, shares))

        claims.each(materialise(count * cuts), piece)


@dataclass(frozen=True)
class Block:
    """A block of any number of rows.

    Attributes
    ----------
    loops : TileLoops
        What they do with a tile.
    row, rows : Expr
        The block.
    vector : Expr
        First vector of columns.
    groups : sequence of Group
        Panels of each width.
    scratch : Buffer
        Room for accumulators.
    share : tuple or None
        The share of the panels that is multiplied; all of them if None.
    """

    loops: TileLoops
    row: Expr
    rows: Expr
    vector: Expr
    groups: Sequence[Group]
    scratch: Expr
    share: PanelShare | None

    def emit(self, few: FewRows | None, least: int = 1) -> None:
        """Panels of some widths, for few rows or for more; without `few`, for `least` or more."""
        self.loops.a.begin(self.row, self.rows)
        if few is None or not few.most:
            self._panels(least)
            return
        emission.branch(
            self.rows <= few.most, lambda: few.emit(self), lambda: self._panels(few.most + 1)
        )

    def _panels(self, least: int) -> None:
        loops = self.loops
        for group in self.groups:
            fetch = DynamicPrefetch.begin(loops.b.prefetch, loops.plan, self.rows, group.size)

            def panel(start: Index, width: int, fetch: DynamicPrefetch | None = fetch) -> None:
                self._panel(self.vector + start, width, least, fetch)

            if self.share is None:
                emission.for_groups([group], panel)
                continue
            before, own = emission.share_of(as_expr(group.count), *self.share)
            with I.serial(own) as at, emission.opaque_block("panel"):
                panel(materialise(group.start + (before + at) * group.size), group.size)

    def _panel(self, vector: Expr, vectors: int, least: int, fetch: DynamicPrefetch | None) -> None:
        """One panel; where K is cut, accumulators of all rows are in `scratch`."""
        loops, plan = self.loops, self.loops.plan
        loops.begin_panel(vector, vectors)
        cut, heights = len(plan.pieces) > 1, tail_heights(plan.rows, vectors, least)
        # Whether the code for each height has an epilogue of its own, without a way through L1.
        few_stores = vectors * sum(heights.heights) <= MOST_STORES
        at_once = loops.results.cost <= LONG_EPILOGUE and few_stores and not cut

        def store(at: Expr, rows: Expr) -> None:
            self._store(self.row + at, rows, vector, vectors)

        def products(start: Index, steps: int) -> None:
            load_b = loops.b.stage(vector, vectors, (start, steps))

            def tile(fetch: DynamicPrefetch | None, at: Expr, height: int) -> None:
                ahead = None if fetch is None else fetch.ahead(vector, at, height, start)
                # Each access adds to the row; a sum in each of them is slow to compile.
                row = materialise(self.row + at)
                place: Index = at if cut else 0
                further = (start, steps), load_b, self.scratch, place, cut, ahead
                context = TileContext(loops, row, height, vector, vectors, *further)
                result = loops.tiles.emit(context)
                if not at_once:
                    rest(result, self.scratch, context.place)
                    return
                kernel, put = plan.kernel, loops.results.store
                store_tile(result, kernel, 0, lambda i, j, *of: put(row + i, vector + j, *of))

            def body(at: Expr, height: int) -> None:
                # Where only few tiles prefetch, whole ones have code without. Pieces of a tail are
                # few: they prefetch their share of the panel all the same.
                most = plan.most_shares if plan.fetches_evenly else 0
                if fetch is None or not most or height < heights.heights[-1]:
                    tile(fetch, at, height)
                    return
                few = fetch.tiles <= most
                emission.branch(
                    few, lambda: tile(fetch, at, height), lambda: tile(None, at, height)
                )

            emission.for_tiles(self.rows, heights, body, None if cut or at_once else store)

        if cut:
            self._fill(vector, vectors)
        for piece in _alike(plan.pieces):
            emission.for_groups([piece], products)
        if cut:
            self._store(self.row, self.rows, vector, vectors)

    def _fill(self, vector: Expr, vectors: int) -> None:
        """What the accumulators of a panel start with, into `scratch`."""
        kernel, start = self.loops.plan.kernel, self.loops.start
        with I.serial(self.rows) as i:
            for j in range(vectors):
                value = constant(0, kernel.acc_dtype, kernel.lanes)
                if start is not None:
                    value = start(self.row + i, vector + j)
                I.buffer_store(self.scratch, value, [i, ramp(j * kernel.lanes, kernel.lanes)])

    def _store(self, row: Expr, rows: Expr, vector: Expr, vectors: int) -> None:
        """The epilogue of rows whose accumulators are the first of `scratch`."""
        lanes = self.loops.plan.kernel.lanes
        with I.serial(rows) as i:
            for j in range(vectors):
                value = self.scratch[i, ramp(j * lanes, lanes)]
                self.loops.results.store(row + i, vector + j, value, j == vectors - 1)


def _alike(pieces: Sequence[tuple[int, int]]) -> list[Group]:
    """Blocks of K of one size that follow each other, as groups."""
    found: list[Group] = []
    for start, size in pieces:
        if found and found[-1].size == size:
            found[-1] = Group(found[-1].start, found[-1].count + 1, size)
        else:
            found.append(Group(start, 1, size))
    return found
