"""Stores the results of a block of tiles while the next block is multiplied.

    multiply block 0
    multiply block 1, and between its products the epilogue of block 0
    multiply block 2, and between its products the epilogue of block 1
    the epilogue of block 2

A core multiplies tiles and works on vectors at the same time only if both are near each other in
the program: an epilogue of 64 vectors fills the reorder buffer. oneDNN interleaves them, too
(brgemm, `interleave_tilestores`). Measured on Granite Rapids: 128 rows, K = 768, 8-bit: 15%.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I

from microkernels.tile import Between, Place, Tile
from microkernels.vector.expressions import Expr

Number = Expr | int


@dataclass(frozen=True)
class LateStores:
    """Blocks of equal size, one after the other.

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
