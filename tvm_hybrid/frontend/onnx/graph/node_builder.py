"""Builds the nodes that replace one node; every rewrite uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import helper, numpy_helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from .graph import Graph, copied, describe

Extent = int | str
"""A size: a number, or the name of a value int64[1] that holds it."""

UNSQUEEZE_BY_INPUT = 13
RESHAPE_TO_ZERO = 14  # first opset whose Reshape has the attribute allowzero


class NodeBuilder:
    """Collects new nodes in `nodes`; values are names, as in ONNX.

    Parameters
    ----------
    node
        The node that is being replaced; its name is the prefix of the new nodes' names.
    """

    def __init__(self, graph: Graph, node: onnx.NodeProto) -> None:
        self.graph = graph
        self.source = node
        self.prefix = node.name or next(iter(node.output))
        self.nodes: list[onnx.NodeProto] = []

    def constant(self, values: Any, dtype: DTypeLike | None = None) -> str:
        """Adds a constant and returns its name."""
        name = self.graph.fresh(f"{self.prefix}/constant")
        self.graph.add_constant(name, np.asarray(values, dtype))
        return name

    def add(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Adds a node with one output and returns the output's name, by default a fresh one."""
        return self.add_many(op_type, *inputs, outputs=[output], **attributes)[0]

    def add_many(
        self, op_type: str, *inputs: str, outputs: Sequence[str], **attributes: Any
    ) -> list[str]:
        """Adds a node with several outputs; those named ``""`` get fresh names."""
        names = [name or self.graph.fresh(f"{self.prefix}/{op_type}") for name in outputs]
        self.nodes.append(
            helper.make_node(op_type, inputs, names, name=f"{self.prefix}/{op_type}", **attributes)
        )
        return names

    def reshape(self, value: str, shape: Sequence[Extent]) -> str:
        """Adds a Reshape, for any opset; a 0 in `shape` is a size, and copies nothing."""
        is_dynamic = any(isinstance(extent, str) for extent in shape)
        if is_dynamic:
            parts = [x if isinstance(x, str) else self.constant([x], np.int64) for x in shape]
            wanted = self.add("Concat", *parts, axis=0)
        else:
            wanted = self.constant(list(shape), np.int64)
        zero: dict[str, Any] = {"allowzero": 1} if is_dynamic or 0 in shape else {}
        return self.add("Reshape", value, wanted, **zero)

    def stack(self, values: Sequence[str], axis: int, output: str = "") -> str:
        """Joins values of one shape along a new axis, for any opset."""
        by_input = self.graph.opset >= UNSQUEEZE_BY_INPUT
        axes = [self.constant([axis], np.int64)] if by_input else []
        how: dict[str, Any] = {} if by_input else {"axes": [axis]}
        slices = [self.add("Unsqueeze", value, *axes, **how) for value in values]
        return self.add("Concat", *slices, output=output, axis=axis)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes as Python values; strings as str."""
    return {item.name: _text(helper.get_attribute_value(item)) for item in node.attribute}


def with_attributes(node: onnx.NodeProto, **changed: Any) -> onnx.NodeProto:
    """A copy of a node with some attributes changed, or removed if the new value is None."""
    copy = copied(node)
    del copy.attribute[:]
    copy.attribute.extend(item for item in node.attribute if item.name not in changed)
    copy.attribute.extend(
        helper.make_attribute(name, value) for name, value in changed.items() if value is not None
    )
    return copy


def constant_or_attribute(node: onnx.NodeProto, graph: Graph, position: int, name: str) -> Any:
    """The value of an input of newer opsets that is an attribute in older ones; None if it is
    absent or not constant."""
    value = optional_input(node, position)
    return graph.constants.get(value) if value else attributes_of(node).get(name)


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return [_text(item) for item in value]
    return value


def optional_input(node: onnx.NodeProto, position: int) -> str:
    """The name of an input; ``""`` if the node does not have it."""
    return node.input[position] if position < len(node.input) else ""


def constant_value(node: onnx.NodeProto, graph: Graph) -> np.ndarray:
    """The array in a Constant node."""
    if len(node.attribute) != 1 or len(node.output) != 1:
        raise ModelError(f"{describe(node)} must have one attribute and one output")
    attribute = node.attribute[0]
    value = helper.get_attribute_value(attribute)
    try:
        if attribute.name == "value":
            return numpy_helper.to_array(value)
        if attribute.name in ("value_float", "value_floats"):
            return np.array(value, np.float32)
        if attribute.name in ("value_int", "value_ints"):
            return np.array(value, np.int64)
    except Exception as error:  # numpy and onnx raise many kinds
        raise ModelError(f"{describe(node)}: its data do not fit its shape: {error}") from error
    raise UnsupportedOperatorError(
        f"{describe(node)}: a constant given as {attribute.name!r} is not supported"
    )


# Sizes as rewrites use them: numbers if known, else names of values that hold them.
#
#     extents_of(x: [batch, 12, n, 64])    ->    ("x/Gather::1", 12, "x/Gather::2", 64)
#
# Such a value is int64[1]. If it is computed from sizes of inputs, the conversion to Relax makes it
# an expression of them (elements.py), so that TVM knows a shape of such values.


def extents_of(build: NodeBuilder, name: str) -> tuple[Extent, ...]:
    """The sizes of a value.

    Raises
    ------
    UnsupportedOperatorError
        The rank of the value is not known.
    """
    dims = build.graph.dims(name)
    if dims is None:
        raise UnsupportedOperatorError(
            f"{describe(build.source)}: the rank of its input {name!r} is not known"
        )
    shape = build.add("Shape", name) if None in dims else ""
    return tuple(
        build.add("Gather", shape, build.constant([axis], np.int64), axis=0) if dim is None else dim
        for axis, dim in enumerate(dims)
    )
