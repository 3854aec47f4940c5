"""The nearest pixel is ONNX Runtime's, also near ties, statically and dynamically."""

from __future__ import annotations

import itertools

import numpy as np
import onnx

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.frontend.onnx.ops.resize_taps import Resizing, axis_taps

COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"),
    "tf_half_pixel_for_nn",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
FORMS = tuple(itertools.product(COORDINATES, ROUNDINGS))
# Ties that float32 misses by less and by more than 1e-6 in both directions, and other values.
TIES = [(26, 1), (14, 1), (7, 2), (7, 38), (14, 19), (30, 9), (26, 28), (10, 6), (3, 1), (13, 13)]


def model() -> onnx.ModelProto:
    """A model with an output for each form: x: [1, n] resized to another image's size."""
    build = OnnxBuilder(13)
    x, sizes = build.input("x", [1, "n"]), build.node("Shape", build.input("like", [1, "m"]))
    for coordinates, rounding in FORMS:
        attributes = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
        y = build.node("Resize", x, "", "", sizes, mode="nearest", **attributes)
        build.output(y, None)
    return build.model()


def feeds(before: int, after: int) -> dict[str, np.ndarray]:
    like = np.zeros((1, after), np.float32)
    return {"x": np.arange(before, dtype=np.float32)[None], "like": like}


def test_static_sizes() -> None:
    peer = literal_session(model())
    walk = itertools.product(range(1, 33), range(1, 33, 3))
    for before, after in [*TIES, *walk]:
        scale = float(np.float32(after) / np.float32(before))
        for form, wanted in zip(FORMS, peer.run(None, feeds(before, after)), strict=True):
            found = axis_taps(Resizing("nearest", *form), before, after, scale).index[:, 0]
            np.testing.assert_array_equal(found, wanted[0], f"{form} {before} -> {after}")


def test_dynamic_sizes() -> None:
    peer = literal_session(model())
    program = tvm_hybrid.compile(model(), num_threads=1, records=[], keep_dynamic=True)
    for before, after in [*TIES, *itertools.product((1, 2, 5, 21, 24, 30), (1, 3, 9, 16, 29))]:
        given = feeds(before, after)
        results = program.run(*given.values())
        for form, found, wanted in zip(FORMS, results, peer.run(None, given), strict=True):
            np.testing.assert_array_equal(found.numpy(), wanted, f"{form} {before} -> {after}")
