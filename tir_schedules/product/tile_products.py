"""One register tile: what it reads, the ways to multiply it, and how its results are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.kernels.byte_pairs import word_tile
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.tile import Address, Between, Place, Start, Tile
from microkernels.vector import bfloat16
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import blocking, emission, extents, size
from tir_schedules.core.product_plan import Piece, ProductPlan
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector, unflatten
from tir_schedules.epilogue.packed_bytes import wide_bytes

from .prefetch import ROUND, Ahead

if TYPE_CHECKING:
    from .tile_loops import TileLoops

LoadPanel = Callable[[Index, int, Index, int], Expr | Address]
"""(first vector of the panel, its width in vectors, step of K, vector within the panel) -> one
vector of packed B, as the kernel's `emit` takes it."""
Leading = Callable[[Expr], Sequence[Expr]]
"""Row -> the leading indices of that row in a buffer."""


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
        found = self.loops.start_columns
        if found is None or self.resumes or not self.loops.plan.kernel.by_tiles:
            return None
        return lambda j: found(self.vector + j)

    def multiply(self, kernel: Microkernel) -> Tile:
        """The accumulators of the tile, by a kernel."""
        given = self.rows, self.vectors, (self.piece[1],), self.read_a, self.read_b
        resumes = self.resumes and kernel.by_tiles
        further = self.peel, self.between, self.columns
        return kernel.emit(*given, self.init, self.into, resumes, *further)

    def read_a(self, i: int, ks: Sequence[Index]) -> Expr | Address:
        """A, as the kernel's `emit` takes it."""
        step = self.loops.tiles.place(self.piece[0], ks)
        return self._passes("A", self.loops.load_a(self.row + i, step))

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
    kernel.accumulate(
        result,
        range(tile.rows),
        (),
        lambda i, _: tile.read_a(i, ks),
        lambda j, _: tile.read_b(j, ks),
    )


# Rows of a known number, for which widening the panels pays: of bfloat16, of 8-bit integers.
FEWEST_ROWS, FEWEST_INTEGER_ROWS = 16, 8


# Operands that were widened in cache before they are multiplied.
#
#     8-bit integers   vpmaddwd multiplies words, where bytes may saturate (see `byte_pairs`)
#     bfloat16         without instructions for it, or with slow ones, a product is one of f32
#
# To widen both operands next to every product takes as many instructions as the products. A panel
# of the weight is widened once for a block of rows, and a row once for all panels. Few rows widen
# the weight next to the products, which then is half as many bytes. Products and sums are the same,
# in the same order.


@dataclass(frozen=True)
class WideProduct(RegisterTiles):
    """How widened operands are multiplied.

    Attributes
    ----------
    kernel : Microkernel
        The register tile.
    dtype : str
        Element type of the operands in cache.
    parts : int
        Steps of the tile in one step of the plan.
    """

    kernel: Microkernel
    dtype: str
    parts: int = 1

    def emit(self, tile: TileContext) -> Tile:
        """As of `RegisterTiles`; the loop variables are a step of the plan and a part of it."""
        result = self.kernel.begin(tile.rows, tile.vectors, tile.init)
        with I.serial(tile.piece[1]) as step:
            for part in range(self.parts):
                add_step(self.kernel, result, tile, (step, part))
        return result

    @property
    def fewest_rows(self) -> int:
        """Rows from which on it pays."""
        return FEWEST_INTEGER_ROWS if self.dtype == "int16" else FEWEST_ROWS

    def place(self, first: Index, ks: Sequence[Index]) -> Index:
        """The tile's step of K for loop variables of `emit`, in a block from `first` on."""
        return (first + ks[0]) * self.parts + ks[1]

    def begins(self, ks: Sequence[Index]) -> bool:
        """Whether a step of the plan begins."""
        return ks[1] == 0

    def widen(self, value: Expr) -> Expr:
        """Elements as they are multiplied next to few rows, in the wider type."""
        return bfloat16.widen(value) if self.dtype == "float32" else ex.cast(self.dtype, value)

    def spread(self, buffer: Expr, index: Sequence[Index]) -> Expr:
        """A from an element in cache on, as a step of the tile takes it."""
        kernel = self.kernel
        *row, column = index
        lanes, kr = kernel.lanes, kernel.kr
        if kr == 1:
            return kernel.spread(buffer[(*row, ex.ramp(column, 1))])
        pair = I.reinterpret(f"int{16 * kr}", buffer[(*row, ex.ramp(column, kr))])
        return I.reinterpret(ex.vector_type(self.dtype, kr * lanes), ex.splat(pair, lanes))


