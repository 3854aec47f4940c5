"""The demonstration's second part: the multi-layer perceptrons of a paper, f32 and quantised."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..bench.bench import BenchReport
from ..bench.feeds import complete_feeds
from ..bench.layer_models import OnnxGraph
from .models import DemoModel, Steps, quantize

SIZES = {"MLP_1": (13, 512, 256, 128), "MLP_2": (479, 1024, 1024, 512, 256, 1)}


def mlp_model(name: str, batch: int, seed: int = 0) -> onnx.ModelProto:
    """The multi-layer perceptrons MLP_1 and MLP_2 of the oneDNN Graph Compiler paper.

    arXiv 2301.01333, section VII: fully connected layers, ReLU after each. The weights here are
    random with a fixed seed; they do not change the time.

    An MLP as an ONNX model with input "x" and output "y", float32.

    Parameters
    ----------
    name : str
        A key of `SIZES`.
    batch : int
        Rows of the input.
    seed : int
        For weights and biases; weights have a variance that keeps activations in range.
    """
    sizes = SIZES[name]
    graph, rng, value = OnnxGraph(), np.random.default_rng(seed), "x"
    for layer, (inner, outer) in enumerate(pairwise(sizes), 2):
        matrix = rng.standard_normal((inner, outer), np.float32) * np.float32(np.sqrt(2 / inner))
        bias = 0.1 * rng.standard_normal(outer, np.float32)
        total = graph.node("Gemm", value, graph.constant(matrix), graph.constant(bias))
        value = graph.node("Relu", total, output="y" if layer == len(sizes) else "")
    return graph.model(
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (batch, sizes[0]))],
        helper.make_tensor_value_info("y", TensorProto.FLOAT, (batch, sizes[-1])),
    )


BATCH = 128
STEPS = 4 * len(SIZES)


def demonstrate_perceptrons(
    folder: Path, threads: int, seconds: float, steps: Steps
) -> list[BenchReport]:
    """MLP_1 and MLP_2, in float32 and quantised: compiled, verified, measured.

    Raises
    ------
    VerifyError
        If a result is wrong.
    """
    reports = []
    for name in SIZES:
        steps.begin(f"compiling {name}, batch {BATCH}")
        path = folder / f"{name}.onnx"
        onnx.save(mlp_model(name, BATCH), path)
        model = DemoModel.compile(path, {}, threads)
        feeds, _ = complete_feeds(model.session.executable.inputs, {})
        reports.append(model.examine(feeds, seconds, steps))
        steps.begin(f"quantising and compiling {name}, int8")
        quantized = folder / f"{name} int8.onnx"
        quantize(path, quantized, [feeds])
        model = DemoModel.compile(quantized, {}, threads)
        reports.append(model.examine(feeds, seconds, steps))
    return reports
