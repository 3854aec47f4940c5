"""ConvOutliers: a band of x for tiles by bytes, with its outliers apart (see `outlier_list`).

The copy of a band is cut to seven bits in place. For each line of the result, the outliers of the
lines of x that it reads are multiplied by all columns of the kernel; the sums are what tiles start
with. There are sums for every place that a window can have with a stride of 1, so that no outlier
has to ask whether it has a result.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I

from microkernels.kernels.byte_pairs import KR
from microkernels.vector.expressions import Expr, constant, materialise, ramp
from tir_schedules.core.emission import opaque_block
from tir_schedules.epilogue.epilogue import Columns, load_vector
from tir_schedules.product.outlier_list import LANES, OutlierList, Products
from tir_schedules.product.tile_loops import LoadPanel

from .config import ConvConfig
from .weight import WeightLayout
from .windows import Windows

FEWEST_PRODUCTS = 128  # of an element of x: with fewer, a list takes longer than it saves


def lists_outliers(layout: WeightLayout, config: ConvConfig) -> bool:
    """Whether a band's outliers are listed, where its bytes are looked at."""
    geometry = layout.geometry.as_volume()
    taps = geometry.kernel[1] * geometry.kernel[2]
    return (
        config.staged
        and not geometry.opens_image
        and geometry.groups == 1
        and geometry.dilation[2] == 1
        and geometry.channels % KR == 0
        and taps * geometry.out_channels >= FEWEST_PRODUCTS
    )


class ConvOutliers:
    """The outliers of a band, in the PrimFunc under construction.

    Parameters
    ----------
    config : ConvConfig
        Numbers of the convolution.
    layout : WeightLayout
        Of its weight.
    windows : Windows
        The copy of a band, of bytes.
    """

    def __init__(self, config: ConvConfig, layout: WeightLayout, windows: Windows) -> None:
        assert isinstance(windows.width, int) and isinstance(windows.pitch, int)
        self.layout, self.windows, self.geometry = layout, windows, windows.geometry
        self.groups = windows.pixel // KR  # of a pixel
        self.beside = self.geometry.kernel[2] - 1
        self.places = windows.width + self.beside
        lines = self.geometry.kernel[0] * windows.most_lines
        self.found = OutlierList(lines, windows.width * windows.pixel)
        widest = max(layout.packed.widths) * layout.kernel.lanes
        size = config.lines * self.places * widest
        self.count: Expr | int = 0  # lines of x in each plane of the band
        self.sums = I.sblock_alloc_buffer((size,), "int32", align=64)

    def split(self, lines: Expr | int, whole: Expr) -> Expr:
        """Cuts the copy that so many lines of the result read; whether bytes are right for it.

        `whole` says that no byte has to be cut, whatever it is.
        """
        geometry, windows, found = self.geometry, self.windows, self.found
        depth, taps, _ = geometry.kernel
        count = (lines - 1) * geometry.strides[1] + (taps - 1) * geometry.dilation[1] + 1
        self.count = count if isinstance(count, int) else materialise(count)
        rows = self.count * depth
        most = found.most(rows)
        with opaque_block("outliers"):
            found.begin(whole)
            with I.serial(depth) as z, I.serial(self.count) as y:
                start = (z * windows.most_lines + y) * windows.pitch

                def read(at: Expr) -> Expr:
                    return load_vector(windows.copy, "uint8", [], Columns(start + at, LANES, LANES))

                def write(at: Expr, value: Expr) -> None:
                    I.buffer_store(windows.copy, value, [ramp(start + at, LANES)])

                found.add_row(z * self.count + y, most, read, write)
            found.end(rows)
        return found.short(most)

    def add(
        self, line: Expr | int, height: int, vector: Expr | int, vectors: int, load_b: LoadPanel
    ) -> None:
        """Computes what outliers add to some lines of the result, for a panel of the weight."""
        geometry, windows, lanes = self.geometry, self.windows, self.layout.kernel.lanes
        depth, taps, columns = geometry.kernel
        zero = constant(0, "int32", lanes)
        with opaque_block("add_outliers"), I.serial(height) as i:
            before = i * self.places
            with I.serial(self.places * vectors) as place:
                at = before * (vectors * lanes) + place * lanes
                I.buffer_store(self.sums, zero, [ramp(at, lanes)])
            with I.serial(depth) as z, I.serial(taps) as y:
                of_x = (line + i - windows.first) * geometry.strides[1] + y * geometry.dilation[1]

                def add(number: Expr, products: Products) -> None:
                    pixel = materialise(number // self.groups)
                    inside = materialise(number - pixel * self.groups)
                    for tap in range(columns):
                        step = ((z * taps + y) * columns + tap) * self.groups + inside
                        slot = before + pixel + (self.beside - tap)
                        for j in range(vectors):
                            b = load_b(vector, vectors, step, j)
                            to = ramp((slot * vectors + j) * lanes, lanes)
                            total = self.sums[to] + products(self.layout.kernel, b)
                            I.buffer_store(self.sums, total, [to])

                self.found.for_each(z * self.count + of_x, add)

    def sum(self, line: Expr | int, column: Expr | int, vectors: int, j: int) -> Expr:
        """What is added to a pixel in one vector; lines are counted from those of `add`."""
        lanes = self.layout.kernel.lanes
        slot = line * self.places + column * self.geometry.strides[2] + self.beside
        return self.sums[ramp((slot * vectors + j) * lanes, lanes)]
