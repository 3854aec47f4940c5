"""Integers: a convolution of two dequantised tensors becomes an integer convolution, scaled after.

Before

    lv = R.dequantize(x, sX, zX)                        # x: uint8 [N, H, W, C]
    lv1 = R.dequantize(const_w, sW, zW, axis=3)         # const_w: int8 [KH, KW, C, OC]
    lv2 = R.nn.conv2d(lv, lv1, padding=[1, 1])
    lv3 = R.add(lv2, R.dequantize(const_b, sX * sW, 0)) # int32 [OC]

After

    lv = R.subtract(R.astype(x, "int32"), zX)           # without the subtraction if zX is 0
    lv1 = R.astype(const_w', "int32")                   # int8: const_w less zW
    lv2 = R.nn.conv2d(lv, lv1, padding=[1, 1], out_dtype="int32")
    lv3 = R.multiply(R.astype(R.add(lv2, const_b), "float32"), sX * sW)

`integer_product` explains scales and bias. Padding is 0 in x - zX, as it is 0 in the f32 tensor; so
the integer tensor is padded with its zero point. The weight has the form that `narrow_conv_weights`
gives to all integer convolutions.

One or three axes, groups, and transposed convolutions of one group work alike. These stay in f32:
convolutions whose scale cannot be taken out of the sum (a scale of x along an axis, or of the
weight along another axis than output channels), whose sum could exceed 32 bits, or whose weight is
no constant and has a zero point that does not leave int8.
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from relay_passes.ir.convolution import (
    convolution_of,
    is_convolution,
    is_transposed,
    kernel_outputs,
    output_channels,
)
from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.graph import DataflowGraph, region_tensor
from relay_passes.ir.quantization import LIMIT, Quantized, known_centred, largest_sum, largest_sums
from relay_passes.ir.rewrite import Bindings

from .integer_product import (
    IntegerProduct,
    integers_of,
    is_f32,
    products_pass,
    read_factors,
)
from .narrow_conv_weights import fits_int8, int8_of, sum_of_convolutions


def integer_conv(decisions: DecisionLog | None = None) -> ir.transform.Pass:
    """The pass; it needs A-normal form.

    Parameters
    ----------
    decisions : list of Decision, optional
        Receives why a convolution of two dequantised tensors is left in f32.
    """
    return products_pass("tvm_hybrid.integer_conv", _find, decisions)


def _find(graph: DataflowGraph, call: relax.Expr) -> IntegerProduct | str | None:
    """The convolution that a call is; why it stays in f32; None if it is none of integers."""
    if not is_convolution(call) or not is_f32(call):
        return None
    factors = read_factors(graph, call)
    if factors is None:
        return None
    x, w = factors
    reason = _refusal(call, x, w)
    if reason is not None:
        return reason
    weights = known_centred(w)
    if weights is None and not fits_int8(w):
        return "the weight is no constant, and less its zero point it may not fit in int8"
    # Of a transposed convolution this counts more taps than meet in one result.
    outputs = kernel_outputs(call)
    if weights is None:
        bounds = np.asarray(largest_sum(x, w, outputs))
    else:
        bounds = largest_sums(x, weights, outputs)
    if np.any(bounds >= LIMIT):
        return "the sum may need more than 32 bits"

    def multiply(block: Bindings) -> relax.Expr:
        integers = integers_of(block, x)
        if weights is None:
            return block.emit(convolution_of(call, integers, int8_of(block, w), "int32"))
        return sum_of_convolutions(block, call, integers, weights)

    scales = (x.quantization.scale, w.quantization.scale)
    return IntegerProduct(scales, multiply, bounds, output_channels(call))


def _refusal(call: relax.Call, x: Quantized, w: Quantized) -> str | None:
    """Why a convolution cannot be computed in integers; None if perhaps it can."""
    if any(region_tensor(each) is None for each in (call, x.data, w.data)):
        return "a shape is not known at compile time"
    if x.quantization.axis is not None:
        return "the scale or zero point of the first operand differs along an axis"
    if w.quantization.axis not in (None, kernel_outputs(call)):
        return "the scale or zero point of the weight differs along another axis than its outputs"
    if is_transposed(call) and int(call.attrs.groups) != 1:
        return "a transposed convolution in groups"
    if not all(is_f32(factor.quantization.scale) for factor in (x, w)):
        return "a scale is not float32"
    return None
