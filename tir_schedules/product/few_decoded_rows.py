"""A few rows of a product with a narrow weight: several panels side by side, decoded on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import tvm.tirx.script.builder.ir as I

from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr
from tir_schedules.core.blocking import Group

from .byte_digits import MOST_DIGIT_ROWS, ByteDigits
from .few_rows import FewRows, PanelShare
from .tile_loops import TileLoops
from .tile_stores import rest
from .weight_only_tiles import WeightOnlyTiles

MOST_ROWS = 4  # more have the weight expanded in cache first


@dataclass(frozen=True)
class FewDecodedRows(FewRows):
    """The loops over a few rows.

    Attributes
    ----------
    tiles : WeightOnlyTiles or None
        What decodes and multiplies.
    """

    tiles: WeightOnlyTiles | None = None

    @staticmethod
    def of(
        loops: TileLoops,
        groups: Sequence[Group],
        tiles: WeightOnlyTiles,
        digits: Callable[[], ByteDigits] | None,
    ) -> FewDecodedRows:
        """The loops over at most `MOST_ROWS`; `digits` makes room for those of the task at hand."""
        if digits is not None:
            tiles = replace(tiles, digits=digits())
        return FewDecodedRows(loops, groups, MOST_ROWS, tiles)

    def emit(
        self, row: Expr, rows: Expr, vector: Expr, scratch: Expr, share: PanelShare | None = None
    ) -> None:
        """As of FewRows; the digits of the rows are made first."""
        assert self.tiles is not None
        digits = self.tiles.digits
        if digits is not None:
            with I.If(rows <= MOST_DIGIT_ROWS), I.Then():
                digits.begin(row, rows)
        super().emit(row, rows, vector, scratch, share)

    def _side(self, rows: int, group: Group) -> tuple[int, Microkernel]:
        """How many panels of a group are decoded at once: two sets of accumulators have room.

        Digits multiply one panel after the other, which is one stream of memory: several streams
        take longer (measured on Zen 3).
        """
        kernel = self.loops.plan.kernel
        vectors = max(1, (6 if kernel.lanes < 16 else 12) // rows)
        if self.tiles is not None and self.tiles.digits is not None and rows <= MOST_DIGIT_ROWS:
            vectors = 1
        return max(1, min(group.count, vectors // group.size)), kernel

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
        assert self.tiles is not None
        tiles, whole = replace(self.tiles, side=width), (0, self.loops.plan.steps)
        rest(tiles.multiply(row, rows, vector, panels * width, whole, None), scratch, 0)