def wide_product(kernel: Microkernel, m: int, rows: int, vectors: int) -> WideProduct | None:
    """How tiles of so many rows and vectors multiply widened operands; None if they do not.

    Parameters
    ----------
    kernel : Microkernel
        That the weight is packed for.
    m : int
        Rows of the whole product.
    """
    integers = kernel.b_dtype == "int8"
    if kernel.isa_name not in ("avx2", "avx512") or kernel.b_dtype not in ("int8", "bfloat16"):
        return None
    if not size.is_open((m,)) and m < (FEWEST_INTEGER_ROWS if integers else FEWEST_ROWS):
        return None
    if integers:
        return WideProduct(word_tile(kernel), "int16", 2)
    tiles = kernels_for(kernel.isa, "float32", "float32")
    fitting = (each for each in tiles if rows <= each.mr and vectors <= each.vectors)
    tile = min(fitting, key=lambda each: each.mr * each.vectors, default=None)
    return None if tile is None else WideProduct(tile, "float32", kernel.kr)


def wide_product_of(plan: ProductPlan) -> WideProduct | None:
    """How a plan's tiles multiply widened operands; None if they do not."""
    return wide_product(plan.kernel, plan.m, plan.rows, plan.vectors)


def staged_panel(buffer: Expr, first: Index, width: int, lanes: int) -> LoadPanel:
    """How a block of a panel is read in a buffer of its own, from the step `first` on."""

    def load_b(_panel: Index, _width: int, step: Index, j: int) -> Expr | Address:
        return buffer[ex.ramp(((step - first) * width + j) * lanes, lanes)]

    return load_b


