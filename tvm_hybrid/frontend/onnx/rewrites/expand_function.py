"""Standard operators that have no converter, by the function body that ONNX defines for them.

Swish(x, alpha)    ->    Mul(x, Sigmoid(Mul(alpha, x)))

Many newer operators (rare forms of Attention among them) are defined by smaller ones; the body may
depend on the attributes and on the types of the inputs, so ONNX builds it for each node.
"""

from __future__ import annotations

import logging

import onnx
from onnx import helper

from microkernels.base.errors import UnsupportedOperatorError

from .. import ops  # noqa: F401  registers the converters
from ..graph.graph import Graph, describe, inline, is_standard
from ..operators import operator_of
from .registry import fallback

logger = logging.getLogger("tvm_hybrid")


@fallback
def expand_missing(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Expands an operator that has no converter."""
    return None if operator_of(node) else expand_function(node, graph)


def expand_function(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The nodes of the function body, or None if ONNX defines none."""
    newest = onnx.defs.onnx_opset_version()
    if not is_standard(node):
        return None
    version = next((v for v in (graph.opset, newest) if onnx.defs.has(node.op_type, v, "")), None)
    if version is None:
        return None
    schema = onnx.defs.get_schema(node.op_type, version, "")
    body = _function_body(node, schema, graph)
    if body is None:
        return None
    defaults = {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    values = defaults | {attribute.name: attribute for attribute in node.attribute}
    names = dict(zip(body.output, node.output, strict=False))
    names |= dict(zip(body.input, node.input, strict=False))
    names |= dict.fromkeys(body.input[len(node.input) :], "")
    prefix = node.name or node.op_type
    nodes = inline(body.node, names, graph, prefix)
    for inner in nodes:
        _substitute(inner, values)
    made = {name for inner in nodes for name in inner.output}
    missing = [name for name in node.output if name and name not in made]
    if missing:
        raise UnsupportedOperatorError(
            f"{describe(node)}: with these attributes, ONNX's definition makes no {missing[0]!r}"
        )
    return nodes


def _function_body(
    node: onnx.NodeProto, schema: onnx.defs.OpSchema, graph: Graph
) -> onnx.FunctionProto | None:
    if schema.has_context_dependent_function:
        versions = schema.context_dependent_function_opset_versions
        types = [
            (graph.types[name] if name in graph.types else onnx.TypeProto()).SerializeToString()
            for name in node.input
        ]
        body = onnx.FunctionProto()
        try:
            text = schema.get_context_dependent_function_with_opset_version(
                _best(versions, graph.opset), node.SerializeToString(), types
            )
        except Exception as error:  # C++; the operator is then reported as unsupported
            logger.debug("no function body for %s: %s", node.op_type, error)
            return None
        body.ParseFromString(text)
        return body if body.node else None
    if schema.has_function:
        version = _best(schema.function_opset_versions, graph.opset)
        body = onnx.FunctionProto()
        body.ParseFromString(schema.get_function_with_opset_version(version))
        return body
    return None


def _best(versions: list[int], opset: int) -> int:
    """The newest version up to the opset, or the oldest there is."""
    return max((version for version in versions if version <= opset), default=min(versions))


def _substitute(node: onnx.NodeProto, values: dict[str, onnx.AttributeProto]) -> None:
    """Replaces attributes that refer to the function's attributes by their values."""
    kept = []
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            kept.append(attribute)
        elif attribute.ref_attr_name in values:
            value = helper.make_attribute(
                attribute.name, helper.get_attribute_value(values[attribute.ref_attr_name])
            )
            kept.append(value)
    copies = [onnx.AttributeProto.FromString(item.SerializeToString()) for item in kept]
    del node.attribute[:]
    node.attribute.extend(copies)
