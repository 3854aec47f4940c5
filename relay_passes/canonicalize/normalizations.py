"""Normalisations: recognised in written-out form, or decomposed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from relay_passes.ir.algebra import ONE, Polynomial, expand, in_shape, uniform_constant
from relay_passes.ir.axes import reduced_axes
from relay_passes.ir.constants import array_of, constant_of
from relay_passes.ir.graph import (
    DataflowGraph,
    downstream,
    is_call,
    is_f32,
    op_name,
    region_tensor,
    same_shape,
    scalar_constant,
    static_tensor,
)
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import ITEM, RuleGraph, rule
from tir_schedules.core.size import is_dynamic

_DATA, _SPREAD = "data", "spread"
_OUTSIDE = 6  # most operators after the sum with epsilon


@rule("relax.add")
def recognize_norms(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Recognises written-out layer normalisation and RMS normalisation.

    Before

        lv = R.power(x, R.const(2.0))
        lv1 = R.mean(lv, axis=[-1], keepdims=True)
        lv2 = R.add(lv1, R.const(1e-6))
        lv3 = R.sqrt(lv2)
        lv4 = R.divide(R.const(1.0), lv3)
        lv5 = R.multiply(x, lv4)
        gv = R.multiply(weight, lv5)

    After

        gv = R.nn.rms_norm(x, weight, axes=[-1], epsilon=1e-6)

    With x - mean(x) instead of x it is R.nn.layer_norm, with a shift if one is added. Scale and
    shift may be missing, constants or values; factors may be in any order, and the root may be sqrt
    and a division, rsqrt, or a power.
    """
    spread = _spread(graph, block.var, call)
    if spread is None:
        return None
    for var in reversed(downstream(graph, spread.var, _OUTSIDE)):
        found = _norm(graph, spread, var) if same_shape(var, spread.x) else None
        if found is not None:
            block.at(var)
            return found
    return None


@dataclass(frozen=True)
class _Spread:
    """A variance, or a mean square, plus epsilon: the value under the root.

    Attributes
    ----------
    var : relax.Var
        The sum of the variance or mean square and epsilon.
    x : relax.Expr
        The value that is normalised.
    axis : int
        The first normalised axis; all later axes are normalised, too.
    epsilon : float
        The added number, at least 0.
    centered : bool
        Whether it is a variance, not a mean square.
    """

    var: relax.Var
    x: relax.Expr
    axis: int
    epsilon: float
    centered: bool


def _spread(graph: DataflowGraph, var: relax.Var, call: relax.Call) -> _Spread | None:
    """Reads a sum as a variance or mean square plus epsilon; None if it is neither."""
    if not is_f32(var):
        return None
    for mean, constant in (call.args, reversed(call.args)):
        epsilon = scalar_constant(constant)
        if epsilon is None or epsilon < 0:
            continue
        variance = graph.definition(mean)
        axis = _trailing_axis(variance)
        if axis is None:
            continue
        assert variance is not None
        if op_name(variance) == "relax.variance":
            return _Spread(var, variance.args[0], axis, epsilon, centered=True)
        square = graph.definition(variance.args[0])
        twice = is_call(square, "relax.multiply") and square.args[0].same_as(square.args[1])
        power = is_call(square, "relax.power") and scalar_constant(square.args[1]) == 2.0
        if square is None or not (is_call(square, "relax.square") or twice or power):
            continue
        x = _centered(graph, square.args[0], axis)
        squared = square.args[0] if x is None else x
        return _Spread(var, squared, axis, epsilon, centered=x is not None)
    return None


def _trailing_axis(reduction: relax.Expr | None) -> int | None:
    """The first axis of a reduction over it and all later axes, kept with extent 1; else None."""
    if not is_call(reduction, "relax.mean", "relax.variance"):
        return None
    source = region_tensor(reduction.args[0])
    if source is None or not reduction.attrs.keepdims or source.dtype != "float32":
        return None
    rank = len(source.shape)
    axes = reduced_axes(reduction)
    return axes[0] if axes and axes == list(range(axes[0], rank)) else None


def _centered(graph: DataflowGraph, expr: relax.Expr, axis: int) -> relax.Expr | None:
    """x, if an expression is x - mean(x); else None."""
    call = graph.definition(expr)
    if not is_call(call, "relax.subtract"):
        return None
    x, mean = call.args[0], graph.definition(call.args[1])
    if not is_call(mean, "relax.mean") or _trailing_axis(mean) != axis:
        return None
    return x if mean.args[0].same_as(x) else None


