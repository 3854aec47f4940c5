"""Reads and writes R.quantize and R.dequantize.

R.dequantize(q, scale, zero_point, axis)        q stands for scale * (q - zero_point)
R.quantize(x, scale, zero_point, axis)          the q that stands for the number nearest to x
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import ir, relax

from microkernels.base.arrays import RANGES
from tir_schedules.core.attributes import Attribute
from tir_schedules.rows.quantization_range import LEAST_SCALE

from .axes import Axes, AxisView, identity, view_axes
from .constants import array_of
from .functions import with_args
from .graph import (
    DataflowGraph,
    is_call,
    known_tensor,
    op_name,
    region_tensor,
    scalar_constant,
    static_tensor,
)
from .rewrite import Bindings, Emit
from .traits import ELEMENTWISE

_TYPES = (*RANGES, "uint16", "int16", "int32")


@dataclass(frozen=True)
class Quantization:
    """Scale and zero point of a tensor.

    Attributes
    ----------
    scale, zero_point : relax.Expr
        Of one element; or of one axis, one element for each index along `axis`.
    axis : int or None
        None if both have one element only.
    """

    scale: relax.Expr
    zero_point: relax.Expr
    axis: int | None

    @property
    def key(self) -> Hashable:
        """Equal for quantisations that are known to be the same."""
        return _key(self.scale), _key(self.zero_point), self.axis

    @property
    def known(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Scale and zero point if they are constants, and every scale is an ordinary positive
        number."""
        if not all(isinstance(e, ir.GenericConst) for e in (self.scale, self.zero_point)):
            return None
        scale = self.scale.value.numpy()
        # Well inside the range of f32, so that no product or quotient overflows or is subnormal.
        if scale.dtype != np.float32 or not np.all((scale > 2.0**-100) & (scale < 2.0**100)):
            return None
        return scale, self.zero_point.value.numpy()

    def along(self, axis: int | None) -> Quantization:
        """The same of a tensor whose quantised axis stands elsewhere."""
        return replace(self, axis=axis)

    def quantize(self, x: relax.Expr, dtype: str) -> relax.Expr:
        """The call that quantises a tensor so."""
        axis = -1 if self.axis is None else self.axis
        return relax.op.quantize(x, self.scale, self.zero_point, axis=axis, out_dtype=dtype)

    def dequantize(self, q: relax.Expr, dtype: str) -> relax.Expr:
        """The call that dequantises a tensor so."""
        axis = -1 if self.axis is None else self.axis
        return relax.op.dequantize(q, self.scale, self.zero_point, axis=axis, out_dtype=dtype)

    def saturates(self, low: float, high: float, dtype: str) -> bool:
        """Whether every x <= low becomes the least integer of a type, every x >= high the largest.

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
    """A float tensor as the integers that stand for it.

    Attributes
    ----------
    data : relax.Expr
        The integers.
    quantization : Quantization
        What they stand for.
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
        """The float tensor."""
        return self.quantization.dequantize(self.data, self.dtype)


def read_dequantize(call: relax.Expr | None) -> Quantized | None:
    """What a call of R.dequantize reads; None if it is none, or of other types than integers."""
    if not is_call(call, "relax.dequantize"):
        return None
    quantization = _read(call)
    if quantization is None or str(call.args[0].ty.dtype) not in _TYPES:
        return None
    return Quantized(call.args[0], quantization, str(call.ty.dtype))


def read_quantize(call: relax.Expr) -> Quantization | None:
    """How a call of R.quantize quantises; None if it is none, or to another type than 8 bits."""
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
    """A constant of equal elements as one number."""
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


# Zero points: 8-bit integers q stand for the numbers (q - z) * s. What passes compute with q - z.
#
#     sum_k (a - za) * sa * (w - zw) * sw  =  sa * sw * sum_k (a - za) * (w - zw)
#     sum_n (q - z) * s                    =  s * (sum_n q - n * z)
#     |q - z|  <=  largest(q)
#
# So products and sums are sums of integers, exact in any order, that are scaled once. How kernels
# add for -128..127 what they compute with 0..255 is in tir_schedules.product.zero_points.


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
    """Whether an expression is made of constants by casts, dequantisation and arithmetic."""
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
    """A turnable expression with its axes in another order.

    Parameters
    ----------
    graph : DataflowGraph
        Where it is defined.
    expr : relax.Expr
        For which `is_transposable`.
    order : tuple of int
        The axis for each axis of the result, after leading axes of extent 1 have been added where
        there are fewer.
    trims : bool
        Whether the result may do without leading axes of extent 1.
    block : Bindings
        Gets what is left to compute.
    """
    tensor = known_tensor(expr)
    missing = len(order) - len(tensor.shape)
    axes: Axes = tuple(axis - missing if axis >= missing else None for axis in order)
    while trims and axes and (axes[0] is None or tensor.shape[axes[0]] == 1):
        axes = axes[1:]
    return with_axes(graph, expr, axes, block)


