"""Panels: how a matrix that a kernel reads as B lies in memory, packed.

    [K, N] -> panels of columns, one behind the other, each [K/kr][columns][kr]

K is a number of runs, each padded with zeros to whole steps of kr elements, as the kernel asks.
N is padded to whole vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from microkernels.microkernel import Microkernel
from microkernels.packing import pack_weight


@dataclass(frozen=True)
class Panels:
    """The layout of one packed matrix.

    Attributes
    ----------
    kernel : Microkernel
        Gives lanes and kr, and how K is padded.
    k, n : int
        Rows of a run, and columns.
    widths : tuple of int
        Vectors of every panel.
    runs : int
        Runs of rows.
    """

    kernel: Microkernel
    k: int
    n: int
    widths: tuple[int, ...]
    runs: int = 1

    @property
    def steps(self) -> int:
        """Steps of K, of all runs."""
        return self.runs * self.kernel.steps(self.k)

    @property
    def columns(self) -> int:
        """Columns, padded."""
        return sum(self.widths) * self.kernel.lanes

    @property
    def size(self) -> int:
        """Elements of the packed matrix."""
        return self.steps * self.kernel.kr * self.columns

    def start(self, panel: Any, width: Any, step: Any, vector: Any) -> Any:
        """Where a vector of a panel lies; `panel` counts the vectors before the panel."""
        group = self.kernel.lanes * self.kernel.kr
        return (panel * self.steps + step * width + vector) * group

    def pack(self, matrix: np.ndarray) -> np.ndarray:
        """[runs * k, n] as the kernel reads it, flat."""
        runs = matrix.reshape(self.runs, self.k, self.n)
        padding = self.kernel.steps(self.k) * self.kernel.kr - self.k
        padded = np.pad(runs, ((0, 0), (0, padding), (0, 0))) if self.runs > 1 else runs
        return pack_weight(padded.reshape(-1, self.n), self.widths, self.kernel)

    def express(self, expr: relax.Expr) -> relax.Expr:
        """What `pack` makes of [runs * k, n], as a Relax expression."""
        op, kr = relax.op, self.kernel.kr
        depth, panels, column = self.steps * kr, [], 0
        padding = [0, depth // self.runs - self.k, 0, self.columns - self.n]
        padded = expr
        if any(padding) and self.runs == 1:
            padded = op.nn.pad(expr, padding)
        elif any(padding):
            runs = op.nn.pad(op.reshape(expr, (self.runs, self.k, self.n)), [0, 0, *padding])
            padded = op.reshape(runs, (depth, self.columns))
        for width in self.widths:
            columns = width * self.kernel.lanes
            panel = op.strided_slice(padded, [1], [column], [column + columns])
            if kr > 1:
                panel = op.reshape(panel, (self.steps, kr, columns))
                panel = op.permute_dims(panel, [0, 2, 1])
            panels.append(op.reshape(panel, (depth * columns,)))
            column += columns
        return op.concat(panels, axis=0)

    def unpack(self, expr: relax.Expr, position: int = 0) -> relax.Expr:
        """[runs * k, n] as a Relax expression of what is packed from a position on."""
        op, kr = relax.op, self.kernel.kr
        depth, panels = self.steps * kr, []
        for width in self.widths:
            columns = width * self.kernel.lanes
            panel = op.strided_slice(expr, [0], [position], [position + depth * columns])
            if kr > 1:
                panel = op.reshape(panel, (self.steps, columns, kr))
                panel = op.permute_dims(panel, [0, 2, 1])
            panels.append(op.reshape(panel, (depth, columns)))
            position += depth * columns
        matrix = op.concat(panels, axis=1)
        if self.runs == 1:
            return op.strided_slice(matrix, [0, 1], [0, 0], [self.k, self.n])
        padded = op.reshape(matrix, (self.runs, depth // self.runs, self.columns))
        runs = op.strided_slice(padded, [1, 2], [0, 0], [self.k, self.n])
        return op.reshape(runs, (self.runs * self.k, self.n))
