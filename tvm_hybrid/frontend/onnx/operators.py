"""The table of converters by operator, and the reason if an operator has no converter.

A converter takes the inputs as Relax expressions, None for omitted ones, and attributes by name. It
returns the result, or a tuple of results. It works for static sizes (numbers) and dynamic ones
(symbols).

    @operator("Squeeze")
    def _squeeze(x: Expr, axes: Expr) -> Expr:         opset 13: Squeeze(x, [0])
                                                       opset 11: Squeeze(x, axes=[0])

If newer opsets have an input that older ones have as an attribute, the converter takes an input.
Besides attributes, a converter may take the facts named in `expressions.NODE_FACTS`. A converter
with the parameters `inputs` and `attrs` gets all of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, NamedTuple, TypeVar

import numpy as np
import onnx
from tvm import relax

from ..expressions import OUTPUTS, Attrs, Expr, Inputs, cast, dtype_of, literal, normalize
from .graph.graph import is_standard
from .graph.requests import align, check
from .graph.sizes import dims_of, is_dynamic, is_unknown, never_negative

Converter = TypeVar("Converter", bound=Callable[..., Any])
_NONE = Parameter.empty


class Operator(NamedTuple):
    """The converter of an operator and its parameters.

    Attributes
    ----------
    convert : callable
        The converter. A ValueError refuses a form of the operator.
    static : bool
        Whether the operator is refused if a size is dynamic.
    parameters : mapping
        The converter's parameters: those without a default are inputs; keyword-only ones and those
        with a default are attributes.
    """

    convert: Callable[..., Any]
    static: bool
    parameters: Mapping[str, Parameter]

    def __call__(self, inputs: Inputs, attrs: Attrs) -> Any:
        """Converts a node, given its inputs and attributes."""
        given: list[Any] = []
        named: Attrs = {}
        for place, (name, parameter) in enumerate(self.parameters.items()):
            if parameter.kind is Parameter.VAR_POSITIONAL:
                given += inputs[place:]
            elif parameter.kind is Parameter.VAR_KEYWORD:
                named |= {key: each for key, each in attrs.items() if key not in self.parameters}
            elif parameter.kind is Parameter.KEYWORD_ONLY or parameter.default is not _NONE:
                named |= {name: attrs[name]} if name in attrs else {}
            elif inputs[place] is None and name in attrs:
                given.append(literal(np.array(attrs[name])))
            else:
                given.append(inputs[place])
        return self.convert(*given, **named)


OPERATORS: dict[tuple[str, str], Operator] = {}
"""By domain and name; importing `ops` fills the table."""


def operator(
    *names: str, domain: str = "", static: bool = False
) -> Callable[[Converter], Converter]:
    """Registers a function as the converter of some operators of a domain."""

    def register(convert: Converter) -> Converter:
        known = Operator(convert, static, signature(convert).parameters)
        OPERATORS.update(dict.fromkeys(((domain, name) for name in names), known))
        return convert

    return register


def operator_of(node: onnx.NodeProto) -> Operator | None:
    """The converter of a node; None if its operator has none."""
    return OPERATORS.get(("" if is_standard(node) else node.domain, node.op_type))


def why_unsupported(node: onnx.NodeProto, opset: int) -> str:
    """The reason why an operator has no converter, and what to do about it."""
    if not is_standard(node):
        return (
            f"{node.op_type} of domain {node.domain} is not known; export the model with standard "
            "operators, or define it in the model as a function of ONNX"
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


# Conversion of one operator, for a node of a model or as a part of another operator.


SOFTMAX_ALONG_AXIS = 13  # the opset since which softmax is along one axis
BFLOAT16, FLOAT16 = "bfloat16", "float16"
# Operators that become several steps in Relax, or a separate kernel.
_OF_STEPS = frozenset(
    {*("GlobalLpPool", "LRN", "LpPool", "Mean", "MeanVarianceNormalization"), *("RoiAlign", "Sum")}
)
# Operators, without matrix products, that are computed in float32, by the type of their input.
_WIDENED: dict[str, frozenset[str]] = {
    BFLOAT16: _OF_STEPS
    | {
        *("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "Einsum", "Erf"),
        *("Gelu", "GlobalAveragePool", "GroupNormalization", "InstanceNormalization"),
        *("LayerNormalization", "LogSoftmax", "LpNormalization"),
        *("RMSNormalization", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
        *("ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Softmax"),
    },
    FLOAT16: _OF_STEPS,
}
SUMMING = _WIDENED[BFLOAT16] | {
    *("CumSum", "Gemm", "MatMul", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
}
"""Standard operators that sum; they are folded in float32, too."""

BROADCASTING = frozenset(
    {
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul"),
        *("Or", "Pow", "Sub", "Sum", "Where", "Xor"),
    }
)
"""Operators that broadcast all of their inputs."""


def apply(op_type: str, *inputs: Any, domain: str = "", **attrs: Any) -> Any:
    """Applies an operator of the newest opset to expressions; ValueError if it refuses them."""
    given = Inputs(each if each is None else normalize(each) for each in inputs)
    return convert(op_type, given, {OUTPUTS: ("",)} | attrs, domain)


def convert(op_type: str, inputs: Inputs, attrs: Attrs, domain: str = "") -> Expr:
    """Converts an operator; sums in a type of 16 bits are computed in float32, and the program
    checks sizes that are only known at run time.

        MatMul(a: bfloat16, b: bfloat16)
            ->  R.astype(R.matmul(a, b, out_dtype="float32"), "bfloat16")
        Softmax(x: bfloat16)
            ->  R.astype(R.nn.softmax(R.astype(x, "float32")), "bfloat16")
        Mean(x: float16, y: float16)
            ->  R.astype(R.add(R.astype(x, "float32"), R.astype(y, "float32")) / 2, "float16")

    Relax's operators accumulate in bfloat16: with its eight bits, a sum of equal terms stops
    growing after 256 of them. In float16, operators of several steps fail or round their sums too
    early; operators that are one sum in Relax are left to relay_passes/bfloat16/widening.py.
    """
    known = OPERATORS[domain, op_type]
    types = [None if value is None else dtype_of(value) for value in inputs]
    halves = (each for each, names in _WIDENED.items() if each in types and op_type in names)
    half = next(halves, None)
    if half is not None:
        pairs = zip(inputs, types, strict=True)
        inputs = Inputs(cast(value, "float32") if of == half else value for value, of in pairs)
    if op_type in BROADCASTING:
        inputs = Inputs(align(inputs))
    result = normalize(known(inputs, attrs))
    check_result(inputs, result, not known.static)
    return result if half is None else _rounded(result, half)


def check_result(inputs: Sequence[Any], result: Expr, is_right: bool) -> None:
    """Makes the program check the sizes of a result that depend on data.

    Parameters
    ----------
    is_right
        Whether the operator's converter supports dynamic sizes.

    Raises
    ------
    ValueError
        The converter does not support them, or a size is not known in terms of others.
    """
    values = list(result) if isinstance(result, relax.Tuple) else [result]
    dynamic = list(filter(is_dynamic, values))
    if not is_right and (dynamic or any(map(is_dynamic, inputs))):
        raise ValueError("a size of an input or of the result depends on data")
    if any(map(is_unknown, values)):
        raise ValueError("sizes of its inputs that depend on data are not known to fit")
    for value in dynamic:
        for size in dims_of(value):
            if not never_negative(size):
                check(size >= 0)


def _rounded(value: Expr, half: str) -> Expr:
    """The first result in a type of 16 bits; others, such as statistics, stay as they are."""
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_rounded(value[0], half), *list(value)[1:]])
    return normalize(relax.op.astype(value, half))
