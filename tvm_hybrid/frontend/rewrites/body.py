"""The body of a control-flow node, which a rewrite writes into the graph as often as it runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..constant_node import constant_value
from ..freeze_shapes import declared_dims
from ..graph import describe, is_standard, subgraphs
from ..inline import inline, rename_values
from ..node_builder import NodeBuilder

MAX_NODES = 1024


class Body:
    """A body of a node.

    Parameters
    ----------
    build
        What the copies are written with.
    proto
        The body. Its constants are added to the graph, so that all copies share them.
    inputs, outputs
        How many values go in and come out; a ModelError if the body has other numbers of them.

    Attributes
    ----------
    proto
        The body without constants of its own.
    """

    def __init__(
        self, build: NodeBuilder, proto: onnx.GraphProto, inputs: int, outputs: int
    ) -> None:
        sizes = ("takes", len(proto.input), inputs), ("makes", len(proto.output), outputs)
        for verb, found, wanted in sizes:
            if found != wanted:
                raise ModelError(
                    f"{describe(build.source)}: its body {proto.name!r} {verb} {found} values, "
                    f"not {wanted}"
                )
        self._build = build
        self.proto = _without_constants(proto, build)

    def fits(self, count: int) -> bool:
        """Whether so many copies can be written out: more nodes would take long to compile."""
        return count * sum(map(_size, self.proto.node)) <= MAX_NODES

    def write(self, inputs: Sequence[str]) -> list[str]:
        """Writes a copy that reads `inputs`; returns what the body's outputs are called in it."""
        names = dict(zip((item.name for item in self.proto.input), inputs, strict=True))
        self._build.nodes += inline(self.proto.node, names, self._build.graph, self._build.prefix)
        # An output may also be an input of the body or a value from outside.
        return [names.get(item.name, item.name) for item in self.proto.output]

    def stack(self, position: int, values: Sequence[str], axis: int, output: str) -> None:
        """Joins what several copies made of one of the body's outputs along a new axis."""
        if not output:
            return
        if values:
            self._build.stack(values, axis, output)
            return
        # Without a copy only the declaration tells the shape; sizes that it leaves open are 0.
        item = self.proto.output[position]
        dims = declared_dims(item.type)
        if dims is None:
            raise UnsupportedOperatorError(
                f"{describe(self._build.source)}: it never runs, and its body does not declare "
                f"the shape of its output {item.name!r}"
            )
        shape = [dim if isinstance(dim, int) else 0 for dim in dims]
        shape.insert(axis % (len(shape) + 1), 0)
        dtype = helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
        self._build.graph.add_constant(output, np.empty(shape, dtype))


def _without_constants(proto: onnx.GraphProto, build: NodeBuilder) -> onnx.GraphProto:
    """A copy of a body that reads its initialisers and Constants from the graph around it."""
    names: dict[str, str] = {}

    def shared(name: str) -> str:
        names[name] = build.graph.fresh(f"{build.prefix}/{name}")
        return names[name]

    copy = onnx.GraphProto(name=proto.name, input=proto.input, output=proto.output)
    for tensor in proto.initializer:
        name = shared(tensor.name)
        build.graph.add_constant(name, numpy_helper.to_array(tensor))
    for node in proto.node:
        inner = onnx.NodeProto.FromString(node.SerializeToString())
        if node.op_type == "Constant" and is_standard(node):
            inner.output[0] = shared(node.output[0])
            build.graph.add_constant(inner.output[0], constant_value(inner, build.graph))
        else:
            rename_values(inner, names)
            copy.node.append(inner)
    for item in copy.output:
        item.name = names.get(item.name, item.name)
    return copy


def _size(node: onnx.NodeProto) -> int:
    """How many nodes a node is, those of bodies inside it included."""
    return 1 + sum(_size(inner) for body in subgraphs(node) for inner in body.node)
