"""Rewrites of single ONNX nodes, one operator (family) per file; importing this registers all.

To add one: a new file with a function under `@rewrites("OpType", domain="...")`, and its import.
"""

from . import (
    auto_pad,
    batch_normalization,
    conditional,
    contrib_activations,
    contrib_normalization,
    expand_function,
    fused_matmul,
    gemm,
    gru,
    lstm,
)
from .registry import Rewrite, rewrite, rewrites

__all__ = [
    "Rewrite",
    "auto_pad",
    "batch_normalization",
    "conditional",
    "contrib_activations",
    "contrib_normalization",
    "expand_function",
    "fused_matmul",
    "gemm",
    "gru",
    "lstm",
    "rewrite",
    "rewrites",
]
