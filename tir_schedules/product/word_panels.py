"""Panels of a weight of 8-bit integers, widened to 16 bits in cache before tiles multiply them.

vpmaddwd multiplies words. To widen both operands next to every product takes as many instructions
as the products; a panel is widened once for a block of rows, and a row once for all panels. Few
rows widen the weight next to the products, which then is half as many bytes.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I

from microkernels.microkernel import Address, Microkernel
from microkernels.vector.expressions import Expr, cast, ramp
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import as_expr
from tir_schedules.core.product_plan import Piece, ProductPlan
from tir_schedules.core.size import is_open

from .tile_loops import LoadPanel

FEWEST_ROWS = 16  # of a known number, for which widening the panels pays


def widens(plan: ProductPlan, kernel: Microkernel) -> bool:
    """Whether operands are widened before they are multiplied."""
    by_words = kernel.isa_name == "avx2" and kernel.b_dtype == "int8"
    return by_words and (is_open((plan.m,)) or plan.m >= FEWEST_ROWS)


class WordPanels:
    """Widens blocks of a packed weight.

    Parameters
    ----------
    plan : ProductPlan
        How the product is cut; room for a block of K of a panel is allocated in the block of the
        PrimFunc under construction.
    weight : Buffer
        The packed weight, flat.
    """

    def __init__(self, plan: ProductPlan, weight: Expr) -> None:
        self.panels, self.kernel, self.weight = plan.panels, plan.kernel, weight
        self.group = self.kernel.lanes * self.kernel.kr
        vectors = min(plan.vectors, plan.n_vectors)
        size = plan.longest_piece * vectors * self.group
        self.buffer = I.sblock_alloc_buffer((size,), "int16", align=64)

    def stage(self, panel: Expr, width: int, piece: Piece) -> LoadPanel:
        """Widens a block of a panel; `stage_b` of `TileLoops`."""
        first, count = piece
        with opaque_block("widen"), I.serial(as_expr(count)) as step:
            for j in range(width):
                start = self.panels.start(panel, width, first + step, j)
                value = cast("int16", self.weight[ramp(start, self.group)])
                place = ramp((step * width + j) * self.group, self.group)
                I.buffer_store(self.buffer, value, [place])

        def load_b(_panel: Expr | int, _width: int, step: Expr | int, j: int) -> Expr | Address:
            return self.buffer[ramp(((step - first) * width + j) * self.group, self.group)]

        return load_b
