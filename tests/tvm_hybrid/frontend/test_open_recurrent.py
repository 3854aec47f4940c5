"""Recurrent layers and scans of any number of steps and sequences: one program."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession

from .models import OPSET, f32, make_model, onnxruntime_run, random

INPUT, HIDDEN = 3, 8
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
RTOL, ATOL = 1e-5, 1e-5  # of numbers below 1, after up to 70 steps of sums of a dozen products


def layer(op: str, steps: int | str, lengths: bool, **attributes: Any) -> onnx.ModelProto:
    directions, rows = (1 + (attributes["direction"] == "bidirectional")), GATES[op] * HIDDEN
    build = OnnxBuilder()
    x = build.input("x", [steps, "batch", INPUT])
    weights = [
        build.constant(random(directions, *shape, seed=seed) / 2)
        for seed, shape in enumerate(((rows, INPUT), (rows, HIDDEN), (2 * rows,)))
    ]
    ends = build.input("ends", ["batch"], np.int32) if lengths else ""
    outputs = build.nodes(op, 3 if op == "LSTM" else 2, x, *weights, ends, hidden_size=HIDDEN,
                          **attributes)  # fmt: skip
    for name in outputs:
        build.output(name, None)
    return build.model()


@pytest.mark.sampled
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(
    ("steps", "lengths", "direction"),
    [("steps", False, "bidirectional"), ("steps", True, "reverse"), (5, True, "forward")],
)
def test_layers(op: str, steps: int | str, lengths: bool, direction: str) -> None:
    model = layer(op, steps, lengths, direction=direction)
    session = InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    for count, batch in ((5, 2), (5, 1), (1, 3), (70, 2)):
        if steps in ("steps", count):
            feeds: dict[str, NDArray[Any]] = {"x": random(count, batch, INPUT, seed=count)}
            if lengths:
                feeds["ends"] = np.maximum(1, count - 2 * np.arange(batch)).astype(np.int32)
            for mine, theirs in zip(
                session.run(None, feeds), onnxruntime_run(model, feeds), strict=True
            ):
                np.testing.assert_allclose(mine, theirs, RTOL, ATOL)


@pytest.mark.parametrize("direction", [0, 1])
def test_scan(direction: int) -> None:
    """The running sum of rows, forward or backward, each also doubled."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["total", "row"], ["sum"]),
            helper.make_node("Add", ["sum", "sum"], ["twice"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in
         ("total", "row")],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in
         ("sum", "twice")],
    )  # fmt: skip
    node = helper.make_node("Scan", ["start", "x"], ["last", "all"], body=body, num_scan_inputs=1,
                            scan_input_directions=[direction],
                            scan_output_directions=[direction])  # fmt: skip
    model = make_model([node], [f32("start", "n", 4), f32("x", "steps", "n", 4)],
                       [f32("last", None, None), f32("all", None, None, None)],
                       opset=OPSET)  # fmt: skip
    session = InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    for steps, n in ((1, 2), (7, 1), (40, 3)):
        feeds = {"start": random(n, 4), "x": random(steps, n, 4, seed=1)}
        expected = onnxruntime_run(model, feeds)
        for mine, theirs in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, RTOL, ATOL)
