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
from onnx import TensorProto, helper

from .graph.freeze_shapes import declared_dims
from .graph.graph import Graph, is_standard, static_shape
from .graph.node_builder import attributes_of, constant_or_attribute, optional_input
from .ops.pooling import window_count

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


# The elements of shapes that a model computes: numbers, names of open sizes, or nothing known.
#
# Concat(Shape(x: [n, 8])[0], [12, -1])    ->    ["n", 12, -1]
# Div(Shape(x: [n, 8])[1], 4)              ->    [2]


Element = int | str | None
_DEPTH = 8  # of nodes that make a shape
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)


def sizes_of(name: str, graph: Graph) -> list[Element] | None:
    """The sizes of a value; None if its rank is not known."""
    if name in graph.constants:
        return list(graph.constants[name].shape)
    dims = declared_dims(graph.types[name]) if name in graph.types else None
    return None if dims is None else list(dims)


def elements_of(name: str, graph: Graph, depth: int = _DEPTH) -> list[Element] | None:
    """The elements of a vector, or the one of a scalar; None if their number is not known."""
    whole = graph.elem_type(name) in _INTEGERS
    if name in graph.constants and whole:
        array = graph.constants[name]
        return [int(value) for value in array.ravel()] if array.ndim < 2 else None
    maker = graph.makers.get(name)
    found = _made(maker, graph, depth) if maker is not None and depth and whole else None
    if found is not None:
        return found
    shape = graph.shape(name)
    return [None] * sum(shape or (1,)) if shape is not None and len(shape) < 2 else None


def _made(node: onnx.NodeProto, graph: Graph, depth: int) -> list[Element] | None:
    """What a node makes of elements."""
    if not is_standard(node):
        return None
    if node.op_type == "Shape":
        attributes, sizes = attributes_of(node), sizes_of(node.input[0], graph)
        first, end = attributes.get("start", 0), attributes.get("end")
        return None if sizes is None else sizes[first:end]
    if node.op_type not in ("Cast", "Concat", "Div", "Gather", "Mul", "Slice", "Unsqueeze"):
        return None
    if node.op_type == "Concat":
        parts = [elements_of(each, graph, depth - 1) for each in node.input]
        known = [part for part in parts if part is not None]
        return [each for part in known for each in part] if len(known) == len(parts) else None
    data = elements_of(node.input[0], graph, depth - 1)
    if data is None or node.op_type == "Cast":
        return data
    if node.op_type == "Unsqueeze":
        return data if len(data) == 1 else None
    numbers = [elements_of(each, graph, depth - 1) for each in node.input[1:]]
    if node.op_type == "Gather":
        return _gathered(data, numbers[0])
    if node.op_type == "Slice":
        steps = elements_of(node.input[4], graph, 0) if optional_input(node, 4) else [1]
        return _sliced(data, numbers) if steps == [1] else None
    return _computed(node.op_type, data, numbers[0])


def _gathered(data: list[Element], places: list[Element] | None) -> list[Element] | None:
    if places is None:
        return None
    count = len(data)
    return [
        data[each] if isinstance(each, int) and -count <= each < count else None for each in places
    ]


def _sliced(data: list[Element], bounds: list[list[Element] | None]) -> list[Element] | None:
    """Elements from a number to another one."""
    if len(bounds) < 2:
        return None  # of old opsets, by attributes
    if not bounds[0] or not bounds[1]:
        return None
    first, end = bounds[0][0], bounds[1][0]
    return data[first:end] if isinstance(first, int) and isinstance(end, int) else None


def _computed(op_type: str, data: list[Element], other: list[Element] | None) -> list[Element]:
    """Products and quotients of two sizes."""
    if other is not None and len(data) == len(other) == 1:
        one, two = data[0], other[0]
        if isinstance(one, int) and isinstance(two, int) and one >= 0 and two > 0:
            return [one * two if op_type == "Mul" else one // two]
    return [None] * max(len(data), len(other or ()))
