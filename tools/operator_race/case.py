"""Cases to measure: one operator with inputs, as a model with static or dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 21
SIZES = ("small", "middle", "large")


@dataclass(frozen=True)
class Known:
    """An input that is part of the model."""

    array: np.ndarray


Input: TypeAlias = np.ndarray | Known | None


@dataclass(frozen=True)
class Case:
    """An operator with inputs of one size."""

    operator: str
    inputs: Sequence[Input]  # arrays are fed; None is an absent input
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = ""

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """The arrays that a session runs with."""
        return {
            name: value
            for name, value in zip(self._names, self.inputs, strict=True)
            if isinstance(value, np.ndarray)
        }

    @property
    def _names(self) -> list[str]:
        return ["" if value is None else f"i{n}" for n, value in enumerate(self.inputs)]

    def model(self, is_dynamic: bool) -> bytes:
        """The model, with static or dynamic sizes.

        Dynamic axes of equal size have one name, as exporters write them; channels and heads (the
        second of four axes) are static.
        """
        outputs = [f"o{n}" for n in range(self.outputs)]
        node = helper.make_node(
            self.operator, self._names, outputs, domain=self.domain, **self.attributes
        )
        inputs = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(array.dtype),
                [
                    f"n{size}" if is_dynamic and (array.ndim, axis) != (4, 1) else size
                    for axis, size in enumerate(array.shape)
                ],
            )
            for name, array in self.feeds.items()
        ]
        weights = [
            numpy_helper.from_array(value.array, name)
            for name, value in zip(self._names, self.inputs, strict=True)
            if isinstance(value, Known)
        ]
        graph = helper.make_graph(
            [node],
            self.operator,
            inputs,
            [helper.make_tensor_value_info(o, TensorProto.UNDEFINED, None) for o in outputs],
            weights,
        )
        for output in graph.output:
            output.ClearField("type")
        model = helper.make_model(graph, opset_imports=self._opsets)
        return bytes(model.SerializeToString())

    @property
    def _opsets(self) -> list[onnx.OperatorSetIdProto]:
        """An opset that ONNX Runtime has; for a newer operator, the opset that introduced it."""
        if self.domain:
            return [helper.make_opsetid("", OPSET), helper.make_opsetid(self.domain, 1)]
        if onnx.defs.has(self.operator, OPSET, ""):
            return [helper.make_opsetid("", OPSET)]
        return [helper.make_opsetid("", onnx.defs.get_schema(self.operator).since_version)]


Make: TypeAlias = Callable[[int], Case]
Cases: TypeAlias = dict[str, Make]
"""Name -> a function that makes the case of a size, 0 to 2."""


def floats(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    """Random float32 numbers; a shape always gets equal numbers."""
    return _random(shape).uniform(low, high, shape).astype(np.float32)


def integers(
    *shape: int, low: int = 0, high: int = 100, dtype: type[np.generic] = np.int64
) -> np.ndarray:
    """Random integers below `high`."""
    return _random(shape).integers(low, high, shape).astype(dtype)


def booleans(*shape: int) -> np.ndarray:
    """Random booleans, about half of them true."""
    return _random(shape).random(shape) < 0.5


def axes(*numbers: int) -> Known:
    """Constant int64 numbers."""
    return Known(np.array(numbers, np.int64))


def rows(size: int) -> tuple[int, int]:
    """A shape of two axes, for a size."""
    return ((16, 64), (128, 768), (512, 3072))[size]


def image(size: int) -> tuple[int, int, int, int]:
    """A shape of an image, for a size."""
    return ((1, 8, 14, 14), (1, 32, 56, 56), (1, 64, 112, 112))[size]


def _random(shape: Sequence[int]) -> np.random.Generator:
    return np.random.default_rng(list(shape))
