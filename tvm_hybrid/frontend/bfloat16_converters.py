"""Operators in bfloat16 that sum: accumulated in float32 and rounded once.

    MatMul(a: bfloat16, b: bfloat16)
        ->  R.astype(R.matmul(a, b, out_dtype="float32"), "bfloat16")
    Softmax(x: bfloat16)
        ->  R.astype(R.nn.softmax(R.astype(x, "float32")), "bfloat16")

TVM's converters refuse bfloat16 or accumulate in it: with its eight bits, a sum of equal terms
stops growing after 256 of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from .expressions import Converter, cast, dtype_of, given

BFLOAT16 = "bfloat16"
# Operators (but for products) that are computed in float32.
WIDENED = frozenset(
    {
        *("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "Einsum", "Erf"),
        *("Gelu", "GlobalAveragePool", "GroupNormalization", "InstanceNormalization"),
        *("LayerNormalization", "LogSoftmax", "LpNormalization", "LpPool", "Mean"),
        *("RMSNormalization", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
        *("ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Softmax", "Sum"),
    }
)


def is_widened(op_name: str, inputs: Sequence[Any]) -> bool:
    """Whether a node is to be converted with inputs in float32, and its result rounded."""
    return op_name in WIDENED and BFLOAT16 in (dtype_of(v) for v in inputs if v is not None)


def widen(builder: relax.BlockBuilder, inputs: Sequence[Any]) -> list[Any]:
    """The inputs, those in bfloat16 in float32."""
    return [
        cast(builder, value, "float32")
        if value is not None and dtype_of(value) == BFLOAT16
        else value
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
