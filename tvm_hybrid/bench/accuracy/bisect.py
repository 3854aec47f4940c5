"""Finds the first node of an ONNX model at which two runtimes differ.

The model is cut after node i: the prefix keeps nodes 0..i, and every tensor that a later node or
the caller still reads becomes an output. Whether the prefixes' outputs agree is tested by bisection
over i, so that what is fused in a prefix is what is fused in the model, up to the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from microkernels.base.errors import ModelError

Agrees = Callable[[onnx.ModelProto], bool]


@dataclass(frozen=True)
class Culprit:
    """The first node that differs.

    Attributes
    ----------
    node : str
        Its name, or that of its first output if it has none.
    op : str
        Its operator.
    index : int
        Its place in the model.
    before, after : onnx.ModelProto or None
        The longest prefix that agrees (None if there is none) and the shortest that does not.
    """

    node: str
    op: str
    index: int
    before: onnx.ModelProto | None
    after: onnx.ModelProto


def find_first_difference(model: onnx.ModelProto, agrees: Agrees) -> Culprit | None:
    """Bisects a model whose results differ.

    Parameters
    ----------
    model : onnx.ModelProto
        The model; all weights inside it.
    agrees : callable
        Whether the two runtimes agree on a prefix.

    Returns
    -------
    Culprit or None
        None if the model has no nodes.

    Raises
    ------
    ModelError
        If the model's types cannot be inferred.
    """
    cuts = _Cuts(model)
    last = len(model.graph.node) - 1
    if last < 0:
        return None
    places = [*(index for index in range(last) if cuts.possible_at(index)), last]
    # Invariant: the cut at places[low] agrees (-1: the empty prefix), the one at `high` does not.
    low, high = -1, len(places) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if agrees(cuts.prefix(places[middle])):
            low = middle
        else:
            high = middle
    index = places[high]
    node = model.graph.node[index]
    return Culprit(
        node=node.name or next(iter(node.output), ""),
        op=node.op_type,
        index=index,
        before=cuts.prefix(places[low]) if low >= 0 else None,
        after=cuts.prefix(index),
    )


class _Cuts:
    """The prefixes of one model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        try:
            inferred = onnx.shape_inference.infer_shapes(model)
        except Exception as error:
            raise ModelError(f"the types of the model's tensors are unknown: {error}") from error
        self._model = model
        self._types = {
            value.name: value
            for values in (inferred.graph.value_info, inferred.graph.output)
            for value in values
            if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type
        }
        self._wanted = {value.name for value in model.graph.output}
        self._last_use: dict[str, int] = {}
        for index, node in enumerate(model.graph.node):
            for name in _names_read(node):
                self._last_use[name] = index

    def _live(self, index: int) -> list[str]:
        """Tensors of the prefix that are read after it, in the order in which they are made."""
        return [
            name
            for node in self._model.graph.node[: index + 1]
            for name in node.output
            if name and (name in self._wanted or self._last_use.get(name, -1) > index)
        ]

    def possible_at(self, index: int) -> bool:
        """Whether a prefix that ends with this node has outputs, all of known type."""
        live = self._live(index)
        return bool(live) and all(name in self._types for name in live)

    def prefix(self, index: int) -> onnx.ModelProto:
        """The model up to and with this node."""
        if index == len(self._model.graph.node) - 1:
            return self._model
        graph = self._model.graph
        nodes = graph.node[: index + 1]
        read = {name for node in nodes for name in _names_read(node)}
        cut = onnx.ModelProto()
        cut.CopyFrom(self._model)
        for field, kept in _kept_fields(graph, nodes, read):
            del getattr(cut.graph, field)[:]
            getattr(cut.graph, field).extend(kept)
        del cut.graph.output[:]
        cut.graph.output.extend(self._types[name] for name in self._live(index))
        return cut


def _kept_fields(
    graph: Any, nodes: Sequence[onnx.NodeProto], read: set[str]
) -> Iterator[tuple[str, list[Any]]]:
    """The graph's fields, less what the prefix does not read; inputs stay, to be fed alike."""
    yield "node", list(nodes)
    yield "initializer", [tensor for tensor in graph.initializer if tensor.name in read]
    made = read.union(*(node.output for node in nodes)) if nodes else read
    yield "value_info", [value for value in graph.value_info if value.name in made]


def _names_read(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, its subgraphs' nodes included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _names_read(inner)
