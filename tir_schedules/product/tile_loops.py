"""The loops that all GEMM-like templates have inside a thread: row blocks, panels, K blocks, tiles.

    for each block of rows (its part of A stays in L2)
        for each panel of columns
            for each block of K (its part of the panel stays in cache)
                for each register tile: multiply; after the last block of K, store

Sizes are known at compile time, so every loop body has exact sizes. The pieces of one loop differ
by at most one (`balanced`), so there is no thin tail. Between blocks of K the accumulators are
stored in a scratch tile.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import Address, Between, Columns, Place, Tile
from microkernels.vector.expressions import Expr, ramp
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.emission import for_groups, opaque_block
from tir_schedules.core.product_plan import (
    PANELS_AHEAD,
    PRODUCTS_PER_FETCH,
    PRODUCTS_PER_SHARE,
    Piece,
    ProductPlan,
)

from .streams import TileFetch, all_of, emit_streams
from .tile_stores import (
    Ahead,
    LateStores,
    emit_rounds,
    fetch_by_rounds,
    place_in_rounds,
    rest,
    steps_of_round,
    store_tile,
)
from .wide_product import WideProduct

LoadPanel = Callable[[Expr | int, int, Expr | int, int], Expr | Address]
Start = Callable[[Expr | int, int], Expr]


def most_lines(rows: int, vectors: int, line_vectors: int) -> int:
    """The most lines of the next panel that a step of a tile fetches."""
    return min(math.ceil(vectors / line_vectors), rows * vectors // PRODUCTS_PER_SHARE)


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
        (first vector of the panel, its width in vectors, step of K, vector within the panel) -> one
        vector of packed B, likewise.
    store : callable
        (row, vector, accumulators, whether the vector ends its panel) -> None; emits the epilogue.
    epilogue_cost : int
        Instructions of the epilogue for one vector. A long one is not repeated for every row of the
        tile, which would cost LLVM seconds: the tile passes through L1 and a loop runs over its
        rows.
    stage_b : callable or None
        (first vector of the panel, its width, block of K) -> the load_b for that block; emits what
        has to be done once before the tiles of a block, such as expanding a compressed panel.
    multiply : callable or None
        (row, rows, first vector of the panel, its width, block of K, start) -> accumulators; the
        product of one tile where it is not simply `kernel.emit`. `start` is as its `init`.
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
    fetch : callable or None
        (first vector of a panel, line of the panel, element from there on) -> None; fetches the
        line of packed B that holds it. Tiles have it called while they multiply the panel before.
    line_vectors : int
        Vectors of one step of packed B that a line holds.
    share : tuple or None
        First step and number of steps of the K that is multiplied; all of it if None.
    wide : WideProduct or None
        How tiles multiply operands that `begin` and `stage_b` have widened; `load_a` and the
        panel's load_b then count its parts of steps.
    narrow : TileLoops or None
        What fewer than `wide.fewest_rows` rows of an open number run; the same if None.
    shortcut : Shortcut or None
        Other loops for those blocks of rows that they are right for.
    """

    plan: ProductPlan
    load_a: Callable[[Expr, Expr | int], Expr | Address]
    load_b: LoadPanel
    store: Callable[[Expr, Expr, Expr, bool], None]
    epilogue_cost: int = 0
    stage_b: Callable[[Expr, int, Piece], LoadPanel] | None = None
    multiply: Callable[[Expr, int, Expr, int, Piece, Start | None], Tile] | None = None
    begin: Callable[[Expr, int | Expr], None] | None = None
    begin_panel: Callable[[Expr, int], None] | None = None
    start: Callable[[Expr, Expr], Expr] | None = None
    start_columns: Callable[[Expr], Expr | Address] | None = None
    peel: bool = False
    direct: Callable[[Expr, Expr], Place] | None = None
    fetch: Callable[[Expr, Expr | int, Expr | int], None] | None = None
    line_vectors: int = 1
    share: Piece | None = None
    wide: WideProduct | None = None
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
        bands = plan.bands(rows)
        scratch = None
        if (len(pieces) > 1 or kernel.by_tiles) and self.direct is None:
            # As wide as the widest panel: TVM cuts off columns that nobody visits, and tiles are
            # told the distance of rows before.
            width = balanced(vectors, plan.vectors)[0].size * kernel.lanes
            height = bands[0][1][0].size if len(pieces) > 1 else 2 * bands[0][0]
            scratch = I.sblock_alloc_buffer((height, width), kernel.acc_dtype, align=64)

        def multiply(loops: TileLoops, block: Expr | int, block_rows: int) -> None:
            if loops.begin is not None:
                loops.begin(row + block, block_rows)
            groups = balanced(vectors, plan.vectors)
            for group, after in zip(groups, [*groups[1:], None], strict=True):
                following = 0 if after is None else after.size
                loops._panels(row + block, block_rows, vector, group, following, pieces, scratch)

        def emit_block(block: Expr | int, block_rows: int) -> None:
            def choose(shortcut: Shortcut | None) -> None:
                if shortcut is None:
                    multiply(self, block, block_rows)
                    return
                with I.If(shortcut.fits(row + block, block_rows)):
                    with I.Then():
                        multiply(shortcut.loops, block, block_rows)
                    with I.Else():
                        choose(shortcut.otherwise)

            choose(self.shortcut)

        state = tiles or TileTask()
        if state.holds(kernel, bands[-1][0]):  # by the product before, which ended with it
            bands.reverse()
        for tile_rows, blocks in bands:
            state.configure(kernel, tile_rows)
            for_groups(blocks, emit_block)
        if tiles is None:
            state.release()

    def place(self, first: Expr | int, ks: Sequence[Expr | int]) -> Expr | int:
        """The step of K of a tile's loop variables in a block of K that begins at `first`."""
        if self.wide is not None:
            return self.wide.place(first, ks)
        return first + (ks[0] if len(ks) == 1 else place_in_rounds(ks))

    def begins(self, ks: Sequence[Expr | int]) -> bool:
        """Whether a step of the plan begins with these loop variables of a tile."""
        return self.wide is None or ks[1] == 0

    def _panels(
        self,
        row: Expr,
        rows: int,
        vector: Expr,
        group: Group,
        following: int,
        pieces: Sequence[Piece],
        scratch: Expr | None,
    ) -> None:
        """Panels of equal width; where K is not cut, stores are late across all of them.

        `following` is the width of the panel behind them; 0 if there is none.
        """
        if len(pieces) == 1 and emit_streams(self, row, rows, vector, group, pieces[0]):
            return
        late = None
        if len(pieces) == 1:
            late = self._late(row, rows, vector + group.start, group.size, scratch, 2)

        def emit_panel(panel: Expr | int, size: int) -> None:
            before = (panel - group.start) // size
            after: Expr | int = following
            if not isinstance(panel, int):
                ends = group.start + (group.count - 1) * size
                widths = (tirx.const(width, "int32") for width in (size, following))
                after = tirx.Select(panel < ends, *widths)
            self._panel(row, rows, vector + panel, size, after, pieces, scratch, late, before)

        for_groups([group], emit_panel)
        if late is not None:
            late.finish(group.count * math.ceil(rows / self.plan.rows) - 1)

    def _late(
        self, row: Expr, rows: int, vector: Expr, vectors: int, scratch: Expr | None, slots: int
    ) -> LateStores | None:
        """What stores tiles of some rows, panel by panel; None if every tile stores its own."""
        if not self.plan.kernel.by_tiles or self.direct is not None or self.multiply is not None:
            return None
        assert scratch is not None
        (group,) = balanced(rows, self.plan.rows)
        height, tiles = group.size, group.count
        return LateStores(
            height,
            vectors,
            self.plan.kernel.lanes,
            scratch,
            slot=lambda tile: tile % slots * height,
            where=lambda tile: (row + tile % tiles * height, vector + tile // tiles * vectors),
            store=self._store,
        )

    @property
    def _starts_late(self) -> bool:
        """Whether what accumulators start with is added when they are stored."""
        by_tiles = self.plan.kernel.by_tiles and self.direct is None
        return by_tiles and self.start is not None and self.start_columns is None

    def _store(self, row: Expr, vector: Expr, value: Expr, last: bool) -> None:
        """Stores a vector of accumulators."""
        if self._starts_late:
            assert self.start is not None
            value = value + self.start(row, vector)
        self.store(row, vector, value, last)

    def _panel(
        self,
        row: Expr,
        rows: int,
        vector: Expr,
        vectors: int,
        after: Expr | int,
        pieces: Sequence[Piece],
        scratch: Expr | None,
        late: LateStores | None,
        before: Expr | int,
    ) -> None:
        """One panel; `before` of its width are before it, and the next has `after` vectors."""
        tiles_of_rows = math.ceil(rows / self.plan.rows)
        cut = len(pieces) > 1
        if self.begin_panel is not None:
            self.begin_panel(vector, vectors)
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            if cut and last:
                late = self._late(row, rows, vector, vectors, scratch, tiles_of_rows)
            load_b = self.load_b if self.stage_b is None else self.stage_b(vector, vectors, piece)
            groups = balanced(rows, self.plan.rows)
            fetching = self._fetching(vector, vectors, after, groups)
            tiles = 0
            for group in groups:
                ahead = self._ahead(vector, vectors, piece, groups, group, tiles)
                emit_tile = functools.partial(
                    self._tile,
                    row,
                    vector=vector,
                    vectors=vectors,
                    piece=piece,
                    load_b=load_b,
                    scratch=scratch,
                    first=number == 0,
                    last=last,
                    ahead=ahead,
                    fetching=fetching,
                    late=late,
                    before=0 if cut else before * tiles_of_rows,
                    passing=self.plan.passing(rows, piece[1]),
                )
                for_groups([group], emit_tile)
                tiles += group.count
            if cut and late is not None:
                late.finish(tiles_of_rows - 1)

    def _fetching(
        self, vector: Expr, vectors: int, after: Expr | int, groups: Sequence[Group]
    ) -> TileFetch | None:
        """What the tiles of a panel fetch between products on tile registers: the next panel."""
        fetch, kernel = self.fetch, self.plan.kernel
        if fetch is None or not kernel.by_tiles or self._few(vectors, groups, groups[-1]):
            return None
        if isinstance(after, int) and not after:
            return None
        lines = kernel.depth // self.line_vectors
        blocks = sum(group.count for group in groups)
        return TileFetch(
            lambda line: fetch(vector + vectors, line, 0),
            self.plan.steps // kernel.depth,
            TileFetch.shared(lines * vectors, blocks),
            self.plan.steps // self.line_vectors * after,
        )

    def _few(self, vectors: int, groups: Sequence[Group], group: Group) -> bool:
        """Whether a panel has too few products to fetch the next one, or too many."""
        tiles = sum(each.count for each in groups)
        lines_of_panel = vectors // self.line_vectors
        lines = math.ceil(lines_of_panel / tiles)
        few = lines * PRODUCTS_PER_FETCH > group.size * vectors
        return few or tiles > PANELS_AHEAD * lines_of_panel

    def _ahead(
        self,
        vector: Expr,
        vectors: int,
        piece: Piece,
        groups: Sequence[Group],
        group: Group,
        before: int,
    ) -> Ahead | None:
        """What fetches the share of a tile of the group of what comes next.

        `before` counts the tiles before the group.
        """
        tiles = sum(each.count for each in groups)
        fetch = self.fetch
        if fetch is None or self.plan.kernel.by_tiles:
            return None
        if self.plan.fetches_evenly:
            return self._evenly(fetch, vector, vectors, piece, group, before, tiles)
        if vectors % self.line_vectors or self._few(vectors, groups, group):
            return None
        lines = math.ceil(vectors // self.line_vectors / tiles)

        def ahead(tile: Expr | int, ks: Sequence[Expr | int]) -> None:
            number = before + (tile - group.start) // group.size
            first = (number * self.plan.steps + piece[0] + ks[0]) * lines
            for line in range(lines):
                fetch(vector + vectors, first + line, 0)

        return ahead

    def _evenly(
        self,
        fetch: Callable[[Expr, Expr | int, Expr | int], None],
        vector: Expr,
        vectors: int,
        piece: Piece,
        group: Group,
        before: int,
        tiles: int,
    ) -> Ahead | None:
        """As `_ahead`; all tiles together fetch the next panel once, each as many lines a step."""
        if 0 < self.plan.most_shares < tiles:
            return None
        most = most_lines(group.size, vectors, self.line_vectors)
        if steps_of_round(self.plan, piece[1]) > 1:
            ask = functools.partial(fetch, vector + vectors, 0)
            return fetch_by_rounds(
                self.plan, vectors, self.line_vectors, most, piece[0], group, before, tiles, ask
            )
        parts = self.line_vectors * tiles  # a tile's step fetches vectors / parts lines
        count = min(math.ceil(vectors / parts), most)
        if not count:
            return None

        def ahead(tile: Expr | int, ks: Sequence[Expr | int]) -> None:
            number = before + (tile - group.start) // group.size
            place = number * self.plan.steps + piece[0] + ks[0]
            for each in range(count):
                fetch(vector + vectors, (place * count + each) * vectors // (parts * count), 0)

        return ahead

    def _columns(self, vector: Expr) -> Columns:
        """What all rows of a tile start with."""
        found = self.start_columns
        assert found is not None
        return lambda j: found(vector + j)

    def _tile(
        self,
        block: Expr,
        tile: Expr | int,
        rows: int,
        vector: Expr,
        vectors: int,
        piece: Piece,
        load_b: LoadPanel,
        scratch: Expr | None,
        first: bool,
        last: bool,
        ahead: Ahead | None,
        fetching: TileFetch | None,
        passing: str,
        late: LateStores | None,
        before: Expr | int,
    ) -> None:
        """Emits one tile.

        `passing` is the operand that has left L1 before it is read again; `before` are the tiles
        that `late` stores before this one.
        """
        kernel = self.plan.kernel
        lanes = kernel.lanes
        k_start, k_size = piece
        with opaque_block("tile"):

            def start(i: Expr | int, j: int) -> Expr:
                if not first:
                    assert scratch is not None
                    return scratch[tile + i, ramp(j * lanes, lanes)]
                assert self.start is not None
                return self.start(block + tile + i, vector + j)

            def read_b(j: int, ks: Sequence[Expr | int]) -> Expr | Address:
                if ahead is not None and j == 0 and self.begins(ks):
                    ahead(tile, ks)
                return passes("B", load_b(vector, vectors, self.place(k_start, ks), j))

            def read_a(i: int, ks: Sequence[Expr | int]) -> Expr | Address:
                return passes("A", self.load_a(block + tile + i, self.place(k_start, ks)))

            def passes(operand: str, loaded: Expr | Address) -> Expr | Address:
                if operand == passing and isinstance(loaded, Address):
                    return replace(loaded, passing=True)
                return loaded

            into, resume = None, kernel.by_tiles and not first
            others: list[Between | None] = []
            if fetching is not None:
                others.append(fetching.between(tile // self.plan.rows, piece, kernel.depth))
            if self.direct is not None:
                into = self.direct(block + tile, vector)
            elif kernel.by_tiles:
                assert scratch is not None
                into = Place(scratch, tile)
                if late is not None:
                    number = before + tile // rows
                    into = Place(scratch, late.slot(number))
                    others.append(late.between(number, k_size // kernel.depth))
            init: Start | None = start
            columns = None
            if resume or self._starts_late or (first and self.start is None):
                init = None
            elif kernel.by_tiles and self.start_columns is not None:
                init, columns = None, self._columns(vector)
            if self.multiply is not None:
                result = self.multiply(block + tile, rows, vector, vectors, piece, init)
            elif self.wide is not None:
                result = self.wide.emit(rows, vectors, k_size, read_a, read_b, init)
            elif steps_of_round(self.plan, k_size) > 1:
                result = emit_rounds(kernel, rows, vectors, k_size, read_a, read_b, init)
            else:
                result = kernel.emit(
                    rows,
                    vectors,
                    (k_size,),
                    read_a,
                    read_b,
                    init,
                    into,
                    resume,
                    self.peel and last,
                    all_of(others),
                    columns,
                )
            if not last and result.place is None:
                assert scratch is not None
                rest(result, scratch, tile)
            if not last or self.direct is not None or late is not None:
                return
            store_tile(
                result,
                kernel,
                self.epilogue_cost,
                lambda i, j, value, ends: self._store(block + tile + i, vector + j, value, ends),
            )


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

    fits: Callable[[Expr, int | Expr], Expr]
    loops: TileLoops
    otherwise: Shortcut | None = None
