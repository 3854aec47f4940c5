"""Shapes of which ONNX's inference knows less than there is to know.

    Reshape(x, Concat(n, [12, -1]))    ->    [?, 12, ?]
    Reshape(x: [n, 24], Concat(n, [12, -1]))  ->    [n, 12, 2]
    Expand(x: [1, 8], Concat(n, [8]))  ->    [?, ?]
    ConstantOfShape(s: int64[3])       ->    [?, ?, ?]
    MaxUnpool(x, places, s: int64[4])  ->    [?, ?, ?, ?]
    AffineGrid(theta, Shape(x: [n, 3, h, w]))  ->    [?, ?, ?, 2]

ONNX infers such a result only if the whole shape is constant; otherwise it knows nothing, or the
rank alone. What comes behind wants the rank, and channels and heads, which are numbers where
lengths are open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
from onnx import helper

from .graph import Graph, is_standard, static_shape
from .shape_elements import Element, elements_of, sizes_of


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
            if isinstance(size, int) and not dim.HasField("dim_value"):
                dim.dim_value = size
            elif isinstance(size, str) and dim.WhichOneof("value") is None:
                dim.dim_param = size
    return types


def _dims(node: onnx.NodeProto, graph: Graph) -> list[Element] | None:
    if node.op_type == "ConstantOfShape":
        return elements_of(node.input[0], graph)
    if node.op_type == "MaxUnpool" and len(node.input) > 2:
        return elements_of(node.input[2], graph)
    if node.op_type == "AffineGrid":
        size = elements_of(node.input[1], graph)
        return None if size is None else [size[0], *size[2:], len(size) - 2]
    if node.op_type == "Expand":
        asked, shape = elements_of(node.input[1], graph), graph.dims(node.input[0])
        if asked is None or shape is None:
            return None
        return [None] * max(len(asked), len(shape))
    if node.op_type != "Reshape":
        return None
    asked = elements_of(node.input[1], graph)
    if asked is None:
        return None
    copies = not any(item.name == "allowzero" and item.i for item in node.attribute)
    before = sizes_of(node.input[0], graph) or ()
    made = [
        _before(before, place) if size == 0 and copies else size for place, size in enumerate(asked)
    ]
    rest = left(before, [size for size in made if size != -1]) if made.count(-1) == 1 else None
    return [rest if size == -1 else size for size in made]


def _before(before: Sequence[Element], place: int) -> Element:
    return before[place] if place < len(before) else None


def left(before: Sequence[Element], made: Sequence[Element]) -> Element:
    """What -1 stands for: the quotient of all sizes before and of all others behind."""
    names = [size for size in before if isinstance(size, str)]
    for size in made:
        if size in names:
            names.remove(str(size))
        elif not isinstance(size, int):
            return None
    whole = math.prod(size for size in before if isinstance(size, int))
    part = math.prod(size for size in made if isinstance(size, int))
    if not before or None in before or part < 1 or whole % part:
        return None
    if not names:
        return whole // part
    return names[0] if len(names) == 1 and whole == part else None
