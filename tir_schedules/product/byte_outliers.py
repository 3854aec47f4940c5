"""Multiplies a block of rows by bytes, with its outliers multiplied apart.

    a = c + t + r        t = min(max(a - c, 0), 127); the outliers r are mostly 0

Products of t by pairs of bytes never saturate. The r that are not 0 are in a list (`OutlierList`),
in groups of four elements of K: the group's number, four magnitudes and, unless c is 0, their sign.
No magnitude is beyond 128, so that their products do not saturate either: 2 * 128 * 127 and
-2 * 128 * 128 are within 16 bits.

Tiles multiply rows that were cut to seven bits (`ByteOutliers`). Their accumulators start with the
products of the outliers, for several panels at once: the sums of a row stay in registers. c is
chosen by the zero point so that most elements are from c to c + 127; c times the column sums of the
weight is added to the initial accumulators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.kernels.byte_pairs import KR, has_pairs, signed_pairs
from microkernels.microkernel import Microkernel
from microkernels.tile import Address
from microkernels.vector import expressions as ex
from microkernels.vector import memory, placeholders
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import emission, size
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.epilogue.epilogue import Columns

from .activations import Activations, Begun, find_high_bits
from .few_rows import FEW_ROWS, FewRows
from .staged_panels import FEWEST_INTEGER_ROWS
from .tile_loops import Shortcut, TileLoops
from .tile_products import Beginning, OperandA
from .zero_points import Start, ZeroPoints

if TYPE_CHECKING:
    from .matmul_product import PackedWeight

_MOST_VECTORS = 8  # of initial accumulators computed together: they fill AVX2's registers
_ZERO = tirx.const(0, "int32")
Read = Callable[[Expr], Expr]
Write = Callable[[Expr, Expr], None]
LARGEST = 127  # of t
LARGEST_OFFSET = 128  # of c, so that no magnitude of r is beyond 128
MOST_SHARE = 6  # at most one in 6 groups may be in a list; with more, words are as fast
LANES = 32  # bytes that are searched together
_NEGATIVE = -1  # two words of -1
_POSITIVE = 0x10001  # two words of 1


class OutlierList:
    """The list of outliers of a block of rows.

    Parameters
    ----------
    most_rows, elements : int
        Rows of the largest block, and bytes of a row.
    offset : Expr or None
        c, an int32 from 0 to `LARGEST_OFFSET`; None for 0.
    """

    def __init__(self, most_rows: int, elements: int, offset: Expr | None = None) -> None:
        self.groups, self.offset = -(-elements // KR), offset
        self.vectors = -(-elements // LANES)
        # A row is searched if the list is not too long yet; it adds at most all of its groups.
        rows = most_rows // MOST_SHARE + (1 if offset is None else 2) + 1
        self.words = I.sblock_alloc_buffer((rows * self.groups,), "int32")
        self.numbers = I.sblock_alloc_buffer((rows * self.groups,), "int32")
        self.signs: Expr | None = None
        if offset is not None:
            self.signs = I.sblock_alloc_buffer((rows * self.groups,), "int32")
        self.begins = I.sblock_alloc_buffer((most_rows + 1,), "int32")
        self.count = I.sblock_alloc_buffer((1,), "int32")

    def begin(self, whole: Expr | None = None) -> None:
        """Begins the list of a block; no byte is cut if the condition `whole` holds."""
        I.buffer_store(self.count, _ZERO, [_ZERO])
        self.limit = ex.constant(LARGEST, "uint8", LANES)
        if whole is not None:
            largest = tirx.Select(whole, tirx.const(255, "int32"), LARGEST)
            self.limit = ex.splat(ex.cast("uint8", ex.materialise(largest)), LANES)
        self.least: Expr | None = None
        if self.offset is not None:
            self.least = ex.splat(ex.cast("uint8", self.offset), LANES)

    def short(self, most: Index) -> Expr:
        """Whether the list has at most `most` groups."""
        return self.count[_ZERO] <= most

    def most(self, rows: Index) -> Index:
        """The longest list with which bytes are faster than words."""
        return rows * self.groups // MOST_SHARE

    def add_row(self, row: Index, most: Index, read: Read, write: Write) -> None:
        """Cuts the next row, whose number is `row`, unless the list is longer than `most`.

        Parameters
        ----------
        most : Expr or int
            The longest useful list.
        read : callable
            First element -> `LANES` bytes.
        write : callable
            (first element, bytes that were cut) -> None.
        """
        I.buffer_store(self.begins, self.count[_ZERO], [row])
        with I.If(self.short(most)), I.Then(), I.serial(self.vectors) as vector:
            first = vector * LANES
            value = ex.materialise(read(first))
            above = value
            if self.least is not None:
                above = ex.materialise(memory.saturating_difference(value, self.least))
            write(first, tirx.Min(above, self.limit))
            self._list(memory.saturating_difference(above, self.limit), vector, _POSITIVE)
            if self.least is not None:
                self._list(memory.saturating_difference(self.least, value), vector, _NEGATIVE)

    def end(self, rows: Index) -> None:
        """Ends the list after `rows` rows."""
        I.buffer_store(self.begins, self.count[_ZERO], [rows])

    def _list(self, rest: Expr, vector: Expr, sign: int) -> None:
        """Appends those groups of four bytes that are not all 0 to the list."""
        held = I.sblock_alloc_buffer((LANES,), "uint8", align=32)
        left = I.sblock_alloc_buffer((1,), "int32")
        I.buffer_store(held, rest, [ex.ramp(0, LANES)])
        found, count = memory.groups_found(held[ex.ramp(0, LANES)]), LANES // KR
        if self.groups % count:  # what lies behind the row is none of it
            inside = tirx.Min(self.groups - vector * count, tirx.const(count, "int32"))
            found = found & (tirx.shift_left(tirx.const(1, "int32"), inside) - 1)
        I.buffer_store(left, found, [_ZERO])
        with I.While(left[_ZERO] != 0):
            group, at = I.bind(memory.first_group(left[_ZERO])), I.bind(self.count[_ZERO])
            word = ex.reinterpret_group("int32", held[ex.ramp(group * KR, KR)], 1)
            I.buffer_store(self.words, word, [at])
            I.buffer_store(self.numbers, vector * count + group, [at])
            if self.signs is not None:
                I.buffer_store(self.signs, tirx.const(sign, "int32"), [at])
            I.buffer_store(self.count, at + 1, [_ZERO])
            I.buffer_store(left, left[_ZERO] & (left[_ZERO] - 1), [_ZERO])

    def for_each(self, row: Expr, body: Callable[[Expr, Products], None]) -> None:
        """Runs `body(number of the group, its products)` for the groups of a row."""
        begin = ex.materialise(self.begins[row])
        with I.serial(ex.materialise(self.begins[row + 1]) - begin) as each:
            at = begin + each
            body(ex.materialise(self.numbers[at]), Products(self, at))


class Products:
    """The products of one group of a list by vectors of the weight."""

    def __init__(self, found: OutlierList, at: Expr) -> None:
        self.found, self.at = found, at
        self.operands: tuple[Expr, Expr] | None = None

    def __call__(self, kernel: Microkernel, b: Expr | Address) -> Expr:
        """What the group adds to a vector of columns, whose weight is `b`; int32 lanes."""
        assert not isinstance(b, Address)
        lanes = kernel.lanes
        if self.operands is None:
            word, signs = ex.splat(self.found.words[self.at], lanes), self.found.signs
            factors = ex.constant(1, "int16", 2 * lanes)
            if signs is not None:
                factors = ex.reinterpret_group("int16", ex.splat(signs[self.at], lanes), 2 * lanes)
            magnitudes = I.reinterpret(ex.vector_type("uint8", KR * lanes), word)
            self.operands = I.bind(magnitudes), I.bind(factors)
        magnitudes, factors = self.operands
        return signed_pairs(kernel.isa_name, magnitudes, b, factors)


@dataclass
class StartByBytes(Beginning):
    """Initial accumulators of rows without outliers.

    Attributes
    ----------
    zero_points : Start or None
        Initial accumulators due to zero points.
    weight : PackedWeight
        Its column sums are used if c is not 0.
    offset : Expr or None
        c; None for 0.
    """

    zero_points: Start | None
    weight: PackedWeight
    offset: Expr | None

    def __call__(self, row: Index, vector: Index) -> Expr:
        """See `Beginning.__call__`."""
        lanes = self.weight.kernel.lanes
        if self.zero_points is None:
            return ex.constant(0, "int32", lanes)
        value = self.zero_points(row, vector)
        if self.offset is None:
            return value
        return value + self.weight.column_sums(vector) * ex.splat(self.offset, lanes)


@dataclass
class ByteOutliers(OperandA, Beginning):
    """Rows and initial accumulators for tiles that multiply pairs of bytes.

    Attributes
    ----------
    plan : ProductPlan
        How the product is cut.
    rows : Activations
        The rows, whole vectors of bytes.
    most_rows : int
        Rows of the largest block.
    without : StartByBytes
        Initial accumulators without outliers.
    """

    plan: ProductPlan
    rows: Activations
    most_rows: int
    without: StartByBytes

    def __post_init__(self) -> None:
        rows, most_rows, self.kernel = self.rows, self.most_rows, self.rows.kernel
        panels = self.plan.panels.widths
        self.found = OutlierList(most_rows, rows.k, self.without.offset)
        self.cut = I.sblock_alloc_buffer((most_rows, self.found.vectors * LANES), "uint8", align=64)
        side = max(1, _MOST_VECTORS // panels[0]) if len(set(panels)) == 1 else 1
        self.side, self.n_vectors = min(side, len(panels)), sum(panels)
        width = self.side * max(panels) * self.kernel.lanes
        self.starts = I.sblock_alloc_buffer((most_rows, width), "int32", align=64)
        # First vector of columns cached in `starts`; `n_vectors` if `starts` is empty.
        self.first = I.sblock_alloc_buffer((1,), "int32")
        self.count: Index = 0

    def split(self, first: Expr, count: Index) -> Expr:
        """Cuts a block of rows after their `begin`; returns whether outliers are few enough."""
        self.count, found = count, self.found
        most = found.most(count)
        if size.is_dynamic((self.plan.m,)):  # one or two rows: no outliers
            most = ex.materialise(tirx.Select(tirx.GT(count, FEW_ROWS), most, _ZERO))
        with emission.opaque_block("outliers"):
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
        """A step of K of a row without its outliers; see `OperandA.load`."""
        kr = self.kernel.kr
        return self.kernel.spread(self.cut[self.rows.within(row), ex.ramp(step * kr, kr)])

    def begin_panel(self, vector: Expr, vectors: int) -> None:
        """Computes the initial accumulators of a panel."""
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
        """Computes the initial accumulators of panels side by side."""
        lanes, vectors = self.kernel.lanes, range(width * self.side)
        places, weight = [ex.ramp(j * lanes, lanes) for j in vectors], self.without.weight
        with emission.opaque_block("add_outliers"):
            alike = self._alike(vector, places)
            with I.serial(self.count) as row:
                totals = I.sblock_alloc_buffer((len(vectors) * lanes,), "int32")
                for j, place in enumerate(places):
                    if alike is None:
                        value = self.without(self.rows.block + row, vector + j)
                    else:
                        value = alike[place]
                    I.buffer_store(totals, value, [place])

                def add(step: Expr, products: Products) -> None:
                    for j, place in enumerate(places):
                        b = weight.load(vector + j // width * width, width, step, j % width)
                        I.buffer_store(totals, totals[place] + products(self.kernel, b), [place])

                self.found.for_each(row, add)
                for place in places:
                    I.buffer_store(self.starts, totals[place], [row, place])

    def _alike(self, vector: Expr, places: Sequence[Expr]) -> Expr | None:
        """Initial accumulators of all rows without outliers; None if rows differ or for zeros."""
        if self.without.zero_points is None or not self.without.zero_points.by_column:
            return None
        alike = I.sblock_alloc_buffer((len(places) * self.kernel.lanes,), "int32", align=64)
        for j, place in enumerate(places):
            I.buffer_store(alike, self.without(self.rows.block, vector + j), [place])
        return alike

    def __call__(self, row: Index, vector: Index) -> Expr:
        """See `Beginning.__call__`."""
        lanes = self.kernel.lanes
        place = ex.ramp((vector - self.first[_ZERO]) * lanes, lanes)
        return self.starts[self.rows.within(row), place]


# How 8-bit integers are multiplied without VNNI. A block of rows takes the first way whose
# condition it meets; all ways give equal integers (see `microkernels.kernels.byte_pairs`).
#
#   the weight's pairs are small    bytes: 3 instructions for 4 products. Tiles of 4x48 from cache:
#                                   264 GOP/s, words 198, digits 164. Packing checks the pairs;
#                                   its answer follows the weight
#   all of A is of seven bits       bytes; one pass of ORs over A finds it. 784x512x128: 226 GOP/s,
#                                   177 before
#   few elements of A are not       bytes, and the outliers from a list (`OutlierList`). Up to 3% of
#                                   A are as fast as words or faster: 128x768x768 with 1% 232 GOP/s,
#                                   182 before; with K of 16 and 24 bytes were slower
#   others                          words: 4 instructions; A and the panels are widened in cache
#                                   (`staged_panels.wide_product`)
#   others, of few rows             digits: 6 instructions, but nothing is widened, and the weight
#                                   is half as many bytes
#
# Weights of 7 bits, which are made for such CPUs (`reduce_range`), and activations of 7 bits always
# fit bytes. Figures are those of docs/microkernels.md, of one thread of an Emerald Rapids. Kernels
# with an instruction for four products have none of these ways.


SEARCHED_COLUMNS = 64  # with fewer columns, searching A takes longer than it saves
LEAST_K = 33  # with a smaller K, loading initial accumulators takes longer than it saves
LISTED_ROWS = 512  # of a block: their initial accumulators for some panels stay in L2


@dataclass(frozen=True)
class ByteWay:
    """A way to multiply by bytes, for products whose threads do not divide K.

    Attributes
    ----------
    blocks : str
        The condition for a block of rows at run time, in words.
    rows, columns, k : int
        The least sizes of a product that may take it; any dynamic number of rows is enough.
    """

    blocks: str
    rows: int = 1
    columns: int = 1
    k: int = 1

    def suits(self, plan: ProductPlan) -> bool:
        """Whether the sizes, the kernel and the threads of a product allow it."""
        rows = self.rows if size.is_dynamic((plan.m,)) else plan.m
        enough = rows >= self.rows and plan.n >= self.columns and plan.k >= self.k
        alone = sum(group.count for group in plan.k_shares) == 1
        return has_pairs(plan.kernel) and enough and alone


SMALL_PAIRS = ByteWay("the weight's pairs are small")
SEVEN_BITS = ByteWay("no element of x is beyond 127", columns=SEARCHED_COLUMNS)
_FEW_OUTLIERS = "few elements of x are {beyond}, whose products are added apart,"
APART = ByteWay(_FEW_OUTLIERS, FEWEST_INTEGER_ROWS, SEARCHED_COLUMNS, LEAST_K)


def by_values(searched: bool, listed: bool = False, offset: int = 0) -> str:
    """What the multiplied values decide, for `explain`; `offset` is c if it is static, else 0."""
    beyond = f"beyond {LARGEST}"
    if offset > 0:
        beyond = f"(as uint8) not from {offset} to {offset + LARGEST}"
    found = APART.blocks.format(beyond=beyond) if listed else SEVEN_BITS.blocks
    rows = f"{found} or " if searched else ""
    return f"pairs of bytes where {rows}{SMALL_PAIRS.blocks}, else words or digits"


def cut_for_bytes(plan: ProductPlan) -> ProductPlan:
    """The plan with blocks of rows that are small enough for lists of outliers."""
    if not APART.suits(plan):
        return plan
    return replace(plan, m_block=min(plan.m_block, max(LISTED_ROWS, plan.rows)))


def byte_shortcuts(
    loops: TileLoops, rows: Activations, most_rows: int, start: Start | None, weight: PackedWeight
) -> list[Shortcut]:
    """The loops that multiply by bytes, each with its condition.

    Parameters
    ----------
    loops : TileLoops
        The loops for all other blocks.
    rows : Activations
        A, for a tile by bytes; the conditions run its `begin`.
    most_rows : int
        Rows of the largest block.
    start : Start or None
        Initial accumulators.
    weight : PackedWeight
        It says whether its pairs fit.
    """
    plan = replace(loops.plan, kernel=rows.kernel)
    by_bytes = replace(loops, plan=plan, a=rows, start=start)

    def small() -> Expr:
        return weight_fits(weight.buffer, weight.answer_at)

    if not SEVEN_BITS.suits(loops.plan):
        return [Shortcut(lambda *_: small(), by_bytes)]
    by_bytes = replace(by_bytes, a=Begun(rows))

    def fits(first: Expr, count: Index) -> Expr:
        rows.begin(first, count)
        return tirx.Or(find_high_bits(rows, first, count), small())

    if not APART.suits(loops.plan):
        return [Shortcut(fits, by_bytes)]
    without = StartByBytes(start, weight, _offset(start))
    outliers = ByteOutliers(plan, rows, most_rows, without)
    # Few rows have several panels side by side, and no outliers.
    apart = replace(by_bytes, a=outliers, start=outliers, few_rows=FewRows(start=without))
    return [Shortcut(fits, by_bytes), Shortcut(outliers.split, apart)]


def cuts_above(plan: ProductPlan, points: ZeroPoints) -> bool:
    """Whether outliers are multiplied apart, and a static zero point makes c larger than 0."""
    return APART.suits(plan) and not points.a_runtime and known_offset(points) > 0


def known_offset(points: ZeroPoints) -> int:
    """c for a static zero point, which lies in the middle of the seven bits above c."""
    return placeholders.applied(_middle, points.a)


def _middle(zero_point: int) -> int:
    return min(max(zero_point - (LARGEST // 2 + 1), 0), LARGEST_OFFSET)


def _offset(start: Start | None) -> Expr | None:
    """c for any zero point; None for 0."""
    if start is None:
        return None
    if not start.zero_points.a_runtime:
        known = known_offset(start.zero_points)
        return ex.scalar(known, "int32") if known > 0 else None
    below = start.a_zero_point() - tirx.const(LARGEST // 2 + 1, "int32")
    offset = tirx.Max(below, tirx.const(0, "int32"))
    return ex.materialise(tirx.Min(offset, tirx.const(LARGEST_OFFSET, "int32")))


def weight_fits(weight: Expr, answer: int) -> Expr:
    """Whether packing found that a weight's pairs fit: the int32 at byte `answer` of the buffer."""
    found = ex.reinterpret_group("int32", weight[ex.ramp(answer, 4)], 1)
    return tirx.NE(found, tirx.const(0, "int32"))
