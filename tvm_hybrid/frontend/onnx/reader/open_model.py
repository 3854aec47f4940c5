"""A model whose shapes are not all known yet: read and checked, to be imported for given shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import onnx
from onnx import helper

from ....runtime.tensors import DeclaredInterface, OpenTensorInfo
from ..graph.freeze_shapes import Dim, Shapes, declared_dims, open_sizes
from ..graph.graph import Graph
from .check_model import check_model
from .load_graph import load_graph
from .read_model import ModelLike, read_model

SMALL = 1 << 7  # elements of an initializer that inference may want to read
INFERRED = "unk__"  # what the names begin with that ONNX's inference makes up


@dataclass(frozen=True)
class OpenModel:
    """A checked model and its interface, as declared or, of outputs, inferred."""

    proto: onnx.ModelProto
    inputs: tuple[OpenTensorInfo, ...]
    outputs: tuple[OpenTensorInfo, ...]


def open_model(model: ModelLike, shapes: Shapes | None = None) -> OpenModel:
    """Reads a model without giving all of its dimensions values.

    Parameters
    ----------
    model : path-like, bytes or onnx.ModelProto
        The model; it stays as it is.
    shapes : mapping, optional
        As for `import_onnx`; the interface has the numbers that it gives.

    Raises
    ------
    ModelError
        The model cannot be read or is not valid, or the shapes do not fit it.
    """
    proto = read_model(model)
    check_model(proto)
    found = declared_interface(proto, load_graph(proto), shapes)
    return OpenModel(proto, found.inputs, found.outputs)


def declared_interface(
    proto: onnx.ModelProto, graph: Graph, shapes: Shapes | None = None
) -> DeclaredInterface:
    """What a model declares, with the numbers that `shapes` gives; `graph` is just loaded."""
    inputs = tuple(_info(item) for item in graph.inputs)
    outputs = list(proto.graph.output)
    if any(_info(item).dtype is None or _info(item).shape is None for item in outputs):
        outputs = _inferred(proto)
    found = DeclaredInterface(inputs, tuple(map(_info, outputs)))
    return _with_sizes(found, *open_sizes(graph, shapes)) if shapes else found


def _with_sizes(
    opened: DeclaredInterface, sizes: dict[str, tuple[Dim, ...]], values: dict[str, int]
) -> DeclaredInterface:
    """The interface with known sizes: of inputs by their names, of outputs by their dimensions'."""

    def known(info: OpenTensorInfo) -> OpenTensorInfo:
        dims = info.shape and tuple(values.get(str(dim), dim) for dim in info.shape)
        return msgspec.structs.replace(info, shape=dims)

    inputs = [msgspec.structs.replace(info, shape=sizes[info.name]) for info in opened.inputs]
    return DeclaredInterface(tuple(inputs), tuple(map(known, opened.outputs)))


def _inferred(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The outputs with what ONNX can tell of their types and shapes."""
    graph = proto.graph
    light = onnx.ModelProto(ir_version=proto.ir_version)
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    light.graph.name = graph.name
    light.graph.node.extend(graph.node)
    light.graph.output.extend(graph.output)
    # Inference copies the model, and takes 2 GB at most: weights go without their values.
    large = {item.name: item for item in graph.initializer if math.prod(item.dims) > SMALL}
    light.graph.initializer.extend(item for item in graph.initializer if item.name not in large)
    light.graph.input.extend(item for item in graph.input if item.name not in large)
    for name, item in large.items():
        light.graph.input.append(helper.make_tensor_value_info(name, item.data_type, item.dims))
    try:
        return list(onnx.shape_inference.infer_shapes(light).graph.output)
    except Exception:  # C++ inference raises several kinds; what is wrong is said once it matters
        return list(graph.output)


def _info(item: onnx.ValueInfoProto) -> OpenTensorInfo:
    dims, kind = declared_dims(item.type), item.type.tensor_type.elem_type
    if dims is not None:
        dims = tuple(None if str(dim).startswith(INFERRED) else dim for dim in dims)
    dtype = str(helper.tensor_dtype_to_np_dtype(kind)) if kind else None
    return OpenTensorInfo(item.name, dims, dtype)
