"""One register tile: what a product reads and starts with, and how a tile is multiplied."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import Address, Between, Place, Start, Tile
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.emission import for_groups, opaque_block
from tir_schedules.core.product_plan import Piece
from tir_schedules.epilogue.tile_results import store_tile

from .prefetch import ROUND, Ahead, Prefetch, known_streams

if TYPE_CHECKING:
    from .tile_loops import BlockLoops, TileLoops

LoadPanel = Callable[[Index, int, Index, int], Expr | Address]
"""(first vector of the panel, its width in vectors, step of K, vector within the panel) -> one
vector of packed B, as the kernel's `emit` takes it."""


class OperandA:
    """The rows that a product reads.

    Attributes
    ----------
    begins : bool
        Whether `begin` emits anything.
    tail : bool
        Whether the last step of K is read from elsewhere, and so has code of its own.
    """

    begins = False
    tail = False

    def begin(self, row: Expr, rows: Index) -> None:
        """Emits what has to be done before a block of rows is multiplied."""

    def load(self, row: Expr, step: Index) -> Expr | Address:
        """A step of K of a row, as the kernel's `emit` takes it."""
        raise NotImplementedError


class OperandB:
    """The panels of columns that a product reads.

    Attributes
    ----------
    prefetch : Prefetch or None
        How they are prefetched a panel ahead, if they are.
    staged : bool
        Whether `stage` emits anything.
    """

    prefetch: Prefetch | None = None
    staged = False

    def begin_panel(self, vector: Expr, vectors: int) -> None:
        """Emits what has to be done before the tiles of a panel in a block of rows."""

    def stage(self, vector: Expr, vectors: int, piece: Piece) -> LoadPanel:
        """How tiles read a block of K of a panel; emits what has to be done before."""
        return self.load

    def load(self, panel: Index, width: int, step: Index, j: int) -> Expr | Address:
        """A vector of a panel where it lies, as of `LoadPanel`."""
        raise NotImplementedError


class Beginning:
    """What accumulators start with."""

    @property
    def by_column(self) -> bool:
        """Whether all rows start with the same, which `columns` says."""
        return False

    def begin_panel(self, vector: Expr, vectors: int) -> None:
        """Emits what has to be done before the tiles of a panel in a block of rows."""

    def columns(self, vector: Index) -> Expr | Address:
        """What all rows of a vector of columns start with, or where that is in memory."""
        raise NotImplementedError

    def __call__(self, row: Index, vector: Index) -> Expr:
        """The accumulators of a row and a vector of columns before the first product."""
        raise NotImplementedError


