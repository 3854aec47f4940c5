"""The elements of shapes that a model computes: numbers, names of open sizes, or nothing known.

Concat(Shape(x: [n, 8])[0], [12, -1])    ->    ["n", 12, -1]
Div(Shape(x: [n, 8])[1], 4)              ->    [2]
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from .freeze_shapes import declared_dims
from .graph import Graph, is_standard
from .node_builder import attributes_of, optional_input

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
