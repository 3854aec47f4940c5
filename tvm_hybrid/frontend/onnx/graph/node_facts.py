"""Whether a node keeps to its operator's schema or changes anything, and what ONNX infers of it."""

from __future__ import annotations

import math
from collections.abc import Callable

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


def schema_of(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """The schema of a standard operator, the newest if the opset is older than the operator."""
    if not is_standard(node):
        return None
    if any(item.name == "allowzero" for item in node.attribute):
        opset = max(opset, node_builder.RESHAPE_TO_ZERO)
    for version in (opset, onnx.defs.onnx_opset_version()):
        if onnx.defs.has(node.op_type, version, ""):
            schema = onnx.defs.get_schema(node.op_type, version, "")
            if not schema.deprecated:
                return schema
    return None


def check_signature(node: onnx.NodeProto, opset: int) -> None:
    """Raises a ModelError unless inputs, outputs and attributes are there as the schema wants."""
    schema = schema_of(node, opset)
    if schema is None:
        return
    for kind, values, low, high in (
        ("inputs", node.input, schema.min_input, schema.max_input),
        ("outputs", node.output, schema.min_output, schema.max_output),
    ):
        if not low <= len(values) <= high:
            wanted = f"{low}" if low == high else f"{low} to {high}"
            raise ModelError(
                f"{describe(node)} has {len(values)} {kind}, and the operator takes {wanted}; "
                "export the model again"
            )
    for position, name in enumerate(node.input):
        declared = schema.inputs[min(position, len(schema.inputs) - 1)]
        if not name and declared.option == onnx.defs.OpSchema.FormalParameterOption.Single:
            raise ModelError(f"{describe(node)} lacks its input {declared.name!r}")
    given = {item.name: item.type for item in node.attribute}
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in given:
            raise ModelError(f"{describe(node)} lacks its attribute {name!r}")
        if name in given and given[name] != int(attribute.type):
            raise ModelError(f"{describe(node)}: its attribute {name!r} has a wrong type")


def drop_unused_outputs(graph: Graph) -> None:
    """Blanks optional outputs that nothing reads, such as Dropout's mask."""
    used = set(graph.outputs)
    for node in graph.nodes:
        used.update(node.input)
        used |= captured_names(node)
    for node in graph.nodes:
        schema = schema_of(node, graph.opset) if len(node.output) > 1 else None
        if schema is None:
            continue
        optional = onnx.defs.OpSchema.FormalParameterOption.Optional
        for position, name in enumerate(node.output):
            declared = schema.outputs[min(position, len(schema.outputs) - 1)]
            if name not in used and declared.option == optional:
                node.output[position] = ""


def mark_narrow(node: onnx.NodeProto, graph: Graph) -> None:
    """Marks what an operator makes of types that casts, quantisation and moves alone know.

    Raises
    ------
    UnsupportedOperatorError
        It computes with floats of 4 or 8 bits, or with integers of 2 or 4 that are no constants.
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


def _identity_permutation(node: onnx.NodeProto, graph: Graph) -> bool:
    order = attributes_of(node).get("perm")
    return order is not None and list(order) == list(range(len(order)))


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
    "Transpose": _identity_permutation,
    "Pad": _pads_nothing,
    "Slice": _whole_slice,
}


# Types of a node's results, as ONNX infers them, and results that follow from types alone.


MAX_DATA_ELEMENTS = 256
MAX_ELEMENTS = 2**36
# Operators whose results are elements of the first input, or their places.
_CHOOSING = {
    *("ArgMax", "ArgMin", "Gather", "GatherElements", "GatherND", "TopK"),
    *("MaxPool", "AveragePool", "LpPool", "MaxRoiPool", "RoiAlign", "Resize", "GridSample"),
}

Types = dict[str, onnx.TypeProto]


class Inference:
    """ONNX's inference for the nodes of a graph, one at a time."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._data: dict[str, onnx.TensorProto] = {}
        self._opsets = [helper.make_opsetid("", graph.opset)]

    def of(self, node: onnx.NodeProto) -> Types:
        """Types of the outputs; empty if ONNX has no inference for the node or misses inputs."""
        graph, schema = self._graph, schema_of(node, self._graph.opset)
        names = [name for name in node.input if name]
        if schema is None or any(name not in graph.types for name in names):
            return {}
        if node.op_type == "BatchNormalization":  # ONNX wants all results of one that trains
            node = with_attributes(node, training_mode=None)
            del node.output[1:]
        if node.op_type == "QuantizeLinear" and node.input[-1] in graph.narrow:
            node = with_attributes(node, output_dtype=None)  # the zero point is of the stored type
        given = {name: graph.types[name] for name in names}
        data = {}
        for name in names:
            array = graph.constants.get(name)
            if array is not None and array.size <= MAX_DATA_ELEMENTS:
                if name not in self._data:
                    self._data[name] = numpy_helper.from_array(array, name)
                data[name] = self._data[name]
        if node.op_type == "Range":  # functions of ONNX itself give it vectors of one element
            for name in names:
                if graph.shape(name) == (1,):
                    given[name] = helper.make_tensor_type_proto(graph.elem_type(name), ())
                    if name in data:
                        data[name] = numpy_helper.from_array(graph.constants[name].reshape(()))
        try:
            types: Types = onnx.shape_inference.infer_node_outputs(
                schema, node, given, data, opset_imports=self._opsets
            )
        except Exception as error:  # C++ inference raises several kinds
            shapes = ", ".join(f"{name!r} {graph.shape(name)}" for name in names)
            reason = str(error).strip().rstrip(".")
            for kind in ("Shape", "Type"):
                reason = reason.removeprefix(f"[{kind}InferenceError] ")
            raise ShapeError(
                f"{describe(node)}: its inputs ({shapes}) do not fit the operator: {reason}; "
                "mend the model, or the shapes given"
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
        return types

    def of_empty(self, node: onnx.NodeProto) -> Types:
        """Types of the outputs if an input has no elements; else empty, to be inferred later."""
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
        """The outputs of a node, whatever it computes, if all are known to have no elements."""
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
        """The value of Shape and Size of anything whose shape is known."""
        if node.op_type not in ("Shape", "Size") or not is_standard(node):
            return None
        shape = self._graph.shape(node.input[0])
        if shape is None:
            return None
        if node.op_type == "Size":
            return [np.array(math.prod(shape), np.int64)]
        bounds = {item.name: item.i for item in node.attribute}
        return [np.array(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)]
