"""Panels of a weight, widened in cache before tiles multiply them (see `wide_product`)."""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I

from microkernels.tile import Address
from microkernels.vector import bfloat16
from microkernels.vector.expressions import (
    Expr,
    bind,
    cast,
    like,
    ramp,
    reinterpret,
    reinterpret_group,
    vector_type,
)
from tir_schedules.core.blocking import Panels
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import as_expr
from tir_schedules.core.product_plan import Piece

from .tile_loops import LoadPanel
from .wide_product import WideProduct


class WidePanels:
    """Widens blocks of a packed weight.

    Parameters
    ----------
    panels : Panels
        The layout of a packed matrix.
    weight : Buffer
        The packed weight, flat.
    wide : WideProduct
        How it is multiplied.
    steps, vectors : int
        Of the largest block of a panel; room for it is allocated in the block of the PrimFunc under
        construction.
    """

    def __init__(
        self, panels: Panels, weight: Expr, wide: WideProduct, steps: int, vectors: int
    ) -> None:
        self.panels, self.weight, self.wide = panels, weight, wide
        self.group = panels.kernel.lanes * panels.kernel.kr
        self.part = self.group // wide.parts
        self.buffer = I.sblock_alloc_buffer((steps * vectors * self.group,), wide.dtype, align=64)

    def stage(
        self, panel: Expr | int, width: int, piece: Piece, before: Expr | int = 0
    ) -> LoadPanel:
        """Widens a block of a panel; `stage_b` of `TileLoops`.

        `before` counts the elements before the matrix.
        """
        first, count = piece
        parts = self.wide.parts
        with opaque_block("widen"), I.serial(as_expr(count)) as step:
            for j in range(width):
                start = before + self.panels.start(panel, width, first + step, j)
                value = self.weight[ramp(start, self.group)]
                for part, wide in enumerate(self._widened(value)):
                    place = ((step * parts + part) * width + j) * self.part
                    I.buffer_store(self.buffer, wide, [ramp(place, self.part)])

        def load_b(_panel: Expr | int, _width: int, step: Expr | int, j: int) -> Expr | Address:
            return self.buffer[ramp(((step - first * parts) * width + j) * self.part, self.part)]

        return load_b

    def _widened(self, value: Expr) -> list[Expr]:
        """A vector of the weight as the tile multiplies it, part by part."""
        if self.wide.dtype == "int16":  # of four bytes of a column, two in each part
            fours = bind(reinterpret_group("int32", value, self.group // 4))
            halves = [cast("int16", half) for half in (fours, fours >> like(16, fours))]
            return [cast("int16", reinterpret_group("int8", half, self.part)) for half in halves]
        # Two bfloat16 in a word; each is the upper half of a f32.
        pairs = I.reinterpret(vector_type("int32", self.part), bfloat16.bits_of(value))
        words = bind(pairs)
        low, high = words << like(16, words), words & like(-0x10000, words)
        return [reinterpret("float32", low), reinterpret("float32", high)]
