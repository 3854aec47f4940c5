"""Zero points: 8-bit integers q stand for the numbers (q - z) * s. What passes compute with q - z.

    sum_k (a - za) * sa * (w - zw) * sw  =  sa * sw * sum_k (a - za) * (w - zw)
    sum_n (q - z) * s                    =  s * (sum_n q - n * z)
    |q - z|  <=  largest(q)

So products and sums are sums of integers, exact in any order, that are scaled once. How kernels add
for -128..127 what they compute with 0..255 is in tir_schedules.product.zero_points.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import ir, relax

from microkernels.base.integers import RANGES

from .constants import array_of
from .graph import known_tensor
from .quantization import Quantized
from .rewrite import Emit

LIMIT = 2**31
"""Sums of 32 bits have a smaller magnitude."""


def centred(emit: Emit, q: relax.Expr, zero_point: relax.Expr | None) -> relax.Expr:
    """Writes q - z as int32; without the subtraction if there is no zero point, or it is 0.

    Parameters
    ----------
    emit : callable
        Gets every operator.
    q : relax.Expr
        Integers.
    zero_point : relax.Expr or None
        z, in a shape that broadcasts to that of q.
    """
    wide = emit(relax.op.astype(q, "int32"))
    if zero_point is None:
        return wide
    if not isinstance(zero_point, ir.GenericConst):
        return emit(relax.op.subtract(wide, emit(relax.op.astype(zero_point, "int32"))))
    zeros = zero_point.value.numpy().astype(np.int32)
    return emit(relax.op.subtract(wide, relax.const(zeros))) if zeros.any() else wide


def sum_centred(
    emit: Emit, q: relax.Expr, zero_point: int, axes: list[int], keepdims: bool
) -> relax.Expr:
    """Writes the sums of q - z over whole axes of static extents, as int32."""
    total = emit(relax.op.sum(emit(relax.op.astype(q, "int32")), axes, keepdims))
    count = int(np.prod([int(q.ty.shape[axis]) for axis in axes]))
    offset = relax.const(np.int32(count * zero_point))
    return emit(relax.op.subtract(total, offset)) if zero_point else total


def known_centred(quantized: Quantized) -> np.ndarray | None:
    """Constant integers less their zero points, int32; None if they are not all constant."""
    zero_point = quantized.quantization.zero_point
    if not all(isinstance(each, ir.GenericConst) for each in (quantized.data, zero_point)):
        return None
    zeros = _along(zero_point.value.numpy(), quantized)
    return np.asarray(array_of(quantized.data.value).astype(np.int32) - zeros.astype(np.int32))


def known_value(quantized: Quantized) -> np.ndarray | None:
    """The f32 numbers that constant integers stand for, rounded where the operator rounds; None if
    they, their scales or zero points are not constant, or scales are extreme."""
    known, integers = quantized.quantization.known, known_centred(quantized)
    if known is None or integers is None:
        return None
    return np.asarray(integers.astype(np.float32) * _along(known[0], quantized))


def along_axis(parameters: np.ndarray, rank: int, axis: int) -> np.ndarray:
    """Scales or zero points in a shape that broadcasts along their axis of a tensor."""
    if parameters.size == 1:
        return parameters.reshape(())
    shape = [1] * rank
    shape[axis] = -1
    return parameters.reshape(shape)


def _along(parameters: np.ndarray, quantized: Quantized) -> np.ndarray:
    return along_axis(parameters, int(quantized.data.ty.ndim), quantized.quantization.axis or 0)


def largest(quantized: Quantized) -> int:
    """Largest magnitude that q - z can have."""
    low, high = RANGES[quantized.data_dtype]
    zero_point = quantized.quantization.zero_point
    if not isinstance(zero_point, ir.GenericConst):
        return high - low
    zeros = zero_point.value.numpy().astype(np.int64)
    if isinstance(quantized.data, ir.GenericConst):
        values = array_of(quantized.data.value)
        low, high = int(values.min(initial=high)), int(values.max(initial=low))
    return int(max(abs(high - zeros.min()), abs(low - zeros.max())))


def largest_sum(a: Quantized, weight: Quantized, channels: int) -> int:
    """A magnitude that no sum of products exceeds, if the weight is no constant.

    Parameters
    ----------
    a, weight : Quantized
        The factors; the weight is a tensor of known shape.
    channels : int
        The weight's axis for the result's channels; all others are summed over.
    """
    shape = known_tensor(weight.data).shape
    count = math.prod(extent for axis, extent in enumerate(shape) if axis != channels)
    return count * largest(a) * largest(weight)


def largest_sums(a: Quantized, weights: np.ndarray, channels: int) -> np.ndarray:
    """Magnitudes that no sum of products exceeds, for each channel.

    Parameters
    ----------
    a : Quantized
        The factor that varies.
    weights : numpy.ndarray
        The integers that it is multiplied with, less their zero points.
    channels : int
        The axis of these for the result's channels; all others are summed over.
    """
    columns = np.moveaxis(np.abs(weights.astype(np.int64)), channels, -1)
    return columns.reshape(-1, weights.shape[channels]).sum(axis=0) * largest(a)
