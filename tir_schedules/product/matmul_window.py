"""Rows of a product that are overlapping windows of memory: one-axis convolution, channels last.

    Y[n, t, o] = sum over (tap, c) of X[n, t * stride + tap, c] * W[tap, c, o]

The window of one t is contiguous in X: taps * C elements, beginning at (t * stride) * C. So this is
a product with K = taps * C. Its rows begin stride * C elements apart and overlap. Nothing is
copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr
from tir_schedules.core.region import Region


@dataclass(frozen=True)
class Window:
    """The geometry of a region with windows.

    Attributes
    ----------
    batch, length, channels : int
        Shape of X.
    taps, stride : int
        Positions of a window, and from one window to the next.
    """

    batch: int
    length: int
    channels: int
    taps: int
    stride: int

    @property
    def count(self) -> int:
        """Windows of one sample."""
        return (self.length - self.taps) // self.stride + 1

    @property
    def pitch(self) -> int:
        """Elements from the start of one row to the start of the next."""
        return self.stride * self.channels

    def element(self, row: Expr, step: Expr | int) -> list[Expr]:
        """Indices of X for a flat row of the product and a step of K; they flatten to a sum."""
        sample, start = tirx.const(0, "int32"), row
        if self.batch > 1:
            sample, start = I.floordiv(row, self.count), I.floormod(row, self.count)
        position = start * self.stride + I.floordiv(step, self.channels)
        return [sample, position, I.floormod(step, self.channels)]

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The result by numpy, in the type of the arrays."""
        last = self.stride * (self.count - 1) + 1
        return np.asarray(
            sum(x[:, tap : tap + last : self.stride] @ w[tap] for tap in range(self.taps))
        )


def window_of(region: Region) -> Window | None:
    """The windows of a matmul region; None if its rows are rows of a matrix."""
    if "window" not in region.attrs:
        return None
    batch, length, channels = region.inputs[0].shape
    taps, stride = region.integer("window"), region.integer("stride")
    return Window(batch, length, channels, taps, stride)
