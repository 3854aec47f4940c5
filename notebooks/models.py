"""Writes small ONNX models: nodes one after the other, weights as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Shape = Sequence[int | str]


class Graph:
    """Collects the nodes and weights of a model.

    Parameters
    ----------
    seed : int
        Seed of the random weights.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Adds a constant and returns its name; floats become float32, integers int64."""
        array = np.asarray(value)
        if dtype is None:
            dtype = np.float32 if array.dtype == np.float64 else array.dtype
        name = f"constant{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(array.astype(dtype), name))
        return name

    def random(self, *shape: int, gain: float = 2.0) -> str:
        """Adds random weights; a product by them multiplies the mean square by `gain`."""
        inner = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        scale = np.sqrt(gain / max(inner, 1)) if len(shape) > 1 else 0.1
        return self.constant(scale * self._rng.standard_normal(shape))

    def op(self, kind: str, *inputs: Any, out: str = "", **attributes: Any) -> str:
        """Adds a node and returns its output; arrays and numbers among inputs become constants."""
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        output = out or f"{kind}{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, names, [output], **attributes))
        return output

    def several(self, kind: str, inputs: Sequence[str], count: int) -> list[str]:
        """Adds a node with several outputs and returns them."""
        outputs = [f"{kind}{len(self._nodes)}.{number}" for number in range(count)]
        self._nodes.append(helper.make_node(kind, list(inputs), outputs))
        return outputs

    def linear(self, x: str, inner: int, outer: int, gain: float = 2.0) -> str:
        """Adds x @ weight + bias with random weights and returns it."""
        product = self.op("MatMul", x, self.random(inner, outer, gain=gain))
        return self.op("Add", product, self.random(outer))

    def model(
        self,
        inputs: Mapping[str, Shape],
        outputs: Mapping[str, Shape],
        integers: Sequence[str] = (),
    ) -> onnx.ModelProto:
        """Returns the model; inputs and outputs are float32, or int64 if named in `integers`."""

        def declared(values: Mapping[str, Shape]) -> list[onnx.ValueInfoProto]:
            kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64)
            return [
                helper.make_tensor_value_info(name, kinds[name in integers], shape)
                for name, shape in values.items()
            ]

        graph = helper.make_graph(
            self._nodes, "model", declared(inputs), declared(outputs), self._constants
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model
