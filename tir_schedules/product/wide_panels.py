"""Panels of a weight, widened in cache before tiles multiply them (see `wide_product`)."""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I

from microkernels.microkernel import Address
from microkernels.vector import bfloat16
from microkernels.vector.expressions import Expr, bind, cast, like, ramp, reinterpret, vector_type
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import as_expr
from tir_schedules.core.product_plan import Piece, ProductPlan

from .tile_loops import LoadPanel
from .wide_product import WideProduct


class WidePanels:
    """Widens blocks of a packed weight.

    Parameters
    ----------
    plan : ProductPlan
        How the product is cut; room for a block of K of a panel is allocated in the block of the
        PrimFunc under construction.
    weight : Buffer
        The packed weight, flat.
    wide : WideProduct
        How it is multiplied.
    """

    def __init__(self, plan: ProductPlan, weight: Expr, wide: WideProduct) -> None:
        self.panels, self.weight, self.wide = plan.panels, weight, wide
        self.group = plan.kernel.lanes * plan.kernel.kr
        self.part = self.group // wide.parts
        vectors = min(plan.vectors, plan.n_vectors)
        size = plan.longest_piece * vectors * self.group
        self.buffer = I.sblock_alloc_buffer((size,), wide.dtype, align=64)

    def stage(self, panel: Expr, width: int, piece: Piece) -> LoadPanel:
        """Widens a block of a panel; `stage_b` of `TileLoops`."""
        first, count = piece
        parts = self.wide.parts
        with opaque_block("widen"), I.serial(as_expr(count)) as step:
            for j in range(width):
                value = self.weight[
                    ramp(self.panels.start(panel, width, first + step, j), self.group)
                ]
                for part, wide in enumerate(self._widened(value)):
                    place = ((step * parts + part) * width + j) * self.part
                    I.buffer_store(self.buffer, wide, [ramp(place, self.part)])

        def load_b(_panel: Expr | int, _width: int, step: Expr | int, j: int) -> Expr | Address:
            return self.buffer[ramp(((step - first * parts) * width + j) * self.part, self.part)]

        return load_b

    def _widened(self, value: Expr) -> list[Expr]:
        """A vector of the weight as the tile multiplies it, part by part."""
        if self.wide.dtype == "int16":
            return [cast("int16", value)]
        # Two bfloat16 in a word; each is the upper half of a f32.
        pairs = I.reinterpret(vector_type("int32", self.part), bfloat16.bits_of(value))
        words = bind(pairs)
        low, high = words << like(16, words), words & like(-0x10000, words)
        return [reinterpret("float32", low), reinterpret("float32", high)]
