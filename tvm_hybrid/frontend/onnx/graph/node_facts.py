"""Facts about a node: does it keep to its schema, is it a no-op, what does ONNX infer of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from microkernels.base.errors import ModelError, ShapeError, UnsupportedOperatorError

from ..reader.check_model import type_name
from . import node_builder
from .graph import Graph, captured_names, describe, is_standard, static_shape, subgraphs
from .narrow_types import FLOATS, MOVING, NARROW, stored_type
from .node_builder import attributes_of, optional_input, with_attributes

# Operators that read values of types with 2, 4 or 8 bits.
_READING_NARROW = {*("CastLike", "DequantizeLinear", "Shape", "Size"), *("If", "Loop", "Scan")}


@functools.cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    """The schema of a standard operator; the newest one if the operator is newer than the opset."""
    for version in (opset, onnx.defs.onnx_opset_version()):
        if onnx.defs.has(op_type, version, ""):
            schema = onnx.defs.get_schema(op_type, version, "")
            if not schema.deprecated:
                return schema
    return None


class _Signature(NamedTuple):
    """The data of a schema, read once because each access to onnx's schema builds it again."""

    counts: tuple[tuple[str, int, int], ...]
    inputs: tuple[tuple[str, bool], ...]  # names, and whether they must be given
    outputs: tuple[bool, ...]  # whether they are optional
    attributes: dict[str, tuple[bool, int]]  # whether they must be given, and their types


@functools.cache
def _signature(op_type: str, opset: int) -> _Signature | None:
    schema, option = _schema(op_type, opset), onnx.defs.OpSchema.FormalParameterOption
    if schema is None:
        return None
    return _Signature(
        (
            ("inputs", schema.min_input, schema.max_input),
            ("outputs", schema.min_output, schema.max_output),
        ),
        tuple((each.name, each.option == option.Single) for each in schema.inputs),
        tuple(each.option == option.Optional for each in schema.outputs),
        {name: (each.required, int(each.type)) for name, each in schema.attributes.items()},
    )


def _opset_of(node: onnx.NodeProto, opset: int) -> int:
    """The opset of a node; rewrites may give Reshape an attribute of a newer opset."""
    newer = any(item.name == "allowzero" for item in node.attribute)
    return max(opset, node_builder.RESHAPE_TO_ZERO) if newer else opset


def check_signature(node: onnx.NodeProto, opset: int) -> None:
    """Raises a ModelError unless inputs, outputs and attributes fit the schema."""
    found = _signature(node.op_type, _opset_of(node, opset)) if is_standard(node) else None
    if found is None:
        return
    for (kind, low, high), values in zip(found.counts, (node.input, node.output), strict=True):
        if not low <= len(values) <= high:
            wanted = f"{low}" if low == high else f"{low} to {high}"
            raise ModelError(
                f"{describe(node)} has {len(values)} {kind}, and the operator takes {wanted}; "
                "export the model again"
            )
    for position, value in enumerate(node.input):
        name, must_be = found.inputs[min(position, len(found.inputs) - 1)]
        if not value and must_be:
            raise ModelError(f"{describe(node)} lacks its input {name!r}")
    given = {item.name: item.type for item in node.attribute}
    for name, (must_be, kind_of_it) in found.attributes.items():
        if must_be and name not in given:
            raise ModelError(f"{describe(node)} lacks its attribute {name!r}")
        if name in given and given[name] != kind_of_it:
            raise ModelError(f"{describe(node)}: its attribute {name!r} has a wrong type")


def drop_unused_outputs(graph: Graph) -> None:
    """Blanks optional outputs that nothing reads, such as Dropout's mask."""
    used = set(graph.outputs)
    for node in graph.nodes:
        used.update(node.input)
        used |= captured_names(node)
    for node in graph.nodes:
        several = len(node.output) > 1 and is_standard(node)
        found = _signature(node.op_type, graph.opset) if several else None
        if found is None:
            continue
        for position, name in enumerate(node.output):
            if name not in used and found.outputs[min(position, len(found.outputs) - 1)]:
                node.output[position] = ""


