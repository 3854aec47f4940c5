"""How the results of register tiles are stored: `TileLoops.store` and `TileLoops.direct`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import Between, LoadA, LoadB, Place, Start, Tile
from microkernels.vector.expressions import Expr, ramp
from tir_schedules.core.blocking import Group
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector, unflatten
from tir_schedules.epilogue.packed_bytes import wide_bytes

LONG_EPILOGUE = 8  # instructions; a bias and an activation by comparison stay below


def store_tile(
    result: Tile,
    kernel: Microkernel,
    epilogue_cost: int,
    store: Callable[[Expr | int, int, Expr, bool], None],
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

    def store_row(i: Expr | int) -> None:
        for j in range(vectors):
            store(i, j, result.value(i, j), j == vectors - 1)

    if result.place is not None:
        with I.serial(rows) as variable:
            store_row(variable)
        return
    for row in range(rows):
        store_row(row)


def rest(result: Tile, buffer: Expr, row: Expr | int) -> None:
    """Stores the accumulators of a tile as they are, from a row of a buffer on."""
    for i in range(result.rows):
        for j in range(result.vectors):
            columns = ramp(j * result.lanes, result.lanes)
            I.buffer_store(buffer, result.value(i, j), [row + i, columns])


def store_columns(
    n: int, lanes: int, vector: Expr | int, last: bool, store: Callable[[Columns], None]
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
        with I.If(vector == n // lanes):
            with I.Then():
                with_valid(cut)
            with I.Else():
                with_valid(lanes)


def stores_in_place(region: Region, kernel: Microkernel) -> bool:
    """Whether results are accumulators as they are, in whole tiles."""
    plain = not region.epilogue and region.output.dtype == kernel.acc_dtype
    return kernel.by_tiles and plain and region.output.shape[-1] % kernel.lanes == 0


def direct_store(
    region: Region,
    kernel: Microkernel,
    out: Expr,
    leading: Callable[[Expr], Sequence[Expr]],
    pitch: int,
) -> Callable[[Expr, Expr], Place] | None:
    """`TileLoops.direct` for results that are accumulators of whole tiles; None for others.

    `leading` maps a row to the leading indices of `out`; `pitch` counts the elements from one row
    to the next, 0 if that differs.
    """
    if not (pitch and stores_in_place(region, kernel)):
        return None
    return lambda row, vector: Place(out, row, vector * kernel.lanes, leading, pitch)


def row_store(
    region: Region,
    lanes: int,
    out: Expr,
    epilogue: Epilogue,
    leading_of: Callable[[Expr], Sequence[Expr]] | None = None,
) -> Callable[[Expr, Expr | int, Expr, bool], None]:
    """`TileLoops.store` for a result whose rows lie one behind the other.

    `leading_of` maps a row to the leading indices of `out`; without it, those of the output.
    """
    n = region.output.shape[-1]
    bytes_wide = wide_bytes(region, lanes, epilogue)
    row_of_bytes: list[Expr] = []

    def store(row: Expr, vector: Expr | int, value: Expr, last: bool) -> None:
        if leading_of is not None:
            leading = leading_of(row)
        else:
            leading = unflatten(row, region.output.shape[:-1])
        if bytes_wide is None:
            store_columns(
                n,
                lanes,
                vector,
                last,
                lambda columns: store_vector(out, epilogue(value, row, columns), leading, columns),
            )
            return
        # The vectors of a row come one after the other; with the last one they are stored.
        columns = Columns(vector * lanes, lanes, lanes)
        row_of_bytes.append(epilogue(value, row, columns, bytes_wide))
        if last:
            start = (vector - (len(row_of_bytes) - 1)) * lanes
            bytes_wide.store(out, row_of_bytes, leading, start)
            row_of_bytes.clear()

    return store


Number = Expr | int


@dataclass(frozen=True)
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
    rows, vectors, lanes : int
        Of a block.
    scratch : Buffer
        Where accumulators are stored.
    slot : callable
        Number of a block -> its first row in `scratch`; not that of the block before.
    where : callable
        Number of a block -> its first row and vector of columns.
    store : callable
        As `TileLoops.store`.
    """

    rows: int
    vectors: int
    lanes: int
    scratch: Expr
    slot: Callable[[Number], Number]
    where: Callable[[Number], tuple[Expr, Expr]]
    store: Callable[[Expr, Expr, Expr, bool], None]

    def between(self, block: Number, steps: int) -> Between | None:
        """Emits, in each of so many steps, a part of what the block before left."""
        if isinstance(block, int) and block == 0:
            return None
        height = math.ceil(self.rows / steps)

        def part(step: Number, product: int, _products: int) -> None:
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

    def finish(self, block: Number) -> None:
        """Emits the epilogue of the last block."""
        with I.serial(self.rows) as row:
            self._row(block, row)

    def _row(self, block: Number, row: Expr) -> None:
        first, vector = self.where(block)
        tile = Tile(
            self.rows, self.vectors, self.lanes, place=Place(self.scratch, self.slot(block))
        )
        for j in range(self.vectors):
            self.store(first + row, vector + j, tile.value(row, j), j == self.vectors - 1)


