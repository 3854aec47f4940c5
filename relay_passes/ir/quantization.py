"""Reads and writes R.quantize and R.dequantize.

R.dequantize(q, scale, zero_point, axis)        the number scale * (q - zero_point)
R.quantize(x, scale, zero_point, axis)          the q whose number is nearest to x
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np
from tvm import ir, relax

from microkernels.base.arrays import RANGES

from .axes import Axes, AxisView, identity, view_axes
from .constants import array_of
from .functions import with_args
from .graph import DataflowGraph, is_call, known_tensor, op_name, region_tensor, static_tensor
from .rewrite import Bindings, Emit
from .traits import ELEMENTWISE

_TYPES = (*RANGES, "uint16", "int16", "int32")


@dataclass(frozen=True)
class Quantization:
    """Scale and zero point of a tensor.

    Attributes
    ----------
    scale, zero_point : relax.Expr
        One element for the tensor, or one for each index along `axis`.
    axis : int or None
        None if scale and zero point have one element each.
    """

    scale: relax.Expr
    zero_point: relax.Expr
    axis: int | None

    @property
    def key(self) -> Hashable:
        """Equal for quantisations that are known to be equal."""
        return _key(self.scale), _key(self.zero_point), self.axis

    @property
    def known(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Scale and zero point if both are constant and every scale is positive and far from
        overflow; else None."""
        if not all(isinstance(e, ir.GenericConst) for e in (self.scale, self.zero_point)):
            return None
        scale = self.scale.value.numpy()
        # Well inside the range of f32, so that no product or quotient overflows or is subnormal.
        if scale.dtype != np.float32 or not np.all((scale > 2.0**-100) & (scale < 2.0**100)):
            return None
        return scale, self.zero_point.value.numpy()

    def along(self, axis: int | None) -> Quantization:
        """This quantisation for a tensor whose quantised axis is `axis`."""
        return replace(self, axis=axis)

    def quantize(self, x: relax.Expr, dtype: str) -> relax.Expr:
        """A call that quantises a tensor by this quantisation."""
        axis = -1 if self.axis is None else self.axis
        return relax.op.quantize(x, self.scale, self.zero_point, axis=axis, out_dtype=dtype)

    def dequantize(self, q: relax.Expr, dtype: str) -> relax.Expr:
        """A call that dequantises a tensor by this quantisation."""
        axis = -1 if self.axis is None else self.axis
        return relax.op.dequantize(q, self.scale, self.zero_point, axis=axis, out_dtype=dtype)

    def saturates(self, low: float, high: float, dtype: str) -> bool:
        """Whether every x <= low becomes the type's smallest integer, every x >= high the largest.

        A clip to low..high before the quantisation then changes nothing.
        """
        known = self.known
        if known is None or dtype not in RANGES:
            return False
        scale, zero_point = known
        least, largest = RANGES[dtype]
        bounds = [np.rint(np.float32(bound) / scale) + zero_point for bound in (low, high)]
        return bool(np.all(bounds[0] <= least) and np.all(bounds[1] >= largest))


@dataclass(frozen=True)
class Quantized:
    """A float tensor in the form of quantised integers.

    Attributes
    ----------
    data : relax.Expr
        The integers.
    quantization : Quantization
        Their scale and zero point.
    dtype : str
        Element type of the float tensor.
    """

    data: relax.Expr
    quantization: Quantization
    dtype: str

    @property
    def data_dtype(self) -> str:
        """Element type of the integers."""
        return str(self.data.ty.dtype)

    def dequantize(self) -> relax.Expr:
        """A call that gives the float tensor."""
        return self.quantization.dequantize(self.data, self.dtype)


def read_dequantize(call: relax.Expr | None) -> Quantized | None:
    """The tensor that R.dequantize dequantises; None for other calls and types."""
    if not is_call(call, "relax.dequantize"):
        return None
    quantization = _read(call)
    if quantization is None or str(call.args[0].ty.dtype) not in _TYPES:
        return None
    return Quantized(call.args[0], quantization, str(call.ty.dtype))


