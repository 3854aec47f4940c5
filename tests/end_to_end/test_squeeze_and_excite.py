"""Squeeze and excite before a pointwise convolution: its factors are folded into the weight."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

INPUTS, CHANNELS, SQUEEZED, OUT = 3, 24, 8, 16


class Block:
    """h = relu(conv(x)); conv(h * hard_sigmoid(conv(relu(conv(mean h))))). Weights are [OC, C]."""

    def __init__(self, height: int, width: int) -> None:
        rng = np.random.default_rng(3)
        self.shape = (1, INPUTS, height, width)
        sizes = ((CHANNELS, INPUTS), (SQUEEZED, CHANNELS), (CHANNELS, SQUEEZED), (OUT, CHANNELS))
        self.weights = [rng.standard_normal(size).astype(np.float32) for size in sizes]
        self.biases = [rng.standard_normal(size[0]).astype(np.float32) for size in sizes]
        self.x = rng.standard_normal(self.shape).astype(np.float32)

    def model(self) -> onnx.ModelProto:
        g = OnnxBuilder()

        def conv(value: str, number: int) -> str:
            weight = self.weights[number][:, :, None, None]
            return g.node("Conv", value, g.constant(weight), g.constant(self.biases[number]))

        h = g.node("Relu", conv(g.input("x", self.shape), 0))
        gate = g.node("Relu", conv(g.node("GlobalAveragePool", h), 1))
        gate = g.node("HardSigmoid", conv(gate, 2), alpha=1 / 6, beta=0.5)
        g.output(conv(g.node("Mul", h, gate), 3), (1, OUT, *self.shape[2:]))
        return g.model()

    def magnitudes(self) -> np.ndarray:
        """The result with all numbers positive and no clipping; roundings are relative to it."""
        w = [np.abs(weight.astype(np.float64)) for weight in self.weights]
        b = [np.abs(bias.astype(np.float64)) for bias in self.biases]
        h = np.einsum("oc,chw->ohw", w[0], np.abs(self.x[0])) + b[0][:, None, None]
        gate = (w[2] @ (w[1] @ h.mean((1, 2)) + b[1]) + b[2]) / 6 + 0.5
        return np.einsum("oc,chw->ohw", w[3] * gate, h) + b[3][:, None, None]


@pytest.mark.parametrize(
    ("size", "threads", "scaled"), [((7, 9), 1, 1), ((7, 9), 2, 1), ((3, 5), 1, 0)]
)
def test_as_onnxruntime(size: tuple[int, int], threads: int, scaled: int) -> None:
    block = Block(*size)
    session = tvm_hybrid.InferenceSession(block.model(), num_threads=threads)
    decisions = session.executable.explain()
    assert sum("weight_scale=input" in (each.workload or "") for each in decisions) == scaled
    reference = literal_session(block.model())
    (wanted,), (result,) = reference.run(None, {"x": block.x}), session.run(None, {"x": block.x})
    # Each term is rounded at most this often, by 2^-24 of the magnitudes, in either computation:
    # the first layer twice, in the factors and in the values that they scale; a mean of all pixels;
    # two sums of products with their biases; a hard sigmoid (2); the factor; the last sum.
    roundings = 2 * (INPUTS + 1) + (size[0] * size[1] + 1) + (CHANNELS + 1) + (SQUEEZED + 1)
    roundings += 2 + 1 + (CHANNELS + 1)
    assert (np.abs(result - wanted)[0] <= 2 * roundings * 2.0**-24 * block.magnitudes()).all()
    assert session.run(None, {"x": block.x})[0].tobytes() == result.tobytes()
