"""Shapes of which ONNX's inference knows less than there is to know.

    Reshape(x, Concat(n, [12, -1]))    ->    [?, 12, ?]
    Expand(x: [1, 8], Concat(n, [8]))  ->    [?, ?]
    ConstantOfShape(s: int64[3])       ->    [?, ?, ?]
    MaxUnpool(x, places, s: int64[4])  ->    [?, ?, ?, ?]
    AffineGrid(theta, Shape(x: [n, 3, h, w]))  ->    [?, ?, ?, 2]

ONNX infers such a result only if the whole shape is constant; otherwise it knows nothing, or the
rank alone. What comes behind wants the rank, and channels and heads, which are numbers where
lengths are open.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from .graph import Graph, is_standard, static_shape

Dim = int | None
_DEPTH = 4  # of concatenations of concatenations


def complete_types(
    node: onnx.NodeProto, graph: Graph, types: dict[str, onnx.TypeProto]
) -> dict[str, onnx.TypeProto]:
    """The types, with as much of a shape as is known here or to ONNX."""
    if not is_standard(node) or len(node.output) != 1 or node.output[0] not in types:
        return types
    found = types[node.output[0]]
    if not found.HasField("tensor_type") or static_shape(found) is not None:
        return types
    dims = _dims(node, graph)
    if dims is None:
        return types
    tensor = found.tensor_type
    if not tensor.HasField("shape"):
        return {node.output[0]: helper.make_tensor_type_proto(tensor.elem_type, dims)}
    if len(tensor.shape.dim) == len(dims):
        for dim, size in zip(tensor.shape.dim, dims, strict=True):
            if size is not None and not dim.HasField("dim_value"):
                dim.dim_value = size
    return types


def _dims(node: onnx.NodeProto, graph: Graph) -> list[Dim] | None:
    if node.op_type == "ConstantOfShape":
        return _elements(node.input[0], graph, _DEPTH)
    if node.op_type == "MaxUnpool" and len(node.input) > 2:
        return _elements(node.input[2], graph, _DEPTH)
    if node.op_type == "AffineGrid":
        size = _elements(node.input[1], graph, _DEPTH)
        return None if size is None else [size[0], *size[2:], len(size) - 2]
    if node.op_type == "Expand":
        asked, before = _elements(node.input[1], graph, _DEPTH), graph.dims(node.input[0])
        if asked is None or before is None:
            return None
        return [None] * max(len(asked), len(before))
    if node.op_type != "Reshape":
        return None
    asked = _elements(node.input[1], graph, _DEPTH)
    if asked is None:
        return None
    copies = not any(item.name == "allowzero" and item.i for item in node.attribute)
    before = graph.dims(node.input[0]) or ()
    return [
        _before(before, place) if size == 0 and copies else size if size != -1 else None
        for place, size in enumerate(asked)
    ]


def _before(before: Sequence[Dim], place: int) -> Dim:
    return before[place] if place < len(before) else None


def _elements(name: str, graph: Graph, depth: int) -> list[Dim] | None:
    """The elements of a vector, as far as they are constant; None if their number is not known."""
    if name in graph.constants:
        array = graph.constants[name]
        return [int(value) for value in array.ravel()] if array.ndim == 1 else None
    maker = graph.makers.get(name)
    if maker is not None and maker.op_type == "Concat" and is_standard(maker) and depth:
        parts = [_elements(each, graph, depth - 1) for each in maker.input]
        known = [part for part in parts if part is not None]
        return [each for part in known for each in part] if len(known) == len(parts) else None
    if maker is not None and maker.op_type == "Cast" and is_standard(maker) and depth:
        return _elements(maker.input[0], graph, depth - 1)
    shape = graph.shape(name)
    return [None] * shape[0] if shape is not None and len(shape) == 1 else None
