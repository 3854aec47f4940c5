"""Writes the nodes that replace one node; what every rewrite is written with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import helper, numpy_helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from .graph import Graph, describe

Extent = int | str
"""A size: a number, or the name of a value int64[1] that holds it."""

SPLIT_BY_INPUT = 13
SQUEEZE_BY_INPUT = 13
UNSQUEEZE_BY_INPUT = 13
CLIP_BY_INPUT = 11
RESHAPE_TO_ZERO = 14  # of Reshape's attribute allowzero
SUM_AXES_BY_INPUT = 13
AXES_BY_INPUT = 18  # of all reductions but ReduceSum


class NodeBuilder:
    """Collects nodes in `nodes`; values are names, as in ONNX.

    Parameters
    ----------
    node
        The node that is being replaced: its name is what the new nodes' names begin with.
    """

    def __init__(self, graph: Graph, node: onnx.NodeProto) -> None:
        self.graph = graph
        self.source = node
        self.prefix = node.name or next(iter(node.output))
        self.nodes: list[onnx.NodeProto] = []

    def constant(self, values: Any, dtype: DTypeLike | None = None) -> str:
        """A new constant."""
        name = self.graph.fresh(f"{self.prefix}/constant")
        self.graph.add_constant(name, np.asarray(values, dtype))
        return name

    def add(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """A node with one output, named `output` if that is given; returns the output's name."""
        return self.add_many(op_type, *inputs, outputs=[output], **attributes)[0]

    def add_many(
        self, op_type: str, *inputs: str, outputs: Sequence[str], **attributes: Any
    ) -> list[str]:
        """A node with several outputs; those named ``""`` get fresh names."""
        names = [name or self.graph.fresh(f"{self.prefix}/{op_type}") for name in outputs]
        self.nodes.append(
            helper.make_node(op_type, inputs, names, name=f"{self.prefix}/{op_type}", **attributes)
        )
        return names

    def split(self, value: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Cuts a value in pieces along an axis, in the form that the model's opset wants."""
        outputs = [""] * len(sizes)
        if self.graph.opset >= SPLIT_BY_INPUT:
            lengths = self.constant(list(sizes), np.int64)
            return self.add_many("Split", value, lengths, outputs=outputs, axis=axis)
        return self.add_many("Split", value, outputs=outputs, axis=axis, split=list(sizes))

    def number(self, value: str, number: float) -> str:
        """A new scalar constant of another value's type."""
        elem_type = self.graph.elem_type(value) or onnx.TensorProto.FLOAT
        return self.constant(number, helper.tensor_dtype_to_np_dtype(elem_type))

    def clip(self, value: str, like: str, low: float, high: float, output: str = "") -> str:
        """A value between two numbers, in the form that the model's opset wants.

        Parameters
        ----------
        like
            A value whose type is known, the same as that of `value`.
        """
        if self.graph.opset >= CLIP_BY_INPUT:
            bounds = self.number(like, low), self.number(like, high)
            return self.add("Clip", value, *bounds, output=output)
        return self.add("Clip", value, output=output, min=low, max=high)

    def reduce(self, op_type: str, value: str, axes: Sequence[int], output: str = "") -> str:
        """A reduction over axes, which stay as 1, in the form that the model's opset wants."""
        by_input_from = SUM_AXES_BY_INPUT if op_type == "ReduceSum" else AXES_BY_INPUT
        if self.graph.opset >= by_input_from:
            given = self.constant(list(axes), np.int64)
            return self.add(op_type, value, given, output=output, keepdims=1)
        return self.add(op_type, value, output=output, axes=list(axes), keepdims=1)

    def shape(self, shape: Sequence[Extent]) -> str:
        """A shape as a value."""
        if not any(isinstance(extent, str) for extent in shape):
            return self.constant(list(shape), np.int64)
        parts = [x if isinstance(x, str) else self.constant([x], np.int64) for x in shape]
        return self.add("Concat", *parts, axis=0)

    def reshape(self, value: str, shape: Sequence[Extent], output: str = "") -> str:
        """A reshape, of any opset; a size of 0 is one, and copies nothing."""
        may_be_empty = any(isinstance(extent, str) or extent == 0 for extent in shape)
        zero = {"allowzero": 1} if may_be_empty else {}
        return self.add("Reshape", value, self.shape(shape), output=output, **zero)

    def squeeze(self, value: str, axes: Sequence[int], output: str = "") -> str:
        """Drops axes of size 1; of any opset."""
        if self.graph.opset >= SQUEEZE_BY_INPUT:
            given = self.constant(list(axes), np.int64)
            return self.add("Squeeze", value, given, output=output)
        return self.add("Squeeze", value, output=output, axes=list(axes))

    def stack(self, values: Sequence[str], axis: int, output: str = "") -> str:
        """Joins values of one shape along a new axis; of any opset."""
        if self.graph.opset >= UNSQUEEZE_BY_INPUT:
            axes = self.constant([axis], np.int64)
            slices = [self.add("Unsqueeze", value, axes) for value in values]
        else:
            slices = [self.add("Unsqueeze", value, axes=[axis]) for value in values]
        return self.add("Concat", *slices, output=output, axis=axis)

    def take(self, value: str, position: int, axis: int) -> str:
        """One slice along an axis, the axis dropped."""
        return self.add("Gather", value, self.constant(position, np.int64), axis=axis)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes as Python values; texts as str."""
    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    return {key: _text(value) for key, value in values.items()}


def with_attributes(node: onnx.NodeProto, **changed: Any) -> onnx.NodeProto:
    """A copy of a node, some attributes of other values; those of None are left out."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    copy.attribute.extend(item for item in node.attribute if item.name not in changed)
    copy.attribute.extend(
        helper.make_attribute(name, value) for name, value in changed.items() if value is not None
    )
    return copy


def constant_or_attribute(node: onnx.NodeProto, graph: Graph, position: int, name: str) -> Any:
    """What newer opsets have as an input and older ones as an attribute; None if it is absent, or
    an input that is not constant."""
    value = optional_input(node, position)
    return graph.constants.get(value) if value else attributes_of(node).get(name)


def known_shape(graph: Graph, node: onnx.NodeProto, name: str) -> tuple[int, ...]:
    """The shape of an input.

    Raises
    ------
    UnsupportedOperatorError
        It is not known.
    """
    shape = graph.shape(name)
    if shape is None:
        raise UnsupportedOperatorError(
            f"{describe(node)}: the shape of its input {name!r} is not known; give shapes that fix "
            "every dimension"
        )
    return shape


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return [_text(item) for item in value]
    return value


def optional_input(node: onnx.NodeProto, position: int) -> str:
    """The name of an input, ``""`` if the node does not have it."""
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
    except Exception as error:  # numpy's and onnx's own, of many kinds
        raise ModelError(f"{describe(node)}: its data do not fit its shape: {error}") from error
    raise UnsupportedOperatorError(
        f"{describe(node)}: a constant given as {attribute.name!r} is not supported"
    )


# Sizes as rewrites write them: numbers where they are known, else values that hold them.
#
#     extents_of(x: [batch, 12, n, 64])    ->    ("x/Gather::1", 12, "x/Gather::2", 64)
#
# A value is int64[1]. What is computed from the sizes of inputs becomes an expression of them when
# Relax is written (elements.py), so that a shape of such values is a shape that TVM
# knows.


def extents_of(build: NodeBuilder, name: str) -> tuple[Extent, ...]:
    """The sizes of an input.

    Raises
    ------
    UnsupportedOperatorError
        Not even its rank is known.
    """
    dims = build.graph.dims(name)
    if dims is None:
        raise UnsupportedOperatorError(
            f"{describe(build.source)}: the rank of its input {name!r} is not known"
        )
    if all(dim is not None for dim in dims):
        return tuple(dim for dim in dims if dim is not None)
    shape = build.add("Shape", name)
    return tuple(
        build.add("Gather", shape, build.constant([axis], np.int64), axis=0) if dim is None else dim
        for axis, dim in enumerate(dims)
    )


def times(build: NodeBuilder, one: Extent, other: Extent) -> Extent:
    """The product of two sizes."""
    if isinstance(one, int) and isinstance(other, int):
        return one * other
    values = (x if isinstance(x, str) else build.constant([x], np.int64) for x in (one, other))
    return build.add("Mul", *values)
