"""One register tile: its operands, its initial accumulators, and how it is multiplied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import Address, Start, Tile
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core.product_plan import Piece
from tir_schedules.epilogue.tile_results import store_tile

from .prefetch import ROUND, Ahead, Prefetch, steps_of_round

if TYPE_CHECKING:
    from .tile_loops import TileLoops

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
        Whether the last step of K is read from another buffer, and so has code of its own.
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
        How panels are prefetched one panel ahead; None if they are not.
    staged : bool
        Whether `stage` emits anything.
    """

    prefetch: Prefetch | None = None
    staged = False

    def begin_panel(self, vector: Expr, vectors: int) -> None:
        """Emits what has to be done before the tiles of a panel in a block of rows."""

    def stage(self, vector: Expr, vectors: int, piece: Piece) -> LoadPanel:
        """Prepares a block of K of a panel; returns how tiles read it."""
        return self.load

    def load(self, panel: Index, width: int, step: Index, j: int) -> Expr | Address:
        """A vector of a panel from where it is stored; see `LoadPanel`."""
        raise NotImplementedError


class Beginning:
    """Initial accumulators."""

    @property
    def by_column(self) -> bool:
        """Whether all rows start with equal values, which `columns` returns."""
        return False

    def begin_panel(self, vector: Expr, vectors: int) -> None:
        """Emits what has to be done before the tiles of a panel in a block of rows."""

    def columns(self, vector: Index) -> Expr | Address:
        """Initial accumulators of a vector of columns, equal in all rows, or their address."""
        raise NotImplementedError

    def __call__(self, row: Index, vector: Index) -> Expr:
        """The accumulators of a row and a vector of columns before the first product."""
        raise NotImplementedError


@dataclass(frozen=True)
class TileContext:
    """One register tile: its place and its operands.

    Attributes
    ----------
    loops : TileLoops
        The loops around it.
    row, rows : Expr, int
        Its first row, and number of rows.
    vector, vectors : Expr, int
        Its first vector of columns, and number of vectors: a panel, or several side by side.
    piece : tuple
        First step of K and number of steps.
    load_b : callable
        How the panel is read.
    scratch : Buffer or None
        Holds accumulators between blocks of K.
    place : Expr or int
        Its first row within its block of rows, and in `scratch`.
    resumes, ends : bool
        Whether its accumulators start from `scratch`, and whether this piece completes them.
    ahead : callable or None
        (loop variables) -> None; prefetches before each step of K.
    passing : str
        The operand that has left L1 before it is read again, "A" or "B"; "" if neither has.
    side : int
        How many panels of equal width it covers.
    """

    loops: TileLoops
    row: Expr
    rows: int
    vector: Expr
    vectors: int
    piece: Piece
    load_b: LoadPanel
    scratch: Any = None
    place: Index = 0
    resumes: bool = False
    ends: bool = True
    ahead: Ahead | None = None
    passing: str = ""
    side: int = 1

    @staticmethod
    def side_by_side(
        loops: TileLoops, row: Expr, rows: int, vector: Expr, width: int, panels: int
    ) -> TileContext:
        """Several panels as one wide tile, along all of K."""

        def load_b(_panel: Index, _width: int, step: Index, j: int) -> Expr | Address:
            return loops.b.load(vector + j // width * width, width, step, j % width)

        piece = 0, loops.plan.steps
        return TileContext(loops, row, rows, vector, panels * width, piece, load_b, side=panels)

    @property
    def init(self) -> Start | None:
        """Initial accumulators; zeros if None."""
        begin, scratch = self.loops.start, self.scratch
        if self.resumes:
            lanes = self.loops.plan.kernel.lanes
            return lambda i, j: scratch[self.place + i, ex.ramp(j * lanes, lanes)]
        return None if begin is None else lambda i, j: begin(self.row + i, self.vector + j)

    def columns(self, j: int) -> Expr | Address:
        """See `Beginning.columns`."""
        assert self.loops.start is not None
        return self.loops.start.columns(self.vector + j)

    def multiply(self, kernel: Microkernel) -> Tile:
        """The accumulators of the tile, by a kernel."""
        steps = (self.piece[1],)
        return kernel.emit(self.rows, self.vectors, steps, self.read_a, self.read_b, self.init)

    def read_a(self, i: int, ks: Sequence[Index]) -> Expr | Address:
        """A, as the kernel's `emit` takes it."""
        step = self.loops.tiles.place(self.piece[0], ks)
        return self._passes("A", self.loops.a.load(self.row + i, step))

    def read_b(self, j: int, ks: Sequence[Index]) -> Expr | Address:
        """B, as the kernel's `emit` takes it; prefetches lines of the next panel before a step."""
        tiles = self.loops.tiles
        if self.ahead is not None and j == 0 and tiles.begins(ks):
            self.ahead(ks)
        step = tiles.place(self.piece[0], ks)
        return self._passes("B", self.load_b(self.vector, self.vectors, step, j))

    def _passes(self, operand: str, loaded: Expr | Address) -> Expr | Address:
        if operand == self.passing and isinstance(loaded, Address):
            return replace(loaded, passing=True)
        return loaded

    def store(self, result: Tile, epilogue_cost: int) -> None:
        """Stores accumulators as results; see `store_tile`."""
        put, kernel = self.loops.results.store, self.loops.plan.kernel
        width = self.vectors // self.side

        def store(i: Index, j: int, value: Expr, _last: bool) -> None:
            put(self.row + i, self.vector + j, value, (j + 1) % width == 0)

        store_tile(result, kernel, epilogue_cost, store)


class RegisterTiles:
    """How a tile is multiplied: by the plan's kernel. Subclasses do it in another way.

    A round has several steps of K between two branches of a tile's loop:

        for round:  A0 B0 A0*B0   A1 B1 A1*B1   A2 B2 A2*B2   A3 B3 A3*B3      then a tail of steps

    A core with vectors of 256 bits starts FMAs on the ports that also add integers and branch. A
    step of 6x16 keeps both ports busy for 6 cycles, so that any other instruction there costs time:
    with a branch, three sums and a prefetch in each step a perceptron of 128 rows by weights of 8.8
    MB takes 3.3 ms, in rounds of four 3.05 ms; the FMAs alone take 2.9 ms (Emerald Rapids, two
    threads). With vectors of 512 bits one of the two ports, and so the time between, is free.
    """

    def place(self, first: Index, ks: Sequence[Index]) -> Index:
        """The step of K for a tile's loop variables, in a block of K that begins at `first`."""
        return first + (ks[0] if len(ks) == 1 else ks[0] * ROUND + ks[1])

    def begins(self, ks: Sequence[Index]) -> bool:
        """Whether a step of the plan begins at these loop variables of a tile."""
        return True

    def emit(self, tile: TileContext) -> Tile:
        """The accumulators of a tile."""
        kernel, steps = tile.loops.plan.kernel, tile.piece[1]
        if steps_of_round(tile.loops.plan, steps) == 1:
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
    """Emits the products of the step of K with the loop variables `ks`."""
    reads = (lambda i, _: tile.read_a(i, ks), lambda j, _: tile.read_b(j, ks))
    kernel.accumulate(result, range(tile.rows), (), *reads)
