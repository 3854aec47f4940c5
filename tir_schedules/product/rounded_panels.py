"""Blocks of a narrow weight, expanded to bfloat16 as AMX tiles read them.

    16 columns of a unit of K, f32     ->  words of [steps / 2][16 columns][2], bfloat16
    (q - zero) * scale, rounded

Two steps of K lie in one word. Behind the last row of the weight are zeros, up to whole tiles.
"""

from __future__ import annotations

import contextlib
import math

import tvm.tirx.script.builder.ir as I

from microkernels.tile import Address
from microkernels.vector.expressions import Expr, bind, cast, constant, like, ramp
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.product_plan import Piece, ProductPlan

from .tile_loops import LoadPanel
from .weight_only_tiles import WeightOnlyTiles


class RoundedPanels:
    """Room for a block of a panel, in the block of the PrimFunc under construction.

    Parameters
    ----------
    tiles : WeightOnlyTiles
        The packed weight, scales and zero points.
    plan : ProductPlan
        How tiles of bfloat16 cut the product.
    """

    def __init__(self, tiles: WeightOnlyTiles, plan: ProductPlan) -> None:
        self.tiles, self.plan, self.lanes = tiles, plan, plan.kernel.lanes
        vectors = min(plan.vectors, plan.n_vectors)
        size = plan.longest_piece * vectors * self.lanes
        self.words = I.sblock_alloc_buffer((size,), "uint32", align=64)

    def stage(self, panel: Expr, width: int, piece: Piece) -> LoadPanel:
        """Expands a block of a panel; `stage_b` of TileLoops."""
        weight, kernel, lanes = self.tiles.weight, self.plan.kernel, self.lanes
        first, count = piece
        assert isinstance(first, int) and isinstance(count, int)
        begin = first * kernel.kr
        rows = min(begin + count * kernel.kr, self.plan.k) - begin  # of the weight
        whole, rest = divmod(rows, weight.unit)

        def unit(number: Expr | int, rows_of_unit: int) -> None:
            row = begin + number * weight.unit
            for j in range(width):
                values = self.tiles.expanded(panel, width, row, j)[:rows_of_unit]
                for pair in range(math.ceil(rows_of_unit / 2)):
                    step = number * (weight.unit // 2) + pair
                    self._put(step * width + j, values[2 * pair : 2 * pair + 2])

        with opaque_block("expand"):
            if whole:
                with I.serial(whole) if whole > 1 else contextlib.nullcontext(0) as number:
                    unit(number, weight.unit)
            if rest:
                unit(whole, rest)
            filled = math.ceil(rows / 2)
            if filled < count:
                with I.serial((count - filled) * width) as vector:
                    place = ramp((filled * width + vector) * lanes, lanes)
                    I.buffer_store(self.words, constant(0, "uint32", lanes), [place])

        def load_b(_panel: Expr | int, _width: int, step: Expr | int, j: int) -> Expr | Address:
            start = ((step - first) * width + j) * lanes
            return kernel.b_operand(self.words, start, width * lanes)

        return load_b

    def _put(self, vector: Expr | int, values: list[Expr]) -> None:
        """Stores one or two steps of a vector of columns."""
        word, *high = (cast("uint32", self.plan.kernel.narrow(value)) for value in values)
        for each in high:
            shifted = bind(each)
            word = word | (shifted << like(16, shifted))
        I.buffer_store(self.words, word, [ramp(vector * self.lanes, self.lanes)])
