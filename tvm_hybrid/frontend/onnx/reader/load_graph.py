"""Turns a checked ModelProto into a Graph: functions inlined, constants as arrays, nodes sorted."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import helper
from onnx.external_data_helper import uses_external_data

from microkernels.base.errors import Argument, FeedError, InputValueError, ModelError

from ....runtime.feeds import to_array
from ....runtime.tensors import OpenTensorInfo
from ..graph.freeze_shapes import Shapes, declared_dims
from ..graph.graph import Graph, captured_names, describe, drop_dead_nodes
from ..graph.narrow_types import NARROW, stored_type
from .check_model import SUPPORTED_TYPES, opset_version, type_name
from .left_data import LeftData
from .old_forms import OPSET


def load_graph(model: onnx.ModelProto, left: LeftData | None = None) -> Graph:
    """Builds the working graph of `model`, which stays as it is.

    Parameters
    ----------
    model : onnx.ModelProto
        A checked model.
    left : LeftData, optional
        The data of initializers that the model lacks.

    Raises
    ------
    ModelError
        A name is missing, undefined or used twice, nodes form a cycle, or an initialiser's data do
        not fit its shape.
    """
    if model.functions:
        try:
            model = onnx.inliner.inline_local_functions(model)
        except Exception as error:  # the inliner is C++ and raises what it likes
            raise ModelError(f"the model's functions cannot be expanded: {error}") from error
    proto, opset = model.graph, opset_version(model)
    initializers = {tensor.name for tensor in proto.initializer}
    graph = Graph(
        name=proto.name,
        opset=max(opset, OPSET),
        old_opset=opset if opset < OPSET else 0,
        inputs=[item for item in proto.input if item.name not in initializers],
        outputs=[item.name for item in proto.output],
        nodes=_sort(_copy_nodes(proto.node), {i.name for i in proto.input} | initializers),
    )
    _check_outputs(graph, initializers | {item.name for item in proto.input})
    for item in graph.inputs:
        kind = item.type.tensor_type.elem_type
        graph.types[item.name] = onnx.TypeProto.FromString(item.type.SerializeToString())
        graph.types[item.name].tensor_type.elem_type = stored_type(kind)
        if kind in NARROW:
            graph.narrow[item.name] = kind
    drop_dead_nodes(graph)
    _load_constants(graph, proto.initializer, left or LeftData())
    return graph


def _copy_nodes(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
    return copies


def _load_constants(graph: Graph, initializers: Iterable[onnx.TensorProto], left: LeftData) -> None:
    """Loads the arrays that live nodes or outputs use."""
    used = set(graph.outputs)
    for node in graph.nodes:
        used.update(node.input)
        used |= captured_names(node)
    seen: set[str] = set()
    for tensor in initializers:
        if not tensor.name:
            raise ModelError("an initializer has no name")
        if tensor.name in seen:
            raise ModelError(f"initializer {tensor.name!r} is listed twice")
        seen.add(tensor.name)
        if tensor.name not in used:
            continue
        if tensor.data_type not in SUPPORTED_TYPES | NARROW:
            raise ModelError(
                f"initializer {tensor.name!r} holds {type_name(tensor.data_type)}, "
                "a data type that is not supported"
            )
        shape = tuple(tensor.dims)
        try:
            if min(shape, default=0) < 0:
                raise ValueError("a dimension is negative")
            array = left.array(tensor)
            if array.shape != shape:
                raise ValueError(f"the data have shape {array.shape}")
        except Exception as error:  # numpy's and onnx's own, of many kinds
            if uses_external_data(tensor):
                raise ModelError(
                    f"the external data of initializer {tensor.name!r}, beside the model in "
                    f"{left.folder}, cannot be loaded: {error}"
                ) from error
            raise ModelError(
                f"initializer {tensor.name!r}: the data do not fit shape {shape}: {error}"
            ) from error
        graph.add_constant(tensor.name, array)


def _sort(nodes: list[onnx.NodeProto], defined: set[str]) -> list[onnx.NodeProto]:
    """Topological order, as near to the given one as it can be (Kahn, lowest index first)."""
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and (name in producer or name in defined):
                raise ModelError(f"{describe(node)}: value {name!r} is defined more than once")
            if name:
                producer[name] = index
    waiting = [0] * len(nodes)
    users: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for name in {name for name in node.input if name} | captured_names(node):
            if name in producer:
                waiting[index] += 1
                users[producer[name]].append(index)
            elif name not in defined:
                raise ModelError(
                    f"{describe(node)}: its input {name!r} is no graph input, no initializer and "
                    "no other node's output"
                )
    ready = [index for index, count in enumerate(waiting) if not count]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for user in users[index]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, user)
    if len(order) < len(nodes):
        stuck = [describe(node) for node, count in zip(nodes, waiting, strict=True) if count]
        raise ModelError(
            f"the graph has a cycle; {len(stuck)} nodes wait for each other: "
            + ", ".join(stuck[:4])
        )
    return order


def _check_outputs(graph: Graph, defined: set[str]) -> None:
    made = defined.union(*(node.output for node in graph.nodes))
    for name in graph.outputs:
        if name not in made:
            raise ModelError(f"graph output {name!r} is made by no node, input or initializer")


# Makes constants of inputs whose values are given.
#
# x: float32[3, 4], axes: int64[1]    values={"axes": [1]}    ->    x: float32[3, 4]


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
