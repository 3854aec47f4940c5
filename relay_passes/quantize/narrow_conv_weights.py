"""Narrow: gives integer convolutions int8 weights without a zero point.

Before

    lv = R.subtract(R.astype(const_w, "int32"), zW)     # const_w: uint8
    lv1 = R.nn.conv2d(x, lv, out_dtype="int32")

After

    lv1 = R.nn.conv2d(x, R.astype(const_w', "int32"), out_dtype="int32")    # const_w': int8

The kernels multiply such weights. If a weight minus its zero point does not fit in int8, it is
split into a sum of int8 weights, and the convolution into a sum of convolutions, which is exact.
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from microkernels.base.arrays import RANGES
from relay_passes.ir.axes import known_integers
from relay_passes.ir.convolution import convolution_of
from relay_passes.ir.graph import DataflowGraph, is_call, static_tensor
from relay_passes.ir.quantization import Quantized
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.traits import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS

_CENTRES = {"int8": 0, "uint8": 128}


def sum_of_convolutions(
    block: Bindings, call: relax.Call, x: relax.Expr, weights: np.ndarray
) -> relax.Expr:
    """Convolutions of x with int8 weights, whose sum is the one with the weights given."""
    total: relax.Expr | None = None
    for part in int8_parts(weights):
        w = block.emit(relax.op.astype(relax.const(part, "int8"), "int32"))
        result = block.emit(convolution_of(call, x, w, "int32"))
        total = result if total is None else block.emit(relax.op.add(total, result))
    assert total is not None
    return total


def fits_int8(weight: Quantized) -> bool:
    """Whether a weight of 8 bits, whatever its values, fits in int8 less its zero point."""
    zero_point = weight.quantization.zero_point
    if not isinstance(zero_point, ir.GenericConst):
        return False
    return bool(np.all(zero_point.value.numpy() == _CENTRES[weight.data_dtype]))


def int8_of(block: Bindings, weight: Quantized) -> relax.Expr:
    """Such a weight less its zero point, int8 widened to int32."""
    data = weight.data
    if weight.data_dtype != "int8":
        wide = block.emit(relax.op.astype(data, "int32"))
        centre = relax.const(_CENTRES[weight.data_dtype], "int32")
        data = block.emit(relax.op.astype(block.emit(relax.op.subtract(wide, centre)), "int8"))
    return block.emit(relax.op.astype(data, "int32"))


def int8_parts(values: np.ndarray) -> list[np.ndarray]:
    """int8 arrays, at least one, that add up to an array of integers."""
    parts: list[np.ndarray] = []
    left = values
    while not parts or left.any():
        parts.append(np.clip(left, *RANGES["int8"]).astype(np.int8))
        left = left - parts[-1]
    return parts


@rule(*CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS)
def narrow_conv_weights(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """The pass; it needs A-normal form."""
    weights = _wide_weight(graph, call)
    if weights is None:
        return None
    return sum_of_convolutions(block, call, call.args[0], weights)


def _wide_weight(graph: DataflowGraph, call: relax.Expr) -> np.ndarray | None:
    """The constant weight of an integer convolution that is not an int8 one widened."""
    if str(call.ty.dtype) != "int32":
        return None
    widened = graph.definition(call.args[1])
    if is_call(widened, "relax.astype"):
        source = static_tensor(widened.args[0])
        if source is not None and source.constant and source.dtype == "int8":
            return None
    weights = known_integers(graph, call.args[1])
    return None if weights is None or np.abs(weights).max(initial=0) > 255 else weights
