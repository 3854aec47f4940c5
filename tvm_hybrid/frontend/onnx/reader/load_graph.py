"""Turns a checked ModelProto into a Graph: functions inlined, constants as arrays, nodes sorted."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx
import onnx.inliner
from onnx import helper
from onnx.external_data_helper import uses_external_data

from microkernels.base.errors import Argument, FeedError, InputValueError, ModelError

from ....runtime.feeds import to_array
from ....runtime.tensors import DeclaredInterface, DynamicTensorInfo
from ..graph.freeze_shapes import Shapes, dynamic_sizes
from ..graph.graph import Graph, captured_names, copied, describe, drop_dead_nodes
from ..graph.narrow_types import NARROW, stored_type
from .check_model import SUPPORTED_TYPES, check_model, opset_version, type_name
from .interface import Interface
from .left_data import LeftData
from .old_forms import OPSET
from .read_model import ModelLike, read_model


def load_graph(model: onnx.ModelProto, left: LeftData | None = None) -> Graph:
    """Builds the working graph of `model`, which is not changed.

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
        except Exception as error:  # the inliner is C++ and raises many kinds
            raise ModelError(f"the model's functions cannot be expanded: {error}") from error
    proto, opset = model.graph, opset_version(model)
    initializers = {tensor.name for tensor in proto.initializer}
    defined = initializers | {item.name for item in proto.input}
    graph = Graph(
        opset=max(opset, OPSET),
        old_opset=opset if opset < OPSET else 0,
        inputs=[item for item in proto.input if item.name not in initializers],
        outputs=[item.name for item in proto.output],
        nodes=_sort(list(map(copied, proto.node)), defined),
    )
    made = defined.union(*(node.output for node in graph.nodes))
    for name in graph.outputs:
        if name not in made:
            raise ModelError(f"graph output {name!r} is made by no node, input or initializer")
    for item in graph.inputs:
        declared = Interface.of(item)
        if not declared.is_tensor:
            raise ModelError(
                f"graph input {item.name!r} is {declared.type}, but a program takes a fixed number "
                "of tensors; run the model by an InferenceSession, which compiles for each number"
            )
        kind = item.type.tensor_type.elem_type
        graph.types[item.name] = onnx.TypeProto.FromString(item.type.SerializeToString())
        graph.types[item.name].tensor_type.elem_type = stored_type(kind)
        if kind in NARROW:
            graph.narrow[item.name] = kind
    _load_constants(graph, proto.initializer, left or LeftData())
    return graph


def _load_constants(graph: Graph, initializers: Iterable[onnx.TensorProto], left: LeftData) -> None:
    """Removes dead nodes, and loads the arrays that live nodes or outputs use."""
    used = drop_dead_nodes(graph)
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
        except Exception as error:  # numpy and onnx raise many kinds
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
    """Sorts nodes topologically, near the given order (Kahn, lowest index first)."""
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


# Turns inputs with given values into constants.
#
# x: float32[3, 4], axes: int64[1]    values={"axes": [1]}    ->    x: float32[3, 4]


Values = Mapping[str, Any]


def read_values(graph: Graph, values: Values | None) -> dict[str, np.ndarray]:
    """The given values as arrays of their inputs' types, by name.

    Raises
    ------
    InputValueError
        There is no such input, or the value does not fit its type or shape.
    """
    inputs = [item.name for item in graph.inputs]
    arrays = {}
    for name, value in (values or {}).items():
        if name not in inputs:
            known = ", ".join(map(repr, inputs)) or "none"
            raise InputValueError(
                Argument("values"), f" names {name!r}; the model's inputs are {known}"
            )
        info = Interface(graph.types[name]).info(name)
        try:
            array = to_array(value, info)
        except FeedError as error:
            text = f" is no value of {info}: {error}"
            raise InputValueError(Argument("values", name), text) from error
        arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
    return arrays


def shapes_with(arrays: Mapping[str, np.ndarray], shapes: Shapes | None) -> Shapes:
    """The given shapes together with the shapes of the given values.

    Raises
    ------
    InputValueError
        A value does not have the given shape.
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


# Models with unknown shapes: read and checked now, imported later for given shapes.


SMALL = 1 << 7  # inference may read the values of initializers of up to this many elements
INFERRED = "unk__"  # prefix of names that ONNX's inference makes up


class DynamicModel(NamedTuple):
    """A checked model and its interface; types of outputs are declared or inferred."""

    proto: onnx.ModelProto
    inputs: tuple[DynamicTensorInfo, ...]
    outputs: tuple[DynamicTensorInfo, ...]


def read_dynamic_model(model: ModelLike, shapes: Shapes | None = None) -> DynamicModel:
    """Reads a model some of whose dimensions may have no values.

    Parameters
    ----------
    model : path-like, bytes or onnx.ModelProto
        The model; it is not changed.
    shapes : mapping, optional
        As for `import_onnx`; its numbers are filled into the interface.

    Raises
    ------
    ModelError
        The model cannot be read or is not valid, or the shapes do not fit it.
    """
    proto = read_model(model)
    check_model(proto)
    found = declared_interface(proto, load_graph(proto), shapes)
    return DynamicModel(proto, found.inputs, found.outputs)


def declared_interface(
    proto: onnx.ModelProto, graph: Graph, shapes: Shapes | None = None
) -> DeclaredInterface:
    """The declared interface with the numbers of `shapes`; `graph` is freshly loaded."""
    inputs = [_info(item) for item in graph.inputs]
    outputs = list(proto.graph.output)
    if any(_info(item).dtype is None or _info(item).shape is None for item in outputs):
        outputs = _inferred(proto)
    made = [_info(item) for item in outputs]
    if shapes:  # by names of inputs, and for outputs by names of dimensions
        sizes, values = dynamic_sizes(graph, shapes)
        given = {item.name: tuple(dims) for item, dims in sizes.items()}
        inputs = [msgspec.structs.replace(each, shape=given[each.name]) for each in inputs]
        for place, each in enumerate(made):
            dims = each.shape and tuple(values.get(str(dim), dim) for dim in each.shape)
            made[place] = msgspec.structs.replace(each, shape=dims)
    return DeclaredInterface(tuple(inputs), tuple(made))


def _inferred(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The outputs with the types and shapes that ONNX can infer."""
    graph = proto.graph
    light = onnx.ModelProto(
        ir_version=proto.ir_version,
        opset_import=proto.opset_import,
        functions=proto.functions,
        graph=onnx.GraphProto(name=graph.name, node=graph.node, output=graph.output),
    )
    # Inference copies the model, and takes at most 2 GB, so large weights are passed without data.
    large = {item.name: item for item in graph.initializer if math.prod(item.dims) > SMALL}
    light.graph.initializer.extend(item for item in graph.initializer if item.name not in large)
    light.graph.input.extend(item for item in graph.input if item.name not in large)
    for name, item in large.items():
        light.graph.input.append(helper.make_tensor_value_info(name, item.data_type, item.dims))
    try:
        return list(onnx.shape_inference.infer_shapes(light).graph.output)
    except Exception:  # C++ inference raises several kinds; the import reports what is wrong
        return list(graph.output)


def _info(item: onnx.ValueInfoProto) -> DynamicTensorInfo:
    info = Interface(item.type).info(item.name)
    dims = info.shape and tuple(None if str(d).startswith(INFERRED) else d for d in info.shape)
    return msgspec.structs.replace(info, shape=dims)
