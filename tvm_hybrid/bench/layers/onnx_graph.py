"""OnnxGraph: writes a small ONNX model node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


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
