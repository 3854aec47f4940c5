"""Converters of products in bfloat16: accumulated in float32 and rounded once.

    MatMul(a: bfloat16, b: bfloat16)
        ->  R.astype(R.matmul(a, b, out_dtype="float32"), "bfloat16")

TVM's converter would accumulate in bfloat16, whose eight bits stop growing after 256 terms of a
kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from .expressions import Converter, cast, dtype_of, given

BFLOAT16 = "bfloat16"


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
