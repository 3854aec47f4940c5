"""Matrix products, perceptrons and attention as ONNX models, in float32, bfloat16 and int8.

    matmul   y = x W
    mlp      y = Relu(... Relu(x W) ... W)           of oneDNN Graph Compiler, arXiv 2301.01333
    mha      y = softmax(q k / root + mask) v         on [batch, sequence, hidden]

The int8 workloads have quantised operands: uint8 activations, int8 weights with a scale for each
column.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from tools.compile_times.graph import Graph, Model

DTYPES = ("f32", "int8", "bf16")
MATMULS = (  # rows, inner, columns
    *((32, 512, 256), (128, 512, 256), (512, 512, 256), (32, 1024, 1024), (128, 1024, 1024)),
    *((512, 1024, 1024), (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (1, 1024, 1024)),
)
MLPS = {"MLP_1": (13, 512, 256, 128), "MLP_2": (479, 1024, 1024, 512, 256, 1)}
BATCHES = (32, 64, 128, 256, 512)
MHAS = {  # batch, sequence, hidden, heads
    "MHA_1": (1, 128, 768, 8),
    "MHA_2": (1, 384, 1024, 8),
    "MHA_3": (1, 512, 1024, 16),
    "MHA_4": (32, 128, 768, 8),
}
_STEP = 0.02  # scale of quantised inputs
_TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "int8": np.uint8}


@dataclass(frozen=True)
class Workload:
    """A workload of a kind, type and sizes."""

    kind: str  # "matmul", "mlp" or "mha"
    dtype: str  # one of `DTYPES`
    # Rows, inner and columns; batch and layers; or batch, sequence, hidden and heads.
    sizes: tuple[int, ...]
    label: str  # name in tables

    @property
    def arguments(self) -> list[str]:
        """Arguments of `onednn_peer.cc`."""
        return [self.kind, self.dtype, *map(str, self.sizes)]

    def model(self) -> Model:
        """The model, with equal numbers every time."""
        graph = _Workload(self)
        return graph.attention(*self.sizes) if self.kind == "mha" else graph.linear_layers()


def workloads(kind: str) -> list[Workload]:
    """All workloads of a kind, ordered by type."""
    kinds: dict[str, dict[str, tuple[int, ...]]] = {
        "matmul": {"x".join(map(str, sizes)): sizes for sizes in MATMULS},
        "mlp": {
            f"{name}, batch {batch}": (batch, *layers)
            for name, layers in MLPS.items()
            for batch in BATCHES
        },
        "mha": {f"{name}, {'x'.join(map(str, sizes))}": sizes for name, sizes in MHAS.items()},
    }
    labels = kinds[kind]
    return [
        Workload(kind, dtype, sizes, label) for dtype in DTYPES for label, sizes in labels.items()
    ]


class _Workload(Graph):
    """The graph of a workload."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.workload = workload
        self.rng = np.random.default_rng(zlib.crc32(" ".join(workload.arguments).encode()))
        self.int8 = workload.dtype == "int8"
        self.dtype: Any = _TYPES[workload.dtype]

    def given(self, name: str, shape: tuple[int, ...], dtype: Any) -> str:
        """Adds an input with plausible numbers."""
        if np.dtype(dtype).kind in "iu":
            low = 0 if dtype is np.uint8 else -60
            return self.input(name, shape, dtype, self.rng.integers(low, low + 128, shape))
        return self.input(name, shape, dtype, self.rng.standard_normal(shape) * 0.5)

    def dequantize(self, value: str, scale: Any, dtype: Any, **attributes: Any) -> str:
        zero = np.zeros(np.shape(scale), dtype)
        form = self.constant(scale), self.constant(zero, dtype)
        return self.node("DequantizeLinear", value, *form, **attributes)

    def quantize(self, value: str, scale: float) -> str:
        form = self.constant(scale), self.constant(0, np.uint8)
        return self.node("QuantizeLinear", value, *form)

    def weight(self, inner: int, columns: int) -> str:
        if self.int8:
            whole = self.constant(self.rng.integers(-127, 128, (inner, columns)), np.int8)
            return self.dequantize(whole, np.full(columns, 0.01), np.int8, axis=1)
        values = self.rng.standard_normal((inner, columns)) * (2 / inner) ** 0.5
        return self.constant(values, self.dtype)

    def linear_layers(self) -> Model:
        """A matrix product, or a perceptron."""
        rows, *layers = self.workload.sizes
        value = self.given("x", (rows, layers[0]), self.dtype)
        for inner, columns in pairwise(layers):
            if self.int8:
                value = self.dequantize(value, _STEP, np.uint8)
            value = self.node("MatMul", value, self.weight(inner, columns))
            if self.workload.kind == "mlp":
                value = self.node("Relu", value)
            if self.int8:
                value = self.quantize(value, 0.05 * inner**0.5)
        self.output(value, "y", self.dtype)
        return self.model()

    def attention(self, batch: int, sequence: int, hidden: int, heads: int) -> Model:
        """Attention with several heads."""
        shape, split = (batch, sequence, hidden), (batch, sequence, heads, hidden // heads)

        def heads_of(name: str, signed: bool, *order: int) -> str:
            dtype = np.int8 if signed and self.int8 else self.dtype
            value = self.reshape(self.given(name, shape, dtype), *split)
            value = self.transpose(value, *order)
            return self.dequantize(value, _STEP, dtype) if self.int8 else value

        query, key = heads_of("q", False, 0, 2, 1, 3), heads_of("k", True, 0, 2, 3, 1)
        value = heads_of("v", True, 0, 2, 1, 3)
        floats = np.float32 if self.int8 else self.dtype
        nothing = np.zeros((batch, 1, 1, sequence))
        mask = self.input("mask", nothing.shape, floats, nothing)
        root = self.constant((hidden // heads) ** 0.5, floats)
        scores = self.node("Div", self.node("MatMul", query, key), root)
        weights = self.node("Softmax", self.node("Add", scores, mask), axis=-1)
        if self.int8:
            weights = self.dequantize(self.quantize(weights, 1 / 255), 1 / 255, np.uint8)
        output = self.node("MatMul", weights, value)
        if self.int8:
            output = self.quantize(output, _STEP)
        self.output(self.reshape(self.transpose(output, 0, 2, 1, 3), *shape), "y", self.dtype)
        return self.model()
