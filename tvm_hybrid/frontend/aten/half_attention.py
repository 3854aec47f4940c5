"""Attention of float16 in the operators of float16 that it is made of.

    aten._scaled_dot_product_flash_attention_for_cpu(q: float16, k: float16, v: float16)
        ->  aten.bmm, aten.add, aten._softmax, aten.bmm, all of float16

torch decomposes it so for float32, and for other types between casts to float32 and back, which no
pass could tell from those of a user. Programs with products of float16 are computed in float32
(`relay_passes.bfloat16.widen_bf16`), so that nothing is lost.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.backends import cuda


def with_half_attention(table: Any) -> Any:
    """A table of decompositions in which attention of float16 stays float16.

    Parameters
    ----------
    table : dict or torch.export.decomp_utils.CustomDecompTable
        torch's; it is changed, and returned. While it decomposes an attention of float16, torch's
        switch for reductions in narrow types is set, in all threads.
    """
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    decompose = table[operator]

    def decomposed(query: Any, *args: Any, **options: Any) -> Any:
        before = cuda.fp16_bf16_reduction_math_sdp_allowed()
        cuda.allow_fp16_bf16_reduction_math_sdp(before or query.dtype == torch.float16)
        try:
            return decompose(query, *args, **options)
        finally:
            cuda.allow_fp16_bf16_reduction_math_sdp(before)

    table[operator] = decomposed
    return table
