"""Fetching the next panel of a convolution's weight while the tiles of a panel multiply.

    panel of 3 vectors, 7 tiles: a step of each of them asks for 3/7 of a step of the next panel

The first tile of a panel would have to wait for it, where L3 reads more slowly than a tile
multiplies. Behind the last panel, lines are asked for that nobody needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import DataType

from microkernels.tile import Address
from microkernels.vector.expressions import Expr
from microkernels.vector.prefetch import prefetch
from tir_schedules.core.panels import Panels
from tir_schedules.product.tile_loops import LoadPanel

LINE = 64  # bytes of a cache line


@dataclass(frozen=True)
class PanelFetch:
    """What the tiles of a panel fetch together.

    Attributes
    ----------
    packed : Panels
        The layout of the weight.
    weight : Buffer
        Packed.
    tiles : int
        Of a panel; all of them fetch the next one once.
    """

    packed: Panels
    weight: Expr
    tiles: int

    def places(self, width: int, number: Expr | int, step: Expr | int) -> list[Expr | int]:
        """The vectors of the next panel, as steps of one, of which a step of a tile asks for lines.

        Parameters
        ----------
        width : int
            Vectors of the panel.
        number : Expr or int
            Of the tile.
        step : Expr or int
            Of K.
        """
        kernel = self.packed.kernel
        vector = kernel.lanes * kernel.kr * int(DataType(kernel.b_dtype).itemsize)
        vectors = max(1, LINE // vector)  # of a line
        count = math.ceil(width / (vectors * self.tiles))
        place = (number * self.packed.steps + step) * count
        return [I.floordiv((place + each) * width, self.tiles * count) for each in range(count)]

    def beside(self, load_b: LoadPanel, number: Expr | int) -> LoadPanel:
        """How the tile of a number reads its panel and fetches its share of the next one."""

        def load(panel: Expr | int, width: int, step: Expr | int, j: int) -> Expr | Address:
            if j == 0:
                for place in self.places(width, number, step):
                    prefetch(self.weight[self.packed.start(panel + width, 1, place, 0)])
            return load_b(panel, width, step, j)

        return load
