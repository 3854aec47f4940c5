"""Operators that NumPy computes just as ONNX does, in every opset.

Graphs that compute shapes and masks consist of them. The reference implementation knows them as
well, but to import it takes 8 MB and most of a second.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import numpy_helper

from .node_builder import attributes_of

Plain = Callable[..., np.ndarray]


def _of_elements(function: Callable[..., np.ndarray]) -> Plain:
    return lambda _node, *inputs: function(*inputs)


def _concat(node: onnx.NodeProto, *inputs: np.ndarray) -> np.ndarray:
    return np.concatenate(inputs, attributes_of(node)["axis"])


def _constant_of_shape(node: onnx.NodeProto, shape: np.ndarray) -> np.ndarray:
    value = attributes_of(node).get("value")
    filled = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value)
    return np.full(tuple(shape), filled.reshape(()))


def _expand(_node: onnx.NodeProto, data: np.ndarray, shape: np.ndarray) -> np.ndarray:
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(shape))).copy()


def _gather(node: onnx.NodeProto, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.take(data, indices, attributes_of(node).get("axis", 0))


def _transpose(node: onnx.NodeProto, data: np.ndarray) -> np.ndarray:
    return data.transpose(attributes_of(node).get("perm"))


PLAIN_OPERATORS: dict[str, Plain] = {
    "Add": _of_elements(np.add),
    "And": _of_elements(np.logical_and),
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Equal": _of_elements(np.equal),
    "Expand": _expand,
    "Gather": _gather,
    "Greater": _of_elements(np.greater),
    "GreaterOrEqual": _of_elements(np.greater_equal),
    "Identity": _of_elements(lambda data: data),
    "Less": _of_elements(np.less),
    "LessOrEqual": _of_elements(np.less_equal),
    "Mul": _of_elements(np.multiply),
    "Not": _of_elements(np.logical_not),
    "Or": _of_elements(np.logical_or),
    "Sub": _of_elements(np.subtract),
    "Transpose": _transpose,
    "Where": _of_elements(np.where),
}
