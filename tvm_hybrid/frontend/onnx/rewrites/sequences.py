"""Operators on sequences and optional values, which are resolved at import.

    SplitToSequence(x [n, 4], split=2, axis=1)  ->  Split into 2 tensors, which the graph notes
    SequenceAt(parts, 1)                        ->  the second tensor
    ConcatFromSequence(parts, axis=1)           ->  Concat of both tensors

`Graph.sequences` lists the tensors of each sequence. Their number, and positions that operators
use, must be known; positions that are inputs of the model are parameters (graph/parameters.py).
"""

from __future__ import annotations

import numpy as np
import onnx

from microkernels.base.errors import ModelError, ShapeError, UnsupportedOperatorError

from ..graph.graph import Graph, describe
from ..graph.node_builder import NodeBuilder, attributes_of, optional_input
from .loop import Body
from .table import rewrites

SPLIT_BY_INPUT = 13


def _elements(node: onnx.NodeProto, graph: Graph) -> list[str]:
    """The values in the sequence that is a node's first input."""
    found = graph.sequences.get(node.input[0])
    if found is None:
        raise UnsupportedOperatorError(
            f"{describe(node)}: how many elements its input {node.input[0]!r} has is not known "
            "when the model is compiled"
        )
    return found


def _note(node: onnx.NodeProto, graph: Graph, elements: list[str]) -> list[onnx.NodeProto]:
    """Notes the elements of a node's result; no node is needed to compute it."""
    graph.sequences[node.output[0]] = elements
    return []


def _place(node: onnx.NodeProto, graph: Graph, position: int, count: int, beyond: int = 0) -> int:
    """A position in a sequence of `count`, up to `beyond` after its end; by default the last."""
    name = optional_input(node, position)
    if name and name not in graph.constants:
        raise UnsupportedOperatorError(f"{describe(node)}: its position {name!r} depends on data")
    place = int(graph.constants[name].item()) if name else count + beyond - 1
    if not -count <= place < count + beyond:
        raise ShapeError(f"{describe(node)}: a sequence of {count} has no position {place}")
    return place + count if place < 0 else place


def _passed_on(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Replaces a node whose result equals its input, a sequence or a tensor."""
    if node.input[0] in graph.sequences:
        graph.sequences[node.output[0]] = graph.sequences[node.input[0]]
        return []
    build = NodeBuilder(graph, node)
    build.add("Identity", node.input[0], output=node.output[0])
    return build.nodes


@rewrites("Identity")
def identity(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Passes a sequence on; an Identity of a tensor stays."""
    return _passed_on(node, graph) if node.input[0] in graph.sequences else None


@rewrites("SequenceEmpty")
@rewrites("SequenceConstruct")
def sequence_construct(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """A sequence of the inputs."""
    return _note(node, graph, list(node.input))


@rewrites("SequenceInsert")
def sequence_insert(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The sequence with one more element, before a position."""
    elements = _elements(node, graph)
    place = _place(node, graph, 2, len(elements), 1)
    return _note(node, graph, [*elements[:place], node.input[1], *elements[place:]])


@rewrites("SequenceErase")
def sequence_erase(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The sequence without one element."""
    elements = _elements(node, graph)
    place = _place(node, graph, 1, len(elements))
    return _note(node, graph, [*elements[:place], *elements[place + 1 :]])


@rewrites("SequenceAt")
def sequence_at(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """One element of the sequence."""
    build, elements = NodeBuilder(graph, node), _elements(node, graph)
    build.add("Identity", elements[_place(node, graph, 1, len(elements))], output=node.output[0])
    return build.nodes


@rewrites("SequenceLength")
def sequence_length(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The length of the sequence, as a constant."""
    graph.add_constant(node.output[0], np.array(len(_elements(node, graph)), np.int64))
    return []


@rewrites("SplitToSequence")
def split_to_sequence(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Split; or Gather if the axis is not kept."""
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    dims, split = graph.dims(node.input[0]), optional_input(node, 1)
    axis, rank = attributes.get("axis", 0), len(dims or ())
    if dims is not None and not -rank <= axis < rank:
        raise ShapeError(f"{describe(node)}: axis {axis} of a tensor of rank {rank}")
    extent = None if dims is None else dims[axis]
    if extent is None or (split and split not in graph.constants):
        raise UnsupportedOperatorError(
            f"{describe(node)}: into how many parts it splits {node.input[0]!r} is not known when "
            "the model is compiled"
        )
    sizes = graph.constants[split] if split else np.array(1)
    if sizes.ndim == 0:
        if sizes < 1:
            raise ShapeError(f"{describe(node)}: parts of {sizes} elements")
        whole, last = divmod(extent, int(sizes))
        sizes = np.array([int(sizes)] * whole + [last] * bool(last))
    if not sizes.size:
        return _note(node, graph, [])
    if split or attributes.get("keepdims", 1):
        by_input = graph.opset >= SPLIT_BY_INPUT
        wanted = [build.constant(sizes, np.int64)] if by_input else []
        how = {} if by_input else {"split": sizes.tolist()}
        blank = [""] * len(sizes)
        parts = build.add_many("Split", node.input[0], *wanted, outputs=blank, axis=axis, **how)
    else:
        places = (build.constant(place, np.int64) for place in range(extent))
        parts = [build.add("Gather", node.input[0], place, axis=axis) for place in places]
    _note(node, graph, parts)
    return build.nodes


@rewrites("ConcatFromSequence")
def concat_from_sequence(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Concat; for a new axis the tensors get the axis first."""
    build, elements, how = NodeBuilder(graph, node), _elements(node, graph), attributes_of(node)
    if not elements:
        raise ShapeError(f"{describe(node)}: its sequence {node.input[0]!r} is empty")
    if how.get("new_axis", 0):
        build.stack(elements, how["axis"], node.output[0])
    else:
        build.add("Concat", *elements, output=node.output[0], axis=how["axis"])
    return build.nodes


@rewrites("SequenceMap")
def sequence_map(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """A copy of the body for each element; inputs that are tensors are passed to each copy."""
    build = NodeBuilder(graph, node)
    body = Body(build, attributes_of(node)["body"], len(node.input), len(node.output))
    count = len(_elements(node, graph))
    given = [graph.sequences.get(name, [name] * count) or [] for name in node.input]
    if any(len(each) != count for each in given):
        lengths = ", ".join(str(len(each)) for each in given)
        raise ShapeError(f"{describe(node)}: its sequences differ in length: {lengths}")
    rows = [body.write(each) for each in zip(*given, strict=True)]
    for place, name in enumerate(node.output):
        graph.sequences[name] = [row[place] for row in rows]
    return build.nodes


@rewrites("Optional")
def optional(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The input as an optional value, or an absent value."""
    if optional_input(node, 0):
        return _passed_on(node, graph)
    graph.sequences[node.output[0]] = None
    return []


@rewrites("OptionalGetElement")
def optional_get_element(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The optional input, which must be present."""
    if graph.sequences.get(node.input[0], []) is None:
        raise ModelError(f"{describe(node)}: its optional input {node.input[0]!r} is absent")
    return _passed_on(node, graph)


@rewrites("OptionalHasElement")
def optional_has_element(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Whether the optional input is present, as a constant."""
    name = optional_input(node, 0)
    here = bool(name) and graph.sequences.get(name, []) is not None
    graph.add_constant(node.output[0], np.array(here))
    return []
