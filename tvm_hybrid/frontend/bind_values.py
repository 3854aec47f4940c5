"""Makes constants of inputs whose values are given.

x: float32[3, 4], axes: int64[1]    values={"axes": [1]}    ->    x: float32[3, 4]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

from microkernels.base.errors import Argument, FeedError, InputValueError

from ..runtime.feeds import to_array
from ..runtime.tensors import OpenTensorInfo
from .freeze_shapes import Shapes, declared_dims
from .graph import Graph

Values = Mapping[str, Any]


def read_values(graph: Graph, values: Values | None) -> dict[str, np.ndarray]:
    """The values as arrays of their inputs' types, by name.

    Raises
    ------
    InputValueError
        There is no such input, or it is of another type or shape.
    """
    inputs = {item.name: _declared(graph, item.name) for item in graph.inputs}
    arrays = {}
    for name, value in (values or {}).items():
        if name not in inputs:
            known = ", ".join(map(repr, inputs)) or "none"
            raise InputValueError(
                Argument("values"), f" names {name!r}; the model's inputs are {known}"
            )
        arrays[name] = _array(inputs[name], value)
    return arrays


def shapes_with(arrays: Mapping[str, np.ndarray], shapes: Shapes | None) -> Shapes:
    """The given shapes, and those of the given values.

    Raises
    ------
    InputValueError
        A value has another shape than is given for it.
    """
    known: dict[str, int | Sequence[int | None]] = dict(shapes or {})
    for name, array in arrays.items():
        given = known.setdefault(name, array.shape)
        if not isinstance(given, Sequence) or tuple(given) != array.shape:
            raise InputValueError(
                Argument("values", name),
                f" has the shape {array.shape}, but ",
                Argument("shapes", name),
                f" is {given}",
            )
    return known


def bind_values(graph: Graph, arrays: Mapping[str, np.ndarray]) -> None:
    """Turns the inputs of these names into constants, in place; their shapes are frozen."""
    for name, array in arrays.items():
        graph.add_constant(name, array)
    graph.inputs = [item for item in graph.inputs if item.name not in arrays]


def _declared(graph: Graph, name: str) -> OpenTensorInfo:
    dtype = str(helper.tensor_dtype_to_np_dtype(graph.elem_type(name)))
    return OpenTensorInfo(name, declared_dims(graph.types[name]), dtype)


def _array(info: OpenTensorInfo, value: Any) -> np.ndarray:
    try:
        array = to_array(value, info)
    except FeedError as error:
        raise InputValueError(
            Argument("values", info.name), f" is no value of {info}: {error}"
        ) from error
    return np.ascontiguousarray(array).reshape(array.shape)
