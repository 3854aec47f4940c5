"""Building blocks of well-known CNNs as small ONNX models, float or quantised (QDQ)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tests.onnx_builder import OnnxBuilder

STEP = 2.0**-5
"""Scale of every quantised activation: +-4 about zero, several standard deviations."""


@dataclass(frozen=True)
class Image:
    """A value with channels first: its name and its number of channels."""

    name: str
    channels: int


class Net:
    """Writes layers whose results have a variance of about one, so that errors do not grow.

    Parameters
    ----------
    batch : int
        Samples.
    quantized : bool
        Whether activations and weights pass through 8 bits.

    Attributes
    ----------
    layers : int
        Number of layers with weights so far.
    depth : int
        Number of terms of the longest sum in these layers.
    """

    def __init__(self, batch: int, quantized: bool = False) -> None:
        self.g = OnnxBuilder()
        self.batch, self.quantized = batch, quantized
        self.rng = np.random.default_rng(6)
        self.layers = 0
        self.depth = 0

    def input(self, channels: int, height: int, width: int) -> Image:
        name = self.g.input("x", (self.batch, channels, height, width))
        return self.rounded(Image(name, channels))

    def output(self, image: Image, height: int, width: int) -> None:
        self.g.output(image.name, (self.batch, image.channels, height, width))

    def rounded(self, image: Image) -> Image:
        """The value quantised to 8 bits and dequantised, if the network is quantised."""
        if not self.quantized:
            return image
        form = (self.g.constant(STEP, np.float32), self.g.constant(128, np.uint8))
        integers = self.g.node("QuantizeLinear", image.name, *form)
        return Image(self.g.node("DequantizeLinear", integers, *form), image.channels)

    def weight(self, *shape: int, outputs: int = 0) -> str:
        """Random weights that keep the variance of a sum over input channels and kernel taps."""
        w = self.rng.standard_normal(shape)
        terms = w.size // shape[outputs]
        w /= np.sqrt(terms)
        self.layers += 1
        self.depth = max(self.depth, terms)
        if not self.quantized:
            return self.g.constant(w, np.float32)
        along = tuple(axis for axis in range(w.ndim) if axis != outputs)
        step = (np.abs(w).max(along) / 127).astype(np.float32)
        spread = step.reshape([-1 if axis == outputs else 1 for axis in range(w.ndim)])
        integers = np.rint(w / spread).astype(np.int8)
        zeros = np.zeros(step.shape, np.int8)
        names = [self.g.constant(each) for each in (integers, step, zeros)]
        return self.g.node("DequantizeLinear", *names, axis=outputs)

    def conv(
        self, x: Image, channels: int, kernel: int, activation: str = "", **attributes: Any
    ) -> Image:
        """Convolution with padding for `kernel`, batch normalisation, an activation."""
        groups = attributes.setdefault("group", 1)
        attributes.setdefault("pads", [kernel // 2] * 4)
        w = self.weight(channels, x.channels // groups, kernel, kernel)
        name = self.g.node("Conv", x.name, w, **attributes)
        vectors = [self.rng.uniform(low, 1.2, channels) for low in (0.8, -0.2, -0.2, 0.8)]
        statistics = [self.g.constant(vector, np.float32) for vector in vectors]
        name = self.g.node("BatchNormalization", name, *statistics)
        name = self.g.node(activation, name) if activation else name
        return self.rounded(Image(name, channels))

    def op(self, op: str, *images: Image, channels: int = 0, **attributes: Any) -> Image:
        """Adds an operator without weights."""
        name = self.g.node(op, *(image.name for image in images), **attributes)
        return self.rounded(Image(name, channels or images[0].channels))

    def concat(self, *images: Image) -> Image:
        return self.op("Concat", *images, channels=sum(i.channels for i in images), axis=1)

    def reshape(self, x: str, *shape: int) -> str:
        return self.g.node("Reshape", x, self.g.constant([self.batch, *shape], np.int64))

    def twice(self, x: Image) -> Image:
        """Repeats every pixel in a block of 2 x 2."""
        name = self.g.node(
            "Resize", x.name, "", self.g.constant([1, 1, 2, 2], np.float32), mode="nearest",
            nearest_mode="floor", coordinate_transformation_mode="asymmetric",
        )  # fmt: skip
        return Image(name, x.channels)


def residual(net: Net) -> None:
    """Two ResNet blocks; the second halves the image and has a strided 1x1 shortcut."""
    x = net.conv(net.input(3, 12, 14), 16, 3, "Relu")
    y = net.conv(net.conv(x, 16, 3, "Relu"), 16, 3)
    x = net.op("Relu", net.op("Add", y, x))
    y = net.conv(net.conv(x, 24, 3, "Relu", strides=[2, 2]), 24, 3)
    x = net.op("Add", y, net.conv(x, 24, 1, strides=[2, 2]))
    net.output(net.op("Relu", x), 6, 7)


def squeeze_and_excite(net: Net) -> None:
    """A MobileNetV3 block: depthwise convolution, gate from the global mean, hard activations."""
    x = net.input(16, 9, 8)
    y = net.conv(x, 40, 1, "HardSwish")
    y = net.conv(y, 40, 5, "HardSwish", group=40)
    gate = net.conv(net.op("GlobalAveragePool", y), 8, 1, "Relu")
    gate = net.conv(gate, 40, 1, "HardSigmoid")
    net.output(net.op("Add", net.conv(net.op("Mul", y, gate), 16, 1), x), 9, 8)


def fire(net: Net) -> None:
    """A SqueezeNet module: 1x1 and 3x3 convolutions concatenated, then a pool."""
    x = net.conv(net.input(20, 9, 11), 8, 1, "Relu")
    x = net.concat(net.conv(x, 16, 1, "Relu"), net.conv(x, 24, 3, "Relu"))
    net.output(net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2]), 4, 5)


def shuffle(net: Net) -> None:
    """A ShuffleNet unit: grouped 1x1, channels shuffled, depthwise, grouped 1x1, residual."""
    x = net.input(32, 7, 9)
    y = net.conv(x, 16, 1, "Relu", group=4)
    parts = net.g.node("Transpose", net.reshape(y.name, 4, 4, 7, 9), perm=[0, 2, 1, 3, 4])
    y = net.conv(Image(net.reshape(parts, 16, 7, 9), 16), 16, 3, group=16)
    net.output(net.op("Relu", net.op("Add", net.conv(y, 32, 1, group=4), x)), 7, 9)


def pyramid(net: Net) -> None:
    """An FPN neck: the small image is upsampled, added to the large one and joined with it."""
    large = net.conv(net.input(8, 10, 12), 16, 3, "Relu")
    small = net.conv(large, 24, 3, "Relu", strides=[2, 2])
    side, top = net.conv(large, 16, 1), net.conv(small, 16, 1)
    total = net.op("Add", side, net.twice(top))
    joined = net.concat(net.conv(total, 8, 3), net.twice(net.conv(top, 8, 3)))
    net.output(joined, 10, 12)


def enlarging(net: Net) -> None:
    """Transposed convolutions as in a text detector: they make one map four times as large."""
    x = net.conv(net.input(16, 5, 6), 16, 3, "Relu")
    for channels in (16, 1):
        w = net.weight(x.channels, channels, 2, 2, outputs=1)
        b = net.g.constant(net.rng.uniform(-0.2, 0.2, channels), np.float32)
        name = net.g.node("ConvTranspose", x.name, w, b, strides=[2, 2])
        x = Image(net.g.node("Relu" if channels > 1 else "Sigmoid", name), channels)
    net.output(x, 20, 24)


def plain(net: Net) -> None:
    """Two wide 3x3 layers, as in VGG."""
    x = net.conv(net.input(32, 12, 14), 32, 3, "Relu")
    net.output(net.conv(x, 32, 3, "Relu"), 12, 14)


def equal_blocks(net: Net) -> None:
    """Four inverted bottlenecks that differ only in their weights."""
    x = net.input(16, 8, 8)
    for _ in range(4):
        y = net.conv(net.conv(x, 32, 1, "Relu"), 32, 3, "Relu", group=32)
        x = net.op("Add", net.conv(y, 16, 1), x)
    net.output(x, 8, 8)


def made(
    block: Callable[[Net], None], batch: int = 1, quantized: bool = False
) -> tuple[Net, onnx.ModelProto]:
    """A block as an ONNX model, and the writer with its counts."""
    net = Net(batch, quantized)
    block(net)
    return net, net.g.model()
