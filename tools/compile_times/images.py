"""Layers of convolutional networks, in float32, float16 or dynamic 8-bit integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .graph import Form, Graph

FLOAT, HALF, INT8 = "float32", "float16", "int8"


class Image(NamedTuple):
    """A value in channels first: its name, its channels, and its height and width if known."""

    name: str
    channels: int
    size: tuple[int, int]


class Net(Graph):
    """A graph of images.

    If `precision` is "int8", convolutions are ConvInteger of dynamically quantised inputs.
    """

    def __init__(self, form: Form, precision: str = FLOAT) -> None:
        super().__init__(form)
        self.precision = precision
        self._quantized: dict[str, list[str]] = {}

    def image(self, channels: int, height: int, width: int, fixed: str = "") -> Image:
        """The model's input; `fixed` names dimensions that are always static: "h", "w"."""
        sizes = [
            value if name[0] in fixed else self.size(name, value)
            for name, value in (("height", height), ("width", width))
        ]
        x = self.input("x", (self.batch(), channels, *sizes))
        if self.precision == HALF:
            x = self.node("Cast", x, to=10)
        return Image(x, channels, (height, width))

    def conv(
        self,
        x: Image,
        channels: int,
        kernel: int | tuple[int, int],
        activation: str = "",
        stride: int | tuple[int, int] = 1,
        groups: int = 1,
        dilation: int = 1,
        pads: Sequence[int] | None = None,
        norm: bool = False,
    ) -> Image:
        """A convolution padded for its kernel or by `pads`, with a bias or (`norm`) batch norm."""
        kernels = (kernel, kernel) if isinstance(kernel, int) else kernel
        strides = (stride, stride) if isinstance(stride, int) else stride
        if pads is None:
            pads = [k // 2 * dilation for k in kernels] * 2
        attributes: dict[str, Any] = {"strides": strides, "pads": pads, "group": groups}
        attributes |= {"kernel_shape": kernels, "dilations": [dilation] * 2}
        shape = (channels, x.channels // groups, *kernels)
        weight = self.rng.standard_normal(shape, np.float32)
        weight *= np.float32(np.prod(shape[1:]) ** -0.5)
        if self.precision == INT8:
            y = self._integer_conv(x.name, weight, attributes)
        else:
            w = self.constant(weight, self.precision)
            biases = [] if norm else [self.vector(channels, 0.1)]
            y = self.node("Conv", x.name, w, *biases, **attributes)
        if norm:
            vectors = [self.rng.uniform(low, 1.2, channels) for low in (0.8, -0.2, -0.2, 0.8)]
            names = [self.constant(vector, np.float32) for vector in vectors]
            y = self.node("BatchNormalization", y, *names)
        sizes = zip(x.size, kernels, strides, pads[:2], pads[2:], strict=True)
        height, width = (
            (n + low + high - (k - 1) * dilation - 1) // s + 1 for n, k, s, low, high in sizes
        )
        return Image(self.activate(y, activation), channels, (height, width))

    def vector(self, channels: int, spread: float) -> str:
        """A vector of random biases."""
        values = self.rng.normal(0, spread, channels)
        return self.constant(values, HALF if self.precision == HALF else FLOAT)

    def _integer_conv(self, x: str, weight: np.ndarray, attributes: dict[str, Any]) -> str:
        """A convolution as onnxruntime.quantization's dynamic quantiser writes it, with a bias."""
        if x not in self._quantized:
            self._quantized[x] = self.nodes("DynamicQuantizeLinear", 3, x)
        values, scale, zero = self._quantized[x]
        step = np.abs(weight).max() / 127
        w = self.constant(np.rint(weight / step) + 128, np.uint8)
        zeros = zero, self.constant(128, np.uint8)
        sums = self.node("ConvInteger", values, w, *zeros, **attributes)
        scales = self.node("Mul", scale, self.constant(step))
        y = self.node("Mul", self.node("Cast", sums, to=1), scales)
        bias = self.rng.normal(0, 0.1, (1, len(weight), 1, 1))
        return self.node("Add", y, self.constant(bias))

    def depthwise(
        self, x: Image, kernel: int, activation: str = "", stride: int | tuple[int, int] = 1
    ) -> Image:
        return self.conv(x, x.channels, kernel, activation, stride, x.channels)

    def op(self, op: str, x: Image, *others: Image, **attributes: Any) -> Image:
        """An operator that keeps the size."""
        names = [each.name for each in (x, *others)]
        return x._replace(name=self.node(op, *names, **attributes))

    def add(self, x: Image, y: Image) -> Image:
        return self.op("Add", x, y)

    def concat(self, *images: Image) -> Image:
        channels = sum(each.channels for each in images)
        return self.op("Concat", *images, axis=1)._replace(channels=channels)

    def pool(
        self, x: Image, kernel: int, stride: int, pad: int = 0, op: str = "MaxPool", ceil: int = 0
    ) -> Image:
        attributes: dict[str, Any] = {"strides": [stride] * 2, "pads": [pad] * 4, "ceil_mode": ceil}
        name = self.node(op, x.name, kernel_shape=[kernel] * 2, **attributes)
        up = stride - 1 if ceil else 0
        height, width = ((n + 2 * pad - kernel + up) // stride + 1 for n in x.size)
        return Image(name, x.channels, (height, width))

    def enlarge(self, x: Image, times: int = 2, mode: str = "nearest") -> Image:
        """Enlarges an image by a whole factor."""
        attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
        if mode == "nearest":
            attributes["nearest_mode"] = "floor"
        else:
            attributes["coordinate_transformation_mode"] = "half_pixel"
        scales = self.constant([1, 1, times, times])
        height, width = (n * times for n in x.size)
        return Image(
            self.node("Resize", x.name, "", scales, **attributes), x.channels, (height, width)
        )

    def enlarge_to(self, x: Image, y: Image) -> Image:
        """Enlarges an image linearly to the size of another one."""
        if self.form.dynamic:
            sizes = self.shape(
                self.dim(x.name, 0), x.channels, self.dim(y.name, 2), self.dim(y.name, 3)
            )
        else:
            sizes = self.ints(self.form.batch, x.channels, *y.size)
        attributes: dict[str, Any] = {
            "mode": "linear",
            "coordinate_transformation_mode": "half_pixel",
        }
        return Image(self.node("Resize", x.name, "", "", sizes, **attributes), x.channels, y.size)

    def excite(self, x: Image, inner: int, gate: str = "HardSigmoid") -> Image:
        """Squeeze and excite: multiplies by a gate computed from the mean of all pixels."""
        mean = Image(self.node("GlobalAveragePool", x.name), x.channels, (1, 1))
        each = self.conv(self.conv(mean, inner, 1, "Relu"), x.channels, 1, gate)
        return self.op("Mul", x, each)

    def enlarging_conv(self, x: Image, channels: int, activation: str) -> Image:
        """A transposed convolution that doubles height and width."""
        w = self.random(x.channels, channels, 2, 2, spread=x.channels**-0.5)
        y = self.node("ConvTranspose", x.name, w, self.random(channels, spread=0.1), strides=[2, 2])
        height, width = (2 * n for n in x.size)
        return Image(self.activate(y, activation), channels, (height, width))

    def classes(self, x: Image, count: int) -> None:
        """Ends the model with a classifier."""
        mean = self.node("Flatten", self.node("GlobalAveragePool", x.name))
        count += self.form.head
        weight = self.random(count, x.channels, spread=x.channels**-0.5)
        self.output(self.node("Gemm", mean, weight, self.random(count), transB=1), "classes")

    def rows(self, x: Image) -> str:
        """The pixels of an image as rows [batch, pixels, channels]."""
        pixels = -1 if self.form.dynamic else x.size[0] * x.size[1]
        flat = self.reshape(x.name, self.same(x.name, 0, self.batch()), x.channels, pixels)
        return self.transpose(flat, 0, 2, 1)

    def image_of(self, rows: str, like: Image, channels: int) -> Image:
        """The image of rows [batch, pixels, channels]."""
        sizes = (
            [self.dim(like.name, axis) for axis in (0, 2, 3)]
            if self.form.dynamic
            else [self.form.batch, *like.size]
        )
        flat = self.transpose(rows, 0, 2, 1)
        return Image(self.reshape(flat, sizes[0], channels, *sizes[1:]), channels, like.size)