def read_quantize(call: relax.Expr) -> Quantization | None:
    """The quantisation of an R.quantize to 8 bits; None for any other call."""
    if not is_call(call, "relax.quantize") or str(call.ty.dtype) not in RANGES:
        return None
    return _read(call)


def _read(call: relax.Call) -> Quantization | None:
    tensors = [region_tensor(arg) for arg in call.args[1:3]]
    rank = int(call.args[0].ty.ndim)
    if rank < 0 or any(tensor is None for tensor in tensors):
        return None
    scale, zero_point = (_compact(arg) for arg in call.args[1:3])
    along = known_tensor(scale).size != 1 or known_tensor(zero_point).size != 1
    return Quantization(scale, zero_point, int(call.attrs.axis) % rank if along else None)


def _compact(expr: relax.Expr) -> relax.Expr:
    """A constant whose elements are all equal, as one number."""
    if not isinstance(expr, ir.GenericConst):
        return expr
    array = expr.value.numpy()
    if array.shape == () or array.size == 0 or np.any(array != array.flat[0]):
        return expr
    return relax.const(array.flat[0], str(expr.ty.dtype))


def _key(expr: relax.Expr) -> Hashable:
    if not isinstance(expr, ir.GenericConst):
        return expr
    array = expr.value.numpy()
    return str(array.dtype), array.shape, array.tobytes()


# Zero points: an 8-bit integer q means the number (q - z) * s. What passes compute with q - z:
#
#     sum_k (a - za) * sa * (w - zw) * sw  =  sa * sw * sum_k (a - za) * (w - zw)
#     sum_n (q - z) * s                    =  s * (sum_n q - n * z)
#     |q - z|  <=  largest(q)
#
# So products and sums are sums of integers, exact in any order, and scaled once. How a kernel
# computes -128..127 with 0..255 is in tir_schedules.product.zero_points.


LIMIT = 2**31
"""32-bit sums must have a smaller magnitude."""


def centred(emit: Emit, q: relax.Expr, zero_point: relax.Expr | None) -> relax.Expr:
    """Writes q - z as int32; without the subtraction if there is no zero point, or it is 0.

    Parameters
    ----------
    emit : callable
        Emits every operator.
    q : relax.Expr
        Integers.
    zero_point : relax.Expr or None
        z, in a shape that broadcasts to the shape of q.
    """
    wide = emit(relax.op.astype(q, "int32"))
    if zero_point is None:
        return wide
    if not isinstance(zero_point, ir.GenericConst):
        return emit(relax.op.subtract(wide, emit(relax.op.astype(zero_point, "int32"))))
    zeros = zero_point.value.numpy().astype(np.int32)
    return emit(relax.op.subtract(wide, relax.const(zeros))) if zeros.any() else wide


def known_centred(quantized: Quantized) -> np.ndarray | None:
    """Constant integers minus their zero points, int32; None if one of both is not constant."""
    zero_point = quantized.quantization.zero_point
    if not all(isinstance(each, ir.GenericConst) for each in (quantized.data, zero_point)):
        return None
    zeros = _along(zero_point.value.numpy(), quantized)
    return np.asarray(array_of(quantized.data.value).astype(np.int32) - zeros.astype(np.int32))


def known_value(quantized: Quantized) -> np.ndarray | None:
    """The f32 numbers of constant integers, rounded as the operator rounds; None if integers,
    scales or zero points are not constant, or scales are extreme."""
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
    """Largest possible magnitude of q - z."""
    low, high = RANGES[quantized.data_dtype]
    zero_point = quantized.quantization.zero_point
    if not isinstance(zero_point, ir.GenericConst):
        return high - low
    zeros = zero_point.value.numpy().astype(np.int64)
    if isinstance(quantized.data, ir.GenericConst):
        values = array_of(quantized.data.value)
        low, high = int(values.min(initial=high)), int(values.max(initial=low))
    return int(max(abs(high - zeros.min()), abs(low - zeros.max())))


