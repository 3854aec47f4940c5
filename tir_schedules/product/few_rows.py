"""One or two rows of a product whose number is known at run time: panels side by side.

As many as `streams` says. There is code for each number of rows and of panels, chosen by branches,
and one epilogue for all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, materialise, ramp
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.open_loops import choose, share_of

from .streams import FEW_ROWS, streams
from .tile_loops import TileLoops
from .tile_stores import rest

PanelShare = tuple[Expr, Expr]  # which share of the panels, of how many


@dataclass(frozen=True)
class FewRows:
    """The loops over one or two rows.

    Attributes
    ----------
    loops : TileLoops
        What they do with a tile.
    groups : sequence of Group
        The panels.
    fewest : int
        How many rows are few.
    """

    loops: TileLoops
    groups: Sequence[Group]
    fewest: int = FEW_ROWS

    @property
    def most(self) -> int:
        """Up to so many rows; none if a tile has no more."""
        return self.fewest if self.loops.plan.rows > self.fewest else 0

    @property
    def widest(self) -> int:
        """Vectors of all panels that are side by side, at most."""
        rows = range(1, self.most + 1)
        return max((self._side(r, g)[0] * g.size for r in rows for g in self.groups), default=0)

    def _side(self, rows: int, group: Group) -> tuple[int, Microkernel]:
        """How many panels of a group are multiplied at once, and by which kernel.

        Threads along rows share the panels: each gets as many.
        """
        plan = self.loops.plan
        side, kernel = streams(plan.kernel, rows, group.size, group.count)
        if plan.threads_m == 1:
            return side, kernel
        pieces = math.ceil(group.count / side)
        pieces += -pieces % plan.threads_m
        return math.ceil(group.count / pieces), kernel

    def emit(
        self, row: Expr, rows: Expr, vector: Expr, scratch: Expr, share: PanelShare | None = None
    ) -> None:
        """All panels, or a share, for a number of rows that is one of those from 1 to `most`."""
        for group in self.groups:
            sides = [self._side(known, group) for known in range(1, self.most + 1)]
            side = _of(rows, [count for count, _ in sides])
            pieces = _of(rows, [math.ceil(group.count / count) for count, _ in sides])
            before, own = (0, pieces) if share is None else share_of(pieces, *share)
            with I.serial(own) as at, opaque_block("few"):
                piece = before + at
                first = materialise(vector + group.start + piece * (side * group.size))
                panels = materialise(tirx.Min(side, group.count - piece * side))
                tile = functools.partial(self._tile, row, first, scratch, group.size)
                _each_row(rows, panels, group.count, sides, tile)
                with I.serial(rows) as i, I.serial(panels) as panel:
                    for j in range(group.size):
                        self._store(row, i, first, panel * group.size + j, scratch, j, group.size)

    def _store(
        self, row: Expr, i: Expr, first: Expr, column: Expr, scratch: Expr, j: int, width: int
    ) -> None:
        """The epilogue of a vector, the number `j` of its panel."""
        lanes = self.loops.plan.kernel.lanes
        value = scratch[i, ramp(column * lanes, lanes)]
        self.loops.store(row + i, first + column, value, j == width - 1)

    def _tile(
        self,
        row: Expr,
        vector: Expr,
        scratch: Expr,
        width: int,
        rows: int,
        panels: int,
        kernel: Microkernel,
    ) -> None:
        """Accumulators of rows of panels that have `width` vectors each, from `vector` on."""
        loops, begins = self.loops, self.loops.start

        def start(i: Expr | int, j: int) -> Expr:
            assert begins is not None
            return begins(row + i, vector + j)

        tile = kernel.begin(rows, panels * width, None if begins is None else start)
        kernel.accumulate(
            tile,
            range(rows),
            (loops.plan.steps,),
            lambda i, ks: loops.load_a(row + i, ks[0]),
            lambda j, ks: loops.load_b(vector + j // width * width, width, ks[0], j % width),
        )
        rest(tile, scratch, 0)


def _of(rows: Expr, numbers: Sequence[int]) -> Expr:
    """The number of so many rows, of those for 1, 2 and so on."""
    found = tirx.const(numbers[0], "int32")
    for known, number in enumerate(numbers[1:], 2):
        found = tirx.Select(rows < known, found, tirx.const(number, "int32"))
    return materialise(found)


def _each_row(
    rows: Expr,
    panels: Expr,
    count: int,
    sides: Sequence[tuple[int, Microkernel]],
    tile: Callable[[int, int, Microkernel], None],
) -> None:
    """Runs `tile(rows, panels, kernel)` for the numbers that two expressions are.

    `sides` are the panels side by side for one row, two rows and so on, of `count`.
    """

    def chosen(known: int) -> None:
        side, kernel = sides[known - 1]
        left = count % side
        widths = [side] if not left else [left, side] if count > side else [left]
        choose(panels, widths, lambda width: tile(known, width, kernel))

    choose(rows, range(1, len(sides) + 1), chosen)
