"""The loops of a product whose number of rows is known at run time only.

    for each block of rows
        one or two rows: several panels of columns side by side, see `skinny_product`
        more: for each panel, for each block of K
            for each register tile: code for its height, chosen by a branch; then one epilogue

As `TileLoops`, but for the branches. The accumulators pass through L1, so that the epilogue is
written once for all heights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.tile import Address
from microkernels.vector.expressions import Expr, constant, materialise, ramp
from microkernels.vector.memory import PREFETCH_LLVM_IR
from tir_schedules.core.blocking import Group, TailHeights, balanced, tail_heights
from tir_schedules.core.emission import (
    balanced_blocks,
    for_balanced_blocks,
    for_groups,
    for_share,
    for_tiles,
    opaque_block,
    share_of,
    task_loop,
)
from tir_schedules.core.extents import as_expr
from tir_schedules.core.placement import Claims, claimed_shares
from tir_schedules.core.product_plan import Piece, ProductPlan

from ..skinny_product import FewRows, PanelShare
from ..streams import FEW_ROWS
from ..tile_loops import LoadPanel, Shortcut, TileLoops
from ..tile_stores import LONG_EPILOGUE, rest
from ..wide_product import wide_product_of
from .prefetch import Ahead, OpenFetch

# Pieces of a thread's share, which others may take: about so many, if rows are not few. With one,
# a thread takes the whole share of another that is only late (0.87 of the speed in some runs).
PIECES = 8
MOST_STORES = 40  # of vectors, in the code for all heights of a tile: more take long to compile


def share_open(plan: ProductPlan, rows: Expr, whole: int, alone: int, loops: OpenRows) -> None:
    """The whole product, in one parallel region over the grid of threads.

    Threads claim pieces of their shares (`core/placement.py`), unless rows are staged first, as
    those of 8-bit integers are: whoever takes a piece would stage them once more, and was slower.

    Parameters
    ----------
    rows : Expr
        How many there are.
    whole, alone : int
        `MatmulConfig.whole_rows` and `alone_rows`.
    loops : OpenRows
        For blocks of at most `plan.m_block` rows.
    """
    columns = plan.column_shares
    threads_m, threads_n = plan.threads_m, sum(group.count for group in columns)
    tasks = threads_m * threads_n
    claimed = loops.loops.begin is None and loops.loops.shortcut is None
    with (
        _tasks(tasks, claimed, rows <= alone if alone else None) as (task, claims),
        llvm_functions(PREFETCH_LLVM_IR),
    ):
        number = I.floormod(task, threads_m)
        row, many = share_of(rows, number, threads_m)
        panels: PanelShare | None = None
        if threads_m > 1 and whole:
            few = materialise(rows <= whole)
            row = materialise(tirx.Select(few, as_expr(0), row))
            many = materialise(tirx.Select(few, rows, many))
            panels = (
                materialise(tirx.Select(few, number, as_expr(0))),
                materialise(tirx.Select(few, as_expr(threads_m), as_expr(1))),
            )
        for_share(
            columns,
            I.floordiv(task, threads_m),
            lambda vector, vectors: loops.emit(row, many, vector, vectors, panels, claims),
        )


@contextmanager
def _tasks(tasks: int, claimed: bool, alone: Expr | None) -> Iterator[tuple[Expr, Claims | None]]:
    """The number of a share of the product, and what a thread may take of it; None: all."""
    if tasks == 1 or not claimed:
        with task_loop(tasks, alone=alone) as task:
            yield task, None
        return
    with claimed_shares(tasks, alone) as (_, claims):
        yield claims.share, claims


def tile_choices(plan: ProductPlan, whole: int = 0, alone: int = 0) -> str:
    """What is decided at run time about tiles and threads, for `explain`."""
    text = _heights(plan)
    if alone:
        text += f"; up to {alone} rows: one thread"
    if whole and plan.threads_m > 1:
        text += f"; up to {whole} rows: threads share their columns"
    return text


def _heights(plan: ProductPlan) -> str:
    wide = wide_product_of(plan)
    if wide is None:
        return _few_and_more(plan.rows, plan.vectors, f"; more: {{}}, in blocks of {plan.m_block}")
    between = f"; {FEW_ROWS + 1} to {wide.fewest_rows - 1}: {{}}"
    some = _few_and_more(plan.kernel.mr, plan.vectors, between)
    tiles = _written_out(plan.rows, plan.vectors, wide.fewest_rows)
    return f"{some}; more: widened operands, {tiles}, in blocks of {plan.m_block}"


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

    def emit(
        self,
        row: Expr,
        rows: Expr,
        vector: Expr,
        vectors: int,
        share: PanelShare | None = None,
        claims: Claims | None = None,
    ) -> None:
        """The loops over `rows` rows from `row` and `vectors` vectors of columns from `vector`.

        Of these columns, only a share of the panels if one is given; of the pieces that these loops
        are, only those that are claimed.
        """
        plan, loops = self.loops.plan, self.loops
        groups = balanced(vectors, plan.vectors)
        few = self.few_rows(loops.narrow or loops, groups)
        cut = len(plan.pieces) > 1
        height = max(plan.m_block if cut else plan.rows, few.most)
        width = max(groups[0].size, few.widest) * plan.kernel.lanes
        scratch = I.sblock_alloc_buffer((height, width), plan.kernel.acc_dtype, align=64)

        def exact(start: Expr, size: Expr, share: PanelShare | None) -> None:
            if loops.narrow is None:
                self._block(row + start, size, vector, groups, few, scratch, share)
                return
            assert loops.wide is not None
            narrow, fewest = replace(self, loops=loops.narrow), loops.wide.fewest_rows
            with I.If(size < fewest):
                with I.Then():
                    narrow._block(row + start, size, vector, groups, few, scratch, share)
                with I.Else():
                    self._many(row + start, size, vector, groups, scratch, fewest, share)

        def block(start: Expr, size: Expr, share: PanelShare | None = share) -> None:
            def chosen(shortcut: Shortcut | None) -> None:
                if shortcut is None:
                    exact(start, size, share)
                    return
                fitting = replace(self, loops=shortcut.loops)
                few_fitting = self.few_rows(shortcut.loops.narrow or shortcut.loops, groups)
                with I.If(shortcut.fits(row + start, size)):
                    with I.Then():
                        where = (row + start, size, vector, groups, few_fitting, scratch, share)
                        fitting._block(*where)
                    with I.Else():
                        chosen(shortcut.otherwise)

            chosen(loops.shortcut)

        if claims is None:
            for_balanced_blocks(rows, plan.m_block, plan.rows, block)
            return
        count, block_of = balanced_blocks(rows, plan.m_block, plan.rows)
        cuts = self._cuts(rows, count, sum(group.count for group in groups))

        def piece(number: Expr) -> None:
            at = materialise(I.floormod(number, cuts))
            own, shares = (at, cuts) if share is None else (share[0] * cuts + at, share[1] * cuts)
            block(*block_of(materialise(I.floordiv(number, cuts))), (own, shares))

        claims.each(materialise(count * cuts), piece)

    def _cuts(self, rows: Expr, blocks: Expr, panels: int) -> Expr:
        """Into how many pieces the panels of a block of rows are cut, for threads to claim."""
        some = tirx.Max(blocks, as_expr(1))
        cuts = tirx.Min(tirx.Max(I.floordiv(as_expr(PIECES), some), as_expr(1)), as_expr(panels))
        return materialise(tirx.Select(rows <= FEW_ROWS, as_expr(1), cuts))

    def _block(
        self,
        row: Expr,
        rows: Expr,
        vector: Expr,
        groups: Sequence[Group],
        few: FewRows,
        scratch: Expr,
        share: PanelShare | None,
    ) -> None:
        """Panels of some widths for a block of rows, of any number."""
        if not few.most:
            self._many(row, rows, vector, groups, scratch, 1, share)
            return
        self._begin(row, rows)
        with I.If(rows <= few.most):
            with I.Then():
                few.emit(row, rows, vector, scratch, share)
            with I.Else():
                for group in groups:
                    self._panels(row, rows, vector, group, scratch, few.most + 1, share)

    def _many(
        self,
        row: Expr,
        rows: Expr,
        vector: Expr,
        groups: Sequence[Group],
        scratch: Expr,
        least: int,
        share: PanelShare | None,
    ) -> None:
        """Panels of some widths for a block of `least` rows or more."""
        self._begin(row, rows)
        for group in groups:
            self._panels(row, rows, vector, group, scratch, least, share)

    def _begin(self, row: Expr, rows: Expr) -> None:
        """What has to be done before a block of rows is multiplied."""
        if self.loops.begin is not None:
            self.loops.begin(row, rows)

    def _panels(
        self,
        row: Expr,
        rows: Expr,
        vector: Expr,
        group: Group,
        scratch: Expr,
        least: int,
        share: PanelShare | None,
    ) -> None:
        """A share of panels of equal width, for `least` rows or more."""
        plan = self.loops.plan
        steps, pieces = plan.steps, plan.pieces
        fetch = OpenFetch.of(self.loops, rows, group.size)

        def panel(start: Expr | int, width: int) -> None:
            first = vector + start
            if self.loops.begin_panel is not None:
                self.loops.begin_panel(first, width)

            def tile(fetch: OpenFetch | None, at: Expr, height: int) -> None:
                ahead = None if fetch is None else fetch.ahead(first, at, height, 0)
                whole, held = (0, steps), None if short else scratch
                self._tile(row + at, height, first, width, whole, load_b, held, 0, False, ahead)

            def store(at: Expr, height: Expr) -> None:
                self._store(row + at, height, first, width, scratch)

            heights = tail_heights(plan.rows, width, least)
            if len(pieces) == 1:
                load_b = self._panel_at(first, width, (0, steps))
                short = self._stores_at_once(width, heights)
                self._for_tiles(rows, tile, None if short else store, heights, fetch)
                return
            self._fill(row, rows, first, width, scratch)
            for piece in _alike(pieces):
                add = functools.partial(
                    self._piece, row, rows, first, width, scratch, heights, fetch
                )
                for_groups([piece], add)
            self._store(row, rows, first, width, scratch)

        if share is None:
            for_groups([group], panel)
            return
        before, own = share_of(as_expr(group.count), *share)
        with I.serial(own) as at, opaque_block("panel"):
            panel(materialise(group.start + (before + at) * group.size), group.size)

    def _stores_at_once(self, vectors: int, heights: TailHeights) -> bool:
        """Whether the code for each height has an epilogue of its own, without a way through L1."""
        stores = vectors * sum(heights.heights)
        return self.loops.epilogue_cost <= LONG_EPILOGUE and stores <= MOST_STORES

    def _piece(
        self,
        row: Expr,
        rows: Expr,
        vector: Expr,
        vectors: int,
        scratch: Expr,
        heights: TailHeights,
        fetch: OpenFetch | None,
        start: Expr | int,
        steps: int,
    ) -> None:
        """Adds a block of K to the accumulators of all rows, which are in `scratch`."""
        load_b = self._panel_at(vector, vectors, (start, steps))

        def tile(fetch: OpenFetch | None, at: Expr, height: int) -> None:
            ahead = None if fetch is None else fetch.ahead(vector, at, height, start)
            piece = (start, steps)
            self._tile(row + at, height, vector, vectors, piece, load_b, scratch, at, True, ahead)

        self._for_tiles(rows, tile, None, heights, fetch)

    def _for_tiles(
        self,
        rows: Expr,
        tile: Callable[[OpenFetch | None, Expr, int], None],
        after: Callable[[Expr, Expr], None] | None,
        heights: TailHeights,
        fetch: OpenFetch | None,
    ) -> None:
        """As `for_tiles`; where only few tiles fetch the next panel, whole ones have code without.

        Pieces of a tail are few: they fetch their share of the panel all the same.
        """
        most = self.loops.plan.most_shares
        two_ways = fetch is not None and self.loops.plan.fetches_evenly and most

        def body(start: Expr, height: int) -> None:
            if fetch is None or not two_ways or height < heights.heights[-1]:
                tile(fetch, start, height)
                return
            with I.If(fetch.tiles <= most):
                with I.Then():
                    tile(fetch, start, height)
                with I.Else():
                    tile(None, start, height)

        for_tiles(rows, heights, body, after)

    def _panel_at(self, vector: Expr, vectors: int, piece: Piece) -> LoadPanel:
        """How tiles read a block of K of a panel; emits what has to be done before."""
        stage = self.loops.stage_b
        return self.loops.load_b if stage is None else stage(vector, vectors, piece)

    def _fill(self, row: Expr, rows: Expr, vector: Expr, vectors: int, scratch: Expr) -> None:
        """What the accumulators of a panel start with, into `scratch`."""
        kernel, start = self.loops.plan.kernel, self.loops.start
        with I.serial(rows) as i:
            for j in range(vectors):
                value = constant(0, kernel.acc_dtype, kernel.lanes)
                if start is not None:
                    value = start(row + i, vector + j)
                I.buffer_store(scratch, value, [i, ramp(j * kernel.lanes, kernel.lanes)])

    def _store(self, row: Expr, rows: Expr, vector: Expr, vectors: int, scratch: Expr) -> None:
        """The epilogue of rows whose accumulators are the first of `scratch`."""
        lanes = self.loops.plan.kernel.lanes
        with I.serial(rows) as i:
            for j in range(vectors):
                value = _vector_of(scratch, i, j, lanes)
                self.loops.store(row + i, vector + j, value, j == vectors - 1)

    def _tile(
        self,
        row: Expr,
        rows: int,
        vector: Expr,
        vectors: int,
        piece: Piece,
        read_b: LoadPanel,
        scratch: Expr | None,
        place: Expr | int,
        goes_on: bool,
        ahead: Ahead | None = None,
    ) -> None:
        """One tile, its accumulators in `scratch` from the row `place` on; None: it is stored."""
        loops, kernel = self.loops, self.loops.plan.kernel
        begins = loops.start
        row = materialise(row)  # each access adds to it; a sum in each of them is slow to compile

        def start(i: Expr | int, j: int) -> Expr:
            if goes_on:
                assert scratch is not None
                return _vector_of(scratch, place + i, j, kernel.lanes)
            assert begins is not None
            return begins(row + i, vector + j)

        def load_b(j: int, ks: Sequence[Expr | int]) -> Expr | Address:
            if ahead is not None and j == 0 and loops.begins(ks):
                ahead(ks[0])
            return read_b(vector, vectors, loops.place(piece[0], ks), j)

        def load_a(i: int, ks: Sequence[Expr | int]) -> Expr | Address:
            return loops.load_a(row + i, loops.place(piece[0], ks))

        init = start if goes_on or begins is not None else None
        if loops.wide is not None:
            result = loops.wide.emit(rows, vectors, piece[1], load_a, load_b, init)
        else:
            result = kernel.emit(rows, vectors, (piece[1],), load_a, load_b, init)
        if scratch is not None:
            rest(result, scratch, place)
            return
        for i in range(rows):
            for j in range(vectors):
                loops.store(row + i, vector + j, result.value(i, j), j == vectors - 1)


def _alike(pieces: Sequence[tuple[int, int]]) -> list[Group]:
    """Blocks of K of one size that follow each other, as groups."""
    found: list[Group] = []
    for start, size in pieces:
        if found and found[-1].size == size:
            found[-1] = Group(found[-1].start, found[-1].count + 1, size)
        else:
            found.append(Group(start, 1, size))
    return found


def _vector_of(scratch: Expr, row: Expr | int, vector: int, lanes: int) -> Expr:
    """Accumulators in memory."""
    return scratch[row, ramp(vector * lanes, lanes)]
