"""The table of rewrites by operator; operators without one are replaced by ONNX's function body.

Swish(x, alpha)    ->    Mul(x, Sigmoid(Mul(alpha, x)))

Many newer operators (rare forms of Attention among them) are defined by smaller ones. The body may
depend on the attributes and on the types of the inputs, so ONNX builds it for each node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import onnx
from onnx import helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph.graph import Graph, describe, inline, is_standard
from ..operators import operator_of

logger = logging.getLogger("tvm_hybrid")

Rewrite = Callable[[onnx.NodeProto, Graph], list[onnx.NodeProto] | None]

REWRITES: dict[tuple[str, str], Rewrite] = {}


def rewrites(op_type: str, domain: str = "") -> Callable[[Rewrite], Rewrite]:
    """Registers a rewrite for an operator of a domain.

    The function gets the node and the graph, which has all types of the node's inputs that are
    known. It returns the nodes that replace the node and make its outputs, or None to keep it. It
    raises an UnsupportedOperatorError for a form that cannot be kept either.
    """

    def register(function: Rewrite) -> Rewrite:
        REWRITES[domain, op_type] = function
        return function

    return register


def is_known(node: onnx.NodeProto) -> bool:
    """Whether an operator has a converter, a rewrite, or a body that ONNX defines."""
    if (is_standard(node) and node.op_type == "Constant") or operator_of(node) is not None:
        return True
    if ("" if is_standard(node) else node.domain, node.op_type) in REWRITES:
        return True
    if not is_standard(node) or not onnx.defs.has(node.op_type):
        return False
    schema = onnx.defs.get_schema(node.op_type)
    return bool(schema.has_function or schema.has_context_dependent_function)


def rewrite(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The nodes that replace a node, by its rewrite or its function body; None if it stays."""
    function = REWRITES.get(("" if is_standard(node) else node.domain, node.op_type))
    if function is None and operator_of(node):
        return None
    try:
        return (function or _expanded)(node, graph)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        if any(name and graph.shape(name) is None for name in node.input):
            raise UnsupportedOperatorError(
                f"{describe(node)}: this form of it is not supported where a size of an input "
                f"is dynamic ({error})"
            ) from error
        raise ModelError(f"{describe(node)} is malformed: {error}") from error


def _expanded(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The nodes of a function's body; None if ONNX defines none."""
    versions = graph.opset, onnx.defs.onnx_opset_version()
    known = (each for each in versions if onnx.defs.has(node.op_type, each, ""))
    version = next(known, None) if is_standard(node) else None
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
    nodes = inline(body.node, names, graph, node.name or node.op_type)
    for inner in nodes:  # references to the function's attributes become their values
        kept = []
        for attribute in inner.attribute:
            given = values.get(attribute.ref_attr_name)
            if given is not None:
                value = helper.get_attribute_value(given)
                kept.append(helper.make_attribute(attribute.name, value))
            elif not attribute.ref_attr_name:
                kept.append(onnx.AttributeProto.FromString(attribute.SerializeToString()))
        del inner.attribute[:]
        inner.attribute.extend(kept)
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
        version = _best(schema.context_dependent_function_opset_versions, graph.opset)
        types = [graph.types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        try:
            text = schema.get_context_dependent_function_with_opset_version(
                version, node.SerializeToString(), types
            )
        except Exception as error:  # a C++ error; the operator is then reported as unsupported
            logger.debug("no function body for %s: %s", node.op_type, error)
            return None
    elif schema.has_function:
        version = _best(schema.function_opset_versions, graph.opset)
        text = schema.get_function_with_opset_version(version)
    else:
        return None
    body = onnx.FunctionProto.FromString(text)
    return body if body.node else None


def _best(versions: list[int], opset: int) -> int:
    """The newest version up to the opset, else the oldest version."""
    return max((version for version in versions if version <= opset), default=min(versions))
