"""NonMaxSuppression with the limits that ONNX means.

TVM's converter takes limits that arrive at run time, or not at all, for numbers of its own. And its
operator suppresses a box whose overlap equals the threshold, where ONNX wants more overlap, and no
box whose score is not positive. Where such scores may count, it gets ranks in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from .expressions import Converter, constant, given, known_dims, literal


def _non_max_suppression(
    builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    boxes, scores = inputs[:2]
    most = _limit(inputs, 2, "max_output_boxes_per_class", 0)
    overlap = np.nextafter(np.float32(_limit(inputs, 3, "iou_threshold", 0)), np.float32(np.inf))
    overlap = max(overlap, np.finfo(np.float32).tiny)  # 0, and what may count as 0, turns it off
    score = _limit(inputs, 4, "score_threshold", -np.inf)
    if score < 0:
        scores, score = _ranks(builder, scores, score), 0
    if attrs.get("center_point_box", 0):
        boxes = builder.normalize(_corners(builder, boxes))
    found = relax.op.vision.all_class_non_max_suppression(
        boxes,
        scores,
        literal(np.array(most, np.int64)),
        literal(np.array(overlap, np.float32)),
        literal(np.array(score, np.float32)),
        output_format="onnx",
    )
    return builder.emit(relax.TupleGetItem(builder.normalize(found), 0))


def _limit(inputs: Sequence[Any], position: int, name: str, default: float) -> Any:
    value = given(inputs, position)
    if value is None:
        return default
    array = constant(value)
    if array is None:
        raise ValueError(f"{name} must be a constant")
    return array.item()


def _ranks(builder: relax.BlockBuilder, scores: Any, threshold: float) -> Any:
    """Positive numbers in the order of scores [batch, classes, boxes]; 0 up to the threshold."""
    boxes = np.float32(known_dims(scores)[2])
    order = builder.normalize(relax.op.argsort(scores, axis=2, descending=True, dtype="int32"))
    place = builder.normalize(relax.op.argsort(order, axis=2, descending=False, dtype="int32"))
    rank = relax.op.subtract(literal(np.array(boxes)), relax.op.astype(place, "float32"))
    counts = relax.op.greater(scores, literal(np.array(threshold, np.float32)))
    none = literal(np.array(0, np.float32))
    return builder.normalize(relax.op.where(counts, rank, none))


def _corners(builder: relax.BlockBuilder, boxes: Any) -> Any:
    """[x, y, width, height] of centres as [y1, x1, y2, x2]."""
    parts = builder.normalize(relax.op.split(boxes, 4, axis=2))
    x, y, width, height = (builder.normalize(relax.TupleGetItem(parts, n)) for n in range(4))
    half = literal(np.array(0.5, np.float32))
    across, along = relax.op.multiply(width, half), relax.op.multiply(height, half)
    return relax.op.concat(
        [
            relax.op.subtract(y, along),
            relax.op.subtract(x, across),
            relax.op.add(y, along),
            relax.op.add(x, across),
        ],
        axis=2,
    )


NON_MAX_SUPPRESSION_CONVERTERS: dict[str, Converter] = {"NonMaxSuppression": _non_max_suppression}