def _norm(graph: DataflowGraph, spread: _Spread, var: relax.Var) -> relax.Expr | None:
    """A value as a normalisation; None if it is none."""

    def atom_of(expr: relax.Expr) -> str | None:
        if expr.same_as(spread.var):
            return _SPREAD
        if not spread.centered:
            return _DATA if expr.same_as(spread.x) else None
        x = _centered(graph, expr, spread.axis) if isinstance(expr, relax.Var) else None
        return _DATA if x is not None and x.same_as(spread.x) else None

    weights = _weights(expand(graph, var, atom_of))
    tensor = region_tensor(spread.x)
    if weights is None or tensor is None or (not spread.centered and weights[1] != (0.0, None)):
        return None
    shape = tensor.shape[spread.axis :]
    if is_dynamic(shape):
        return None
    scale, shift = (_as_weight(number, value, shape) for number, value in weights)
    if scale is None or shift is None:
        return None
    axes = list(range(spread.axis - len(tensor.shape), 0))
    if spread.centered:
        return relax.op.nn.layer_norm(spread.x, scale, shift, axes, spread.epsilon)
    return relax.op.nn.rms_norm(spread.x, scale, axes, spread.epsilon)


_Weight = tuple[float, "relax.Expr | None"]


def _weights(polynomial: Polynomial) -> tuple[_Weight, _Weight] | None:
    """(scale, shift) of data / sqrt(spread) * scale + shift, each number * value; else None."""
    scale: _Weight | None = None
    shift: _Weight = (0.0, None)
    for term, number in polynomial.items():
        exponents = dict(term)
        data, spread = exponents.pop(_DATA, 0.0), exponents.pop(_SPREAD, 0.0)
        values = list(exponents)
        if len(values) > 1 or any(exponent != 1.0 for exponent in exponents.values()):
            return None
        value = values[0] if values else None
        assert value is None or isinstance(value, relax.Expr)
        if (data, spread) == (1.0, -0.5) and scale is None:
            scale = (number, value)
        elif (data, spread) == (0.0, 0.0) and shift == (0.0, None) and term != ONE:
            shift = (number, value)
        elif term == ONE and shift == (0.0, None):
            shift = (number, None)
        else:
            return None
    return None if scale is None else (scale, shift)


def _as_weight(
    number: float, value: relax.Expr | None, shape: tuple[int, ...]
) -> relax.Expr | None:
    """A number times a value as a tensor of the normalised shape; None if that is impossible."""
    if value is None:
        return relax.const(np.full(shape, number, "float32"))
    tensor = region_tensor(value)
    if tensor is None or tensor.dtype != "float32":
        return None
    extra = max(0, len(tensor.shape) - len(shape))
    if math.prod(tensor.shape[:extra]) != 1:
        return None
    if isinstance(value, ir.GenericConst):
        array = value.value.numpy().reshape(tensor.shape[extra:]) * np.float32(number)
        if any(e not in (1, f) for e, f in zip(array.shape[::-1], shape[::-1], strict=False)):
            return None
        return relax.const(np.ascontiguousarray(np.broadcast_to(array, shape), "float32"))
    if tensor.shape != shape or number != 1.0:
        return None
    return value


_FLOATS = ("float32", "float64")


@rule(ITEM)
def decompose_batch_norm(graph: RuleGraph, block: Bindings, value: relax.Expr) -> relax.Expr | None:
    """Decomposes a batch normalisation for inference: one factor and one term per channel.

    Before

        lv = R.nn.batch_norm(x, gamma, beta, mean, variance, axis=1, training=False)
        gv = lv[0]

    After

        lv = R.multiply(x, const_scale)     # gamma / sqrt(variance + epsilon), [C, 1, 1]
        gv = R.add(lv, const_shift)         # beta - mean * scale

    Constants are combined in float64 and rounded once; `fold_factors` then folds them. Statistics
    known only at run time are combined by operators. Running statistics, lv[1] and lv[2], become
    the given ones. A normalisation for training stays.
    """
    call = graph.definition(value.tuple_value)
    if not is_call(call, "relax.nn.batch_norm") or bool(call.attrs.training):
        return None
    if value.index > 0:
        return call.args[2 + value.index]
    tensor = region_tensor(call.args[0])
    if tensor is None or tensor.dtype not in _FLOATS:
        return None
    if any(str(arg.ty.dtype) != tensor.dtype for arg in call.args):
        return None
    axis = int(call.attrs.axis) % len(tensor.shape)
    channels = static_tensor(call.args[3])
    if channels is None:
        return None
    shape = (*channels.shape, *(1 for _ in tensor.shape[axis + 1 :]))
    scale, shift = _factors(block, call)
    product = relax.op.multiply(call.args[0], in_shape(block, scale, shape))
    return relax.op.add(block.emit(product), in_shape(block, shift, shape))


