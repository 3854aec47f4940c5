"""Convolutions of published networks, each as an ONNX model of its own.

    float32:  y = Relu(Conv(x, w, b))
    int8:     y = QuantizeLinear(Relu(Conv(DequantizeLinear(x), DequantizeLinear(w), ...)))

Inputs and outputs are NCHW, float32 or uint8. Quantised weights are int8 with a scale for each
output channel. Numbers are random with a fixed seed, and keep results in range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT32, INT8 = "float32", "int8"
DTYPES = (FLOAT32, INT8)
INPUT_SCALE, WEIGHT_SCALE = 0.02, 0.01


class Layer(msgspec.Struct, frozen=True):
    """A convolution with bias and ReLU, padded by half its kernel; images and kernels are square.

    Attributes
    ----------
    name : str
        As in the publication.
    size : int
        Height and width of the image.
    channels, filters : int
        Input and output channels.
    kernel, stride : int
        Extent of the kernel, and its step.
    zero_point : int
        The number that stands for zero in the input when it is quantised. After a ReLU it is 0.
    """

    name: str
    size: int
    channels: int
    filters: int
    kernel: int
    stride: int
    zero_point: int = 0

    @property
    def result_size(self) -> int:
        """Height and width of the result."""
        return (self.size + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def flops(self) -> int:
        """Two operations for every multiplication of a kernel's element, in the padding too."""
        return 2 * self.filters * self.result_size**2 * self.channels * self.kernel**2

    def __str__(self) -> str:
        image = f"{self.size}x{self.size}x{self.channels}"
        step = f" /{self.stride}" if self.stride > 1 else ""
        return f"{image} -> {self.filters}, {self.kernel}x{self.kernel}{step}"


# arXiv 1805.08166, table 1; C1 is the only one that reads an image with negative values.
RESNET18 = (
    Layer("C1", 224, 3, 64, 7, 2, zero_point=128),
    Layer("C2", 56, 64, 64, 3, 1),
    Layer("C3", 56, 64, 64, 1, 1),
    Layer("C4", 56, 64, 128, 3, 2),
    Layer("C5", 56, 64, 128, 1, 2),
    Layer("C6", 28, 128, 128, 3, 1),
    Layer("C7", 28, 128, 256, 3, 2),
    Layer("C8", 28, 128, 256, 1, 2),
    Layer("C9", 14, 256, 256, 3, 1),
    Layer("C10", 14, 256, 512, 3, 2),
    Layer("C11", 14, 256, 512, 1, 2),
    Layer("C12", 7, 512, 512, 3, 1),
)
NETWORKS = {"resnet18": RESNET18}


def layer_model(layer: Layer, dtype: str) -> onnx.ModelProto:
    """The model of a layer, with input "x" and output "y".

    Parameters
    ----------
    layer : Layer
        The convolution.
    dtype : str
        One of `DTYPES`.
    """
    graph = OnnxGraph()
    rng = np.random.default_rng(0)
    shape = (layer.filters, layer.channels, layer.kernel, layer.kernel)
    length = layer.channels * layer.kernel**2
    if dtype == FLOAT32:
        element, value = TensorProto.FLOAT, "x"
        weight = rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / length))
        operands = [
            graph.constant(weight),
            graph.constant(rng.standard_normal(layer.filters, np.float32)),
        ]
    else:
        element = TensorProto.UINT8
        scales = (WEIGHT_SCALE * rng.uniform(0.5, 1.5, layer.filters)).astype(np.float32)
        value = graph.dequantize("x", np.float32(INPUT_SCALE), np.uint8(layer.zero_point))
        weight = rng.integers(-127, 128, shape, np.int8)
        bias = rng.integers(-9999, 10000, layer.filters, np.int32)
        operands = [
            graph.dequantize(graph.constant(weight), scales, np.zeros(layer.filters, np.int8)),
            graph.dequantize(
                graph.constant(bias),
                scales * np.float32(INPUT_SCALE),
                np.zeros(layer.filters, np.int32),
            ),
        ]
    value = graph.node("Conv", value, *operands, **_window(layer))
    if dtype == FLOAT32:
        graph.node("Relu", value, output="y")
    else:
        value = graph.node("Relu", value)
        # Results are spread around zero by about 2 sqrt(K); three of that make the largest byte.
        scale = np.float32(6 / 255 * np.sqrt(length))
        graph.node(
            "QuantizeLinear",
            value,
            graph.constant(scale),
            graph.constant(np.uint8(0)),
            output="y",
        )
    return graph.model(
        layer.name,
        [helper.make_tensor_value_info("x", element, (1, layer.channels, layer.size, layer.size))],
        helper.make_tensor_value_info(
            "y", element, (1, layer.filters, layer.result_size, layer.result_size)
        ),
    )


def layer_input(layer: Layer, dtype: str) -> np.ndarray:
    """An input for the model: standard normal, or all bytes alike."""
    rng = np.random.default_rng(1)
    shape = (1, layer.channels, layer.size, layer.size)
    if dtype == FLOAT32:
        return rng.standard_normal(shape, np.float32)
    return rng.integers(0, 256, shape, np.uint8)


def _window(layer: Layer) -> dict[str, Any]:
    return {
        "kernel_shape": [layer.kernel] * 2,
        "strides": [layer.stride] * 2,
        "pads": [layer.kernel // 2] * 4,
    }


class OnnxGraph:
    """Collects nodes and constants."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, value: np.ndarray | np.generic) -> str:
        """Adds a constant; returns its name."""
        name = f"constant{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Adds a node; returns the name of its result."""
        output = output or f"value{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def dequantize(
        self,
        value: str,
        scale: np.ndarray | np.generic,
        zero: np.ndarray | np.generic,
        axis: int = 0,
    ) -> str:
        """Adds a DequantizeLinear along an axis; returns the name of its result."""
        operands = value, self.constant(scale), self.constant(zero)
        if np.ndim(scale):
            return self.node("DequantizeLinear", *operands, axis=axis)
        return self.node("DequantizeLinear", *operands)

    def model(
        self, name: str, given: Sequence[onnx.ValueInfoProto], result: onnx.ValueInfoProto
    ) -> onnx.ModelProto:
        """The finished model, checked."""
        graph = helper.make_graph(self._nodes, name, given, [result], self._constants)
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model
