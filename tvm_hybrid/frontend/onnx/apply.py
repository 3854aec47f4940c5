"""Converts one operator, for a node of a model or as a part of another operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ..expressions import OUTPUTS, Attrs, Expr, Inputs, cast, dtype_of, normalize
from .graph.requests import align, check
from .graph.sizes import dims_of, is_open, is_unknown, never_negative
from .operators import OPERATORS

SOFTMAX_ALONG_AXIS = 13  # the opset since which softmax is along one axis
BFLOAT16, FLOAT16 = "bfloat16", "float16"
# Those that are several steps in Relax, or a kernel of their own.
_OF_STEPS = frozenset(
    {*("GlobalLpPool", "LRN", "LpPool", "Mean", "MeanVarianceNormalization"), *("RoiAlign", "Sum")}
)
# Operators (but for products) that are computed in float32, by the type that they are given.
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
"""Standard operators that sum; of constants, too, in float32."""

BROADCASTING = frozenset(
    {
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul"),
        *("Or", "Pow", "Sub", "Sum", "Where", "Xor"),
    }
)
"""Operators that broadcast all of their inputs."""


def apply(op_type: str, *inputs: Any, domain: str = "", **attrs: Any) -> Any:
    """What an operator of the newest opset makes of expressions; ValueError if it refuses them."""
    given = Inputs(each if each is None else normalize(each) for each in inputs)
    return convert(op_type, given, {OUTPUTS: ("",)} | attrs, domain)


def convert(op_type: str, inputs: Inputs, attrs: Attrs, domain: str = "") -> Expr:
    """What an operator makes: what sums in a type of 16 bits is computed in float32, and the
    program checks sizes that it learns when it runs.

        MatMul(a: bfloat16, b: bfloat16)
            ->  R.astype(R.matmul(a, b, out_dtype="float32"), "bfloat16")
        Softmax(x: bfloat16)
            ->  R.astype(R.nn.softmax(R.astype(x, "float32")), "bfloat16")
        Mean(x: float16, y: float16)
            ->  R.astype(R.add(R.astype(x, "float32"), R.astype(y, "float32")) / 2, "float16")

    Relax's operators accumulate in bfloat16: with its eight bits, a sum of equal terms stops
    growing after 256 of them. In float16 they are refused or summed too early if they are of
    several steps; of what is one sum in Relax, relay_passes/bfloat16/widening.py takes care.
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
    result = normalize(known.convert(inputs, attrs))
    check_result(inputs, result, not known.static)
    return result if half is None else _rounded(result, half)


def check_result(inputs: Sequence[Any], result: Expr, is_right: bool) -> None:
    """Has the program check the sizes of a result that depend on data.

    Parameters
    ----------
    is_right
        Whether the operator is converted right where sizes depend on data.

    Raises
    ------
    ValueError
        It is not, or the sizes are not known in terms of others.
    """
    values = list(result) if isinstance(result, relax.Tuple) else [result]
    opened = list(filter(is_open, values))
    if not is_right and (opened or any(map(is_open, inputs))):
        raise ValueError("a size of an input or of the result depends on data")
    if any(map(is_unknown, values)):
        raise ValueError("sizes of its inputs that depend on data are not known to fit")
    for value in opened:
        for size in dims_of(value):
            if not never_negative(size):
                check(size >= 0)


def _rounded(value: Expr, half: str) -> Expr:
    """The (first) result in a type of 16 bits; statistics beside it stay as they are."""
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_rounded(value[0], half), *list(value)[1:]])
    return normalize(relax.op.astype(value, half))