def largest_sums(a: Quantized, weights: np.ndarray, channels: int) -> np.ndarray:
    """For each channel, a bound for the magnitude of sums of products.

    Parameters
    ----------
    a : Quantized
        The factor that is not constant.
    weights : numpy.ndarray
        The constant integers minus their zero points.
    channels : int
        The axis of `weights` for the result's channels; all other axes are summed over.
    """
    others = tuple(axis for axis in range(weights.ndim) if axis != channels)
    return np.abs(weights).sum(axis=others, dtype=np.int64) * largest(a)


# Permutes constants at compile time, also through dequantisation, casts and reshapes.
#
# Before
#
#     lv = R.dequantize(const_w, scale, zero_point, axis=0)       # OIHW
#     lv1 = R.permute_dims(lv, [2, 3, 1, 0])
#
# After
#
#     lv1 = R.dequantize(const_w', scale, zero_point, axis=3)     # HWIO


def is_transposable(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether an expression is computed from constants by casts, dequantisation and arithmetic."""
    if static_tensor(expr) is None:
        return False
    if isinstance(expr, ir.GenericConst):
        return True
    call = graph.definition(expr)
    if call is None:
        return False
    if read_dequantize(call) is not None or view_axes(call) is not None:
        return is_transposable(graph, call.args[0])
    arity = ELEMENTWISE.get(op_name(call), 0)
    return arity > 0 and all(is_transposable(graph, arg) for arg in call.args[:arity])


def transposed(
    graph: DataflowGraph, expr: relax.Expr, order: tuple[int, ...], trims: bool, block: Bindings
) -> relax.Expr:
    """An expression for which `is_transposable`, with its axes in another order.

    Parameters
    ----------
    graph : DataflowGraph
        The block that defines it.
    expr : relax.Expr
        An expression for which `is_transposable`.
    order : tuple of int
        The source axis for each axis of the result. If the expression has fewer axes, leading axes
        of extent 1 are added first.
    trims : bool
        Whether leading axes of extent 1 may be dropped from the result.
    block : Bindings
        Receives the operators that remain.
    """
    tensor = known_tensor(expr)
    missing = len(order) - len(tensor.shape)
    axes: Axes = tuple(axis - missing if axis >= missing else None for axis in order)
    while trims and axes and (axes[0] is None or tensor.shape[axes[0]] == 1):
        axes = axes[1:]
    return with_axes(graph, expr, axes, block)


def with_axes(graph: DataflowGraph, expr: relax.Expr, axes: Axes, block: Bindings) -> relax.Expr:
    """An expression with other axes, permuted at compile time if it is constant.

    Parameters
    ----------
    graph, expr, block
        As for `transposed`.
    axes : tuple of (int or None)
        As in `AxisView`: None adds an axis of extent 1; axes that are left out must have extent 1.
    """
    if isinstance(expr, ir.GenericConst) or not is_transposable(graph, expr):
        view = identity(expr)
        assert view is not None
        made = AxisView(expr, view.source_shape, axes).emit(block)
        return block.emit(made) if isinstance(made, relax.Call) else made
    call = graph.definition(expr)
    assert isinstance(call, relax.Call)
    seen = view_axes(call)
    if seen is not None:
        inner = tuple(None if axis is None else seen[axis] for axis in axes)
        return with_axes(graph, call.args[0], inner, block)
    read = read_dequantize(call)
    if read is not None:
        data = with_axes(graph, read.data, axes, block)
        axis = read.quantization.axis
        along = None if axis is None else axes.index(axis)
        return block.emit(read.quantization.along(along).dequantize(data, read.dtype))
    arity = ELEMENTWISE[op_name(call)]
    rank = int(expr.ty.ndim)
    parts = []
    for arg in call.args[:arity]:
        missing = rank - int(arg.ty.ndim)
        aligned = (None if axis is None or axis < missing else axis - missing for axis in axes)
        parts.append(with_axes(graph, arg, tuple(aligned), block))
    return block.emit(with_args(call, [*parts, *call.args[arity:]]))
