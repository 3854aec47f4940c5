"""Recognises layer normalisation and RMS normalisation where an exporter wrote them out.

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

With x - mean(x) in the place of x it is R.nn.layer_norm, with a shift if one is added. Scale and
shift may be missing, constants or values; factors may stand in any order, and the root may be
sqrt and a division, rsqrt, or a power.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from relay_passes.ir.algebra import ONE, Polynomial, expand
from relay_passes.ir.call_axes import reduced_axes
from relay_passes.ir.graph import (
    DataflowGraph,
    downstream,
    is_call,
    is_f32,
    op_name,
    region_tensor,
    same_shape,
    scalar_constant,
)
from relay_passes.ir.rewrite import Replacements, block_pass, replaced
from tir_schedules.core.size import is_open

_DATA, _SPREAD = "data", "spread"
_OUTSIDE = 6  # operators after the sum with epsilon, at most


def recognize_norms() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.recognize_norms", lambda graph: replaced(graph, _find(graph)))


@dataclass(frozen=True)
class _Spread:
    """A variance, or a mean square, plus epsilon: the value under the root.

    Attributes
    ----------
    var : relax.Var
        The sum with epsilon.
    x : relax.Expr
        What is normalised.
    axis : int
        The first normalised axis; all later ones are, too.
    epsilon : float
        At least 0.
    centered : bool
        Whether it is a variance.
    """

    var: relax.Var
    x: relax.Expr
    axis: int
    epsilon: float
    centered: bool


def _find(graph: DataflowGraph) -> Replacements:
    found: Replacements = {}
    for binding in graph.bindings:
        spread = _spread(graph, binding.var)
        if spread is None:
            continue
        for position in downstream(graph, spread.var, _OUTSIDE):
            var = graph.bindings[position].var
            if same_shape(var, spread.x):
                call = _norm(graph, spread, var)
                if call is not None:
                    found[position] = call
    return found


def _spread(graph: DataflowGraph, var: relax.Var) -> _Spread | None:
    """The value as a variance or mean square plus epsilon."""
    call = graph.definition(var)
    if not is_call(call, "relax.add") or not is_f32(var):
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
        squared = _square_root(graph, variance.args[0])
        if op_name(variance) != "relax.mean" or squared is None:
            continue
        x = _centered(graph, squared, axis)
        if x is not None:
            return _Spread(var, x, axis, epsilon, centered=True)
        return _Spread(var, squared, axis, epsilon, centered=False)
    return None


def _trailing_axis(reduction: relax.Expr | None) -> int | None:
    """The first axis of a reduction over all later ones, too, that keeps them as 1."""
    if not is_call(reduction, "relax.mean", "relax.variance"):
        return None
    source = region_tensor(reduction.args[0])
    if source is None or not reduction.attrs.keepdims or source.dtype != "float32":
        return None
    rank = len(source.shape)
    axes = reduced_axes(reduction)
    return axes[0] if axes and axes == list(range(axes[0], rank)) else None


def _square_root(graph: DataflowGraph, expr: relax.Expr) -> relax.Expr | None:
    """x, of an expression that is x * x."""
    call = graph.definition(expr)
    name = op_name(call)
    if call is None:
        return None
    if name == "relax.square":
        return call.args[0]
    if name == "relax.multiply" and call.args[0].same_as(call.args[1]):
        return call.args[0]
    if name == "relax.power" and scalar_constant(call.args[1]) == 2.0:
        return call.args[0]
    return None


def _centered(graph: DataflowGraph, expr: relax.Expr, axis: int) -> relax.Expr | None:
    """x, of an expression that is x - mean(x)."""
    call = graph.definition(expr)
    if not is_call(call, "relax.subtract"):
        return None
    x, mean = call.args[0], graph.definition(call.args[1])
    if not is_call(mean, "relax.mean") or _trailing_axis(mean) != axis:
        return None
    return x if mean.args[0].same_as(x) else None


def _norm(graph: DataflowGraph, spread: _Spread, var: relax.Var) -> relax.Expr | None:
    """A value as a normalisation, or None if it is none."""

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
    if is_open(shape):
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
    """(scale, shift) of data / sqrt(spread) * scale + shift, each a number times a value."""
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
    """A number times a value as a tensor of the normalised shape; None if it is not one."""
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
