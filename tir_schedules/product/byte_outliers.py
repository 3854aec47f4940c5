"""ByteOutliers: a block of rows for products by bytes, with its outliers apart (`outlier_list`).

Tiles multiply rows that were cut to seven bits. Their accumulators start with the products of the
outliers, of several panels at once: a row's are added up in registers. c is so near the zero point
that most elements are within 127 of it; c times the sums of the weight's columns is added to what
zero points start accumulators with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.kernels.byte_pairs import byte_tile, has_pairs
from microkernels.microkernel import Microkernel
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from microkernels.vector.placeholders import applied
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.core.size import is_open
from tir_schedules.epilogue.epilogue import Columns

from .activations import Activations
from .outlier_list import LANES, LARGEST, LARGEST_OFFSET, OutlierList, Products
from .prefetch import FEW_ROWS
from .tile_loops import Shortcut, TileLoops
from .tile_products import FEWEST_INTEGER_ROWS
from .zero_points import Start, ZeroPoints

if TYPE_CHECKING:
    from .matmul_product import PackedWeight

_MOST_VECTORS = 8  # that start together: with as many, the registers of AVX2 are full
_ZERO = tirx.const(0, "int32")


class ByteOutliers:
    """Rows for tiles that multiply pairs of bytes, in the PrimFunc under construction.

    Parameters
    ----------
    loops : TileLoops
        The loops by bytes.
    rows : Activations
        The rows, whole vectors of bytes.
    most_rows : int
        Of the largest block.
    start : Start or None
        What zero points start accumulators with.
    weight : PackedWeight
        Its column sums are used where there is a c.
    """

    def __init__(
        self,
        loops: TileLoops,
        rows: Activations,
        most_rows: int,
        start: Start | None,
        weight: PackedWeight,
    ) -> None:
        self.loops, self.rows, self.kernel = loops, rows, rows.kernel
        self.zero_points, self.weight = start, weight
        panels = loops.plan.panels.widths
        self.found = OutlierList(most_rows, rows.k, _offset(start))
        self.cut = I.sblock_alloc_buffer((most_rows, self.found.vectors * LANES), "uint8", align=64)
        side = max(1, _MOST_VECTORS // panels[0]) if len(set(panels)) == 1 else 1
        self.side, self.n_vectors = min(side, len(panels)), sum(panels)
        width = self.side * max(panels) * self.kernel.lanes
        self.starts = I.sblock_alloc_buffer((most_rows, width), "int32", align=64)
        # The first vector of columns that `starts` is of; one behind all where it is of none.
        self.first = I.sblock_alloc_buffer((1,), "int32")
        self.count: Index = 0

    def split(self, first: Expr, count: Index, some: Expr | None = None) -> Expr:
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
            most = ex.materialise(tirx.Select(some, most, _ZERO))
        with opaque_block("outliers"):
            found.begin()
            with I.serial(count) as row:

                def read(start: Expr) -> Expr:
                    return self.rows.operand(first + row, Columns(start, LANES, LANES))

                def write(start: Expr, value: Expr) -> None:
                    I.buffer_store(self.cut, value, [row, ex.ramp(start, LANES)])

                found.add_row(row, most, read, write)
            found.end(count)
            I.buffer_store(self.first, tirx.const(self.n_vectors, "int32"), [_ZERO])
        return found.short(most)

    def load(self, row: Expr, step: Index) -> Expr:
        """kr elements of a row without its outliers, as of `Activations`."""
        kr = self.kernel.kr
        return self.kernel.spread(self.cut[self.rows.within(row), ex.ramp(step * kr, kr)])

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
            self._add(ex.materialise(first[_ZERO]), vectors)

    def _add(self, vector: Expr, width: int) -> None:
        """What panels side by side start with."""
        lanes, vectors = self.kernel.lanes, range(width * self.side)
        places = [ex.ramp(j * lanes, lanes) for j in vectors]
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
                        b = self.loops.load_b(vector + j // width * width, width, step, j % width)
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

    def start_without(self, row: Expr, vector: Index) -> Expr:
        """What accumulators start with where there are no outliers; as `TileLoops.start`."""
        lanes = self.kernel.lanes
        value = ex.constant(0, "int32", lanes)
        if self.zero_points is not None:
            value = self.zero_points(row, vector)
            offset = self.found.offset
            if offset is not None:
                value = value + self.weight.column_sums(vector) * ex.splat(offset, lanes)
        return value

    def start(self, row: Expr, vector: Expr) -> Expr:
        """What accumulators start with; as of `TileLoops`."""
        lanes = self.kernel.lanes
        place = ex.ramp((vector - self.first[_ZERO]) * lanes, lanes)
        return self.starts[self.rows.within(row), place]

    def shortcut(self) -> Shortcut:
        """The loops by bytes of rows that have begun, whose outliers are apart."""
        few = FEW_ROWS if is_open((self.loops.plan.m,)) else 0

        def cuts(first: Expr, count: Index) -> Expr:
            return self.split(first, count, tirx.GT(count, few) if few else None)

        found = replace(
            self.loops, load_a=self.load, start=self.start, begin_panel=self.begin_panel
        )
        if few:  # several panels side by side, without outliers
            narrow = replace(found, start=self.start_without, begin_panel=None)
            found = replace(found, narrow=narrow)
        return Shortcut(cuts, found)


# Which blocks of rows of a product are multiplied by pairs of bytes, chosen when it runs.
#
#     the weight's pairs are small         bytes
#     few columns, or threads share K      words or digits
#     few rows                             bytes if no element of A is beyond 7 bits
#     else                                 bytes if few are, and these apart
#     what is left                         words or digits
#
# "Beyond 7 bits" is beyond 127 from 0 or, where few are taken apart, from a number below A's zero
# point. See `outlier_list`.


LISTED_ROWS = 512  # of a block: what they start with, in some panels, stays in L2
LEAST_K = 33  # with less K, to start rows from memory takes longer than it saves


def lists_outliers(plan: ProductPlan) -> bool:
    """Whether outliers of A are taken apart; of fewer rows that takes longer than it saves."""
    few = not is_open((plan.m,)) and plan.m < FEWEST_INTEGER_ROWS
    return byte_tile_of(plan) is not None and searches(plan) and not few and plan.k >= LEAST_K


def cut_for_bytes(plan: ProductPlan) -> ProductPlan:
    """A plan whose blocks of rows are as small as taking outliers apart asks for."""
    if not lists_outliers(plan):
        return plan
    return replace(plan, m_block=min(plan.m_block, max(LISTED_ROWS, plan.rows)))


def byte_shortcut(
    loops: TileLoops, rows: Activations, most_rows: int, start: Start | None, weight: PackedWeight
) -> Shortcut:
    """The loops by bytes, and when they are right.

    Parameters
    ----------
    loops : TileLoops
        What other blocks run.
    rows : Activations
        A, for a tile by bytes; begun here.
    most_rows : int
        Of a block.
    start : Start or None
        What accumulators start with.
    weight : PackedWeight
        It says whether its pairs fit.
    """
    by_bytes = replace(
        loops,
        plan=replace(loops.plan, kernel=rows.kernel),
        load_a=rows.load,
        begin=None,
        start=start,
        start_columns=None,
    )

    def small() -> Expr:
        return weight_fits(weight.buffer, weight.answer_at)

    if not searches(loops.plan):
        begin = rows.begin if rows.begins else None
        return Shortcut(lambda *_: small(), replace(by_bytes, begin=begin))

    def fits(first: Expr, count: Index) -> Expr:
        rows.begin(first, count)
        return tirx.Or(find_high_bits(rows, first, count), small())

    apart = None
    if lists_outliers(loops.plan):
        apart = ByteOutliers(by_bytes, rows, most_rows, start, weight).shortcut()
    return Shortcut(fits, by_bytes, apart)


def cuts_above(plan: ProductPlan, points: ZeroPoints) -> bool:
    """Whether outliers are taken apart of bytes that are cut above 0, by a known zero point."""
    return lists_outliers(plan) and not points.a_runtime and known_offset(points) > 0


def known_offset(points: ZeroPoints) -> int:
    """c of the outliers by a known zero point: that is in the middle of seven bits above it."""
    return applied(_middle, points.a)


def _middle(zero_point: int) -> int:
    return min(max(zero_point - (LARGEST // 2 + 1), 0), LARGEST_OFFSET)


def _offset(start: Start | None) -> Expr | None:
    """c of the outliers; None for 0."""
    if start is None:
        return None
    if not start.zero_points.a_runtime:
        known = known_offset(start.zero_points)
        return ex.scalar(known, "int32") if known > 0 else None
    below = start.a_zero_point() - tirx.const(LARGEST // 2 + 1, "int32")
    offset = tirx.Max(below, tirx.const(0, "int32"))
    return ex.materialise(tirx.Min(offset, tirx.const(LARGEST_OFFSET, "int32")))


# Products of 8-bit integers that take fewer instructions where nothing saturates, without VNNI.
#
#     a block of rows, at run time
#         A at most 127 but for few elements, or the weight's pairs small    bytes
#         else                                                               words; digits of few
#         rows
#
# All give the same integers (see `microkernels.kernels.byte_pairs`). The weight's pairs are looked
# at when it is packed; the answer lies behind it. A is looked at block by block: `outlier_list`
# takes elements beyond 127 apart; where that does not pay, one pass of ORs finds whether there are
# any. Weights of 7 bits, which are made for such CPUs (`reduce_range`), and activations of 7 bits
# always fit.


SEARCHED_COLUMNS = 64
_HIGH = 0x80808080 - (1 << 32)  # the highest bit of four bytes, as int32


def searches(plan: ProductPlan) -> bool:
    """Whether A is looked at; with few columns that takes longer than it saves."""
    return plan.n >= SEARCHED_COLUMNS


def by_values(searched: bool, listed: bool = False, offset: int = 0) -> str:
    """What is decided by the values that are multiplied, for `explain`.

    `offset` is that of `outlier_list`, if it is known.
    """
    small = "no element of x is beyond 127 or " if searched else ""
    if listed:
        beyond = f"beyond {LARGEST}"
        if offset > 0:
            beyond = f"(as uint8) not from {offset} to {offset + LARGEST}"
        small = f"few elements of x are {beyond}, whose products are added apart, or "
    return f"pairs of bytes where {small}the weight's pairs are small, else words or digits"


def byte_tile_of(plan: ProductPlan) -> Microkernel | None:
    """What multiplies blocks that fit; None if nothing is faster for them, or threads share K."""
    shared = sum(group.count for group in plan.k_shares) > 1
    return byte_tile(plan.kernel) if has_pairs(plan.kernel) and not shared else None


class HighBits:
    """Searches bytes for one beyond 127; emits the search.

    Parameters
    ----------
    lanes : int
        Bytes that are looked at together, a multiple of four.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.seen = I.sblock_alloc_buffer((lanes,), "uint8", align=64)

    def clear(self) -> None:
        """Begins a search."""
        I.buffer_store(self.seen, ex.constant(0, "uint8", self.lanes), [ex.ramp(0, self.lanes)])

    def add(self, value: Expr) -> None:
        """Looks at some bytes."""
        everything = [ex.ramp(0, self.lanes)]
        I.buffer_store(self.seen, self.seen[tuple(everything)] | value, everything)

    def none(self) -> Expr:
        """Whether there was none."""
        fours = [
            ex.reinterpret_group("int32", self.seen[ex.ramp(start, 4)], 1)
            for start in range(0, self.lanes, 4)
        ]
        while len(fours) > 1:
            fours = [a | b for a, b in zip(fours[::2], fours[1::2], strict=True)]
        return tirx.EQ(fours[0] & tirx.const(_HIGH, "int32"), tirx.const(0, "int32"))


def weight_fits(weight: Expr, answer: int) -> Expr:
    """What packing found about a weight; the int32 lies at `answer` of the flat buffer."""
    return tirx.NE(
        ex.reinterpret_group("int32", weight[ex.ramp(answer, 4)], 1), tirx.const(0, "int32")
    )


def find_high_bits(rows: Activations, first: Expr, count: Index) -> Expr:
    """Whether no byte of a block of rows that have begun, in whole vectors, is beyond 127."""
    search = HighBits(rows.kernel.lanes * rows.kernel.kr)
    vectors = -(-rows.k // search.lanes)
    with opaque_block("find_high_bits"):
        search.clear()
        with I.serial(count) as row, I.serial(vectors) as vector:
            columns = Columns(vector * search.lanes, search.lanes, search.lanes)
            search.add(rows.operand(first + row, columns))
    return search.none()