class WidePanels:
    """Widens blocks of a packed weight.

    Parameters
    ----------
    panels : Panels
        The layout of a packed matrix.
    weight : Buffer
        The packed weight, flat.
    wide : WideProduct
        How it is multiplied.
    steps, vectors : int
        Of the largest block of a panel; room for it is allocated in the block of the PrimFunc under
        construction.
    """

    def __init__(
        self, panels: blocking.Panels, weight: Expr, wide: WideProduct, steps: int, vectors: int
    ) -> None:
        self.panels, self.weight, self.wide = panels, weight, wide
        self.group = panels.kernel.lanes * panels.kernel.kr
        self.part = self.group // wide.parts
        self.buffer = I.sblock_alloc_buffer((steps * vectors * self.group,), wide.dtype, align=64)

    def stage(self, panel: Index, width: int, piece: Piece, before: Index = 0) -> LoadPanel:
        """Widens a block of a panel; `stage_b` of `TileLoops`.

        `before` counts the elements before the matrix.
        """
        first, count = piece
        parts = self.wide.parts
        with emission.opaque_block("widen"), I.serial(extents.as_expr(count)) as step:
            for j in range(width):
                start = before + self.panels.start(panel, width, first + step, j)
                value = self.weight[ex.ramp(start, self.group)]
                for part, wide in enumerate(self._widened(value)):
                    place = ((step * parts + part) * width + j) * self.part
                    I.buffer_store(self.buffer, wide, [ex.ramp(place, self.part)])

        return staged_panel(self.buffer, first * parts, width, self.part)

    def _widened(self, value: Expr) -> list[Expr]:
        """A vector of the weight as the tile multiplies it, part by part."""
        if self.wide.dtype == "int16":  # of four bytes of a column, two in each part
            fours = ex.bind(ex.reinterpret_group("int32", value, self.group // 4))
            halves = [ex.cast("int16", half) for half in (fours, fours >> ex.like(16, fours))]
            return [
                ex.cast("int16", ex.reinterpret_group("int8", half, self.part)) for half in halves
            ]
        # Two bfloat16 in a word; each is the upper half of a f32.
        pairs = I.reinterpret(ex.vector_type("int32", self.part), bfloat16.bits_of(value))
        words = ex.bind(pairs)
        low, high = words << ex.like(16, words), words & ex.like(-0x10000, words)
        return [ex.reinterpret("float32", low), ex.reinterpret("float32", high)]


# How the results of register tiles are stored: `TileLoops.store` and `TileLoops.direct`.


LONG_EPILOGUE = 8  # instructions; a bias and an activation by comparison stay below


def store_tile(
    result: Tile,
    kernel: Microkernel,
    epilogue_cost: int,
    store: Callable[[Index, int, Expr, bool], None],
) -> None:
    """Stores every vector of a tile: `store(row, vector, accumulators, whether it ends its row)`.

    A long epilogue is not repeated for every row of the tile, which would cost LLVM seconds: the
    tile passes through L1 and a loop runs over its rows.
    """
    rows, vectors = result.rows, result.vectors
    if epilogue_cost > LONG_EPILOGUE and rows > 1 and result.place is None:
        passing = I.sblock_alloc_buffer((rows, vectors * result.lanes), kernel.acc_dtype)
        rest(result, passing, 0)
        result = Tile(rows, vectors, result.lanes, place=Place(passing))

    def store_row(i: Index) -> None:
        for j in range(vectors):
            store(i, j, result.value(i, j), j == vectors - 1)

    if result.place is not None:
        with I.serial(rows) as variable:
            store_row(variable)
    else:
        for row in range(rows):
            store_row(row)


def rest(result: Tile, buffer: Expr, row: Index) -> None:
    """Stores the accumulators of a tile as they are, from a row of a buffer on."""
    for i in range(result.rows):
        for j in range(result.vectors):
            columns = ex.ramp(j * result.lanes, result.lanes)
            I.buffer_store(buffer, result.value(i, j), [row + i, columns])


def store_columns(
    n: int, lanes: int, vector: Index, last: bool, store: Callable[[Columns], None]
) -> None:
    """Runs `store(columns)` for one vector of columns; only the last one of all may be cut."""
    cut = n % lanes

    def with_valid(valid: int) -> None:
        store(Columns(vector * lanes, lanes, valid))

    if not (cut and last):
        with_valid(lanes)
    elif n < lanes:
        with_valid(cut)
    else:
        emission.branch(vector == n // lanes, lambda: with_valid(cut), lambda: with_valid(lanes))


def stores_in_place(region: Region, kernel: Microkernel) -> bool:
    """Whether results are accumulators as they are, in whole tiles."""
    plain = not region.epilogue and region.output.dtype == kernel.acc_dtype
    return kernel.by_tiles and plain and region.output.shape[-1] % kernel.lanes == 0


def direct_store(
    region: Region, kernel: Microkernel, out: Expr, leading: Leading, pitch: int
) -> Callable[[Expr, Expr], Place] | None:
    """`TileLoops.direct` for results that are accumulators of whole tiles; None for others.

    `leading` maps a row to the leading indices of `out`; `pitch` counts the elements from one row
    to the next, 0 if that differs.
    """
    if not (pitch and stores_in_place(region, kernel)):
        return None
    return lambda row, vector: Place(out, row, vector * kernel.lanes, leading, pitch)


def row_store(
    region: Region, lanes: int, out: Expr, epilogue: Epilogue, leading_of: Leading | None = None
) -> Callable[[Expr, Index, Expr, bool], None]:
    """`TileLoops.store` for a result whose rows lie one behind the other.

    `leading_of` maps a row to the leading indices of `out`; without it, those of the output.
    """
    *outer, n = region.output.shape
    bytes_wide = wide_bytes(region, lanes, epilogue)
    row_of_bytes: list[Expr] = []

    def store(row: Expr, vector: Index, value: Expr, last: bool) -> None:
        leading = unflatten(row, outer) if leading_of is None else leading_of(row)
        if bytes_wide is None:

            def put(columns: Columns) -> None:
                store_vector(out, epilogue(value, row, columns), leading, columns)

            store_columns(n, lanes, vector, last, put)
            return
        # The vectors of a row come one after the other; with the last one they are stored.
        columns = Columns(vector * lanes, lanes, lanes)
        row_of_bytes.append(epilogue(value, row, columns, bytes_wide))
        if last:
            start = (vector - (len(row_of_bytes) - 1)) * lanes
            bytes_wide.store(out, row_of_bytes, leading, start)
            row_of_bytes.clear()

    return store
