"""Activations: elementwise functions, and the softmax family along an axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import relax

from microkernels.base.errors import ShapeError

from ... import expressions as ex
from ...expressions import OPSET, Expr
from ..graph.graph import CONTRIB_DOMAIN
from ..graph.kernels import reshaped_to
from ..graph.sizes import dims_of, product
from ..operators import SOFTMAX_ALONG_AXIS, apply, operator

_MISH_END = 20.0
# Default alpha and gamma of ONNX, and of ONNX Runtime.
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


operator("LeakyRelu")(lambda x, *, alpha=0.01: relax.op.nn.leakyrelu(x, alpha))
operator("Softplus")(relax.op.nn.softplus)
operator("Softsign")(lambda x: x / (relax.op.abs(x) + ex.number(x, 1)))


@operator("PRelu")
def _prelu(x: Expr, slope: Expr) -> Expr:
    """PRelu by one slope per element along an axis, else by a select between two products."""
    sizes, rank = dims_of(slope), ex.rank_of(x)
    axes = [axis for axis, size in enumerate(sizes) if getattr(size, "value", 0) != 1]
    if len(axes) < 2:
        axis = rank - len(sizes) + axes[0] if axes else rank - 1
        return relax.op.nn.prelu(x, relax.op.reshape(slope, (sizes[axes[0]] if axes else 1,)), axis)
    steep = ex.normalize(x * slope)
    return relax.op.where(x < ex.number(x, 0), steep, x)


@operator("Gelu")
def _gelu(x: Expr, *, approximate: str = "none") -> Expr:
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate={approximate!r} is neither none nor tanh")
    return (relax.op.nn.gelu_tanh if approximate == "tanh" else relax.op.nn.gelu)(x)


@operator("Mish")
def _mish(x: Expr) -> Expr:
    """x * tanh(log(1 + e)), e = exp(x), in float32 with one exponential."""
    if ex.dtype_of(x) != "float32":
        return x * relax.op.tanh(relax.op.nn.softplus(x))
    two = ex.number(x, 2)
    # From x = 20 on the factor of x is 1 in float32 (2 / w is below 2^-24 from x = 9 on).
    e = relax.op.exp(relax.op.minimum(x, ex.number(x, _MISH_END)))
    # tanh(log(1 + e)) = w / (w + 2), which keeps small results accurate.
    w = e * (e + two)
    return x * (w / (w + two))


@operator("Celu")
def _celu(x: Expr, *, alpha: float = 1.0) -> Expr:
    """Where(x < 0, alpha * (exp(x / alpha) - 1), x)"""
    return _exponential(x, x if alpha == 1 else x / ex.number(x, alpha), alpha)


@operator("Selu")
def _selu(x: Expr, *, alpha: float = _SELU_ALPHA, gamma: float = _SELU_GAMMA) -> Expr:
    return _exponential(x, x, alpha) * ex.number(x, gamma)


def _exponential(x: Expr, inner: Expr, alpha: float) -> Expr:
    """Where(x < 0, alpha * (exp(inner) - 1), x); positive x and NaN pass unchanged."""
    below = ex.emit(relax.op.exp(inner)) - ex.number(x, 1)  # emitted first, as in PyTorch's exports
    if alpha != 1:
        below = below * ex.number(x, alpha)
    return relax.op.where(x < ex.number(x, 0), below, x)


operator("Elu")(lambda x, *, alpha=1.0: _exponential(x, x, alpha))


@operator("ThresholdedRelu")
def _thresholded_relu(x: Expr, *, alpha: float = 1.0) -> Expr:
    return relax.op.where(x > ex.number(x, alpha), x, ex.number(x, 0))


@operator("Shrink")
def _shrink(x: Expr, *, lambd: float = 0.5, bias: float = 0.0) -> Expr:
    """Where(x < -lambd, x + bias, Where(x > lambd, x - bias, 0))"""
    moved, zero = ex.number(x, bias), ex.number(x, 0)
    upper = relax.op.where(x > ex.number(x, lambd), x - moved, zero)
    return relax.op.where(x < ex.number(x, -lambd), x + moved, upper)


@operator("HardSigmoid")
def _line(x: Expr, *, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    """alpha * x + beta clipped to 0..1, in operators that fold into a convolution before it."""
    line = x * ex.number(x, alpha) + ex.number(x, beta)
    return apply("Clip", line, min=0.0, max=1.0)


operator("HardSwish")(lambda x: x * _line(x, alpha=1 / 6))


# ONNX Runtime's operators; its Gelu equals the standard one.


def _biased_gelu(x: Expr, bias: Expr, *, approximate: str = "none") -> Expr:
    return apply("Gelu", x if bias is None else apply("Add", x, bias), approximate=approximate)


operator("Gelu", "BiasGelu", domain=CONTRIB_DOMAIN)(_biased_gelu)
operator("FastGelu", domain=CONTRIB_DOMAIN)(partial(_biased_gelu, approximate="tanh"))


@operator("QuickGelu", domain=CONTRIB_DOMAIN)
def _quick_gelu(x: Expr, *, alpha: float = 1.702) -> Expr:
    """x * sigmoid(alpha * x)"""
    return x * relax.op.sigmoid(x * ex.number(x, alpha))


def _along_axis(x: Expr, *, made: Callable[[Expr, int], Expr], **attrs: Any) -> Expr:
    """Applies `made` along an axis; before opset 13, along it and all later axes as one axis."""
    rank = ex.rank_of(x)
    if attrs.get(OPSET, SOFTMAX_ALONG_AXIS) >= SOFTMAX_ALONG_AXIS:
        return made(x, attrs.get("axis", -1))
    axis = attrs.get("axis", 1)
    if not -rank <= axis < rank:
        raise ShapeError(f"its axis {axis} is out of range for rank {rank}")
    if axis % rank == rank - 1:
        return made(x, -1)
    dims = dims_of(x)
    axis %= rank
    rows = reshaped_to(x, [*dims[:axis], product(dims[axis:])])
    return reshaped_to(made(rows, -1), dims)


def _hardmax(x: Expr, axis: int) -> Expr:
    """Hardmax as `argmax(x, axis) == arange(n)`, which chooses the first of equal elements."""
    dims = dims_of(x)
    axis %= len(dims)
    first = ex.cast(relax.op.argmax(x, axis, keepdims=True), "int32")
    places = relax.op.arange(0, dims[axis], 1, "int32")
    column = relax.ShapeExpr([dims[axis], *[1] * (len(dims) - 1 - axis)])
    chosen = relax.op.equal(first, relax.op.reshape(places, column))
    return relax.op.astype(chosen, ex.dtype_of(x))


operator("Hardmax")(partial(_along_axis, made=_hardmax))
operator("LogSoftmax")(partial(_along_axis, made=relax.op.nn.log_softmax))
operator("Softmax")(partial(_along_axis, made=relax.op.nn.softmax))
