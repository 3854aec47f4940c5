"""Large results: successive runs reuse memory unless somebody holds it."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

import tvm_hybrid
from relay_passes.vm.entries import RELEASE_LEAST_BYTES as LEAST_BYTES
from tests.onnx_builder import OnnxBuilder

WIDTH = LEAST_BYTES // 4


def model(dtype: type, rows: int | str = 1) -> onnx.ModelProto:
    """x -> -x."""
    g = OnnxBuilder()
    shape = (rows, 2 * WIDTH)
    g.output(g.node("Neg", g.input("x", shape, dtype)), shape, dtype)
    return g.model()


def places(session: tvm_hybrid.InferenceSession, x: np.ndarray) -> set[int]:
    """Addresses of the results of four runs, each dropped before the next run."""
    return {session.run(None, {"x": x})[0].ctypes.data for _ in range(4)}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("rows", [1, "rows"])
def test_dropped_results_are_written_over(dtype: type, rows: int | str) -> None:
    session = tvm_hybrid.InferenceSession(model(dtype, rows).SerializeToString(), num_threads=1)
    x = np.arange(2 * WIDTH).reshape(1, -1).astype(dtype)
    session.run(None, {"x": x})
    assert len(places(session, x)) == 1


def test_results_that_are_held_stay() -> None:
    session = tvm_hybrid.InferenceSession(model(np.float32).SerializeToString(), num_threads=1)
    x = np.ones((1, 2 * WIDTH), np.float32)
    results = [session.run(None, {"x": x * number})[0] for number in range(4)]
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result, -x * number)
    assert len({result.ctypes.data for result in results}) == 4


def test_tensors_and_libraries_do_alike(tmp_path: Path) -> None:
    executable = tvm_hybrid.compile(model(np.float32), num_threads=1)
    loaded = tvm_hybrid.load(executable.export(tmp_path / "model.so"))
    x = np.ones((1, 2 * WIDTH), np.float32)
    for each in (executable, loaded):
        each.run(x)
        found = set()
        for _ in range(4):
            (result,) = each.run(x)
            found.add(result.numpy().__array_interface__["data"][0])
            np.testing.assert_array_equal(result.numpy(), -x)
            del result
        assert len(found) == 1
        held = [each.run(x * number)[0] for number in range(3)]
        for number, tensor in enumerate(held):
            np.testing.assert_array_equal(tensor.numpy(), -x * number)
