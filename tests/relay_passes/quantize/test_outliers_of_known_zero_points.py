"""Quantised layers without VNNI, by the value of their zero points: ONNX Runtime's integers."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

pytestmark = pytest.mark.turns

POINTS = (130, 101, 64, 65)  # the zero point of each layer's input; 64 is the last that cuts at 0


@pytest.mark.parametrize(
    ("target", "rows"),
    [
        pytest.param("haswell", "rows", marks=pytest.mark.isa("avx2")),
        pytest.param("skylake-avx512", 40, marks=pytest.mark.isa("avx512")),
    ],
)
def test_layers_have_the_integers_of_onnx_runtime(target: str, rows: int | str) -> None:
    rng, build = np.random.default_rng(0), OnnxBuilder()
    value = build.input("x", [rows, 70], np.uint8)
    for zero, after in zip(POINTS, (*POINTS[1:], 128), strict=True):
        weight = build.constant(rng.choice([-128, -127, 127], (70, 70)), np.int8)
        value = build.node(
            "QLinearMatMul",
            *(value, build.constant(0.05, np.float32), build.constant(zero, np.uint8)),
            *(weight, build.constant(0.1, np.float32), build.constant(0, np.int8)),
            *(build.constant(5.5, np.float32), build.constant(after, np.uint8)),
        )
        build.output(value, [rows, 70], np.uint8)  # all are outputs, so they form no chain
    model, dynamic_rows = build.model(), isinstance(rows, str)
    made = tvm_hybrid.compile(model, target=target, num_threads=1, keep_dynamic=dynamic_rows)
    reasons = [d.reason for d in made.manifest.decisions if d.taken]
    limits = ("not from 66 to 193", "not from 37 to 164", "are beyond 127", "not from 1 to 128")
    assert len(reasons) == len(POINTS)
    assert all(limit in reason for limit, reason in zip(limits, reasons, strict=True))
    session = literal_session(model)
    for m in (1, 3, 40) if dynamic_rows else (40,):
        x = rng.integers(90, 170, (m, 70)).astype(np.uint8)
        x[::3, ::9] = rng.integers(0, 256, x[::3, ::9].shape)
        for found, wanted in zip(made.run(x), session.run(None, {"x": x}), strict=True):
            assert np.ptp(wanted) > 50
            np.testing.assert_array_equal(found.numpy(), wanted)
