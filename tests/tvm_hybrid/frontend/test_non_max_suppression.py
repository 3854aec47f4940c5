"""NonMaxSuppression against ONNX Runtime: limits that are met exactly, left out, or come late."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_hybrid
from microkernels.errors import InputValueError
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.report.onnx_runtime import literal_session

# [y1, x1, y2, x2]: the second overlaps the first by a half, the third by a third, the last by none.
BOXES = np.array([[0, 0, 1, 2], [0, 0, 1, 1], [0, 1, 1, 3], [5, 5, 6, 6]], np.float32)[None]
SCORES = [[0.9, 0.8, 0.5, 0.7], [0.5, -0.3, -0.5, -3], [0, 0, 0, 0], [-2, -1, -1, -0.5]]
MOST, OVERLAP, SCORE = np.array([4]), np.array([0.5], "f"), np.array([-1.0], "f")


def _model(*limits: np.ndarray, late: bool = False, **attributes: int) -> OnnxBuilder:
    model = OnnxBuilder()
    boxes, scores = model.input("boxes", BOXES.shape), model.input("scores", (1, 1, 4))
    names = [
        model.input(f"limit{n}", limit.shape, limit.dtype.type) if late else model.constant(limit)
        for n, limit in enumerate(limits)
    ]
    chosen = model.node("NonMaxSuppression", boxes, scores, *names, **attributes)
    model.output(chosen, ("n", 3), np.int64)
    return model


@pytest.mark.parametrize(
    "limits",
    [
        (MOST, OVERLAP, SCORE),
        (MOST, np.nextafter(OVERLAP, np.float32(0)), SCORE),
        (MOST, OVERLAP, np.array([0.7], "f")),
        (MOST, OVERLAP, np.array([0.0], "f")),
        (MOST, OVERLAP),
        (MOST,),
        (),
    ],
)
@pytest.mark.parametrize("center", [0, 1])
def test_limits(limits: tuple[np.ndarray, ...], center: int) -> None:
    """Scores of all signs, and equal ones."""
    proto = _model(*limits, center_point_box=center).model()
    low, high = BOXES[..., 1::-1], BOXES[..., 3:1:-1]
    boxes = np.concatenate([(low + high) / 2, high - low], axis=2) if center else BOXES
    session = tvm_hybrid.InferenceSession(proto, num_threads=1)
    for scores in SCORES:
        feeds = {"boxes": boxes, "scores": np.array([[scores]], np.float32)}
        (expected,) = literal_session(proto).run(None, feeds)
        (found,) = session.run(None, feeds)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_limits_that_come_at_run_time() -> None:
    proto = _model(MOST, OVERLAP, SCORE, late=True).model()
    with pytest.raises(InputValueError, match="'limit0'"):
        tvm_hybrid.compile(proto)
    session = tvm_hybrid.InferenceSession(proto, num_threads=1)
    scores = np.array([[SCORES[0]]], np.float32)
    for most in (MOST, np.array([1])):
        feeds = {
            "boxes": BOXES,
            "scores": scores,
            "limit0": most,
            "limit1": OVERLAP,
            "limit2": SCORE,
        }
        (expected,) = literal_session(proto).run(None, feeds)
        np.testing.assert_array_equal(session.run(None, feeds)[0], expected)
