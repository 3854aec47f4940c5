"""Quantisation after the specification of the ONNX operators: single float32 operations.

Nothing here shares code with the compiler. Every float operation is one NumPy operation on float32
arrays, so each result is rounded once, to nearest even, as the specification requires.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
F32 = np.float32


def along(parameter: Array, axis: int | None, rank: int) -> Array:
    """Reshapes a scale or zero point to broadcast: one value, or one for each index of the axis."""
    if parameter.size == 1 or axis is None:
        return parameter.reshape(())
    shape = [1] * rank
    shape[axis] = -1
    return parameter.reshape(shape)


def quantize(x: Array, scale: ArrayLike, zero_point: ArrayLike, axis: int | None = None) -> Array:
    """QuantizeLinear: saturate(round_half_even(x / scale) + zero_point), in zero_point's type.

    The quotient is a float32 division. The sum is exact here (float64 holds it): an implementation
    that saturates before it adds, or adds in int32 or float32, gets the same value.
    """
    zero = np.asarray(zero_point)
    limits = np.iinfo(zero.dtype)
    factor = along(np.asarray(scale, F32), axis, x.ndim)
    with np.errstate(over="ignore"):
        steps = np.rint(x.astype(F32) / factor).astype(np.float64)
    shifted = steps + along(zero, axis, x.ndim).astype(np.float64)
    return np.clip(shifted, limits.min, limits.max).astype(zero.dtype)


def quantize_sum(x: Array, scale: ArrayLike, zero_point: ArrayLike) -> Array:
    """Like `quantize`, but rounds after adding the zero point, as some ONNX Runtime kernels do.

    Ties go to the even sum: if the zero point is odd, one step moves from it to x.
    """
    zero = np.asarray(zero_point)
    if zero.item() % 2 == 0:
        return quantize(x, scale, zero)
    return quantize(x.astype(F32) + np.asarray(scale, F32), scale, zero - zero.dtype.type(1))


@dataclass(frozen=True)
class Quantized:
    """A dequantised tensor: integers that stand for (q - zero_point) * scale.

    Attributes
    ----------
    q : numpy.ndarray
        int8, uint8 or int32.
    scale : numpy.ndarray
        float32; one element, or one for each index of `axis`.
    zero_point : numpy.ndarray
        Type of `q`; as many elements as `scale`.
    axis : int or None
        None if one scale and zero point serve the whole tensor.
    """

    q: Array
    scale: Array
    zero_point: Array
    axis: int | None = None

    @property
    def centred(self) -> Array:
        """q - zero_point as int64."""
        zero = along(self.zero_point, self.axis, self.q.ndim)
        return self.q.astype(np.int64) - zero.astype(np.int64)

    def real(self) -> Array:
        """DequantizeLinear: (q - zero_point) * scale, float32."""
        scale = along(self.scale, self.axis, self.q.ndim)
        return np.asarray(self.centred.astype(F32) * scale, F32)

    def moved(self, q: Array) -> Quantized:
        """Rearranged integers with this tensor's parameters; only without an axis."""
        assert self.axis is None
        return replace(self, q=q)


def quantized(
    q: Array, scale: ArrayLike, zero_point: ArrayLike, axis: int | None = None
) -> Quantized:
    """Makes a Quantized value from an operator's inputs; axes count from the front."""
    factor, zero = np.asarray(scale, F32), np.asarray(zero_point)
    if factor.size == 1:
        return Quantized(q, factor.reshape(()), zero.reshape(()))
    assert axis is not None
    return Quantized(q, factor.reshape(-1), zero.reshape(-1), axis % q.ndim)


def integer_product(a: Array, b: Array) -> Array:
    """The matrix product of integers, int32; operands are exact whatever their type.

    Products of centred 8-bit values and their sums are below 2^53 here, so that float64's (fast)
    product is exact.
    """
    depth, largest = a.shape[-1], float(np.abs(a).max(initial=0)) * float(np.abs(b).max(initial=0))
    assert depth * largest < 2.0**31, "the sum leaves int32, where the operators say nothing"
    return np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int32)


def matmul(a: Quantized, b: Quantized) -> Array:
    """MatMul of dequantised operands: the integer product, float32, times the product of scales.

    The scales stand outside the sum, so the sum is not rounded; integer kernels compute
    DequantizeLinear, DequantizeLinear, MatMul this way. `a` has one scale, `b` one or one for each
    column.
    """
    assert a.axis is None and b.axis in (None, b.q.ndim - 1)
    total = integer_product(a.centred, b.centred).astype(F32)
    return np.asarray(total * (a.scale * b.scale), F32)


def scaled(total: Array, a: Quantized, b: Quantized, bias: Any = None, channels: int = -1) -> Array:
    """The float32 result of an integer sum, including a bias.

    An int32 bias that counts in steps of the product of the scales belongs to the sum, where ONNX
    Runtime's QLinearConv and QGemm add it; any other bias is added to the float32 result.

    Parameters
    ----------
    total : numpy.ndarray
        int32; `b` may have a scale for each of its channels.
    bias : Quantized, numpy.ndarray or None
        One value for each channel, or one for all channels.
    channels : int
        The axis of the channels, counted from the end.
    """
    shape = (-1, *(1 for _ in range(-1 - channels)))
    factor = a.scale * b.scale
    if isinstance(bias, Quantized) and np.array_equal(bias.scale, factor):
        assert not np.any(bias.zero_point)
        wide = total.astype(np.int64) + bias.q.astype(np.int64).reshape(shape)
        assert np.abs(wide).max(initial=0) < 2**31, "the sum leaves int32"
        total, bias = wide.astype(np.int32), None
    result = np.asarray(total.astype(F32) * factor.reshape(shape), F32)
    if bias is None:
        return result
    values = bias.real() if isinstance(bias, Quantized) else bias
    return np.asarray(result + (values if values.ndim > 1 else values.reshape(shape)), F32)


def dynamic_quantize(x: Array, least: float | None = None) -> tuple[Array, Array, Array]:
    """DynamicQuantizeLinear: (uint8 values, float32 scale, uint8 zero point).

    All zeros give 0 / 0 in the specification: scale 1 and zero point 0, as in ONNX Runtime. With a
    smallest scale they get that scale, as in PyTorch.
    """
    low, high = F32(min(x.min(), F32(0))), F32(max(x.max(), F32(0)))
    scale = F32((high - low) / F32(255))
    if least is not None:
        scale = max(scale, F32(least))
    elif scale == 0:
        scale = F32(1)
    zero = np.rint(np.clip((F32(0) - low) / scale, F32(0), F32(255))).astype(np.uint8)
    return quantize(x, scale, zero), np.asarray(scale), np.asarray(zero)
