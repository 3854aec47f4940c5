"""Operators in bfloat16 and float16 that sum: accumulated in float32 and rounded once.

    MatMul(a: bfloat16, b: bfloat16)
        ->  R.astype(R.matmul(a, b, out_dtype="float32"), "bfloat16")
    Softmax(x: bfloat16)
        ->  R.astype(R.nn.softmax(R.astype(x, "float32")), "bfloat16")
    Mean(x: float16, y: float16)
        ->  R.astype(R.add(R.astype(x, "float32"), R.astype(y, "float32")) / 2, "float16")

TVM's converters refuse bfloat16 or accumulate in it: with its eight bits, a sum of equal terms
stops growing after 256 of them. In float16 they are refused or summed too early if they are of
several steps; of what is one sum in Relax, relay_passes/bfloat16/widen_bf16.py takes care.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from .expressions import Converter, cast, dtype_of, given

BFLOAT16, FLOAT16 = "bfloat16", "float16"
# Those that are several steps in Relax, or a kernel of their own.
_OF_STEPS = frozenset(
    {
        *("GlobalLpPool", "LRN", "LpPool", "Mean", "MeanVarianceNormalization"),
        *("RoiAlign", "Sum"),
    }
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
    *("CumSum", "Gemm", "MatMul", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"),
}
"""Standard operators that sum; of constants, too, in float32."""


def half_to_widen(op_name: str, inputs: Sequence[Any]) -> str | None:
    """The type that a node's result is rounded to, if its inputs are to be float32."""
    types = {dtype_of(value) for value in inputs if value is not None}
    found = (half for half, names in _WIDENED.items() if half in types and op_name in names)
    return next(found, None)


def widen(builder: relax.BlockBuilder, inputs: Sequence[Any], half: str) -> list[Any]:
    """The inputs, those in a type of 16 bits in float32."""
    return [
        cast(builder, value, "float32") if value is not None and dtype_of(value) == half else value
        for value in inputs
    ]


def _matmul(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    if dtype_of(inputs[0]) != BFLOAT16:
        return None
    product = builder.normalize(relax.op.matmul(inputs[0], inputs[1], out_dtype="float32"))
    return relax.op.astype(product, BFLOAT16)


def _gemm(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Gemm without attributes, which its rewrite has applied."""
    if dtype_of(inputs[0]) != BFLOAT16 or attrs.keys() & {"alpha", "beta", "transA", "transB"}:
        return None
    total = builder.normalize(relax.op.matmul(inputs[0], inputs[1], out_dtype="float32"))
    bias = given(inputs, 2)
    if bias is not None:
        total = builder.normalize(relax.op.add(total, cast(builder, bias, "float32")))
    return relax.op.astype(total, BFLOAT16)


BFLOAT16_CONVERTERS: dict[str, Converter] = {"Gemm": _gemm, "MatMul": _matmul}
