"""The two axes of a depthwise convolution, and its buffers by row and column of an image.

    Y[n, h, w, c] = sum over (i, j) of X[n, h * s + i * d - p, w * s' + j * d' - p', c] * W[i, j, c]

Templates work on rows and columns. A single axis is taken for the rows, with one column. If the
first of two axes is a single row, the axes are swapped, because taps of a column share a loop while
those of a row are unrolled.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from microkernels.vector.expressions import Expr
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.core.extents import extent
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_open


@dataclass(frozen=True)
class Axis:
    """One axis: positions of x and of the result, taps, stride, dilation and padding."""

    extent: int
    taps: int
    outputs: int
    stride: int
    dilation: int
    before: int
    after: int = 0

    def span(self, outputs: int) -> int:
        """Positions of padded x that so many neighbouring results are computed from."""
        return (outputs - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    def inside(self, output: int) -> range:
        """The taps of one result that lie within x."""
        start = output * self.stride - self.before
        found = [t for t in range(self.taps) if 0 <= start + t * self.dilation < self.extent]
        return range(found[0], found[-1] + 1) if found else range(0)

    @property
    def is_open(self) -> bool:
        """Whether its positions are known at run time only."""
        return is_open((self.extent, self.outputs))

    def is_inside(self, output: int) -> bool:
        """Whether all taps of a result lie within x; its positions are known."""
        start = output * self.stride - self.before
        return start >= 0 and start + self.span(1) <= self.extent


_SINGLE = Axis(1, 1, 1, 1, 1, 0)


@dataclass(frozen=True)
class DepthwiseProblem:
    """Batch, channels and axes of a region.

    Attributes
    ----------
    batch, channels : int
        Samples, and channels of x, of the weight and of the result.
    rows, columns : Axis
        The axes of an image.
    swapped : bool
        Whether the rows are the second axis of x.
    rank : int
        Axes of x.
    """

    batch: int
    channels: int
    rows: Axis
    columns: Axis
    swapped: bool
    rank: int

    @staticmethod
    def of(region: Region) -> DepthwiseProblem:
        """The problem of a region with one or two axes."""
        found = ConvGeometry.of(region)
        axes = [
            Axis(*numbers)
            for numbers in zip(
                found.extents,
                found.kernel,
                found.outputs,
                found.strides,
                found.dilation,
                found.before,
                found.after,
                strict=True,
            )
        ]
        rank = len(axes)
        if rank == 1:
            axes.append(_SINGLE)
        first = axes[0]
        swapped = rank == 2 and (first.extent, first.taps, first.outputs) == (1, 1, 1)
        swapped = swapped and first.before == 0
        rows, columns = reversed(axes) if swapped else axes
        return DepthwiseProblem(found.batch, found.channels, rows, columns, swapped, rank)

    @property
    def taps(self) -> int:
        """Taps of a window."""
        return self.rows.taps * self.columns.taps

    @property
    def flops(self) -> int:
        """Multiplications and additions, padding included."""
        pixels = self.batch * self.rows.outputs * self.columns.outputs
        return 2 * pixels * self.channels * self.taps

    @property
    def opens_image(self) -> bool:
        """Whether rows or columns are known at run time only."""
        return self.rows.is_open or self.columns.is_open

    def pixel(self, sample: Expr, row: Expr, column: Expr) -> Expr:
        """Flat index of a pixel of x.

        With the axes swapped, the columns have a single position.
        """
        row = sample * _const(self.rows.extent) + row
        return row * _const(self.columns.extent) + column

    def output_row(self, sample: Expr, row: Expr, column: Expr) -> Expr:
        """Flat index of a pixel of the result, as the epilogue counts rows."""
        # With one of the axes swapped the other has a single position.
        row = sample * _const(self.rows.outputs) + row
        return row * _const(self.columns.outputs) + column


def _const(size: int) -> Expr:
    found = extent(size)
    return tirx.const(found, "int32") if isinstance(found, int) else found
