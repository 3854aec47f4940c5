"""Which function converts which ONNX operator, and why an operator has none.

A converter takes the inputs as Relax expressions and the attributes, and returns the result, or a
tuple of results. Sizes are numbers or symbols; one function is for both.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import NamedTuple

import onnx

from ..expressions import Converter
from .graph.graph import is_standard


class Operator(NamedTuple):
    """How an operator is converted.

    Attributes
    ----------
    convert : callable
        (inputs, attrs) -> Relax expression. A ValueError refuses a form of the operator.
    static : bool
        Whether it is refused where a size is known at run time only.
    """

    convert: Converter
    static: bool


OPERATORS: dict[tuple[str, str], Operator] = {}
"""By domain and name; importing `ops` fills it."""


def operator(
    *names: str, domain: str = "", static: bool = False
) -> Callable[[Converter], Converter]:
    """Registers a converter for operators of a domain."""

    def register(convert: Converter) -> Converter:
        for name in names:
            OPERATORS[domain, name] = Operator(convert, static)
        return convert

    return register


def operator_of(node: onnx.NodeProto) -> Operator | None:
    """How a node is converted, or None if its operator has no converter."""
    return OPERATORS.get(("" if is_standard(node) else node.domain, node.op_type))


def why_unsupported(node: onnx.NodeProto, opset: int) -> str:
    """Why an operator without a converter has none, and what to do about it."""
    if not is_standard(node):
        return (
            f"{node.op_type} of domain {node.domain} is not known; export the model with standard "
            "operators, or put what it computes into the model as a function of ONNX"
        )
    schemas = [each for each in onnx.defs.get_all_schemas_with_history() if not each.domain]
    known = {schema.name for schema in schemas}
    if node.op_type in known:
        first = min(each.since_version for each in schemas if each.name == node.op_type)
        if first > opset:
            return (
                f"{node.op_type} came with opset {first}, and the model asks for opset {opset}; "
                "export it for a newer one"
            )
        return (
            f"{node.op_type} is not supported; replace it by other operators when you export the "
            "model, or leave this part out"
        )
    near = difflib.get_close_matches(node.op_type, sorted(known), 2)
    guess = f"did you mean {' or '.join(near)}? Else " if near else ""
    return (
        f"{node.op_type} is not known: it is no operator of ONNX; {guess}give it the domain and "
        "the function that define it, or export the model with standard operators"
    )
