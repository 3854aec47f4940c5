"""A small text-to-speech model: predicted durations give the length of its signal.

Each id lasts some frames. A decoder makes 240 samples per frame and adds the STFT spectrum of a
source signal. Outputs are a signal and its spectrum by a convolution.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

CHANNELS, WINDOW, STEP = 4, 8, 2


class Speech:
    """Parts of the model; weights are random numbers from one seed."""

    def __init__(self) -> None:
        self.build = OnnxBuilder()
        self._numbers = np.random.default_rng(3)

    def weights(self, *shape: int) -> str:
        """Random weights for which sums of this many terms stay near 1."""
        scale = np.sqrt(np.prod(shape[1:]))
        return self.build.constant(self._numbers.standard_normal(shape) / scale, np.float32)

    def integers(self, *values: int) -> str:
        return self.build.constant(values, np.int64)

    def frames(self) -> str:
        """[1, channels, frames]: each id's embedding, repeated by its predicted duration."""
        node, number = self.build.node, self.build.constant
        ids = self.build.input("ids", [1, "T"], np.int64)
        embedded = node("Gather", self.weights(20, CHANNELS), ids, axis=0)
        x = node("Transpose", embedded, perm=[0, 2, 1])
        hidden = node("Relu", node("Conv", x, self.weights(CHANNELS, CHANNELS, 3), pads=[1, 1]))
        logarithm = node("Conv", hidden, self.weights(1, CHANNELS, 1))
        durations = node("Squeeze", node("Ceil", node("Exp", logarithm)), self.integers(1))
        ends = node("CumSum", durations, number(1, np.int64))
        total = node("ReduceSum", durations, self.integers(0, 1), keepdims=0)
        zero, one = number(0, np.int64), number(1, np.int64)
        places = node("Cast", node("Range", zero, node("Cast", total, to=7), one), to=1)
        end = node("Unsqueeze", ends, self.integers(2))
        start = node("Sub", end, node("Unsqueeze", durations, self.integers(2)))
        inside = node("And", node("Less", places, end), node("Not", node("Less", places, start)))
        return node("MatMul", x, node("Cast", inside, to=1))

    def source(self, frames: str) -> str:
        """[1, 1, 240 * frames]: the sine of a phase that is accumulated at every 120th sample."""
        node = self.build.node
        pitch = node("Conv", frames, self.weights(1, CHANNELS, 3), pads=[1, 1])
        plain = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        twice = self._resized(pitch, 2, mode="nearest", **plain)
        voice = self._resized(twice, 120, mode="nearest", **plain)
        phase = node(
            "CumSum", self._resized(voice, 1 / 120, mode="linear"), self.build.constant(2, np.int64)
        )
        return node("Mul", node("Sin", self._resized(phase, 120, mode="linear")), voice)

    def _resized(self, x: str, times: float, **attributes: str) -> str:
        scales = self.build.constant([1, 1, times], np.float32)
        return self.build.node("Resize", x, "", scales, **attributes)

    def _padded(self, signal: str) -> tuple[str, NDArray]:
        """A signal padded by half a window on both sides, and the window."""
        half = WINDOW // 2
        pads = self.integers(0, 0, half, 0, 0, half)
        return self.build.node("Pad", signal, pads, mode="edge"), np.hanning(WINDOW + 1)[:-1]

    def spectrum(self, signal: str) -> str:
        """[1, 10, samples / 2 + 1] for a signal [1, 1, samples], as PyTorch exports it."""
        node, (padded, window) = self.build.node, self._padded(signal)
        plain = node("Squeeze", padded, self.integers(1))  # [1, samples]
        step, weights = self.build.constant(STEP, np.int64), self.build.constant(window, np.float32)
        found = node("STFT", plain, step, weights)  # [1, frames, 5, 2]
        parts = node("Transpose", found, perm=[0, 3, 2, 1])
        return node("Reshape", parts, self.integers(1, WINDOW + 2, -1))

    def convolved_spectrum(self, signal: str) -> str:
        """The spectrum of a signal, computed by a convolution."""
        padded, window = self._padded(signal)
        angles = np.outer(np.arange(WINDOW // 2 + 1), np.arange(WINDOW)) / WINDOW
        root = np.exp(-2j * np.pi * angles) * window
        taps = np.concatenate([root.real, root.imag])[:, None]
        weights = self.build.constant(taps, np.float32)
        return self.build.node("Conv", padded, weights, strides=[STEP])

    def signal(self, frames: str, spectrum: str) -> str:
        """The decoded signal, [1, 1, 240 * frames]."""
        node = self.build.node
        x = node("ConvTranspose", frames, self.weights(CHANNELS, CHANNELS, 4), strides=[2],
                 pads=[1, 1])  # fmt: skip
        x = node("LeakyRelu", x, alpha=0.1)
        x = node("ConvTranspose", x, self.weights(CHANNELS, CHANNELS, 12), strides=[12])
        x = node("ConvTranspose", x, self.weights(CHANNELS, CHANNELS, 5), strides=[5])
        x = node("Pad", x, self.integers(0, 0, 1, 0, 0, 0), mode="reflect")
        x = node("Add", x, node("Conv", spectrum, self.weights(CHANNELS, WINDOW + 2, 1)))
        x = node("LeakyRelu", x, alpha=0.1)
        x = node("ConvTranspose", x, self.weights(CHANNELS, 1, WINDOW), strides=[STEP])
        half = WINDOW // 2
        return node("Slice", x, self.integers(half), self.integers(-half), self.integers(2))


def speech() -> onnx.ModelProto:
    parts = Speech()
    frames = parts.frames()
    signal = parts.signal(frames, parts.spectrum(parts.source(frames)))
    parts.build.output(parts.build.node("Identity", signal), None)
    parts.build.output(parts.convolved_spectrum(signal), None)
    return parts.build.model()


def check(got: NDArray, wanted: NDArray) -> None:
    """Ten layers of at most 64 additions; both programs round each by 2^-24."""
    assert got.shape == wanted.shape
    atol = 2 * 10 * 64 * 2.0**-24 * float(np.abs(wanted).max())
    np.testing.assert_allclose(got, wanted, rtol=0, atol=atol)


def test_speech_of_several_lengths() -> None:
    model = speech()
    program = tvm_hybrid.compile(model, keep_dynamic=True, num_threads=1)
    peer = literal_session(model)
    lengths = set()
    for seed, count in enumerate((5, 9, 5, 1)):
        ids = np.random.default_rng(seed).integers(0, 20, (1, count))
        results = [each.numpy() for each in program.run({"ids": ids})]
        for got, wanted in zip(results, peer.run(None, {"ids": ids}), strict=True):
            check(got, wanted)
        lengths.add(results[0].shape[2])
    assert len(lengths) == 4  # lengths depend on the ids, not only on their number
