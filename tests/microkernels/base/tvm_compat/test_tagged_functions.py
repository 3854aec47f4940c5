"""Threads may compile TVM's tagged functions at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from tvm import te

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder


def test_threads_compile_operators_of_tagged_functions_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each thread waits for the other one inside the padding function."""
    together, compute = Barrier(2, timeout=60), te.compute

    def waits(shape: Any, fcompute: Any, name: str = "compute", **others: Any) -> Any:
        if name == "PadInput":
            together.wait()
        return compute(shape, fcompute, name, **others)

    monkeypatch.setattr(te, "compute", waits)
    build = OnnxBuilder()
    padded = build.node("Pad", build.input("x", ["n"]), build.constant(np.array([1, 2])))
    build.output(padded, None)
    model = build.model()

    def work(length: int) -> np.ndarray:
        program = tvm_hybrid.compile(model, shapes={"x": (length,)}, num_threads=1)
        return program.run(np.ones(length, np.float32))[0].numpy()

    with ThreadPoolExecutor(2) as pool:
        for length, found in zip([3, 4], pool.map(work, [3, 4]), strict=True):
            np.testing.assert_array_equal(found, np.pad(np.ones(length, np.float32), (1, 2)))
