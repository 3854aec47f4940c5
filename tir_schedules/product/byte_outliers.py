"""ByteOutliers: a block of rows for products by bytes, with its outliers apart (`outlier_list`).

Tiles multiply rows that were cut to seven bits. Their accumulators start with the products of the
outliers, of several panels at once: a row's are added up in registers. c is so near the zero point
that most elements are within 127 of it; c times the sums of the weight's columns is added to what
zero points start accumulators with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, constant, materialise, ramp, splat
from tir_schedules.core.emission import opaque_block
from tir_schedules.epilogue.epilogue import Columns

from .activations import Activations
from .outlier_list import LANES, OutlierList, Products
from .tile_loops import LoadPanel
from .zero_points import Start

ColumnSums = Callable[[Expr | int], Expr]

_MOST_VECTORS = 8  # that start together: with as many, the registers of AVX2 are full
_ZERO = tirx.const(0, "int32")


class ByteOutliers:
    """Rows for tiles that multiply pairs of bytes, in the PrimFunc under construction.

    Parameters
    ----------
    rows : Activations
        The rows, whole vectors of bytes.
    most_rows : int
        Of the largest block.
    panels : sequence of int
        Vectors of each panel.
    offset : Expr or None
        c, as of `OutlierList`.
    start : Start or None
        What zero points start accumulators with.
    column_sums : callable
        Vector of columns -> int32 lanes: the weight's sums; used where there is a c.
    load_b : callable
        The packed weight, as of `TileLoops`.
    """

    def __init__(
        self,
        rows: Activations,
        most_rows: int,
        panels: Sequence[int],
        offset: Expr | None,
        start: Start | None,
        column_sums: ColumnSums,
        load_b: LoadPanel,
    ) -> None:
        self.rows, self.kernel, self.load_b = rows, rows.kernel, load_b
        self.zero_points, self.column_sums = start, column_sums
        self.found = OutlierList(most_rows, rows.k, offset)
        self.cut = I.sblock_alloc_buffer((most_rows, self.found.vectors * LANES), "uint8", align=64)
        side = max(1, _MOST_VECTORS // panels[0]) if len(set(panels)) == 1 else 1
        self.side, self.n_vectors = min(side, len(panels)), sum(panels)
        width = self.side * max(panels) * self.kernel.lanes
        self.starts = I.sblock_alloc_buffer((most_rows, width), "int32", align=64)
        # The first vector of columns that `starts` is of; one behind all where it is of none.
        self.first = I.sblock_alloc_buffer((1,), "int32")
        self.count: int | Expr = 0

    def split(self, first: Expr, count: int | Expr, some: Expr | None = None) -> Expr:
        """Cuts a block of rows that have begun; whether tiles by bytes are right for it.

        Parameters
        ----------
        first, count : Expr
            The rows.
        some : Expr or None
            Whether there may be outliers.
        """
        self.count, found = count, self.found
        most = found.most(count)
        if some is not None:
            most = materialise(tirx.Select(some, most, _ZERO))
        with opaque_block("outliers"):
            found.begin()
            with I.serial(count) as row:

                def read(start: Expr) -> Expr:
                    return self.rows.operand(first + row, Columns(start, LANES, LANES))

                def write(start: Expr, value: Expr) -> None:
                    I.buffer_store(self.cut, value, [row, ramp(start, LANES)])

                found.add_row(row, most, read, write)
            found.end(count)
            I.buffer_store(self.first, tirx.const(self.n_vectors, "int32"), [_ZERO])
        return found.short(most)

    def load(self, row: Expr, step: Expr | int) -> Expr:
        """kr elements of a row without its outliers, as of `Activations`."""
        kr = self.kernel.kr
        return self.kernel.spread(self.cut[self.rows.within(row), ramp(step * kr, kr)])

    def begin_panel(self, vector: Expr, vectors: int) -> None:
        """Computes what the accumulators of a panel start with; as of `TileLoops`."""
        side, first = self.side * vectors, self.first
        if self.side == 1:
            I.buffer_store(first, vector, [_ZERO])
            self._add(vector, vectors)
            return
        other = tirx.Or(vector < first[_ZERO], vector >= first[_ZERO] + side)
        with I.If(other), I.Then():
            last = tirx.const(self.n_vectors - side, "int32")
            I.buffer_store(first, tirx.Min(vector, last), [_ZERO])
            self._add(materialise(first[_ZERO]), vectors)

    def _add(self, vector: Expr, width: int) -> None:
        """What panels side by side start with."""
        lanes, vectors = self.kernel.lanes, range(width * self.side)
        places = [ramp(j * lanes, lanes) for j in vectors]
        with opaque_block("add_outliers"):
            alike = self._alike(vector, places)
            with I.serial(self.count) as row:
                totals = I.sblock_alloc_buffer((len(vectors) * lanes,), "int32")
                for j, place in enumerate(places):
                    if alike is None:
                        value = self.start_without(self.rows.block + row, vector + j)
                    else:
                        value = alike[place]
                    I.buffer_store(totals, value, [place])

                def add(step: Expr, products: Products) -> None:
                    for j, place in enumerate(places):
                        b = self.load_b(vector + j // width * width, width, step, j % width)
                        I.buffer_store(totals, totals[place] + products(self.kernel, b), [place])

                self.found.for_each(row, add)
                for place in places:
                    I.buffer_store(self.starts, totals[place], [row, place])

    def _alike(self, vector: Expr, places: Sequence[Expr]) -> Expr | None:
        """What all rows start with that have no outliers; None if rows differ, or for zeros."""
        if self.zero_points is None or not self.zero_points.by_column:
            return None
        alike = I.sblock_alloc_buffer((len(places) * self.kernel.lanes,), "int32", align=64)
        for j, place in enumerate(places):
            value = self.start_without(self.rows.block, vector + j)
            I.buffer_store(alike, value, [place])
        return alike

    def start_without(self, row: Expr, vector: Expr | int) -> Expr:
        """What accumulators start with where there are no outliers; as `TileLoops.start`."""
        lanes = self.kernel.lanes
        value = constant(0, "int32", lanes)
        if self.zero_points is not None:
            value = self.zero_points(row, vector)
            offset = self.found.offset
            if offset is not None:
                value = value + self.column_sums(vector) * splat(offset, lanes)
        return value

    def start(self, row: Expr, vector: Expr) -> Expr:
        """What accumulators start with; as of `TileLoops`."""
        lanes = self.kernel.lanes
        place = ramp((vector - self.first[_ZERO]) * lanes, lanes)
        return self.starts[self.rows.within(row), place]
