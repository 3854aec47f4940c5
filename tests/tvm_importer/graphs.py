"""Collects many small nodes into one ONNX model, so that a test compiles once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tests.onnx_builder import OnnxBuilder

F32, I32, I64, U8, I8 = np.float32, np.int32, np.int64, np.uint8, np.int8


class Graph:
    """A model under construction; `feeds` has values of its inputs.

    Parameters
    ----------
    opset : int
        Version of the standard operators.
    """

    def __init__(self, opset: int = 20) -> None:
        self.builder = OnnxBuilder(opset)
        self.feeds: dict[str, NDArray[Any]] = {}
        self._outputs: list[tuple[str, Any]] = []
        self._random = np.random.default_rng(17)

    def floats(self, *shape: int, low: float = -2.0, high: float = 2.0) -> str:
        """Adds a float32 input."""
        return self.feed(self._random.uniform(low, high, shape).astype(F32))

    def integers(self, *shape: int, dtype: Any = I32, low: int = -9, high: int = 9) -> str:
        """Adds an integer input."""
        return self.feed(self._random.integers(low, high, shape).astype(dtype))

    def flags(self, *shape: int) -> str:
        """Adds a bool input."""
        return self.feed(self._random.random(shape) < 0.5)

    def feed(self, value: NDArray[Any]) -> str:
        """Adds an input with this feed."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = value
        return self.builder.input(name, value.shape, value.dtype)

    def weight(self, *shape: int) -> str:
        """Adds a float32 constant between -1 and 1."""
        return self.builder.constant(self._random.uniform(-1, 1, shape), F32)

    def numbers(self, *values: int) -> str:
        """Adds a constant vector of int64."""
        return self.builder.constant(values, I64)

    def result(self, op: str, *inputs: str, dtype: Any = F32, **attributes: Any) -> None:
        """Adds a node whose output is an output of the model."""
        self.results(op, [dtype], *inputs, **attributes)

    def results(self, op: str, dtypes: Sequence[Any], *inputs: str, **attributes: Any) -> None:
        """Adds a node whose outputs are outputs of the model."""
        values = self.builder.nodes(op, len(dtypes), *inputs, **attributes)
        self._outputs += zip(values, dtypes, strict=True)

    def model(self) -> onnx.ModelProto:
        """The model, which states no shapes of outputs."""
        model = self.builder.model()
        for name, dtype in self._outputs:
            code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            model.graph.output.append(helper.make_tensor_value_info(name, code, None))
        return model
