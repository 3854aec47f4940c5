"""Predicts what fusion gains for workloads of a paper: `python -m tools.graph_compiler_table`.

The paper is about oneDNN Graph Compiler (Li et al., arXiv 2301.01333). It measured perceptrons and
attention of several batches on a Xeon with 32 cores. This tool writes the table of
docs/graph_compiler.md; the text around it is written by hand.

No model is run. Each model is lowered for 32 threads of Ice Lake: once with all fusion, and once
with only the fusion of a library's primitives (a product with its epilogue). `tvm-hybrid scale`
predicts both times.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_hybrid.bench.scale import scale_model
from tvm_hybrid.options import CompileOptions
from tvm_hybrid.report.timing import markdown_table

TARGET, THREADS = "icx", 32
# Perceptrons: sizes of layers, then batches. Attention: sequence, hidden size, heads, then batches.
MLPS = {"MLP_1": (13, 512, 256, 128), "MLP_2": (479, 1024, 1024, 512, 256, 1)}
MLP_BATCHES = (32, 64, 128, 256, 512)
MHAS = {
    "MHA_1": (128, 768, 8),
    "MHA_2": (128, 768, 12),
    "MHA_3": (384, 1024, 8),
    "MHA_4": (512, 1024, 16),
}
MHA_BATCHES = (32, 64, 128)
# Times of oneDNN's primitives over times of the compiler, geometric means over the batches.
# They are read to 0.02 from charts of January 2023 in the proposal (oneDNN, pull request 1529).
PUBLISHED = {
    ("MLP_1", "f32"): 1.48,
    ("MLP_2", "f32"): 1.02,
    ("MLP_1", "int8"): 2.72,
    ("MLP_2", "int8"): 1.10,
    ("MHA_1", "f32"): 1.39,
    ("MHA_2", "f32"): 1.64,
    ("MHA_3", "f32"): 1.75,
    ("MHA_4", "f32"): 2.89,
    ("MHA_1", "int8"): 1.47,
    ("MHA_2", "int8"): 2.08,
    ("MHA_3", "int8"): 2.11,
    ("MHA_4", "int8"): 2.44,
}
ELEMENTS = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8}


class _Graph:
    """Nodes, constants and inputs of one model."""

    def __init__(self, int8: bool) -> None:
        self.int8 = int8
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def input(self, name: str, dtype: str, shape: Sequence[int]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, ELEMENTS[dtype], shape))
        return name

    def node(self, operator: str, *inputs: str, **attributes: object) -> str:
        output = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    def quantize(self, value: str, scale: float) -> str:
        return self.node("QuantizeLinear", value, *self._parameters(scale, "uint8"))

    def dequantize(self, value: str, scale: float, dtype: str) -> str:
        return self.node("DequantizeLinear", value, *self._parameters(scale, dtype))

    def _parameters(self, scale: float, dtype: str) -> tuple[str, str]:
        zero = np.array(0, dtype)
        return self.constant(np.array(scale, np.float32)), self.constant(zero)

    def model(self, output: str, shape: Sequence[int]) -> onnx.ModelProto:
        element = ELEMENTS["uint8" if self.int8 else "float32"]
        result = helper.make_tensor_value_info(output, element, shape)
        graph = helper.make_graph(self.nodes, "workload", self.inputs, [result], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def perceptron(batch: int, layers: Sequence[int], int8: bool) -> onnx.ModelProto:
    """Products with ReLU; if `int8`, quantised after every layer."""
    graph, rng = _Graph(int8), np.random.default_rng(0)
    value = graph.input("x", "uint8" if int8 else "float32", (batch, layers[0]))
    for inner, columns in itertools.pairwise(layers):
        if int8:
            weights = graph.constant(rng.integers(-127, 128, (inner, columns)).astype(np.int8))
            weight = graph.dequantize(weights, 0.01, "int8")
            value = graph.dequantize(value, 0.02, "uint8")
        else:
            weight = graph.constant(rng.standard_normal((inner, columns)).astype(np.float32))
        value = graph.node("Relu", graph.node("MatMul", value, weight))
        if int8:
            value = graph.quantize(value, 0.05 * inner**0.5)
    return graph.model(value, (batch, layers[-1]))


def attention(batch: int, sequence: int, hidden: int, heads: int, int8: bool) -> onnx.ModelProto:
    """softmax(Q K^T / root + mask) V of [batch, sequence, hidden]."""
    graph = _Graph(int8)
    shape = (batch, sequence, hidden)
    split = np.array([batch, sequence, heads, hidden // heads])

    def heads_of(name: str, dtype: str, order: list[int]) -> str:
        value = graph.input(name, dtype if int8 else "float32", shape)
        value = graph.node("Reshape", value, graph.constant(split))
        value = graph.node("Transpose", value, perm=order)
        return graph.dequantize(value, 0.02, dtype) if int8 else value

    query, key = heads_of("q", "uint8", [0, 2, 1, 3]), heads_of("k", "int8", [0, 2, 3, 1])
    value = heads_of("v", "int8", [0, 2, 1, 3])
    mask = graph.input("mask", "float32", (batch, 1, 1, sequence))
    root = graph.constant(np.array((hidden // heads) ** 0.5, np.float32))
    scores = graph.node("Div", graph.node("MatMul", query, key), root)
    weights = graph.node("Softmax", graph.node("Add", scores, mask), axis=-1)
    if int8:
        weights = graph.dequantize(graph.quantize(weights, 1 / 255), 1 / 255, "uint8")
    output = graph.node("MatMul", weights, value)
    if int8:
        output = graph.quantize(output, 0.02)
    output = graph.node("Transpose", output, perm=[0, 2, 1, 3])
    return graph.model(graph.node("Reshape", output, graph.constant(np.array(shape))), shape)


def predicted_us(model: onnx.ModelProto, fusion: str) -> float:
    """Predicted microseconds of a run on all threads."""
    report = scale_model(model, [THREADS], CompileOptions(target=TARGET, fusion=fusion, records=[]))
    return report.runs[-1].predicted_us


def rows() -> Iterator[list[str]]:
    """Rows of the table: workload, type, published gain, predicted gains and times by batch."""
    for (name, dtype), published in PUBLISHED.items():
        int8 = dtype == "int8"
        if name in MLPS:
            models = [perceptron(batch, MLPS[name], int8) for batch in MLP_BATCHES]
        else:
            models = [attention(batch, *MHAS[name], int8) for batch in MHA_BATCHES]
        whole = [predicted_us(model, "coarse") for model in models]
        parts = [predicted_us(model, "fine") for model in models]
        gains = [part / one for part, one in zip(parts, whole, strict=True)]
        yield [
            name,
            dtype,
            f"{published:.2f}",
            f"{geometric_mean(gains):.2f}",
            " ".join(f"{gain:.2f}" for gain in gains),
            " ".join(f"{time:.0f}" for time in whole),
        ]


@click.command()
@click.option("--markdown", type=click.Path(path_type=Path), help="File to write the table to.")
def main(markdown: Path | None) -> None:
    """Predicts what fusion gains for each workload on 32 threads, and prints the table."""
    head = ["workload", "type", "published gain", "predicted gain"]
    head += ["predicted gain by batch", "predicted us by batch"]
    lines = markdown_table(head, list(rows()))
    print("\n".join(lines))
    if markdown is not None:
        markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
