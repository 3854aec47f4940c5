"""One or two rows of a product: several panels of the weight side by side.

A panel is as wide as suits a high tile. One row of it would wait for the latency of each product;
several panels at once keep the ports busy, and read the weight in as many streams.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I

from microkernels.microkernel import Microkernel, kernels_for
from microkernels.vector.expressions import Expr, ramp
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.group_loops import for_groups

from .tile_loops import TileLoops
from .tile_stores import rest

FEW_ROWS = 2


@dataclass(frozen=True)
class FewRows:
    """The loops over one or two rows.

    Attributes
    ----------
    loops : TileLoops
        What they do with a tile.
    groups : sequence of Group
        The panels.
    """

    loops: TileLoops
    groups: Sequence[Group]

    @property
    def most(self) -> int:
        """Up to so many rows; none if a tile has no more."""
        return FEW_ROWS if self.loops.plan.rows > FEW_ROWS else 0

    @property
    def widest(self) -> int:
        """Vectors of all panels that are side by side, at most."""
        rows = range(1, self.most + 1)
        return max((self._side(r, g)[0] * g.size for r in rows for g in self.groups), default=0)

    def _side(self, rows: int, group: Group) -> tuple[int, Microkernel]:
        """How many panels of a group are multiplied at once, and by which kernel."""
        kernel = self.loops.plan.kernel
        widest = max(
            (
                each
                for each in kernels_for(kernel.isa, kernel.a_dtype, kernel.b_dtype)
                if each.mr >= rows and (each.lanes, each.kr) == (kernel.lanes, kernel.kr)
            ),
            key=lambda each: each.vectors,
        )
        return max(1, min(group.count, widest.vectors // group.size)), widest

    def emit(self, row: Expr, rows: int, vector: Expr, scratch: Expr) -> None:
        """All panels, for one or two rows."""
        for group in self.groups:
            side, kernel = self._side(rows, group)
            whole = group.count // side
            left = group.count - whole * side
            pieces = [Group(group.start, whole, side * group.size)]
            if left:
                first = group.start + whole * side * group.size
                pieces.append(Group(first, 1, left * group.size))
            tile = functools.partial(self._tile, row, rows, vector, kernel, scratch, group.size)
            for_groups(pieces, tile)

    def _tile(
        self,
        row: Expr,
        rows: int,
        vector: Expr,
        kernel: Microkernel,
        scratch: Expr,
        width: int,
        first: Expr | int,
        vectors: int,
    ) -> None:
        """Some vectors from `first` on, of panels that have `width` each."""
        loops, begins = self.loops, self.loops.start
        vector = vector + first
        with opaque_block("few"):

            def start(i: Expr | int, j: int) -> Expr:
                assert begins is not None
                return begins(row + i, vector + j)

            tile = kernel.begin(rows, vectors, None if begins is None else start)
            steps = loops.plan.steps
            kernel.accumulate(
                tile,
                range(rows),
                (steps,),
                lambda i, ks: loops.load_a(row + i, ks[0]),
                lambda j, ks: loops.load_b(vector + j // width * width, width, ks[0], j % width),
            )
            rest(tile, scratch, 0)
            with I.serial(rows) as i, I.serial(vectors // width) as panel:
                for j in range(width):
                    column = panel * width + j
                    value = scratch[i, ramp(column * kernel.lanes, kernel.lanes)]
                    loops.store(row + i, vector + column, value, j == width - 1)
