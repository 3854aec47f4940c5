"""Operators with parameters as inputs, in several opsets, compared with ONNX Runtime.

A model holds the operators of an opset. One session runs it for two sets of parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

X = np.random.default_rng(0).standard_normal((2, 3, 6, 5)).astype(np.float32)
# Resize, and sums in another order: a few roundings of values below 20.
TOLERANCE = 8 * 20 * np.finfo(np.float32).eps


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def number(value: int | float) -> np.ndarray:
    return np.array(value, np.int64 if isinstance(value, int) else np.float32)


NONE = f32()
NO = f32()  # an absent input
# Operator, number of outputs, attributes, and two sets of inputs behind x.
Case = tuple[str, int, dict[str, Any], list[np.ndarray], list[np.ndarray]]
OF_OPSET: dict[int, list[Case]] = {
    9: [("Upsample", 1, {}, [f32(1, 1, 2, 2)], [f32(1, 1, 3, 1)])],
    11: [
        ("Slice", 1, {}, [i64(1, 0), i64(9, 2), i64(-1, 2)], [i64(0, 1), i64(2, 9), i64(-2, 3)]),
        ("Pad", 1, {}, [i64(0, 0, 1, 2, 0, 0, 0, 1)], [i64(0, 0, -1, 0, 0, 1, 0, 0)]),
        ("TopK", 2, {"axis": 2, "largest": 0}, [i64(2)], [i64(6)]),
        ("Resize", 1, {"mode": "linear"}, [NONE, f32(1, 1, 2, 2)], [NONE, f32(1, 1, 0.5, 1)]),
    ],
    13: [
        ("Slice", 1, {}, [i64(5), i64(0), i64(2), i64(-2)], [i64(0), i64(0), i64(2), i64(1)]),
        ("Expand", 1, {}, [i64(2, 1, 1, 1, 1)], [i64(3, 1, 1, 1, 1)]),
        ("Tile", 1, {}, [i64(1, 2, 1, 1)], [i64(2, 1, 0, 1)]),
        ("Unsqueeze", 1, {}, [i64(0, -1)], [i64(2, 3)]),
        ("Split", 2, {"axis": -2}, [i64(1, 5)], [i64(6, 0)]),
        ("ReduceSum", 1, {"keepdims": 0}, [i64(-1, 1)], [i64(0, 3)]),
        ("ReduceSum", 1, {"noop_with_empty_axes": 1}, [i64()], [i64()]),
    ],
    19: [
        ("Pad", 1, {}, [i64(1, 2), number(0.5), i64(-1)], [i64(0, -1), number(2.0), i64(1)]),
        ("Pad", 1, {"mode": "wrap"}, [i64(*[0] * 7, 2)], [i64(*[0] * 7, 1)]),
        ("Reshape", 1, {}, [i64(0, -1, 5)], [i64(6, 0, -1)]),
        ("Split", 3, {"axis": 2}, [i64(2, 2, 2)], [i64(1, 2, 3)]),
        ("ReduceMax", 1, {}, [i64(2, 3)], [i64(-4, 1)]),
        ("ReduceL2", 1, {"keepdims": 0}, [i64(1, 3)], [i64(2, 1)]),
        ("ReduceLogSumExp", 1, {}, [i64(1, 2)], [i64(-1, 0)]),
        ("CumSum", 1, {"reverse": 1}, [number(1)], [number(-1)]),
        ("Resize", 1, {"mode": "cubic", "axes": [2, 3]}, [NO, NO, i64(9, 9)], [NO, NO, i64(3, 4)]),
        ("Trilu", 1, {"upper": 0}, [number(-1)], [number(2)]),
        ("CenterCropPad", 1, {"axes": [2, 3]}, [i64(4, 7)], [i64(9, 5)]),
    ],
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("opset", OF_OPSET)
def test_against_onnx_runtime(opset: int) -> None:
    graph = OnnxBuilder(opset)
    x = graph.input("x", X.shape)
    runs: tuple[dict[str, np.ndarray], ...] = ({"x": X}, {"x": X})
    for case, (op, outputs, attributes, *sets) in enumerate(OF_OPSET[opset]):
        names = [x]
        for place, arrays in enumerate(zip(*sets, strict=True)):
            names.append("" if arrays[0] is NO else f"{op}{case}/{place}")
            if names[-1]:
                graph.input(names[-1], arrays[0].shape, arrays[0].dtype)
                for feeds, array in zip(runs, arrays, strict=True):
                    feeds[names[-1]] = array
        for place, name in enumerate(graph.nodes(op, outputs, *names, **attributes)):
            graph.output(name, (), np.int64 if (op, place) == ("TopK", 1) else np.float32)
    model = graph.model()
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    reference = literal_session(model)
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    for feeds in runs:
        for found, wanted in zip(session.run(None, feeds), reference.run(None, feeds), strict=True):
            assert found.shape == wanted.shape and found.dtype == wanted.dtype
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=TOLERANCE)
    assert len(session.programs) == 2