@dataclass(frozen=True)
class TileContext:
    """One register tile: where it is, and what it reads.

    Attributes
    ----------
    loops : TileLoops
        The loops around it.
    row, rows : Expr, int
        Its first row, and how many.
    vector, vectors : Expr, int
        Its first vector of columns, and how many: a panel, or several side by side.
    piece : tuple
        First step of K and number of steps.
    load_b : callable
        How the panel is read.
    scratch : Buffer or None
        Where accumulators are between blocks of K.
    place : Expr or int
        Its first row in `scratch`.
    resumes : bool
        Whether its accumulators are there already.
    ahead : callable or None
        (loop variables) -> None; prefetches before each step of K.
    rounds, peel : bool
        Whether several steps of K are between two branches; as of `Microkernel.emit`.
    passing : str
        The operand that has left L1 before it is read again, "A" or "B".
    into, between
        As of `Microkernel.emit`, of AMX tiles.
    """

    loops: TileLoops
    row: Expr
    rows: int
    vector: Expr
    vectors: int
    piece: Piece
    load_b: LoadPanel
    scratch: Expr | None = None
    place: Index = 0
    resumes: bool = False
    ahead: Ahead | None = None
    rounds: bool = False
    peel: bool = False
    passing: str = ""
    into: Place | None = None
    between: Between | None = None

    @staticmethod
    def side_by_side(
        loops: TileLoops, row: Expr, rows: int, vector: Expr, width: int, panels: int, piece: Piece
    ) -> TileContext:
        """Several panels as one wide tile."""

        def load_b(_panel: Index, _width: int, step: Index, j: int) -> Expr | Address:
            return loops.b.load(vector + j // width * width, width, step, j % width)

        return TileContext(loops, row, rows, vector, panels * width, piece, load_b)

    @property
    def init(self) -> Start | None:
        """What accumulators in registers start with; zero if None."""
        loops, kernel, scratch = self.loops, self.loops.plan.kernel, self.scratch
        if self.resumes and not kernel.by_tiles:
            assert scratch is not None
            return lambda i, j: scratch[self.place + i, ex.ramp(j * kernel.lanes, kernel.lanes)]
        begin = loops.start
        if begin is None or self.resumes or loops.starts_late or self.columns is not None:
            return None
        return lambda i, j: begin(self.row + i, self.vector + j)

    @property
    def columns(self) -> Callable[[int], Expr | Address] | None:
        """What all rows of AMX tiles start with; None if `init` says so."""
        start, by_tiles = self.loops.start, self.loops.plan.kernel.by_tiles
        if start is None or not start.by_column or self.resumes or not by_tiles:
            return None
        return lambda j: start.columns(self.vector + j)

    def multiply(self, kernel: Microkernel) -> Tile:
        """The accumulators of the tile, by a kernel."""
        given = self.rows, self.vectors, (self.piece[1],), self.read_a, self.read_b
        resumes = self.resumes and kernel.by_tiles
        further = self.peel, self.between, self.columns
        return kernel.emit(*given, self.init, self.into, resumes, *further)

    def read_a(self, i: int, ks: Sequence[Index]) -> Expr | Address:
        """A, as the kernel's `emit` takes it."""
        step = self.loops.tiles.place(self.piece[0], ks)
        return self._passes("A", self.loops.a.load(self.row + i, step))

    def read_b(self, j: int, ks: Sequence[Index]) -> Expr | Address:
        """B, likewise; before a step of K, lines of the next panel are prefetched."""
        tiles = self.loops.tiles
        if self.ahead is not None and j == 0 and tiles.begins(ks):
            self.ahead(ks)
        step = tiles.place(self.piece[0], ks)
        return self._passes("B", self.load_b(self.vector, self.vectors, step, j))

    def _passes(self, operand: str, loaded: Expr | Address) -> Expr | Address:
        if operand == self.passing and isinstance(loaded, Address):
            return replace(loaded, passing=True)
        return loaded


class RegisterTiles:
    """How a tile is multiplied: by the plan's kernel. Subclasses do it in another way.

    A round has several steps of K between two branches of a tile's loop:

        for round:  A0 B0 A0*B0   A1 B1 A1*B1   A2 B2 A2*B2   A3 B3 A3*B3      then the steps left

    A core with vectors of 256 bits starts FMAs on the ports that it counts and branches on, too. A
    step of 6x16 keeps both of them busy for 6 cycles, so that whatever else goes there costs time:
    with a branch, three sums and a prefetch in each step a perceptron of 128 rows by weights of 8.8
    MB takes 3.3 ms, in rounds of four 3.05 ms; the FMAs alone take 2.9 ms (Emerald Rapids, two
    threads). With vectors of 512 bits one of the two ports, and so the time between, is free.
    """

    @property
    def fewest_rows(self) -> int:
        """Rows of a dynamic number from which on they pay; fewer run `TileLoops.narrow`."""
        return 1

    def place(self, first: Index, ks: Sequence[Index]) -> Index:
        """The step of K of a tile's loop variables in a block of K that begins at `first`."""
        return first + (ks[0] if len(ks) == 1 else ks[0] * ROUND + ks[1])

    def begins(self, ks: Sequence[Index]) -> bool:
        """Whether a step of the plan begins with these loop variables of a tile."""
        return True

    def emit(self, tile: TileContext) -> Tile:
        """The accumulators of a tile."""
        kernel, steps = tile.loops.plan.kernel, tile.piece[1]
        if not tile.rounds:
            return tile.multiply(kernel)
        result = kernel.begin(tile.rows, tile.vectors, tile.init)
        with I.serial(steps // ROUND) as number:
            for place in range(ROUND):
                add_step(kernel, result, tile, (number, place))
        for place in range(steps % ROUND):
            add_step(kernel, result, tile, (tirx.const(steps // ROUND, "int32"), place))
        return result


REGISTERS = RegisterTiles()


def add_step(kernel: Microkernel, result: Tile, tile: TileContext, ks: Sequence[Index]) -> None:
    """Emits the products of one step of K, of these loop variables."""
    reads = (lambda i, _: tile.read_a(i, ks), lambda j, _: tile.read_b(j, ks))
    kernel.accumulate(result, range(tile.rows), (), *reads)


def emit_streams(block: BlockLoops, vector: Expr, group: Group) -> bool:
    """One or two rows read several panels of equal width at once; False if they do not."""
    loops, width = block.loops, group.size
    most, kernel = known_streams(loops.plan, block.rows, width, group.count)
    if most == 1 or loops.b.prefetch is None or loops.b.staged or not block.fetches:
        return False

    def emit(first: Index, panels: int) -> None:
        begin = vector + group.start + first * width
        with opaque_block("streams"):
            place = block.row, block.rows, begin, width, panels, block.pieces[0]
            tile = TileContext.side_by_side(loops, *place)

            def store(i: Index, j: int, value: Expr, _last: bool) -> None:
                loops.results.store(block.row + i, begin + j, value, (j + 1) % width == 0)

            store_tile(tile.multiply(kernel), kernel, loops.results.cost, store)

    for_groups(balanced(group.count, most), emit)
    return True


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


@dataclass
class LateStores:
    """Stores the results of a block of tiles while the next block is multiplied.

        multiply block 0
        multiply block 1, and between its products the epilogue of block 0
        multiply block 2, and between its products the epilogue of block 1
        the epilogue of block 2

    A core multiplies tiles and works on vectors at the same time only if both are near each other
    in the program: an epilogue of 64 vectors fills the reorder buffer. oneDNN interleaves them, too
    (brgemm, `interleave_tilestores`). Measured on Granite Rapids: 128 rows, K = 768, 8-bit: 15%.

    Blocks of equal size, one after the other.

    Attributes
    ----------
    panels : BlockLoops
        The panels that the blocks are tiles of.
    vector, vectors : Expr, int
        The first vector of the first panel, and how many each has.
    slots : int
        Blocks that there is room for; a block's is not that of the block before.
    """

    panels: BlockLoops
    vector: Expr
    vectors: int
    slots: int

    def __post_init__(self) -> None:
        (group,) = balanced(self.panels.rows, self.panels.loops.plan.rows)
        self.rows, self.tiles = group.size, group.count

    @staticmethod
    def of(panels: BlockLoops, vector: Expr, vectors: int, slots: int) -> LateStores | None:
        """What stores the tiles of panels late; None if every tile stores its own."""
        loops = panels.loops
        late = loops.plan.kernel.by_tiles and not loops.results.in_place
        return LateStores(panels, vector, vectors, slots) if late else None

    def slot(self, block: Index) -> Index:
        """The first row of a block in `scratch`."""
        return block % self.slots * self.rows

    def between(self, block: Index, steps: int) -> Between | None:
        """Emits, in each of so many steps, a part of what the block before left."""
        if isinstance(block, int) and block == 0:
            return None
        height = math.ceil(self.rows / steps)

        def part(step: Index, product: int, _products: int) -> None:
            if product:
                return
            with I.If(block > 0), I.Then(), I.serial(height) as offset:
                row = step * height + offset
                if height * steps == self.rows:
                    self._row(block - 1, row)
                else:
                    with I.If(row < self.rows), I.Then():
                        self._row(block - 1, row)

        return part

    def finish(self, block: Index) -> None:
        """Emits the epilogue of the last block."""
        with I.serial(self.rows) as row:
            self._row(block, row)

    def _row(self, block: Index, row: Expr) -> None:
        loops, scratch = self.panels.loops, self.panels.scratch
        assert scratch is not None
        first = self.panels.row + block % self.tiles * self.rows + row
        vector = self.vector + block // self.tiles * self.vectors
        place = Place(scratch, self.slot(block))
        tile = Tile(self.rows, self.vectors, loops.plan.kernel.lanes, place=place)
        for j in range(self.vectors):
            loops.finish(first, vector + j, tile.value(row, j), j == self.vectors - 1)
