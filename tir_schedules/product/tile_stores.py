"""How the results of register tiles are stored: `TileLoops.store` and `TileLoops.direct`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm.tirx.script.builder.ir as I

from microkernels.microkernel import Microkernel
from microkernels.tile import Place, Tile
from microkernels.vector.expressions import Expr, ramp
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