def mark_narrow(node: onnx.NodeProto, graph: Graph) -> None:
    """Marks a node's outputs that have narrow types, which only casts, quantisation and moves take.

    Raises
    ------
    UnsupportedOperatorError
        The node computes with floats of 4 or 8 bits, or with non-constant integers of 2 or 4 bits.
    """
    if is_standard(node) and node.op_type in ("Cast", "QuantizeLinear"):
        named = attributes_of(node).get("to" if node.op_type == "Cast" else "output_dtype", 0)
        made = graph.narrow.get(optional_input(node, 2), named)
        if made in NARROW:
            graph.narrow[node.output[0]] = made
        return
    kinds = {graph.narrow[name] for name in node.input if name in graph.narrow}
    if not kinds:
        return
    if is_standard(node) and node.op_type in MOVING and node.input[0] in graph.narrow:
        graph.narrow.update(dict.fromkeys(filter(None, node.output), graph.narrow[node.input[0]]))
        return
    constant = all(name in graph.constants for name in node.input if name in graph.narrow)
    read = constant and not kinds & FLOATS
    if not read and is_standard(node) and node.op_type not in _READING_NARROW:
        names = ", ".join(sorted(map(type_name, kinds)))
        raise UnsupportedOperatorError(f"{describe(node)}: it cannot compute with {names}")


_Rule = Callable[[onnx.NodeProto, Graph], bool]


def is_no_op(node: onnx.NodeProto, graph: Graph) -> bool:
    """Whether the node's first output always equals its first input, in type and value."""
    if not is_standard(node) or not node.input or sum(map(bool, node.output)) != 1:
        return False
    rule = _RULES.get(node.op_type)
    return rule is not None and rule(node, graph)


def _same_elements(node: onnx.NodeProto, graph: Graph) -> bool:
    source, result = node.input[0], node.output[0]
    return (
        source in graph.types
        and result in graph.types
        and graph.elem_type(source) == graph.elem_type(result)
        and graph.narrow.get(source) == graph.narrow.get(result)
    )


def _same_type(node: onnx.NodeProto, graph: Graph) -> bool:
    shape = graph.shape(node.input[0])
    return (
        shape is not None and shape == graph.shape(node.output[0]) and _same_elements(node, graph)
    )


def _inference_dropout(node: onnx.NodeProto, graph: Graph) -> bool:
    training = optional_input(node, 2)
    return not training or (training in graph.constants and not graph.constants[training].any())


def _pads_nothing(node: onnx.NodeProto, graph: Graph) -> bool:
    pads = node_builder.constant_or_attribute(node, graph, 1, "pads")
    return pads is not None and not np.any(pads)


def _whole_slice(node: onnx.NodeProto, graph: Graph) -> bool:
    name = optional_input(node, 4)
    forward = not name or (name in graph.constants and bool((graph.constants[name] > 0).all()))
    return forward and _same_type(node, graph)


_RULES: dict[str, _Rule] = {
    "Identity": lambda node, graph: True,
    "Dropout": _inference_dropout,
    "Cast": _same_elements,
    **dict.fromkeys(("Reshape", "Flatten", "Expand"), _same_type),
    **dict.fromkeys(("Concat", "Sum", "Max", "Min"), lambda node, graph: len(node.input) == 1),
    "Transpose": lambda node, _: sorted(order := attributes_of(node).get("perm", [1, 0])) == order,
    "Pad": _pads_nothing,
    "Slice": _whole_slice,
}


# ONNX's inference for a node's results, and results that follow from types alone.


MAX_DATA_ELEMENTS = 256
MAX_FLOATS = 8  # larger constants of floats are data; smaller ones, such as scales, may set sizes
MAX_ELEMENTS = 2**36
# Operators whose results are elements of the first input, or indices into it.
_CHOOSING = {
    *("ArgMax", "ArgMin", "Gather", "GatherElements", "GatherND", "TopK"),
    *("MaxPool", "AveragePool", "LpPool", "MaxRoiPool", "RoiAlign", "Resize", "GridSample"),
}

Types = dict[str, onnx.TypeProto]


