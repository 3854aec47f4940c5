"""Recurrent layers and scans with dynamic numbers of steps and sequences: one program."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession
from tvm_hybrid.errors import FeedError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import OPSET, f32, make_model, onnxruntime_run, parsed, random

pytestmark = pytest.mark.turns

INPUT, HIDDEN = 3, 8
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
RTOL, ATOL = 1e-5, 1e-5  # numbers below 1 after up to 70 steps of sums of a dozen products


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


def test_steps_that_a_convolution_leaves() -> None:
    """The number of steps, (t - 5) // 4 + 1, does not determine t in a loop's function."""
    build = OnnxBuilder()
    filters = build.constant(random(INPUT, 1, 5))
    features = build.node("Conv", build.input("x", ["batch", 1, "t"]), filters, strides=[4])
    weights = [
        build.constant(random(1, HIDDEN, columns, seed=columns) / 2) for columns in (INPUT, HIDDEN)
    ]
    steps = build.node("Transpose", features, perm=[2, 0, 1])
    outputs = build.nodes("RNN", 2, steps, *weights, hidden_size=HIDDEN)
    for name in outputs:
        build.output(name, None)
    model = build.model()
    session = InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    for batch, t in ((2, 5), (1, 30), (3, 300)):
        feeds = {"x": random(batch, 1, t, seed=t)}
        expected = onnxruntime_run(model, feeds)
        for mine, theirs in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, RTOL, ATOL)


@pytest.mark.parametrize("direction", [0, 1])
def test_scan(direction: int) -> None:
    """The running sum of rows, forward or backward, and each sum doubled."""
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


def scan_of_batches(batch: int | str, steps: int | str, lengths: str = "") -> onnx.ModelProto:
    """Running sums and products with an outer weight, backward over one of two inputs."""
    declared = f"int64[{batch}] {lengths}, " if lengths else ""
    state, rows = f"float[{batch}, 2]", f"float[{batch}, {steps}, 2]"
    return parsed(f"""
    agraph ({declared}{state} s, {rows} x, {rows} y) => ({state} last, {rows} sums)
    <float[2] w = {{0.5, -2}}>
    {{
        last, sums = Scan<num_scan_inputs = 2, directions = [1, 0],
            body = b (float[2] a, float[2] p, float[2] q) => (float[2] a2, float[2] c)
            {{ t = Mul(p, w) a2 = Add(a, t) c = Add(a2, q) }}>({lengths}, s, x, y)
    }}""", opset=8)  # fmt: skip


@pytest.mark.parametrize(("batch", "steps"), [("n", "t"), ("n", 4), (2, "t")])
def test_scan_of_opset_8(batch: int | str, steps: int | str) -> None:
    """Dynamic numbers of batches and of steps."""
    model = scan_of_batches(batch, steps)
    session = InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    for n, t in ((1, 1), (3, 4), (2, 70), (2, 4)):
        if batch in ("n", n) and steps in ("t", t):
            feeds = {"s": random(n, 2), "x": random(n, t, 2, seed=1), "y": random(n, t, 2, seed=2)}
            expected = onnxruntime_run(model, feeds)
            for mine, theirs in zip(session.run(None, feeds), expected, strict=True):
                np.testing.assert_allclose(mine, theirs, RTOL, ATOL)
    if batch == "n":
        empty = session.run(None, {name: value[:0] for name, value in feeds.items()})
        assert [each.shape for each in empty] == [(0, 2), (0, 4, 2)]


def test_lengths_of_dynamic_sequences_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="sequence_lens 'ends' must be constant"):
        import_onnx(scan_of_batches("n", "t", "ends"), keep_dynamic=True)


def test_scanned_inputs_of_different_lengths() -> None:
    model = scan_of_batches("n", "t")
    model.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "u"
    session = InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    feeds = {"s": random(2, 2), "x": random(2, 3, 2), "y": random(2, 3, 2)}
    for mine, theirs in zip(session.run(None, feeds), onnxruntime_run(model, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, RTOL, ATOL)
    with pytest.raises(FeedError):
        session.run(None, {**feeds, "y": random(2, 4, 2)})
