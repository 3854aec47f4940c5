"""Fetching the next panel of a weight between the products of AMX tiles.

    panel of two tiles, two blocks of rows, 64 bytes of K: 16 lines for each block

    4 lines, A0 B0 A0*B0   4 lines, B1 A0*B1   4 lines, A1 A1*B0   4 lines, A1*B1

A core has 16 buffers for lines that are on their way to L1; a tile load from L2 takes all of them
while it lasts. So lines are asked for a few at a time. Every block of rows asks for a part of its
own, and none for what lies behind the next panel: there it asks once more for lines that are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tvm import tirx

from microkernels.tile import Between
from microkernels.vector.expressions import Expr, bind
from tir_schedules.core.product_plan import Piece

Number = Expr | int


@dataclass(frozen=True)
class TileFetch:
    """The next panel, which the tiles of a panel fetch together.

    Attributes
    ----------
    fetch : callable
        (line of the next panel) -> None; fetches it.
    steps : int
        Tiles of K of a panel.
    share : int
        Lines for each of them and each block of rows.
    lines : Expr or int
        Of the next panel; 0 if there is none.
    """

    fetch: Callable[[Expr | int], None]
    steps: int
    share: int
    lines: Number

    @staticmethod
    def shared(lines_of_step: int, blocks: int) -> int:
        """Lines for each of so many blocks of rows, of those of a tile of K."""
        return math.ceil(lines_of_step / blocks)

    def between(self, block: Number, piece: Piece, depth: int) -> Between:
        """What a block of rows fetches between its products, by its number.

        `piece` are steps of K, of which a tile has `depth`.
        """
        before = block * self.steps + piece[0] // depth
        first: list[Expr] = []

        def part(step: Number, product: int, products: int) -> None:
            if product == 0:
                first[:] = [bind(tirx.Min((before + step) * self.share, self.lines - self.share))]
            ends = [number * self.share // products for number in (product, product + 1)]
            for line in range(*ends):
                self.fetch(first[0] + line)

        return part


def all_of(parts: Iterable[Between | None]) -> Between | None:
    """What does several things between products; None if there are none."""
    found = [part for part in parts if part is not None]
    if not found:
        return None

    def together(step: Number, product: int, products: int) -> None:
        for part in found:
            part(step, product, products)

    return together
