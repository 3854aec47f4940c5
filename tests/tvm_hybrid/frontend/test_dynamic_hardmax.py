"""Hardmax, and Softmax over several axes, with dynamic sizes: one program, as ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

Shape = list[int | str]
SIZES = [{"n": 1, "m": 1}, {"n": 3, "m": 5}, {"n": 0, "m": 2}, {"n": 2, "m": 33}]


def runs(op: str, shape: Shape, axis: int, opset: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Results of one program and of ONNX Runtime for several sizes."""
    build = OnnxBuilder(opset)
    build.output(build.node(op, build.input("x", shape), axis=axis), None)
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    assert len(session.programs) == 1
    if op == "Hardmax":
        (place,) = [each for each in session.explain() if "argmax" in each.function]
        assert place.kernel == "generic_reduction"
    peer = literal_session(build.model())
    rng = np.random.default_rng(3)
    feeds = [
        # Many elements are equal: the first one is selected.
        {"x": rng.integers(-2, 3, [sizes.get(str(n), n) for n in shape]).astype(np.float32)}
        for sizes in SIZES
    ]
    return [(session.run(None, each)[0], peer.run(None, each)[0]) for each in feeds]


@pytest.mark.parametrize(
    ("shape", "axis"), [(["n"], 0), (["m", "n"], -1), (["n", "m"], 0), (["n", "m", 4], 1)]
)
def test_hardmax_along_a_dynamic_axis(shape: Shape, axis: int) -> None:
    for found, wanted in runs("Hardmax", shape, axis, 17):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_hardmax_keeps_the_type(dtype: type) -> None:
    build = OnnxBuilder(17)
    build.output(build.node("Hardmax", build.input("x", ["n", "m"], dtype)), None, dtype)
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    (found,) = session.run(None, {"x": np.array([[1, 3, 3], [0, -1, -2]], dtype)})
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, [[0, 1, 0], [1, 0, 0]])


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [["m", "n", 3], [2, 3, "n"], ["m", 2, "n", "m"]])
@pytest.mark.parametrize("op", ["Softmax", "Hardmax"])
def test_old_forms_choose_among_dynamic_axes(op: str, shape: Shape) -> None:
    """Before opset 13 they work on all axes from `axis` on."""
    for found, wanted in runs(op, shape, 1, 11):
        # Exponentials of numbers up to 4, and a sum of at most 33 * 33 * 2 of them: each is rounded
        # once.
        np.testing.assert_allclose(found, wanted, rtol=64 * 2.0**-23 if op == "Softmax" else 0)
