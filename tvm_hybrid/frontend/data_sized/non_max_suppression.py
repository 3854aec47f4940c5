"""NonMaxSuppression: of boxes that overlap, the one with the highest score.

Overlaps and comparisons are computed as ONNX Runtime computes them, in float32 and in its order, so
that a box at a threshold has the same fate. NaN counts as the lowest score. TVM's operator takes no
limits that arrive at run time, suppresses at the threshold, and makes all boxes of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from ..expressions import Converter, Expr, cast, constant, given, is_nan, literal, reshaped
from .kernels import INDEX, cell, emit_kernel, index, put, table
from .sizes import cut, dims_of, size_in
from .sorting import sort_places


def _non_max_suppression(
    builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    boxes, scores = inputs[:2]
    images, classes, extent = dims_of(scores)
    most = _limit(builder, inputs, 2, np.zeros(1, np.int64))
    overlap = _limit(builder, inputs, 3, np.zeros(1, np.float32))
    threshold = given(inputs, 4)
    least = _limit(builder, inputs, 4, np.zeros(1, np.float32))
    known = constant(most)
    each = extent
    if known is not None and isinstance(extent, tirx.IntImm):
        each = index(min(int(extent), max(int(known.item()), 0)))
    centered = bool(attrs.get("center_point_box", 0))

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        boxes, scores, most, overlap, least = ins
        chosen, count = outs
        images, classes, extent = scores.shape
        order, candidates = table(extent), cell()
        first, rival, keep = cell(), cell(), cell("bool")
        put(count, index(0))
        with I.grid(images, classes) as (image, kind):
            put(candidates, index(0))
            with I.serial(extent) as box:
                counts = tirx.const(True, "bool")
                if threshold is not None:
                    counts = scores[image, kind, box] > least[0]
                with I.If(counts), I.Then():
                    put(order, box, candidates[0])
                    put(candidates, candidates[0] + 1)
            sort_places(
                order,
                candidates[0],
                lambda a, b: _higher(scores[image, kind, a], scores[image, kind, b]),
            )
            put(first, count[0])
            with I.serial(candidates[0]) as place:
                put(keep, count[0] - first[0] < te.min(most[0], each))
                put(rival, first[0])
                with I.While(tirx.all(keep[0], rival[0] < count[0])):
                    suppressed = _suppresses(
                        [boxes[image, chosen[rival[0], 2], side] for side in range(4)],
                        [boxes[image, order[place], side] for side in range(4)],
                        overlap[0],
                        centered,
                    )
                    put(keep, tirx.Not(suppressed))
                    put(rival, rival[0] + 1)
                with I.If(keep[0]), I.Then():
                    for column, value in enumerate((image, kind, order[place])):
                        put(chosen, value, count[0], column)
                    put(count, count[0] + 1)

    results = [([images * classes * each, 3], INDEX), ([1], INDEX)]
    tensors = [boxes, scores, most, overlap, least]
    chosen, count = emit_kernel(builder, "non_max_suppression", tensors, results, body)
    return cut(builder, chosen, size_in(builder, count))


def _limit(
    builder: relax.BlockBuilder, inputs: Sequence[Any], position: int, default: np.ndarray
) -> Expr:
    """A limit as a vector of one element."""
    value = given(inputs, position)
    if value is None:
        return literal(default)
    return cast(builder, reshaped(builder, value, (1,)), str(default.dtype))


def _higher(left: Expr, right: Expr) -> Expr:
    """Whether a score comes before another."""
    return tirx.any(right < left, tirx.all(is_nan(right), tirx.Not(is_nan(left))))


def _suppresses(one: list[Expr], other: list[Expr], threshold: Expr, centered: bool) -> Expr:
    """Whether two boxes overlap by more than a share of what they cover together."""
    zero = tirx.const(0, "float32")
    sides = [_extent(one, axis, centered) + _extent(other, axis, centered) for axis in (0, 1)]
    lengths = [te.min(side[1], side[3]) - te.max(side[0], side[2]) for side in sides]
    meet = tirx.all(*(te.max(s[0], s[2]) < te.min(s[1], s[3]) for s in sides))
    common = _product(*lengths)
    areas = [_product(*(side[k + 1] - side[k] for side in sides)) for k in (0, 2)]
    together = areas[0] + areas[1] - common
    positive = tirx.all(*(zero < each for each in (common, *areas, together)))
    share = common / tirx.Select(zero < together, together, tirx.const(1, "float32"))
    return tirx.all(meet, positive, threshold < share)


def _extent(box: list[Expr], axis: int, centered: bool) -> tuple[Expr, Expr]:
    """Where a box begins and ends along rows (0) or columns (1)."""
    if centered:  # x, y, width, height
        middle, half = box[1 - axis], box[3 - axis] / tirx.const(2, "float32")
        return middle - half, middle + half
    return te.min(box[axis], box[axis + 2]), te.max(box[axis], box[axis + 2])


def _product(left: Expr, right: Expr) -> Expr:
    """A product that is rounded to float32 before it is added: float64 holds it exactly."""
    wide = tirx.Cast("float64", left) * tirx.Cast("float64", right)
    return tirx.Cast("float32", wide)


NON_MAX_SUPPRESSION_CONVERTERS: dict[str, Converter] = {"NonMaxSuppression": _non_max_suppression}
