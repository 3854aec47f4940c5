"""NonMaxSuppression: of boxes that overlap, the one with the highest score.

Overlaps and comparisons are computed as ONNX Runtime computes them, in float32 and in its order, so
that a box at a threshold has the same fate. A heap gives the next best box: those behind the last
that is chosen are never sorted. Vectors compare a box with several chosen ones. NaN counts as the
lowest score. TVM's operator takes no limits that arrive at run time, suppresses at the threshold,
and makes all boxes of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import te, tirx

from microkernels.vector.expressions import ramp, splat

from ...expressions import Attrs, Expr, Inputs, cast, constant, literal, reshaped
from ..graph.kernels import cell, cut, emit_kernel, put, size_in, table
from ..graph.requests import check_sizes
from ..graph.sizes import INDEX, dims_of, index
from ..operators import operator
from .sorting import Heap, key_of, place_in, rising

LANES = 8  # boxes that are compared at once

Side: TypeAlias = tuple[Expr, Expr]
"""Where a box begins and ends along an axis."""


@operator("NonMaxSuppression")
def _non_max_suppression(inputs: Inputs, attrs: Attrs) -> Any:
    boxes, scores = inputs[:2]
    images, classes, extent = dims_of(scores)
    misfit = "its boxes are not those of its scores"
    check_sizes(dims_of(boxes), (images, extent, index(4)), misfit)
    most = _limit(inputs, 2, np.zeros(1, np.int64))
    overlap = _limit(inputs, 3, np.zeros(1, np.float32))
    threshold, least = inputs[4], _limit(inputs, 4, np.zeros(1, np.float32))
    known, each = constant(most), extent
    if known is not None and isinstance(extent, tirx.IntImm):
        each = index(min(int(extent), max(int(known.item()), 0)))
    centered = bool(attrs.get("center_point_box", 0))

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        boxes, scores, most, overlap, least = ins
        chosen, count = outs
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
                # Without a branch, which scores near the threshold would mispredict.
                rank = rising(score, nan_is_most=False) ^ tirx.const(-1, "int32")
                put(order, key_of(rank, box), candidates[0])
                counts = tirx.const(True, "bool") if threshold is None else score > least[0]
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
                rivals.append(rank, [_extent(corners, axis, centered) for axis in (0, 1)])
                put(keep, tirx.const(True, "bool"))
                put(rival, index(0))
                with I.While(tirx.all(keep[0], rival[0] < rank)):
                    with (
                        I.If(rivals.some_may_meet(rival[0], rank)),
                        I.Then(),
                        I.serial(te.min(rank - rival[0], LANES)) as number,
                    ):
                        sides = rivals.beside(rival[0] + number, rank)
                        with I.If(_meet(sides)), I.Then():  # few do
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


def _limit(inputs: Sequence[Any], position: int, default: np.ndarray) -> Expr:
    """A limit as a vector of one element."""
    value = inputs[position]
    if value is None:
        return literal(default)
    return cast(reshaped(value, (1,)), str(default.dtype))


class _Chosen:
    """Where the chosen boxes of a class lie, and behind them a box that may become one.

    Each of the four sides is a table, so that vectors compare a box with several.
    """

    def __init__(self, extent: Expr) -> None:
        self._apart = extent + LANES
        self._sides = I.sblock_alloc_buffer([4 * self._apart], "float32")

    def append(self, number: Expr, sides: Sequence[Side]) -> None:
        """Notes a box behind the first `number` ones."""
        for place, side in enumerate(each for pair in sides for each in pair):
            put(self._sides, side, place * self._apart + number)

    def some_may_meet(self, first: Expr, box: Expr) -> Expr:
        """Whether one of several boxes from `first` on may have an area in common with a box."""
        several = [self._sides[ramp(n * self._apart + first, LANES)] for n in range(4)]
        own = [splat(side, LANES) for pair in self._of(box) for side in pair]
        meet = [own[0] < several[1], several[0] < own[1], own[2] < several[3], several[2] < own[3]]
        both = tirx.And(tirx.And(*meet[:2]), tirx.And(*meet[2:]))
        return I.call_llvm_pure_intrin("bool", f"llvm.vector.reduce.or.v{LANES}i1", both)

    def beside(self, one: Expr, other: Expr) -> list[Side]:
        """Rows of two boxes, then columns of both."""
        return [side for pair in zip(self._of(one), self._of(other), strict=True) for side in pair]

    def _of(self, number: Expr) -> list[Side]:
        low, high, left, right = (self._sides[n * self._apart + number] for n in range(4))
        return [(low, high), (left, right)]


def _meet(sides: Sequence[Side]) -> Expr:
    """Whether two boxes have an area in common; `sides` are rows of both, then columns of both."""
    pairs = (sides[:2], sides[2:])
    return tirx.all(*(one[0] < other[1] for pair in pairs for one in pair for other in pair))


def _stays(sides: Sequence[Side], threshold: Expr) -> Expr:
    """Whether two boxes that meet overlap by no more than a share of what they cover together."""
    zero = tirx.const(0, "float32")
    pairs = (sides[:2], sides[2:])
    common = _product(*(te.min(a[1], b[1]) - te.max(a[0], b[0]) for a, b in pairs))
    areas = [_product(*(pair[n][1] - pair[n][0] for pair in pairs)) for n in (0, 1)]
    together = areas[0] + areas[1] - common
    positive = tirx.all(*(zero < each for each in (common, *areas, together)))
    share = common / tirx.Select(zero < together, together, tirx.const(1, "float32"))
    suppressed = tirx.all(positive, threshold < share)
    # Not would turn the comparisons round, which a NaN, of areas that overflow, forbids.
    return tirx.Select(suppressed, tirx.const(False, "bool"), tirx.const(True, "bool"))


def _extent(box: list[Expr], axis: int, centered: bool) -> Side:
    """Where a box begins and ends along rows (0) or columns (1)."""
    if centered:  # x, y, width, height
        middle, half = box[1 - axis], box[3 - axis] / tirx.const(2, "float32")
        return middle - half, middle + half
    return te.min(box[axis], box[axis + 2]), te.max(box[axis], box[axis + 2])


def _product(left: Expr, right: Expr) -> Expr:
    """A product that is rounded to float32 before it is added: float64 holds it exactly."""
    wide = tirx.Cast("float64", left) * tirx.Cast("float64", right)
    return tirx.Cast("float32", wide)
