"""One or two rows of a product read several panels of a weight at once, each a stream of memory.

A panel is as wide as a high tile needs. One row by one panel would wait for the latency of each
product, and one stream of memory is slower than several: on Zen 3 a core reads 10 GB/s in one
stream, 16 GB/s in five. Prefetching 8 to 64 lines ahead in each stream does not pay there: it is
mostly slower, by up to a quarter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import HEAP_ELEMENTS, Microkernel
from microkernels.registry import kernels_for
from microkernels.tile import Tile
from microkernels.vector.expressions import Expr, Index, materialise, ramp
from tir_schedules.core import emission
from tir_schedules.core.blocking import Group, balanced
from tir_schedules.core.extents import as_expr
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.epilogue.tile_results import rest

from .tile_products import Beginning, TileContext

if TYPE_CHECKING:
    from .tile_loops import BlockLoops

FEW_ROWS = 2


def streams(kernel: Microkernel, rows: int, width: int, panels: int) -> tuple[int, Microkernel]:
    """How many of `panels` panels are multiplied at once, and by which kernel.

    The accumulators of a row stay smaller than buffers that TVM allocates on the heap. TVM would
    reuse that memory for accumulators of higher tiles, which LLVM then stores in every step instead
    of keeping them in registers (AVX-512, tiles of 6x64 of a dynamic number of rows: 20% to 25%
    slower from 4 rows on).

    Parameters
    ----------
    kernel : Microkernel
        The kernel that the panels are packed for.
    rows, width : int
        Rows, and vectors of a panel.
    panels : int
        Number of panels.
    """
    tiles = kernels_for(kernel.isa, kernel.a_dtype, kernel.b_dtype)
    shape = kernel.lanes, kernel.kr
    fitting = (each for each in tiles if each.mr >= rows and (each.lanes, each.kr) == shape)
    widest = max(fitting, key=lambda each: each.vectors)
    same = replace(widest, multiply_add=kernel.multiply_add)  # byte tiles: not registered
    most = min(widest.vectors, (HEAP_ELEMENTS - 1) // widest.lanes)
    return max(1, min(panels, most // width)), same


def static_streams(
    plan: ProductPlan, rows: int, width: int, panels: int
) -> tuple[int, Microkernel]:
    """`streams` for a static number of rows; one panel on targets where more is not measured."""
    kernel = plan.kernel
    if kernel.isa_name != "avx2" or rows > FEW_ROWS or kernel.b_dtype == "int16":
        return 1, kernel
    return streams(kernel, rows, width, panels)


def emit_streams(block: BlockLoops, group: Group) -> bool:
    """Multiplies static rows by panels side by side; returns False if it emits nothing."""
    loops, width, rows = block.loops, group.size, block.rows
    assert isinstance(rows, int)
    if block.cut or loops.b.prefetch is None or loops.b.staged or block.steps is not None:
        return False
    most, kernel = static_streams(loops.plan, rows, width, group.count)
    if most == 1:
        return False

    def emit(first: Index, panels: int) -> None:
        begin = block.vector + group.start + first * width
        with emission.opaque_block("streams"):
            tile = TileContext.side_by_side(loops, block.row, rows, begin, width, panels)
            tile.store(tile.multiply(kernel), loops.results.cost)

    emission.for_groups(balanced(group.count, most), emit)
    return True


@dataclass(frozen=True)
class FewRows:
    """One or two rows of a product whose number of rows is dynamic.

    Branches choose the code for the number of rows and of panels; all share one epilogue.

    Attributes
    ----------
    fewest : int
        Most rows that are few.
    start : Beginning or None
        Their initial accumulators; those of more rows if None.
    """

    fewest: int = FEW_ROWS
    start: Beginning | None = None

    def most(self, plan: ProductPlan) -> int:
        """The most rows that are multiplied here; 0 if a tile has no more."""
        return self.fewest if plan.rows > self.fewest else 0

    def widest(self, plan: ProductPlan, groups: Sequence[Group]) -> int:
        """Most vectors of all panels that are side by side."""
        rows = range(1, self.most(plan) + 1)
        return max((self.side(plan, r, g)[0] * g.size for r in rows for g in groups), default=0)

    def side(self, plan: ProductPlan, rows: int, group: Group) -> tuple[int, Microkernel]:
        """How many panels of a group are multiplied at once, and by which kernel.

        Threads along rows divide the panels evenly.
        """
        side, kernel = streams(plan.kernel, rows, group.size, group.count)
        if plan.threads_m == 1:
            # One less if that leaves no tail, which would need code of its own.
            left = group.count % side
            return side - (left > 0 and group.count % max(side - 1, 1) == 0), kernel
        pieces = math.ceil(group.count / side)
        pieces += -pieces % plan.threads_m
        return math.ceil(group.count / pieces), kernel

    def emit(self, block: BlockLoops) -> None:
        """Multiplies 1 to `most` rows by all panels, or by the thread's chunk of them."""
        if self.start is not None:
            block = replace(block, loops=replace(block.loops, start=self.start))
        for group in block.groups:
            self._group(block, group)

    def _group(self, block: BlockLoops, group: Group) -> None:
        """Multiplies panels of one width, some of them side by side, and stores their results."""
        loops, plan, scratch = block.loops, block.loops.plan, block.scratch
        rows, lanes = as_expr(block.rows), plan.kernel.lanes
        sides = [self.side(plan, known, group) for known in range(1, self.most(plan) + 1)]
        side = _of(rows, [count for count, _ in sides])
        pieces = _of(rows, [math.ceil(group.count / count) for count, _ in sides])
        before, own = emission.share_of(pieces, *block.share) if block.share else (0, pieces)
        with I.serial(own) as at, emission.opaque_block("few"):
            piece = before + at
            first = materialise(block.vector + group.start + piece * (side * group.size))
            panels = materialise(tirx.Min(side, group.count - piece * side))

            def chosen(known: int) -> None:
                side, kernel = sides[known - 1]
                left = group.count % side
                counts = [side] if not left else [left, side] if group.count > side else [left]

                def tile(count: int) -> None:
                    place = block.row, known, first, group.size, count
                    tile = TileContext.side_by_side(loops, *place)
                    rest(self.multiply(tile, kernel), scratch, 0)

                emission.choose(panels, counts, tile)

            emission.choose(rows, range(1, len(sides) + 1), chosen)
            with I.serial(rows) as i, I.serial(panels) as panel:
                for j in range(group.size):
                    column = panel * group.size + j
                    value = scratch[i, ramp(column * lanes, lanes)]
                    loops.results.store(block.row + i, first + column, value, j == group.size - 1)

    def multiply(self, tile: TileContext, kernel: Microkernel) -> Tile:
        """The accumulators of panels side by side."""
        return tile.multiply(kernel)


SIDE_BY_SIDE = FewRows()


def _of(rows: Expr, numbers: Sequence[int]) -> Expr:
    """Selects the number for `rows` rows from `numbers`, which begin with that for one row."""
    found = as_expr(numbers[0])
    for known, number in enumerate(numbers[1:], 2):
        found = tirx.Select(rows < known, found, as_expr(number))
    return materialise(found)
