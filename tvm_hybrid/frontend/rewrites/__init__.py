"""Rewrites of single ONNX nodes, one operator (family) per file; importing this registers all.

To add one: a new file with a function under `@rewrites("OpType", domain="...")`, and its import.
"""

from . import (
    auto_pad,
    batch_normalization,
    conditional,
    contrib_activations,
    contrib_normalization,
    conv_integer,
    dynamic_quantize_lstm,
    expand_function,
    fused_matmul,
    gather_block_quantized,
    gemm,
    gru,
    integer_matmul,
    lstm,
    matmul_nbits,
    qlinear_conv,
    qlinear_elementwise,
    qlinear_matmul,
    qlinear_pool,
    quantize_linear,
)
from .registry import Rewrite, rewrite, rewrites

__all__ = [
    "Rewrite",
    "auto_pad",
    "batch_normalization",
    "conditional",
    "contrib_activations",
    "contrib_normalization",
    "conv_integer",
    "dynamic_quantize_lstm",
    "expand_function",
    "fused_matmul",
    "gather_block_quantized",
    "gemm",
    "gru",
    "integer_matmul",
    "lstm",
    "matmul_nbits",
    "qlinear_conv",
    "qlinear_elementwise",
    "qlinear_matmul",
    "qlinear_pool",
    "quantize_linear",
    "rewrite",
    "rewrites",
]
