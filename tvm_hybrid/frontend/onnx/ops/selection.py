"""Operators that select elements by value: NonZero, Compress, Unique, If, NonMaxSuppression.

A kernel writes results of the largest possible size, and a count. The count becomes a symbolic
size, `R.match_cast(R.tensor_to_shape(count), R.Shape([n]))`; results are cut to it, and TVM types
and compiles later operators in terms of it.

    condition, then [4, 8], other [n, 8]    ->    m = condition ? 4 : n, result [m, 8]
    flags = [0, 1, 1, 0]    ->    places = [1, 2, ?, ?], count = [2]    ->    [1, 2]
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from microkernels.vector.expressions import ramp, reinterpret, splat

from ... import expressions as ex
from ...expressions import Expr, Place, constant, emit_each, literal
from ..graph.graph import OWN_DOMAIN
from ..graph.kernels import cell, copied, cut, emit_kernel, pick, put, size_in, table
from ..graph.requests import check_sizes
from ..graph.sizes import INDEX, dims_of, index, is_number, product, same_size
from ..operators import operator
from .sorting import Before, Heap, Order, key_of, place_in, rising, sort_by_digits, sort_places


@operator("Select", domain=OWN_DOMAIN)
def _select(condition: Expr, then: Expr, other: Expr) -> Expr:
    condition = ex.reshaped(condition, ())
    sizes = [
        one if same_size(one, two) else _chosen(condition, one, two)
        for one, two in zip(dims_of(then), dims_of(other), strict=True)
    ]

    def element(place: Place, condition: te.Tensor, then: te.Tensor, other: te.Tensor) -> Expr:
        # The index may be outside of the branch that is not taken, so that branch is not read.
        return tirx.if_then_else(condition(), then(*place), other(*place))

    return emit_each("taken", sizes, element, condition, then, other, hint="select_branch")


def _chosen(condition: Expr, one: Expr, two: Expr) -> tirx.Var:
    """A size that is one of two, by a condition."""

    def element(_: Place, condition: te.Tensor, sizes: list[Expr]) -> Expr:
        return tirx.if_then_else(condition(), *(tirx.Cast(INDEX, size) for size in sizes))

    return size_in(emit_each("chosen", [1], element, condition, [one, two], hint="select_size"))


# NonZero and Compress: the number of selected elements is only known at run time.
#
#     flags = [0, 1, 1, 0]    ->    places = [1, 2, ?, ?], count = [2]    ->    [1, 2]
#
# A kernel writes the indices of the selected elements, at most all, and counts them. Later results
# are cut to the count.


@operator("NonZero")
def _nonzero(x: Expr) -> Expr:
    dims = dims_of(x)
    places, count = _places(copied(x, [product(dims)]), product(dims))

    def element(at: Place, places: te.Tensor, dims: list[Expr]) -> Expr:
        (axis, number), found = at, index(0)
        for each, size in enumerate(dims):
            step = product(dims[each + 1 :])
            # The tensor may have no elements.
            step, size = te.max(step, index(1)), te.max(size, index(1))
            place = tirx.floormod(tirx.floordiv(places[number], step), size)
            found = place if each == 0 else tirx.Select(axis == each, place, found)
        return found

    shape = [len(dims), count]
    return emit_each("coordinates", shape, element, places, dims, hint="coordinates")


@operator("Compress")
def _compress(data: Expr, condition: Expr, *, axis: int | None = None) -> Expr:
    """Compress; a condition that is shorter than the axis selects nothing beyond its end."""
    if axis is None:
        data, axis = copied(data, [product(dims_of(data))]), 0
    dims = dims_of(data)
    axis %= len(dims)
    places, count = _places(condition, te.min(dims_of(condition)[0], dims[axis]))
    return pick(data, places, count, axis)


def _places(flags: Expr, extent: Expr) -> tuple[Expr, Expr]:
    """Indices of the nonzero ones among the first `extent` elements, and their number."""

    def body(flags: Expr, places: Expr, count: Expr) -> None:
        put(count, index(0))
        with I.serial(extent) as i, I.If(_is_true(flags[i])), I.Then():
            put(places, i, count[0])
            put(count, count[0] + 1)

    results = [([extent], INDEX), ([1], INDEX)]
    places, count = emit_kernel("places", [flags], results, body)
    return places, size_in(count)


def _is_true(value: Expr) -> Expr:
    dtype = str(value.ty.dtype)
    if dtype == "bool":
        return value
    if "float" in dtype:  # all bits but the sign, as TVM's comparison treats NaN as equal to 0
        bits = f"uint{value.ty.dtype.bits}"
        value, dtype = reinterpret(bits, value) << tirx.const(1, bits), bits
    return value != tirx.const(0, dtype)


# Unique: the distinct elements of a tensor, or the distinct slices along an axis.
#
# A kernel sorts the indices of all slices, so that equal slices are adjacent, in their old order:
# single elements by radix sort, longer slices by merge sort. NaN equals NaN and comes last; of 0
# and -0 the first one is kept.


@operator("Unique")
def _unique(x: Expr, *, axis: int | None = None, sorted: int = 1) -> Expr:
    dims = dims_of(x)
    if axis is None:
        slices = [index(1), product(dims), index(1)]
        x = copied(x, [slices[1]])
        axis = 0
    else:
        axis %= len(dims)
        slices = [product(dims[:axis]), dims[axis], product(dims[axis + 1 :])]
    data = copied(x, slices)

    def body(x: Expr, firsts: Expr, inverse: Expr, counts: Expr, count: Expr) -> None:
        extent = x.shape[1]
        order, group = table(extent), cell()
        before = _sort(x, order)
        put(group, index(-1))
        with I.serial(extent) as place:
            new = cell("bool")
            put(new, tirx.EQ(place, index(0)))
            with I.If(place > 0), I.Then():
                put(new, before(order[place - 1], order[place]))
            with I.If(new[0]), I.Then():
                put(group, group[0] + 1)
                put(firsts, order[place], group[0])
                put(counts, index(0), group[0])
            put(counts, counts[group[0]] + 1, group[0])
            put(inverse, group[0], order[place])
        put(count, group[0] + 1)
        if not sorted:
            _by_first_place(firsts, inverse, counts)

    extent = slices[1]
    results = [([extent], INDEX), ([extent], INDEX), ([extent], INDEX), ([1], INDEX)]
    firsts, inverse, counts, count = emit_kernel("unique", [data], results, body)
    found = size_in(count)
    values = pick(x, firsts, found, axis)
    return relax.Tuple([values, cut(firsts, found), inverse, cut(counts, found)])


def _sort(x: Expr, order: Expr) -> Before:
    """Sorts the indices of slices, and returns the comparison of two slices."""
    outer, extent, inner = x.shape
    # Single elements are sorted by radix sort.
    if is_number(outer, 1) and is_number(inner, 1):
        ranks = table(extent, str(rising(x[0, index(0), 0]).ty.dtype))
        with I.serial(extent) as place:
            put(ranks, rising(x[0, place, 0]), place)
        sort_by_digits(Order(order, lambda place: ranks[place]), extent)
        return lambda one, other: ranks[one] < ranks[other]
    before = functools.partial(_compared, x)
    with I.serial(extent) as place:
        put(order, place, place)
    sort_places(order, extent, before)
    return before


def _compared(x: Expr, one: Expr, other: Expr) -> Expr:
    """Whether a slice comes before another, by the first elements that differ."""
    result, place = cell("int8"), cell()
    outer, inner = x.shape[0], x.shape[2]
    put(result, tirx.const(0, "int8"))
    put(place, index(0))
    with I.While(tirx.all(tirx.EQ(result[0], tirx.const(0, "int8")), place[0] < outer * inner)):
        row, column = index(0), place[0]
        if not is_number(outer, 1):
            row, column = tirx.floordiv(column, inner), tirx.floormod(column, inner)
        left, right = x[row, one, column], x[row, other, column]
        with I.If(_lesser(left, right)), I.Then():
            put(result, tirx.const(1, "int8"))
        with I.If(_lesser(right, left)), I.Then():
            put(result, tirx.const(-1, "int8"))
        put(place, place[0] + 1)
    return result[0] > 0


def _lesser(left: Expr, right: Expr) -> Expr:
    """Whether a number comes before another; NaN comes after all others, and equals NaN."""
    dtype = str(left.ty.dtype)
    if dtype == "bool":
        left, right = tirx.Cast("int8", left), tirx.Cast("int8", right)
    if "float" not in dtype:
        return left < right
    return tirx.any(left < right, tirx.all(ex.is_nan(right), tirx.Not(ex.is_nan(left))))


def _by_first_place(firsts: Expr, inverse: Expr, counts: Expr) -> None:
    """Renumbers the groups in the order of their first elements."""
    extent = inverse.shape[0]
    old_firsts, old_counts, number = table(extent), table(extent), table(extent)
    group, found = cell(), cell()
    with I.serial(extent) as place:
        put(old_firsts, firsts[place], place)
        put(old_counts, counts[place], place)
    put(found, index(0))
    with I.serial(extent) as place:
        put(group, inverse[place])
        with I.If(tirx.EQ(old_firsts[group[0]], place)), I.Then():
            put(number, found[0], group[0])
            put(firsts, place, found[0])
            put(counts, old_counts[group[0]], found[0])
            put(found, found[0] + 1)
        put(inverse, number[group[0]], place)


# NonMaxSuppression: of overlapping boxes, only the one with the highest score is kept.
#
# Overlaps and comparisons are computed as in ONNX Runtime, in float32 and in its order, so that a
# box at a threshold gets the same decision. A heap gives the next best box; boxes after the last
# chosen one are never sorted. Vectors compare a box with several chosen ones. NaN counts as the
# lowest score. TVM's operator takes no limits at run time, suppresses at the threshold, and returns
# all boxes.


LANES = 8  # number of boxes in one vector comparison

Side: TypeAlias = tuple[Expr, Expr]
"""Begin and end of a box along an axis."""


@operator("NonMaxSuppression")
def _non_max_suppression(
    boxes: Expr, scores: Expr, *limits: Expr, center_point_box: int = 0
) -> Expr:
    images, classes, extent = dims_of(scores)
    misfit = "its boxes are not those of its scores"
    check_sizes(dims_of(boxes), (images, extent, index(4)), misfit)
    given = [*limits, None, None, None][:3]
    most, overlap, least = (
        literal(np.zeros(1, dtype)) if limit is None else ex.cast(ex.reshaped(limit, (1,)), dtype)
        for limit, dtype in zip(given, (INDEX, "float32", "float32"), strict=True)
    )
    known, each = constant(most), extent
    if known is not None and isinstance(extent, tirx.IntImm):
        each = index(min(int(extent), max(int(known.item()), 0)))

    def body(boxes: Expr, scores: Expr, *others: Expr) -> None:
        most, overlap, least, chosen, count = others
        images, classes, extent = scores.shape
        order, candidates, best = table(extent), cell(), cell()
        first, rival, keep = cell(), cell(), cell("bool")
        heap = Heap(order, lambda one, other: one < other)
        rivals = _Chosen(extent)
        put(count, index(0))
        with I.grid(images, classes) as (image, kind):
            put(candidates, index(0))
            with I.serial(extent) as box:
                score = scores[image, kind, box]
                # Without a branch, which would be mispredicted for scores near the threshold.
                rank = rising(score, nan_is_most=False) ^ tirx.const(-1, "int32")
                put(order, key_of(rank, box), candidates[0])
                counts = tirx.const(True, "bool") if given[2] is None else score > least[0]
                put(candidates, candidates[0] + counts.astype(INDEX))
            heap.build(candidates[0])
            put(first, count[0])
            room, rank = te.min(most[0], each), count[0] - first[0]
            with I.While(tirx.all(candidates[0] > 0, rank < room)):
                put(best, place_in(order[0]))
                put(candidates, candidates[0] - 1)
                put(order, order[candidates[0]])
                heap.sink(index(0), candidates[0])
                corners = [boxes[image, best[0], side] for side in range(4)]
                rivals.append(rank, [_extent(corners, axis, center_point_box) for axis in (0, 1)])
                put(keep, tirx.const(True, "bool"))
                put(rival, index(0))
                with I.While(tirx.all(keep[0], rival[0] < rank)):
                    with (
                        I.If(rivals.some_may_meet(rival[0], rank)),
                        I.Then(),
                        I.serial(te.min(rank - rival[0], LANES)) as number,
                    ):
                        sides = rivals.beside(rival[0] + number, rank)
                        with I.If(_meet(sides)), I.Then():  # rarely true
                            put(keep, tirx.all(keep[0], _stays(sides, overlap[0])))
                    put(rival, rival[0] + LANES)
                with I.If(keep[0]), I.Then():
                    for column, value in enumerate((image, kind, best[0])):
                        put(chosen, value, count[0], column)
                    put(count, count[0] + 1)

    results = [([images * classes * each, 3], INDEX), ([1], INDEX)]
    tensors = [boxes, scores, most, overlap, least]
    chosen, count = emit_kernel("non_max_suppression", tensors, results, body)
    return cut(chosen, size_in(count))


class _Chosen:
    """The chosen boxes of a class, followed by the candidate."""

    def __init__(self, extent: Expr) -> None:
        self._apart = extent + LANES
        # Each of the four sides is a table, so that a vector compares a box with several.
        self._sides = I.sblock_alloc_buffer([4 * self._apart], "float32")

    def append(self, number: Expr, sides: Sequence[Side]) -> None:
        """Stores a box after the first `number` boxes."""
        for place, side in enumerate(each for pair in sides for each in pair):
            put(self._sides, side, place * self._apart + number)

    def some_may_meet(self, first: Expr, box: Expr) -> Expr:
        """Whether one of the next `LANES` boxes from `first` on may intersect a box."""
        several = [self._sides[ramp(n * self._apart + first, LANES)] for n in range(4)]
        own = [splat(side, LANES) for pair in self._of(box) for side in pair]
        meet = [own[0] < several[1], several[0] < own[1], own[2] < several[3], several[2] < own[3]]
        both = tirx.And(tirx.And(*meet[:2]), tirx.And(*meet[2:]))
        return I.call_llvm_pure_intrin("bool", f"llvm.vector.reduce.or.v{LANES}i1", both)

    def beside(self, one: Expr, other: Expr) -> list[Side]:
        """The rows of two boxes, then the columns of both."""
        return [side for pair in zip(self._of(one), self._of(other), strict=True) for side in pair]

    def _of(self, number: Expr) -> list[Side]:
        low, high, left, right = (self._sides[n * self._apart + number] for n in range(4))
        return [(low, high), (left, right)]


def _meet(sides: Sequence[Side]) -> Expr:
    """Whether two boxes intersect; `sides` are the rows of both, then the columns of both."""
    pairs = (sides[:2], sides[2:])
    return tirx.all(*(one[0] < other[1] for pair in pairs for one in pair for other in pair))


def _stays(sides: Sequence[Side], threshold: Expr) -> Expr:
    """Whether the intersection over union of two intersecting boxes is at most the threshold."""
    zero = tirx.const(0, "float32")
    pairs = (sides[:2], sides[2:])
    common = _product(*(te.min(a[1], b[1]) - te.max(a[0], b[0]) for a, b in pairs))
    areas = [_product(*(pair[n][1] - pair[n][0] for pair in pairs)) for n in (0, 1)]
    together = areas[0] + areas[1] - common
    positive = tirx.all(*(zero < each for each in (common, *areas, together)))
    share = common / tirx.Select(zero < together, together, tirx.const(1, "float32"))
    suppressed = tirx.all(positive, threshold < share)
    # Not `Not`: TVM would invert the comparisons, which is wrong for NaN from overflowing areas.
    return tirx.Select(suppressed, tirx.const(False, "bool"), tirx.const(True, "bool"))


def _extent(box: list[Expr], axis: int, centered: int) -> Side:
    """Begin and end of a box along rows (0) or columns (1)."""
    if centered:  # x, y, width, height
        middle, half = box[1 - axis], box[3 - axis] / tirx.const(2, "float32")
        return middle - half, middle + half
    return te.min(box[axis], box[axis + 2]), te.max(box[axis], box[axis + 2])


def _product(left: Expr, right: Expr) -> Expr:
    """A product that is rounded to float32 before it is added."""
    # float64 holds the product exactly.
    wide = tirx.Cast("float64", left) * tirx.Cast("float64", right)
    return tirx.Cast("float32", wide)
