"""One of Winograd's products: a block of tiles by a panel of output channels.

M [tiles][panel] = V [tiles][C] * W [C][panel]        all three lie in flat buffers
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm.tirx.script.builder.ir as I

from microkernels.microkernel import Microkernel
from microkernels.tile import Address
from microkernels.vector.expressions import Expr, ramp
from microkernels.vector.memory import prefetch
from tir_schedules.product.prefetch import Prefetch

from .config import LINE


@dataclass(frozen=True)
class Panel:
    """Vectors of output channels that are multiplied together.

    Attributes
    ----------
    v, m : Expr
        Where the transformed tiles and the products of the block start.
    first : Expr
        The first vector of output channels.
    width : int
        How many vectors, once that is known.
    """

    v: Expr
    m: Expr
    first: Expr
    width: int = 0

    def of(self, width: int) -> Panel:
        """The same with so many vectors."""
        return replace(self, width=width)


@dataclass(frozen=True, kw_only=True)
class PanelProduct:
    """The operands of one product, as `TileLoops` takes them.

    Attributes
    ----------
    kernel : Microkernel
        That multiplies.
    v, weight, m : Buffer
        Flat.
    v_start, w_start, m_start : Expr
        Where the product's parts begin.
    v_pitch, m_pitch : int
        Elements from one tile to the next.
    panel : Panel
        Its width is known.
    steps : int
        Of the kernel, over the channels of x.
    """

    kernel: Microkernel
    v: Expr
    v_start: Expr
    v_pitch: int
    weight: Expr
    w_start: Expr
    m: Expr
    m_start: Expr
    m_pitch: int
    panel: Panel
    steps: int

    def load_a(self, row: Expr, step: Expr | int) -> Expr | Address:
        """An element of V."""
        at = self.v_start + row * self.v_pitch + step * self.kernel.kr
        return self.kernel.a_operand(self.v, [at], self.v_pitch)

    def load_b(self, _panel: Expr | int, _width: int, step: Expr | int, j: int) -> Expr | Address:
        """A vector of the weight."""
        group, width = self.kernel.lanes * self.kernel.kr, self.panel.width
        at = self.w_start + (step * width + j) * group
        return self.kernel.b_operand(self.weight, at, width * group)

    def store(self, row: Expr, vector: Expr, value: Expr, _last: bool) -> None:
        """A vector of the product; `vector` counts all output channels'."""
        lanes = self.kernel.lanes
        at = self.m_start + row * self.m_pitch + (vector - self.panel.first) * lanes
        I.buffer_store(self.m, value, [ramp(at, lanes)])

    @property
    def prefetch(self) -> Prefetch | None:
        """Of lines of the weight of the next product, where a vector is a line of cache."""
        if self.kernel.lanes != LINE:
            return None

        def fetch(_panel: Expr, line: Expr | int, element: Expr | int) -> None:
            after = self.steps * self.panel.width + line
            prefetch(self.weight[self.w_start + after * (LINE * self.kernel.kr) + element])

        return Prefetch(fetch)
