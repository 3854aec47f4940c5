"""How the results of register tiles are stored: `TileLoops.store` and `TileLoops.direct`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I

from microkernels.microkernel import Microkernel
from microkernels.tile import Between, Place, Tile
from microkernels.vector.expressions import Expr, Index, ramp
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, Epilogue, store_vector, unflatten
from tir_schedules.epilogue.packed_bytes import wide_bytes

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
        return
    for row in range(rows):
        store_row(row)


def rest(result: Tile, buffer: Expr, row: Index) -> None:
    """Stores the accumulators of a tile as they are, from a row of a buffer on."""
    for i in range(result.rows):
        for j in range(result.vectors):
            columns = ramp(j * result.lanes, result.lanes)
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
) -> Callable[[Expr, Index, Expr, bool], None]:
    """`TileLoops.store` for a result whose rows lie one behind the other.

    `leading_of` maps a row to the leading indices of `out`; without it, those of the output.
    """
    n = region.output.shape[-1]
    bytes_wide = wide_bytes(region, lanes, epilogue)
    row_of_bytes: list[Expr] = []

    def store(row: Expr, vector: Index, value: Expr, last: bool) -> None:
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
    slot: Callable[[Index], Index]
    where: Callable[[Index], tuple[Expr, Expr]]
    store: Callable[[Expr, Expr, Expr, bool], None]

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
        first, vector = self.where(block)
        tile = Tile(
            self.rows, self.vectors, self.lanes, place=Place(self.scratch, self.slot(block))
        )
        for j in range(self.vectors):
            self.store(first + row, vector + j, tile.value(row, j), j == self.vectors - 1)