def _factors(block: Bindings, call: relax.Call) -> tuple[relax.Expr, relax.Expr]:
    """The factors and the terms of the channels."""
    attrs = call.attrs
    if all(isinstance(each, ir.GenericConst) for each in call.args[1:]):
        arrays = [array_of(each.value) for each in call.args[1:]]
        kind = arrays[0].dtype
        scale, shift, average, spread = (each.astype(np.float64) for each in arrays)
        with np.errstate(all="ignore"):  # a bad variance gives NaN, as it would at run time
            root = np.sqrt(spread + float(attrs.epsilon))
            scale = (scale if bool(attrs.scale) else np.ones_like(scale)) / root
        shift = (shift if bool(attrs.center) else np.zeros_like(shift)) - average * scale
        return constant_of(scale.astype(kind)), constant_of(shift.astype(kind))
    gamma, beta, mean, variance = call.args[1:]
    dtype = str(variance.ty.dtype)
    under = relax.op.add(variance, relax.const(float(attrs.epsilon), dtype))
    above = gamma if bool(attrs.scale) else relax.const(1.0, dtype)
    factor = block.emit(relax.op.divide(above, block.emit(relax.op.sqrt(block.emit(under)))))
    term = block.emit(relax.op.negative(block.emit(relax.op.multiply(mean, factor))))
    if bool(attrs.center):
        term = block.emit(relax.op.add(beta, term))
    return factor, term


@rule("relax.nn.group_norm")
def decompose_group_norm(_graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Decomposes a group normalisation: a layer normalisation of rows, and per-channel numbers.

    Before

        gv = R.nn.group_norm(x, gamma, beta, num_groups=4, channel_axis=1, axes=[2, 3])
                                                        # x: [N, 16, H, W]
    After

        lv = R.reshape(x, R.shape([N, 4, 4 * H * W]))
        lv1 = R.nn.layer_norm(lv, ones, zeros, axes=[-1])
        lv2 = R.reshape(lv1, R.shape([N, 16, H, W]))
        lv3 = R.multiply(lv2, gamma')                   # [16, 1, 1]
        gv = R.add(lv3, beta')

    Rows have a template. Factors that are all 1 and terms that are all 0 are dropped. Only for
    static shapes, with channels right after the batch, over all axes after the channels.
    """
    x, gamma, beta = call.args
    tensor, attrs = static_tensor(x), call.attrs
    if tensor is None or tensor.dtype != "float32" or len(tensor.shape) < 3:
        return None
    rank = len(tensor.shape)
    axes = sorted(int(axis) % rank for axis in attrs.axes)
    if int(attrs.channel_axis) % rank != 1 or axes != list(range(2, rank)):
        return None
    groups, (batch, channels, *spatial) = int(attrs.num_groups), tensor.shape
    row = channels // groups * math.prod(spatial)
    ones, zeros = np.ones(row, np.float32), np.zeros(row, np.float32)
    rows = block.emit(relax.op.reshape(x, (batch, groups, row)))
    normal = relax.op.nn.layer_norm(
        rows, constant_of(ones), constant_of(zeros), [-1], float(attrs.epsilon)
    )
    result: relax.Expr = relax.op.reshape(block.emit(normal), tensor.shape)
    shape = (channels, *(1 for _ in spatial))
    if bool(attrs.scale) and uniform_constant(gamma) != 1.0:
        result = relax.op.multiply(block.emit(result), in_shape(block, gamma, shape))
    if bool(attrs.center) and uniform_constant(beta) != 0.0:
        result = relax.op.add(block.emit(result), in_shape(block, beta, shape))
    return result
