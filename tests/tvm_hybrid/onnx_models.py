"""Tiny ONNX models for tests of the command line and of the reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def two_layers(rows: int | str | None = 4) -> onnx.ModelProto:
    """x[rows, 8] -> MatMul w0 -> Relu -> MatMul w1 -> y[rows, 5], float32; nodes have names."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((8, 16)).astype(np.float32), "w0"),
        numpy_helper.from_array(rng.standard_normal((16, 5)).astype(np.float32), "w1"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="rectify"),
        helper.make_node("MatMul", ["b", "w1"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "two_layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (rows, 5))],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def reference(x: np.ndarray) -> np.ndarray:
    """The result of `two_layers` in float64."""
    w0, w1 = (numpy_helper.to_array(item) for item in two_layers().graph.initializer)
    return np.maximum(x.astype(np.float64) @ w0, 0) @ w1


def saved(folder: Path, model: onnx.ModelProto | None = None) -> Path:
    """Writes the model to a file."""
    path = folder / "model.onnx"
    onnx.save(model or two_layers(), path)
    return path