# Rounds: several steps of K between two branches of a tile's loop.
#
#     for round:  A0 B0 A0*B0   A1 B1 A1*B1   A2 B2 A2*B2   A3 B3 A3*B3      then what is left of K
#
# A core with vectors of 256 bits starts FMAs on the ports that it counts and branches on, too. A
# step of 6x16 keeps both of them busy for 6 cycles, so that whatever else goes there costs time:
# with a branch, three sums and a prefetch in each step a perceptron of 128 rows by weights of 8.8
# MB takes 3.3 ms, in rounds of four 3.05 ms; the FMAs alone take 2.9 ms (Emerald Rapids, two
# threads). With vectors of 512 bits one of the two ports, and so the time between, is free.


# (row of a tile, loop variables) -> None; fetches before a step of K.
Ahead = Callable[[Expr | int, Sequence[Expr | int]], None]

ROUND = 4


def steps_of_round(plan: ProductPlan, steps: int) -> int:
    """How many steps of K a round has, of so many; 1 where rounds are not worth their code.

    They are where f32 vectors of 256 bits multiply a large weight.
    """
    kernel = plan.kernel
    shared = kernel.isa_name == "avx2" and kernel.b_dtype == "float32"
    return ROUND if shared and plan.fetches_evenly and steps >= 2 * ROUND else 1


def place_in_rounds(ks: Sequence[Expr | int]) -> Expr | int:
    """The step of K of a round and a step's number in it."""
    number, place = ks
    return number * ROUND + place


def emit_rounds(
    kernel: Microkernel,
    rows: int,
    vectors: int,
    steps: int,
    load_a: LoadA,
    load_b: LoadB,
    init: Start | None = None,
) -> Tile:
    """Emits a tile as `Microkernel.emit`, in rounds.

    `load_a` and `load_b` are given two variables: the round, and the step's number in it, which is
    an int.
    """
    tile = kernel.begin(rows, vectors, init)

    def step(number: Expr, place: int) -> None:
        kernel.accumulate(
            tile,
            range(rows),
            (),
            lambda row, _: load_a(row, (number, place)),
            lambda vector, _: load_b(vector, (number, place)),
        )

    with I.serial(steps // ROUND) as number:
        for place in range(ROUND):
            step(number, place)
    for place in range(steps % ROUND):
        step(tirx.const(steps // ROUND, "int32"), place)
    return tile


def fetch_by_rounds(
    plan: ProductPlan,
    vectors: int,
    line_vectors: int,
    most: int,
    first: Expr | int,
    group: Group,
    before: int,
    tiles: int,
    fetch: Callable[[Expr | int], None],
) -> Ahead | None:
    """What fetches a tile's share of the next panel: all tiles together fetch it once.

    Places are elements, not lines, so that they are sums alone: to count lines takes a
    multiplication in each step, on a port of the FMAs.

    Parameters
    ----------
    vectors, line_vectors : int
        Vectors of a panel, and of one of its steps that a line holds.
    most : int
        Lines that a step may fetch.
    first : Expr or int
        Where the block of K begins, in steps.
    group, before, tiles
        Tiles of one size, the tiles before them, and all tiles of the panel.
    fetch
        (element of the next panel) -> None; fetches the line that holds it.

    Returns
    -------
    callable or None
        (row of a tile, (round, step in it)) -> None; None where a tile is too small to fetch.
    """
    width = vectors * plan.kernel.lanes * plan.kernel.kr  # elements of a step of a panel
    of_tile, of_round = math.ceil(plan.steps * width / tiles), math.ceil(ROUND * width / tiles)
    count = min(math.ceil(ROUND * vectors / (line_vectors * tiles)), ROUND * most)
    if not count:
        return None

    def ahead(tile: Expr | int, ks: Sequence[Expr | int]) -> None:
        start = (before + (tile - group.start) // group.size) * of_tile
        start += first * of_round // ROUND + ks[0] * of_round
        for each in range(count):
            if each * ROUND // count == ks[1]:
                fetch(start + each * of_round // count)

    return ahead
