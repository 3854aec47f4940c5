"""Which blocks of rows of a product are multiplied by pairs of bytes, chosen when it runs.

    the weight's pairs are small         bytes
    few columns, or threads share K      words or digits
    few rows                             bytes if no element of A is beyond 7 bits
    else                                 bytes if few are, and these apart
    what is left                         words or digits

"Beyond 7 bits" is beyond 127 from 0 or, where few are taken apart, from a number below A's zero
point. See `byte_product` and `outlier_list`.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx

from microkernels.vector.expressions import Expr, materialise, scalar
from microkernels.vector.placeholders import applied
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.core.size import is_open

from .activations import Activations
from .byte_outliers import ByteOutliers, ColumnSums
from .byte_product import byte_tile_of, find_high_bits, searches, weight_fits
from .outlier_list import LARGEST, LARGEST_OFFSET
from .streams import FEW_ROWS
from .tile_loops import Shortcut, TileLoops
from .wide_product import FEWEST_INTEGER_ROWS
from .zero_points import Start, ZeroPoints

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
    loops: TileLoops,
    rows: Activations,
    most_rows: int,
    start: Start | None,
    column_sums: ColumnSums,
    weight: Expr,
    answer: int,
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
    column_sums : callable
        Vector of columns -> int32 lanes: their sums, where A may be cut above 0.
    weight, answer : Buffer and int
        The packed weight, and where it says whether its pairs fit.
    """
    by_bytes = replace(
        loops,
        plan=replace(loops.plan, kernel=rows.kernel),
        load_a=rows.load,
        begin=None,
        start=start,
        start_columns=None,
    )
    if not searches(loops.plan):
        begin = rows.begin if rows.begins else None
        return Shortcut(lambda *_: weight_fits(weight, answer), replace(by_bytes, begin=begin))

    def fits(first: Expr, count: int | Expr) -> Expr:
        rows.begin(first, count)
        return tirx.Or(find_high_bits(rows, first, count), weight_fits(weight, answer))

    if not lists_outliers(loops.plan):
        return Shortcut(fits, by_bytes)
    return Shortcut(fits, by_bytes, _with_outliers(by_bytes, rows, most_rows, start, column_sums))


def _with_outliers(
    loops: TileLoops,
    rows: Activations,
    most_rows: int,
    start: Start | None,
    column_sums: ColumnSums,
) -> Shortcut:
    """The same, of rows that have begun, whose outliers are apart."""
    widths = loops.plan.panels.widths
    outliers = ByteOutliers(
        rows, most_rows, widths, _offset(start), start, column_sums, loops.load_b
    )
    few = FEW_ROWS if is_open((loops.plan.m,)) else 0

    def cuts(first: Expr, count: int | Expr) -> Expr:
        return outliers.split(first, count, tirx.GT(count, few) if few else None)

    found = replace(
        loops, load_a=outliers.load, start=outliers.start, begin_panel=outliers.begin_panel
    )
    if few:  # several panels side by side, without outliers
        narrow = replace(found, start=outliers.start_without, begin_panel=None)
        found = replace(found, narrow=narrow)
    return Shortcut(cuts, found)


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
        return scalar(known, "int32") if known > 0 else None
    below = start.a_zero_point() - tirx.const(LARGEST // 2 + 1, "int32")
    offset = tirx.Max(below, tirx.const(0, "int32"))
    return materialise(tirx.Min(offset, tirx.const(LARGEST_OFFSET, "int32")))
