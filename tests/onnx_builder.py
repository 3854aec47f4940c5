"""Builds small ONNX models with one call per node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper

CONTRIB = "com.microsoft"


class OnnxBuilder:
    """A graph that grows node by node; values are represented by their names.

    Parameters
    ----------
    opset : int
        Version of the standard operators.
    """

    def __init__(self, opset: int = 17) -> None:
        self._opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._shapeless: set[str] = set()
        self._constants: list[onnx.TensorProto] = []

    def input(self, name: str, shape: Sequence[int | str], dtype: Any = np.float32) -> str:
        """Adds an input of the model."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, value: ArrayLike, dtype: Any = None) -> str:
        """Adds a weight."""
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Adds a node with one output, and returns the output."""
        return self.nodes(op, 1, *inputs, domain=domain, **attributes)[0]

    def nodes(
        self, op: str, count: int, *inputs: str, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Adds a node with several outputs, and returns them."""
        name = f"{op}{len(self._nodes)}"
        outputs = [name] if count == 1 else [f"{name}_{i}" for i in range(count)]
        node = helper.make_node(op, inputs, outputs, name=name, domain=domain, **attributes)
        self._nodes.append(node)
        return outputs

    def output(self, value: str, shape: Sequence[int | str] | None, dtype: Any = np.float32) -> str:
        """Declares a value as an output, with a shape or, if it is None, with an unknown one."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._outputs.append(helper.make_tensor_value_info(value, kind, shape or []))
        if shape is None:
            self._shapeless.add(value)
        return value

    def model(self) -> onnx.ModelProto:
        """The model, checked except for contrib operators."""
        graph = helper.make_graph(
            self._nodes, "graph", self._inputs, self._outputs, self._constants
        )
        opsets = [helper.make_opsetid("", self._opset), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.checker.check_model(model)  # requires a shape of every output
        for item in model.graph.output:
            if item.name in self._shapeless:
                item.type.tensor_type.ClearField("shape")
        return model
