"""How many panels of a weight one or two rows read at once, each as a stream of memory.

A panel is as wide as suits a high tile. One row of it would wait for the latency of each product,
and memory gives less to one stream than to several: on Zen 3 a core reads 10 GB/s in one, 16 GB/s
in five. Prefetching 8 to 64 lines ahead in each stream does not pay there: it is mostly slower, by
up to a quarter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.tile import Between
from microkernels.vector.expressions import Expr, bind
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.emission import for_groups, opaque_block
from tir_schedules.core.product_plan import Piece, ProductPlan

from .tile_stores import store_tile

if TYPE_CHECKING:
    from .tile_loops import TileLoops

FEW_ROWS = 2


def streams(kernel: Microkernel, rows: int, width: int, panels: int) -> tuple[int, Microkernel]:
    """How many of some panels are multiplied at once, and by which kernel.

    Parameters
    ----------
    kernel : Microkernel
        That the panels are packed for.
    rows, width : int
        Rows, and vectors of a panel.
    panels : int
        How many there are.
    """
    widest = max(
        (
            each
            for each in kernels_for(kernel.isa, kernel.a_dtype, kernel.b_dtype)
            if each.mr >= rows and (each.lanes, each.kr) == (kernel.lanes, kernel.kr)
        ),
        key=lambda each: each.vectors,
    )
    same = replace(widest, multiply_add=kernel.multiply_add)  # of a byte tile: not registered
    return max(1, min(panels, widest.vectors // width)), same


def known_streams(plan: ProductPlan, rows: int, width: int, panels: int) -> tuple[int, Microkernel]:
    """As `streams`, for rows whose number is known; a single one where that is not measured."""
    kernel = plan.kernel
    if kernel.isa_name != "avx2" or rows > FEW_ROWS or kernel.b_dtype == "int16":
        return 1, kernel
    return streams(kernel, rows, width, panels)


def emit_streams(
    loops: TileLoops, row: Expr, rows: int, vector: Expr, group: Group, piece: Piece
) -> bool:
    """The loops over panels of equal width, several at once; False if they are read one by one.

    Parameters
    ----------
    loops : TileLoops
        What they do with a tile.
    row, rows : Expr, int
        Number of the first row, and how many there are.
    vector : Expr
        First vector of columns of all panels.
    group : Group
        Those of equal width.
    piece : tuple
        First step of K and number of steps.
    """
    width, (start_k, steps) = group.size, piece
    most, kernel = known_streams(loops.plan, rows, width, group.count)
    if most == 1 or loops.fetch is None or loops.stage_b is not None:
        return False

    def emit(first: Expr | int, panels: int) -> None:
        begin, start = vector + group.start + first * width, loops.start
        with opaque_block("streams"):
            tile = kernel.emit(
                rows,
                panels * width,
                (steps,),
                lambda i, ks: loops.load_a(row + i, start_k + ks[0]),
                lambda j, ks: loops.load_b(
                    begin + j // width * width, width, start_k + ks[0], j % width
                ),
                None if start is None else lambda i, j: start(row + i, begin + j),
            )
            store_tile(
                tile,
                kernel,
                loops.epilogue_cost,
                lambda i, j, value, _: loops.store(row + i, begin + j, value, (j + 1) % width == 0),
            )

    for_groups(balanced(group.count, most), emit)
    return True


# Fetching the next panel of a weight between the products of AMX tiles.
#
#     panel of two tiles, two blocks of rows, 64 bytes of K: 16 lines for each block
#
#     4 lines, A0 B0 A0*B0   4 lines, B1 A0*B1   4 lines, A1 A1*B0   4 lines, A1*B1
#
# A core has 16 buffers for lines that are on their way to L1; a tile load from L2 takes all of them
# while it lasts. So lines are asked for a few at a time. Every block of rows asks for a part of its
# own, and none for what lies behind the next panel: there it asks once more for lines that are
# there.


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
