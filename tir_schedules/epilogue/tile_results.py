"""How results of register tiles are stored: at once, through L1, or by the tiles themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I

from microkernels.microkernel import Microkernel
from microkernels.tile import Place, Tile
from microkernels.vector.expressions import Expr, Index, materialise, ramp
from tir_schedules.core.emission import branch
from tir_schedules.core.region import Region

from .epilogue import Columns, Epilogue, store_vector, unflatten
from .packed_bytes import wide_bytes

LONG_EPILOGUE = 8  # instructions; a bias and an activation by comparison stay below
Leading = Callable[[Expr], Sequence[Expr]]
"""Row -> the leading indices of that row in a buffer."""


class Results:
    """The destination of a product's results.

    Attributes
    ----------
    cost : int
        Instructions of the epilogue for one vector.
    in_place : bool
        Whether tiles store their accumulators unchanged at `place`; `store` is not used then.
    """

    cost = 0
    in_place = False

    def store(self, row: Expr, vector: Index, value: Expr, last: bool) -> None:
        """Emits the epilogue of a vector of accumulators; `last` says whether it ends its panel."""
        raise NotImplementedError

    def place(self, row: Expr, vector: Expr) -> Place:
        """Where the tile that begins with a row and a vector is stored."""
        raise NotImplementedError


@dataclass
class RowResults(Results):
    """Results whose rows are contiguous.

    Attributes
    ----------
    region : Region
        Gives output and epilogue.
    kernel : Microkernel
        The kernel that multiplies.
    out : Buffer
        The result.
    epilogue : Epilogue
        The epilogue with its operands.
    leading : callable or None
        Row -> its leading indices in `out`; None: those of the output.
    pitch : int
        Elements from one row to the next if tiles may store accumulators; 0 if they may not.
    before : Expr or None
        Number of rows of the output before these.
    packs : bool
        Whether rows of bytes may be stored packed.
    """

    region: Region
    kernel: Microkernel
    out: Expr
    epilogue: Epilogue
    leading: Leading | None = None
    pitch: int = 0
    before: Expr | None = None
    packs: bool = True

    def __post_init__(self) -> None:
        self.cost = self.epilogue.cost
        self.in_place = self.pitch > 0 and stores_in_place(self.region, self.kernel)
        packed = self.region, self.kernel.lanes, self.epilogue
        self._bytes = wide_bytes(*packed) if self.packs else None
        self._row_of_bytes: list[Expr] = []

    def store(self, row: Expr, vector: Index, value: Expr, last: bool) -> None:
        """See `Results`."""
        lanes, (*outer, n) = self.kernel.lanes, self.region.output.shape
        leading = unflatten(row, outer) if self.leading is None else self.leading(row)
        if self._bytes is None:
            number = row if self.before is None else self.before + row

            def put(columns: Columns) -> None:
                store_vector(self.out, self.epilogue(value, number, columns), leading, columns)

            store_columns(n, lanes, vector, last, put)
            return
        # The vectors of a row come one after the other, and are stored with the last one.
        columns, row_of_bytes = Columns(vector * lanes, lanes, lanes), self._row_of_bytes
        row_of_bytes.append(self.epilogue(value, row, columns, self._bytes))
        if last:
            start = (vector - (len(row_of_bytes) - 1)) * lanes
            self._bytes.store(self.out, row_of_bytes, leading, start)
            row_of_bytes.clear()

    def place(self, row: Expr, vector: Expr) -> Place:
        """See `Results`."""
        assert self.leading is not None
        return Place(self.out, row, vector * self.kernel.lanes, self.leading, self.pitch)


def stores_in_place(region: Region, kernel: Microkernel) -> bool:
    """Whether results are unchanged accumulators, in whole tiles."""
    plain = not region.epilogue and region.output.dtype == kernel.acc_dtype
    return kernel.by_tiles and plain and region.output.shape[-1] % kernel.lanes == 0


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
    """Stores the accumulators of a tile unchanged, from a row of a buffer on."""
    for i in range(result.rows):
        for j in range(result.vectors):
            columns = ramp(j * result.lanes, result.lanes)
            I.buffer_store(buffer, result.value(i, j), [row + i, columns])


def store_columns(
    n: Index, lanes: int, vector: Index, last: bool, store: Callable[[Columns], None]
) -> None:
    """Runs `store(columns)` for one vector of columns; only the last vector may be partial."""

    def with_valid(valid: Index) -> None:
        store(Columns(vector * lanes, lanes, valid))

    if not isinstance(n, int):
        if not last or lanes == 1:
            with_valid(lanes)
            return
        left = materialise(n - vector * lanes)
        branch(left < lanes, lambda: with_valid(left), lambda: with_valid(lanes))
        return
    cut = n % lanes
    if not (cut and last):
        with_valid(lanes)
    elif n < lanes:
        with_valid(cut)
    else:
        branch(vector == n // lanes, lambda: with_valid(cut), lambda: with_valid(lanes))