class Inference:
    """Runs ONNX's inference for the nodes of a graph, one at a time."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._data: dict[str, onnx.TensorProto] = {}
        self._known: dict[Hashable, list[onnx.TypeProto | None]] = {}
        self._opsets = [helper.make_opsetid("", graph.opset)]

    def of(self, node: onnx.NodeProto) -> Types:
        """Types of the outputs; empty if ONNX has no inference or an input has no type."""
        graph = self._graph
        schema = _schema(node.op_type, _opset_of(node, graph.opset)) if is_standard(node) else None
        names = [name for name in node.input if name]
        if schema is None or any(name not in graph.types for name in names):
            return {}
        key = self._key(node)
        if key in self._known:
            known = zip(node.output, self._known[key], strict=True)
            return {name: found for name, found in known if found is not None}
        if node.op_type == "BatchNormalization":  # in training mode ONNX asks for all outputs
            node = with_attributes(node, training_mode=None)
            del node.output[1:]
        if node.op_type == "QuantizeLinear" and node.input[-1] in graph.narrow:
            node = with_attributes(node, output_dtype=None)  # the zero point has the stored type
        given = {name: graph.types[name] for name in names}
        data = {}
        for name in names:
            array = self._deciding(name)
            if array is not None:
                if name not in self._data:
                    self._data[name] = numpy_helper.from_array(array, name)
                data[name] = self._data[name]
        if node.op_type == "Range":  # functions in ONNX's own schemas pass vectors of one element
            for name in names:
                if graph.shape(name) == (1,):
                    given[name] = helper.make_tensor_type_proto(graph.elem_type(name), ())
                    if name in data:
                        data[name] = numpy_helper.from_array(graph.constants[name].reshape(()))
        try:
            types: Types = onnx.shape_inference.infer_node_outputs(
                schema, node, given, data, opset_imports=self._opsets
            )
        except Exception as error:  # ONNX's C++ inference raises several kinds
            shapes = ", ".join(f"{name!r} {graph.shape(name)}" for name in names)
            reason = str(error).strip().rstrip(".")
            for kind in ("Shape", "Type"):
                reason = reason.removeprefix(f"[{kind}InferenceError] ")
            raise ShapeError(
                f"{describe(node)}: its inputs ({shapes}) do not fit the operator: {reason}; "
                "correct the model, or the given shapes"
            ) from error
        for name, found in types.items():
            if found.HasField("tensor_type"):
                found.tensor_type.elem_type = stored_type(found.tensor_type.elem_type)
            shape = static_shape(found)
            if shape is not None and (min(shape, default=0) < 0 or math.prod(shape) > MAX_ELEMENTS):
                raise ShapeError(
                    f"{describe(node)}: its output {name!r} would have the shape {shape}, which "
                    "cannot be; check the input shapes"
                )
        self._known[key] = [types.get(name) for name in node.output]
        return types

    def _key(self, node: onnx.NodeProto) -> Hashable:
        """A cache key of everything that decides the node's output types."""
        # A cache pays because layers of a model repeat.
        found: list[Hashable] = [node.op_type, *map(bool, node.output)]
        found += (item.SerializeToString() for item in node.attribute)
        for name in node.input:
            kind, array = self._graph.types.get(name), self._deciding(name)
            found.append(None if kind is None else kind.SerializeToString())
            found.append(None if array is None else array.tobytes())
            found.append(self._graph.narrow.get(name))
        return tuple(found)

    def _deciding(self, name: str) -> np.ndarray | None:
        """A constant whose values may decide output sizes; None for any other value."""
        array = self._graph.constants.get(name)
        if array is None:
            return None
        most = MAX_FLOATS if array.dtype.kind == "f" else MAX_DATA_ELEMENTS
        return array if array.size <= most else None

    def of_empty(self, node: onnx.NodeProto) -> Types:
        """Types of the outputs if an input has no elements; else empty."""
        empty = [name for name in node.input if name and 0 in (self._graph.shape(name) or ())]
        if not empty or any(True for _ in subgraphs(node)):
            return {}
        types = self.of(node)
        shapes = [static_shape(types[name]) for name in node.output if name in types]
        chooses = is_standard(node) and node.op_type in _CHOOSING and node.input[0] == empty[0]
        if chooses and any(shape is not None and 0 not in shape for shape in shapes):
            raise ShapeError(
                f"{describe(node)}: its input {empty[0]!r} {self._graph.shape(empty[0])} has no "
                f"elements to choose from, but its result would have the shape {shapes[0]}"
            )
        return types

    def empty_values(self, node: onnx.NodeProto, types: Types) -> list[np.ndarray] | None:
        """Empty arrays for the outputs of any node, if no output has elements for certain."""
        if not types:
            return None
        shapes = [static_shape(types[name]) if name in types else None for name in node.output]
        found = [shape for name, shape in zip(node.output, shapes, strict=True) if name]
        if not found or any(shape is None or 0 not in shape for shape in found):
            return None
        source = self._graph.shape(node.input[0]) if node.op_type == "Reshape" else None
        if source is not None and 0 not in source:
            raise ShapeError(
                f"{describe(node)}: its input {node.input[0]!r} {source} has elements, and the "
                f"shape {found[0]} has none"
            )
        kinds = [types[name].tensor_type.elem_type if name else 0 for name in node.output]
        return [
            np.empty(shape or (), helper.tensor_dtype_to_np_dtype(kind) if kind else None)
            for shape, kind in zip(shapes, kinds, strict=True)
        ]

    def shape_values(self, node: onnx.NodeProto) -> list[np.ndarray] | None:
        """The value of a Shape or Size whose input has a known shape."""
        if node.op_type not in ("Shape", "Size") or not is_standard(node):
            return None
        shape = self._graph.shape(node.input[0])
        if shape is None:
            return None
        if node.op_type == "Size":
            return [np.array(math.prod(shape), np.int64)]
        bounds = {item.name: item.i for item in node.attribute}
        return [np.array(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)]
