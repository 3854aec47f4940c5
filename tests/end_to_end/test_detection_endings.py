"""Endings of exported detectors: our convolutions, then sizes that depend on the image.

Weights and pixels are small integers and powers of two, so that all scores and boxes are exact, and
the detections equal ONNX Runtime's to the bit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

pytestmark = pytest.mark.turns

SIDE, CELLS, CLASSES = 8, 64, 3
SHAPE = (1, 16, SIDE, SIDE)


def heads(model: OnnxBuilder) -> tuple[str, str]:
    """Boxes [1, 64, 4] as corners and scores [1, 3, 64], each from a convolution."""
    rng = np.random.default_rng(3)
    image = model.input("image", SHAPE)
    weight = model.constant(rng.integers(-1, 2, (32, 16, 3, 3)), np.float32)
    bias = model.constant(np.zeros(32), np.float32)
    stem = model.node("Relu", model.node("Conv", image, weight, bias, pads=[1, 1, 1, 1]))
    head = model.constant(rng.integers(-1, 2, (4 + CLASSES, 32, 1, 1)) / 64, np.float32)
    maps = model.node("Conv", stem, head)
    flat = model.node("Reshape", maps, model.constant([1, 4 + CLASSES, CELLS]))
    sides, scores = (
        model.node("Slice", flat, *(model.constant([each]) for each in (first, last, 1)))
        for first, last in ((0, 4), (4, 4 + CLASSES))
    )
    extents = model.node("Transpose", model.node("Abs", sides), perm=[0, 2, 1])
    y, x = np.divmod(np.arange(CELLS), SIDE)
    centres = np.stack([y, x], axis=1)[None] + 0.5
    low = model.node(
        "Sub",
        model.constant(centres, np.float32),
        model.node("Slice", extents, *(model.constant([each]) for each in (0, 2, 2))),
    )
    high = model.node(
        "Add",
        model.constant(centres, np.float32),
        model.node("Slice", extents, *(model.constant([each]) for each in (2, 4, 2))),
    )
    return model.node("Concat", low, high, axis=2), scores


def images() -> list[dict[str, np.ndarray]]:
    """One image without objects, and three with an increasing number of objects."""
    arrays = [np.zeros(SHAPE, np.float32)]
    for seed, most in enumerate((1, 2, 4)):
        rng = np.random.default_rng(seed)
        arrays.append(rng.integers(0, most + 1, SHAPE).astype(np.float32))
    return [{"image": array} for array in arrays]


def check(model: OnnxBuilder, tmp_path: Path) -> list[int]:
    """Asserts ONNX Runtime's detections and our kernels before them; returns how many there are.

    One program runs all images; it is exported and loaded after the first image.
    """
    peer = literal_session(model.model())
    options = {"num_threads": 1, "records": [], "fast_math": "off"}
    session = tvm_hybrid.InferenceSession(model.model(), **options)
    taken = [each for each in session.executable.manifest.decisions if each.taken]
    assert [each.op.split()[0] for each in taken] == ["conv2d", "matmul"]  # the second is 1x1
    rows = session.executable.profile(images()[-1], repeat=1).rows
    assert {each.function for each in taken} <= {row.function for row in rows}
    counts = []
    for number, feeds in enumerate(images()):
        if number == 1:
            library = session.executable.export(tmp_path / "detector.so")
            session = tvm_hybrid.InferenceSession(tvm_hybrid.load(library))
        found, expected = session.run(None, feeds), peer.run(None, feeds)
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_array_equal(ours, theirs)
        counts.append(len(found[0]))
    return counts


def suppressed(model: OnnxBuilder, boxes: str, scores: str) -> str:
    limits = (np.array([5]), np.array([0.4], np.float32), np.array([0.5], np.float32))
    return model.node("NonMaxSuppression", boxes, scores, *map(model.constant, limits))


def yolo() -> OnnxBuilder:
    """Rows of image, box, class, score, gathered by the indices of NonMaxSuppression."""
    model = OnnxBuilder()
    boxes, scores = heads(model)
    selected = suppressed(model, boxes, scores)
    columns = [model.node("Gather", selected, model.constant([c]), axis=1) for c in range(3)]
    places = model.node("Concat", columns[0], columns[2], axis=1)
    parts = [
        model.node("Cast", columns[0], to=1),
        model.node("GatherND", boxes, places),
        model.node("Cast", columns[1], to=1),
        model.node("Unsqueeze", model.node("GatherND", scores, selected), model.constant([1])),
    ]
    model.output(model.node("Concat", *parts, axis=1), ("detections", 7))
    return model


def ssd() -> OnnxBuilder:
    """The ten best detections of all classes: TopK of the boxes that NonMaxSuppression selects."""
    model = OnnxBuilder()
    boxes, scores = heads(model)
    selected = suppressed(model, boxes, scores)
    kinds, cells = (
        model.node(
            "Squeeze",
            model.node("Slice", selected, *map(model.constant, ([c], [c + 1], [1]))),
            model.constant([1]),
        )
        for c in (1, 2)
    )
    flat = model.node("Reshape", scores, model.constant([-1]))
    place = model.node("Add", model.node("Mul", kinds, model.constant(CELLS)), cells)
    chosen = model.node("Gather", flat, place)
    most = model.node(
        "ReduceMin", model.node("Concat", model.constant([10]), model.node("Shape", chosen), axis=0)
    )
    best, order = model.nodes("TopK", 2, chosen, most)
    rows = model.node("Squeeze", boxes, model.constant([0]))
    model.output(best, ("detections",))
    model.output(model.node("Gather", rows, model.node("Gather", cells, order)), ("detections", 4))
    model.output(model.node("Gather", kinds, order), ("detections",), np.int64)
    return model


def torchvision() -> OnnxBuilder:
    """Boxes filtered by score, offset by class, suppressed, and cut to the first hundred."""
    model = OnnxBuilder()
    boxes, scores = heads(model)
    flat = model.node("Reshape", scores, model.constant([-1]))
    rows = model.node("Squeeze", boxes, model.constant([0]))
    over = model.node("Greater", flat, model.constant(np.float32(0.25)))
    kept = model.node("Squeeze", model.node("NonZero", over), model.constant([0]))
    kind = model.node("Div", kept, model.constant(CELLS))
    cell = model.node("Sub", kept, model.node("Mul", kind, model.constant(CELLS)))
    box, score = model.node("Gather", rows, cell), model.node("Gather", flat, kept)
    far = model.node("Add", model.node("ReduceMax", box, keepdims=0), model.constant(np.float32(1)))
    offset = model.node("Mul", model.node("Cast", kind, to=1), far)
    moved = model.node("Add", box, model.node("Unsqueeze", offset, model.constant([1])))
    selected = model.node(
        "NonMaxSuppression",
        model.node("Unsqueeze", moved, model.constant([0])),
        model.node("Unsqueeze", model.node("Unsqueeze", score, model.constant([0])),
                   model.constant([0])),
        model.constant([2**31 - 1]),
        model.constant([0.5], np.float32),
    )  # fmt: skip
    keep = model.node("Gather", selected, model.constant([2]), axis=1)
    keep = model.node("Squeeze", keep, model.constant([1]))
    keep = model.node("Slice", keep, *map(model.constant, ([0], [100], [0])))
    model.output(model.node("Gather", box, keep), ("detections", 4))
    model.output(model.node("Gather", score, keep), ("detections",))
    model.output(model.node("Gather", kind, keep), ("detections",), np.int64)
    return model


@pytest.mark.parametrize("build", [yolo, ssd, torchvision])
def test_detections(build: object, tmp_path: Path) -> None:
    assert callable(build)
    counts = check(build(), tmp_path)
    assert counts[0] == 0 and len(set(counts)) > 2
