"""Which function rewrites which operator."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph.graph import Graph, describe, is_standard

Rewrite = Callable[[onnx.NodeProto, Graph], list[onnx.NodeProto] | None]

_REWRITES: dict[tuple[str, str], Rewrite] = {}
_FALLBACKS: list[Rewrite] = []


def rewrites(*op_types: str, domain: str = "") -> Callable[[Rewrite], Rewrite]:
    """Registers a rewrite for operators of a domain.

    The function gets the node and the graph, in which the types of all the node's inputs are known
    as far as they can be, and returns the nodes that replace it (which make the node's outputs), or
    None to keep it. It raises an UnsupportedOperatorError for a form that cannot be kept either.
    """

    def register(function: Rewrite) -> Rewrite:
        for op_type in op_types:
            _REWRITES[domain, op_type] = function
        return function

    return register


def fallback(function: Rewrite) -> Rewrite:
    """Registers a rewrite that is asked about every node that has none of its own."""
    _FALLBACKS.append(function)
    return function


def rewrite(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """What replaces a node, or None if it stays."""
    domain = "" if is_standard(node) else node.domain
    own = _REWRITES.get((domain, node.op_type))
    for function in [own] if own is not None else _FALLBACKS:
        try:
            replacement = function(node, graph)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, ModelError):
                raise
            if any(name and graph.shape(name) is None for name in node.input):
                raise UnsupportedOperatorError(
                    f"{describe(node)}: this form of it is not supported where a size of an input "
                    f"is dynamic ({error})"
                ) from error
            raise ModelError(f"{describe(node)} is malformed: {error}") from error
        if replacement is not None:
            return replacement
    return None
