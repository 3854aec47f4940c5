"""Whether a node keeps to its operator's schema, and whether it changes anything."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..reader.check_model import type_name
from .graph import Graph, captured_names, describe, is_standard
from .narrow_types import FLOATS, MOVING, NARROW
from .node_builder import RESHAPE_TO_ZERO, attributes_of, constant_or_attribute, optional_input

# Operators that read values of types with 2, 4 or 8 bits.
_READING_NARROW = {*("CastLike", "DequantizeLinear", "Shape", "Size"), *("If", "Loop", "Scan")}


def schema_of(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """The schema of a standard operator, the newest if the opset is older than the operator."""
    if not is_standard(node):
        return None
    if any(item.name == "allowzero" for item in node.attribute):
        opset = max(opset, RESHAPE_TO_ZERO)
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


def _always(node: onnx.NodeProto, graph: Graph) -> bool:
    return True


def _inference_dropout(node: onnx.NodeProto, graph: Graph) -> bool:
    training = optional_input(node, 2)
    return not training or (training in graph.constants and not graph.constants[training].any())


def _single_input(node: onnx.NodeProto, graph: Graph) -> bool:
    return len(node.input) == 1


def _identity_permutation(node: onnx.NodeProto, graph: Graph) -> bool:
    order = attributes_of(node).get("perm")
    return order is not None and list(order) == list(range(len(order)))


def _pads_nothing(node: onnx.NodeProto, graph: Graph) -> bool:
    pads = constant_or_attribute(node, graph, 1, "pads")
    return pads is not None and not np.any(pads)


def _whole_slice(node: onnx.NodeProto, graph: Graph) -> bool:
    name = optional_input(node, 4)
    forward = not name or (name in graph.constants and bool((graph.constants[name] > 0).all()))
    return forward and _same_type(node, graph)


_RULES: dict[str, _Rule] = {
    "Identity": _always,
    "Dropout": _inference_dropout,
    "Cast": _same_elements,
    "Reshape": _same_type,
    "Flatten": _same_type,
    "Expand": _same_type,
    "Concat": _single_input,
    "Sum": _single_input,
    "Max": _single_input,
    "Min": _single_input,
    "Transpose": _identity_permutation,
    "Pad": _pads_nothing,
    "Slice": _whole_slice,
}