def with_axes(graph: DataflowGraph, expr: relax.Expr, axes: Axes, block: Bindings) -> relax.Expr:
    """An expression with the given of its axes, made of constants at compile time if it can be.

    Parameters
    ----------
    graph, expr, block
        As for `transposed`.
    axes : tuple of (int or None)
        As those of an `AxisView`: None is a new one of extent 1, and those left out have extent 1.
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


# Dynamic quantisation of a tensor (DynamicQuantizeLinear): written and recognised in one place.
#
#     high = R.maximum(R.max(x), R.const(0.0))
#     low = R.minimum(R.min(x), R.const(0.0))
#     extent = R.subtract(high, low)
#     step = R.divide(extent, R.const(255.0))
#     scale = R.where(R.equal(step, R.const(0.0)), R.const(1.0), step)
#     zero_point = R.quantize(R.negative(low), scale, R.const(0, "uint8"), out_dtype="uint8")
#     q = R.quantize(x, scale, zero_point, out_dtype="uint8")
#
# This is ONNX's definition (operator DynamicQuantizeLinear): scale = (high - low) / 255,
# zero_point = saturate(round_half_even(0 - low / scale)), q = saturate(round_half_even(x / scale) +
# zero_point). ONNX does not define the result for a tensor of zeros, where low / 0 is NaN. Here its
# scale is 1 and its zero point 0, as in ONNX Runtime; also where the step underflows to 0.
# R.quantize rounds to even and saturates, so it does both roundings.
#
# torch has a least scale, and no other rule for zeros:
#
#     scale = R.maximum(step, R.const(eps))


LEVELS = 255.0


@dataclass(frozen=True)
class DynamicQuantize:
    """A recognised chain.

    Parameters
    ----------
    x
        What is quantised, float32.
    q, scale, zero_point
        The chain's results: uint8 of the shape of `x`, float32 [] and uint8 [].
    positions
        Positions of the chain's bindings, ascending; the last one makes `q`.
    least
        The least scale; None if zeros have scale 1.
    """

    x: relax.Expr
    q: relax.Var
    scale: relax.Var
    zero_point: relax.Var
    positions: tuple[int, ...]
    least: float | None = None

    @property
    def attributes(self) -> dict[str, Attribute]:
        """What a region says of how the range is found."""
        return {} if self.least is None else {LEAST_SCALE: self.least}


def scale_of(emit: Emit, extent: relax.Expr, least: float | None = None) -> relax.Expr:
    """Writes the part of the chain that makes the scale; the last operator is not bound yet."""
    step = emit(relax.op.divide(extent, _literal(np.float32(LEVELS))))
    if least is not None:
        return relax.op.maximum(step, _literal(np.float32(least)))
    empty = emit(relax.op.equal(step, _literal(np.float32(0))))
    return relax.op.where(empty, _literal(np.float32(1)), step)


def zero_point_of(emit: Emit, low: relax.Expr, scale: relax.Expr) -> relax.Expr:
    """Writes the part that makes the zero point; the last operator is not bound yet."""
    return _quantize(emit(relax.op.negative(low)), scale, _literal(np.uint8(0)))


def emit_dynamic_quantize(
    builder: relax.BlockBuilder, x: relax.Expr
) -> tuple[relax.Var, relax.Var, relax.Var]:
    """Writes the chain.

    Parameters
    ----------
    builder
        Its current block gets the bindings.
    x
        float32 of any shape.

    Returns
    -------
    q, scale, zero_point
        uint8 of the shape of `x`, float32 [] and uint8 [].
    """
    scale, zero_point = emit_dynamic_range(builder, x)
    return builder.emit(_quantize(x, scale, zero_point)), scale, zero_point


def emit_dynamic_range(
    builder: relax.BlockBuilder, x: relax.Expr, least: float | None = None
) -> tuple[relax.Var, relax.Var]:
    """Writes the chain without its end: `scale` and `zero_point` of `emit_dynamic_quantize`.

    With a least scale, that of torch.
    """
    emit, zero = builder.emit, _literal(np.float32(0))
    high = emit(relax.op.maximum(emit(relax.op.max(x)), zero))
    low = emit(relax.op.minimum(emit(relax.op.min(x)), zero))
    scale = emit(scale_of(emit, emit(relax.op.subtract(high, low)), least))
    return scale, emit(zero_point_of(emit, low, scale))


def match_dynamic_quantize(graph: DataflowGraph, position: int) -> DynamicQuantize | None:
    """The chain whose quantised tensor the binding at `position` makes, or None.

    The reductions may keep their dimensions away only, operands of maximum and minimum may stand in
    either order, and every intermediate value may have other users.
    """
    chain = ChainReader(graph)
    var = graph.bindings[position].var
    quantize = chain.call(var, "quantize")
    if quantize is None or str(quantize.attrs.out_dtype) != "uint8":
        return None
    x, scale, zero_point = quantize.args
    rounded = chain.call(zero_point, "quantize")
    if rounded is None or str(rounded.attrs.out_dtype) != "uint8":
        return None
    if not rounded.args[1].same_as(scale) or scalar_constant(rounded.args[2]) != 0.0:
        return None
    negated = chain.call(rounded.args[0], "negative")
    found = chain.step(scale)
    if negated is None or found is None:
        return None
    step, least = found
    extremes = chain.extremes(step.args[0])
    if extremes is None or not negated.args[0].same_as(extremes[1]) or not extremes[0].same_as(x):
        return None
    assert isinstance(scale, relax.Var) and isinstance(zero_point, relax.Var)
    return DynamicQuantize(x, var, scale, zero_point, tuple(sorted(set(chain.seen))), least)


class ChainReader:
    """Follows a chain upwards through a block.

    Attributes
    ----------
    graph : DataflowGraph
        The block.
    seen : list of int
        Positions of the bindings passed.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        self.graph = graph
        self.seen: list[int] = []

    def call(self, expr: relax.Expr | None, name: str) -> relax.Call | None:
        """The call that defines an expression, if it is one of that operator."""
        definition = None if expr is None else self.graph.definition(expr)
        if expr is None or not is_call(definition, f"relax.{name}"):
            return None
        self.seen.append(self.graph.position[expr])
        return definition

    def step(self, scale: relax.Expr) -> tuple[relax.Call, float | None] | None:
        """The division that makes a scale's step, and the least scale; None if it is no scale."""
        least, raised = None, self.call(scale, "maximum")
        if raised is not None:
            chosen, least = raised.args[0], scalar_constant(raised.args[1])
            if least is None:
                return None
        else:
            choice = self.call(scale, "where")
            if choice is None or scalar_constant(choice.args[1]) != 1.0:
                return None
            chosen = choice.args[2]
            empty = self.call(choice.args[0], "equal")
            if empty is None or not empty.args[0].same_as(chosen):
                return None
            if scalar_constant(empty.args[1]) != 0.0:
                return None
        step = self.call(chosen, "divide")
        if step is None or scalar_constant(step.args[1]) != LEVELS:
            return None
        return step, least

    def extremes(self, extent: relax.Expr) -> tuple[relax.Expr, relax.Expr] | None:
        """(x, low) if an expression is the largest of x and 0, less low, the smallest of these."""
        difference = self.call(extent, "subtract")
        if difference is None:
            return None
        high, low = difference.args
        above, below = self._extreme(high, "maximum", "max"), self._extreme(low, "minimum", "min")
        if above is None or below is None or not above.same_as(below):
            return None
        return above, low

    def _extreme(self, expr: relax.Expr, outer: str, inner: str) -> relax.Expr | None:
        """What the maximum (minimum) of all elements and 0 is taken of."""
        bound = self.call(expr, outer)
        if bound is None:
            return None
        rest = [operand for operand in bound.args if scalar_constant(operand) != 0.0]
        reduction = self.call(rest[0], inner) if len(rest) == 1 else None
        if reduction is None or reduction.attrs.axis is not None or reduction.attrs.keepdims:
            return None
        return reduction.args[0]


def ranges_in_place(
    graph: DataflowGraph,
) -> Iterator[tuple[relax.Var, tuple[relax.Expr, int, list[int]]]]:
    """Scales and zero points of the chains of a block, as `DataflowGraph.range_items` has them.

    The scale stands for the range, which is nowhere a tensor.
    """
    for position in range(len(graph.bindings)):
        chain = match_dynamic_quantize(graph, position)
        if chain is not None:
            positions = list(chain.positions[:-1])
            yield chain.scale, (chain.scale, 0, positions)
            yield chain.zero_point, (chain.scale, 1, positions)


def _quantize(x: relax.Expr, scale: relax.Expr, zero_point: relax.Expr) -> relax.Expr:
    return relax.op.quantize(x, scale, zero_point, axis=-1, out_dtype="uint8")


def _literal(value: np.generic | np.ndarray) -> ir.GenericConst:
    return relax.const(tvm.runtime.tensor(np.asarray(value)))
