"""NonMaxSuppression compared with ONNX Runtime: limits met exactly, absent, or fed."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.frontend.onnx.compare import same, same_as_onnx_runtime
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.frontend.onnx.onnx_import import import_onnx

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


@pytest.mark.sampled
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
    """Scores of both signs, and equal scores."""
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
    session = tvm_hybrid.InferenceSession(proto, num_threads=1)
    assert session.executable.outputs[0].shape == ("n", 3)
    for most in (-1, 0, 1, 4, 9):
        for score in (-1, 0.7):
            feeds = {
                "boxes": BOXES,
                "scores": np.array([SCORES[:1]], np.float32),
                "limit0": np.array([most]),
                "limit1": OVERLAP,
                "limit2": np.array([score], np.float32),
            }
            (expected,) = literal_session(proto).run(None, feeds)
            np.testing.assert_array_equal(session.run(None, feeds)[0], expected)


def test_images_and_classes() -> None:
    """Random overlapping boxes, some with their corners swapped."""
    model = OnnxBuilder()
    boxes, scores = model.input("boxes", (2, 40, 4)), model.input("scores", (2, 3, 40))
    limits = (np.array([7]), np.array([0.3], "f"), np.array([0.4], "f"))
    chosen = model.node("NonMaxSuppression", boxes, scores, *map(model.constant, limits))
    model.output(chosen, ("n", 3), np.int64)
    feeds = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        feeds.append(
            {
                "boxes": rng.uniform(0, 1, (2, 40, 4)).astype(np.float32),
                # Few distinct scores: equal scores keep their order.
                "scores": (rng.integers(0, 12, (2, 3, 40)) / 10 * (seed > 0)).astype(np.float32),
            }
        )
    same_as_onnx_runtime(model, feeds)


@pytest.mark.parametrize("size", [0.1, 0.4])
def test_more_than_a_vector(size: float) -> None:
    """Dozens of small boxes are selected: each overlaps a few of them, or whole vectors of them."""
    model = OnnxBuilder()
    boxes, scores = model.input("boxes", ("i", "n", 4)), model.input("scores", ("i", "c", "n"))
    limits = (np.array([90]), np.array([0.1], "f"))
    chosen = model.node("NonMaxSuppression", boxes, scores, *map(model.constant, limits))
    model.output(chosen, ("k", 3), np.int64)
    assert "vector.reduce.or" in import_onnx(model.model(), keep_dynamic=True).mod.script()
    rng = np.random.default_rng(0)
    feeds = []
    for count in (0, 1, 8, 9, 200):
        corners = rng.uniform(-1, 1, (2, count, 2))
        feeds.append(
            {
                "boxes": np.concatenate([corners, corners + size], 2).astype(np.float32),
                "scores": rng.permutation(3 * count)
                .reshape(1, 3, count)
                .astype(np.float32)[[0, 0]],
            }
        )
    session = same_as_onnx_runtime(model, feeds)
    assert len(session.run(None, feeds[-1])[0]) > 6 * 16


def test_scores_that_are_nan_come_last() -> None:
    model = _model(MOST, np.array([1.0], "f"))
    scores = np.array([[[np.nan, 0.5, -np.inf, 0.7]]], np.float32)
    expected = np.array([[0, 0, box] for box in (3, 1, 2, 0)])
    same(model, [({"boxes": BOXES, "scores": scores}, [expected])])


def test_areas_of_nothing_and_beyond_float32() -> None:
    """Lines, points, negative extents and infinite areas suppress nothing."""
    model = _model(MOST, np.array([0.0], "f"), center_point_box=1)
    rows = [[2, 2, 4, 4], [2, 2, -2, -2], [2, 2, 0, 4], [2, 2, 0, 0]]
    boxes = [np.array([each], np.float32) for each in (rows, [[2, 2, 1e30, 1e30]] * 4)]
    scores = [np.array([[each]], np.float32) for each in SCORES]
    same_as_onnx_runtime(model, [{"boxes": b, "scores": s} for b in boxes for s in scores])


def test_a_number_of_boxes_that_depends_on_data() -> None:
    """A detector filters its boxes first, so their number depends on data."""
    model = OnnxBuilder()
    boxes, scores = model.input("boxes", BOXES.shape[1:]), model.input("scores", (4,))
    keep = model.node("Greater", scores, model.constant(np.float32(0)))
    kept = [model.node("Compress", each, keep, axis=0) for each in (boxes, scores)]
    kept = [
        model.node("Unsqueeze", kept[0], model.constant([0])),
        model.node("Unsqueeze", kept[1], model.constant([0, 1])),
    ]
    limits = map(model.constant, (MOST, np.array([0.4], "f")))
    model.output(model.node("NonMaxSuppression", *kept, *limits), ("n", 3), np.int64)
    values = ([0.9, 0.8, 0.5, 0.7], [0.1, -1, 0, 0.2], [0, 0, 0, 0])
    feeds = [{"boxes": BOXES[0], "scores": np.array(each, np.float32)} for each in values]
    same_as_onnx_runtime(model, feeds)


@pytest.mark.parametrize("most", [3, 100])
def test_the_order_of_many_scores(most: int) -> None:
    """Scores of both signs, zeros, infinities and equal scores; all boxes or the first few."""
    model = OnnxBuilder()
    boxes, scores = model.input("boxes", (1, "n", 4)), model.input("scores", (1, 2, "n"))
    limits = (np.array([most]), np.array([0.99], "f"))
    chosen = model.node("NonMaxSuppression", boxes, scores, *map(model.constant, limits))
    model.output(chosen, ("k", 3), np.int64)
    feeds = []
    for count in (0, 1, 2, 63, 64):
        low = np.arange(count, dtype=np.float32)[:, None] * np.ones(4, np.float32)
        rng = np.random.default_rng(count)
        values = np.array([0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-40, 2, -2], np.float32)
        feeds.append(
            {
                "boxes": (low + np.array([0, 0, 1, 1], np.float32))[None],
                "scores": rng.choice(values, (1, 2, count)),
            }
        )
    session = same_as_onnx_runtime(model, feeds)
    assert len(session.programs) == 1
    assert "non_max_suppression" in [each.function for each in session.explain()]
