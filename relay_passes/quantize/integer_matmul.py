"""Integers: a product of two dequantised tensors becomes an integer product, scaled afterwards.

Before

    lv = R.dequantize(a, sA, zA)                        # a: uint8 [M, K]
    lv1 = R.dequantize(w, sW, zW, axis=1)               # w: int8 [K, N], sW: f32 [N]
    lv2 = R.matmul(lv, lv1)

After

    lv = R.subtract(R.astype(a, "int32"), zA)           # without the subtraction if zA is 0
    lv1 = R.subtract(R.astype(w, "int32"), zW)
    lv2 = R.matmul(lv, lv1, out_dtype="int32")
    lv3 = R.multiply(R.astype(lv2, "float32"), sA * sW)

`integer_product` explains this, and adds a bias to the sum.

A scale along K cannot be taken out of the sum, and one along M would need another kind of product.
Such matmuls stay in f32, and so do those whose sum could exceed 32 bits.
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.graph import DataflowGraph, is_call, known_tensor, region_tensor
from relay_passes.ir.quantization import LIMIT, Quantized, known_centred, largest, largest_sums
from relay_passes.ir.rewrite import Bindings

from .integer_product import (
    IntegerProduct,
    integers_of,
    is_f32,
    products_pass,
    read_factors,
)


def integer_matmul(decisions: DecisionLog | None = None) -> ir.transform.Pass:
    """The pass; it needs A-normal form.

    Parameters
    ----------
    decisions : list of Decision, optional
        Receives why a product of two dequantised tensors is left in f32.
    """
    return products_pass("tvm_hybrid.integer_matmul", _find, decisions)


def _find(graph: DataflowGraph, call: relax.Expr) -> IntegerProduct | str | None:
    """The product that a call is; why it stays in f32; None if it is no product of integers."""
    if not is_call(call, "relax.matmul") or not is_f32(call):
        return None
    factors = read_factors(graph, call)
    if factors is None:
        return None
    a, w = factors
    reason = _refusal(a, w)
    if reason is not None:
        return reason

    def multiply(block: Bindings) -> relax.Expr:
        return block.emit(relax.op.matmul(integers_of(block, a), integers_of(block, w), "int32"))

    return IntegerProduct((a.quantization.scale, w.quantization.scale), multiply, _bounds(a, w))


def _refusal(a: Quantized, w: Quantized) -> str | None:
    """Why a product cannot be computed in integers; None if it can."""
    a_tensor, w_tensor = region_tensor(a.data), region_tensor(w.data)
    if a_tensor is None or w_tensor is None:
        return "a shape is not known at compile time"
    if len(a_tensor.shape) < 2 or len(w_tensor.shape) < 2:
        return "an operand is a vector"
    if a.quantization.axis is not None:
        return "the scale or zero point of the first operand differs along an axis"
    if w.quantization.axis not in (None, len(w_tensor.shape) - 1):
        return (
            "the scale or zero point of the second operand differs along another axis than columns"
        )
    if w.quantization.axis is not None and not _number_or_constant(w.quantization.zero_point):
        return "zero points of columns are computed at run time"
    if not all(is_f32(factor.quantization.scale) for factor in (a, w)):
        return "a scale is not float32"
    if np.any(_bounds(a, w) >= LIMIT):
        return "the sum may need more than 32 bits"
    return None


def _bounds(a: Quantized, w: Quantized) -> np.ndarray:
    """Magnitudes that no sum exceeds: one for all, or one for each column."""
    weights = known_centred(w)
    if weights is not None and weights.ndim == 2:
        return largest_sums(a, weights, 1)
    tensor = known_tensor(a.data)
    return np.asarray(tensor.shape[-1] * largest(a) * largest(w))


def _number_or_constant(expr: relax.Expr) -> bool:
    tensor = region_tensor(expr)
    return tensor is not None and (tensor.constant or tensor.size == 1)
