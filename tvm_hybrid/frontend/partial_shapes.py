"""Shapes of which ONNX's inference knows less than there is to know, or what is not so.

    Reshape(x, Concat(n, [12, -1]))    ->    [?, 12, ?]
    Reshape(x: [n, 24], Concat(n, [12, -1]))  ->    [n, 12, 2]
    Expand(x: [1, 8], Concat(n, [8]))  ->    [?, ?]
    ConstantOfShape(s: int64[3])       ->    [?, ?, ?]
    MaxUnpool(x, places, s: int64[4])  ->    [?, ?, ?, ?]
    AffineGrid(theta, Shape(x: [n, 3, h, w]))  ->    [?, ?, ?, 2]

ONNX infers such a result only if the whole shape is constant; otherwise it knows nothing, or the
rank alone. What comes behind wants the rank, and channels and heads, which are numbers where
lengths are open.

    MaxPool(x: [1, 1, 7], kernel_shape=[2], strides=[2], pads=[1, 1], ceil_mode=1)  ->  [1, 1, 4]
    Resize(x: [1, 10], scales=[1, 1.3])  ->  [1, 13]

Such shapes are those of ONNX Runtime: no window of a pool begins in the padding behind the image
(ONNX infers 5), and an extent times a scale is a float32 (ONNX infers 12).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from .graph import Graph, is_standard, static_shape
from .node_builder import attributes_of, constant_or_attribute, optional_input
from .shape_elements import Element, elements_of, sizes_of
from .windows import window_count

_POOLS = ("AveragePool", "LpPool", "MaxPool")
_RESIZES = ("Resize", "Upsample")


def complete_types(
    node: onnx.NodeProto, graph: Graph, types: dict[str, onnx.TypeProto]
) -> dict[str, onnx.TypeProto]:
    """The types, with as much of a shape as is known here or to ONNX."""
    if not is_standard(node) or not node.output or node.output[0] not in types:
        return types
    right = _of_onnx_runtime(node, graph)
    if right is not None:
        return {
            name: helper.make_tensor_type_proto(each.tensor_type.elem_type, right)
            for name, each in types.items()
        }
    if len(node.output) != 1:
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


def _of_onnx_runtime(node: onnx.NodeProto, graph: Graph) -> list[int | None] | None:
    """The shape of a result that ONNX infers otherwise; None if it does not."""
    if node.op_type not in (*_POOLS, *_RESIZES):
        return None
    dims, attributes = graph.dims(node.input[0]), attributes_of(node)
    if dims is None:
        return None
    if node.op_type in _POOLS:
        if not attributes.get("ceil_mode"):
            return None
        kernel = attributes["kernel_shape"]
        if attributes.get("auto_pad", "NOTSET").startswith("SAME") or len(kernel) != len(dims) - 2:
            return None
        ones, pads = [1] * len(kernel), attributes.get("pads") or [0, 0] * len(kernel)
        around = zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)
        strides, dilations = attributes.get("strides") or ones, attributes.get("dilations") or ones
        axes = zip(dims[2:], around, kernel, strides, dilations, strict=True)
        sizes = [None if axis[0] is None else window_count(*axis, True) for axis in axes]
        return [*dims[:2], *sizes]
    if optional_input(node, 3):
        return None
    place = 2 if node.op_type == "Resize" and len(node.input) > 2 else 1
    scales = constant_or_attribute(node, graph, place, "scales")
    places = attributes.get("axes") or range(len(dims))
    if scales is None or len(scales) != len(places):
        return None
    found = list(dims)
    for place, scale in zip(places, np.asarray(scales, np.float32), strict=True):
        extent = dims[place]
        found[place] = None if extent is None else int(np.float32(extent) * scale)
    return found


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
