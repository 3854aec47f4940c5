"""Activations: what follows a product, and what makes shares of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from microkernels.base.errors import ShapeError

from ... import expressions as ex
from ...expressions import OPSET, Attrs, Converter, Expr, Inputs
from ..apply import SOFTMAX_ALONG_AXIS, apply
from ..graph.graph import CONTRIB_DOMAIN
from ..graph.kernels import reshaped_to
from ..graph.sizes import dims_of, product
from ..operators import operator

_MISH_END = 20.0
# The defaults of ONNX, and of ONNX Runtime.
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _formula(
    *names: str, domain: str = "", **defaults: Any
) -> Callable[[Callable[..., Expr]], Callable[..., Expr]]:
    """Registers what is made of the first input and of attributes, which have these defaults."""

    def register(formula: Callable[..., Expr]) -> Callable[..., Expr]:
        def convert(inputs: Inputs, attrs: Attrs) -> Any:
            return formula(inputs[0], *(attrs.get(*each) for each in defaults.items()))

        operator(*names, domain=domain)(convert)
        return formula

    return register


_formula("LeakyRelu", alpha=0.01)(relax.op.nn.leakyrelu)
_formula("Softplus")(relax.op.nn.softplus)
_formula("Softsign")(lambda x: x / (relax.op.abs(x) + ex.number(x, 1)))


@operator("PRelu")
def _prelu(inputs: Inputs, attrs: Attrs) -> Any:
    """One slope for each element along an axis, or a choice between two products."""
    x, slope = inputs
    sizes, rank = dims_of(slope), ex.rank_of(x)
    axes = [axis for axis, size in enumerate(sizes) if getattr(size, "value", 0) != 1]
    if len(axes) < 2:
        axis = rank - len(sizes) + axes[0] if axes else rank - 1
        return relax.op.nn.prelu(x, relax.op.reshape(slope, (sizes[axes[0]] if axes else 1,)), axis)
    steep = ex.normalize(x * slope)
    return relax.op.where(x < ex.number(x, 0), steep, x)


@_formula("Gelu", approximate="none")
def _gelu(x: Expr, form: str) -> Expr:
    if form not in ("none", "tanh"):
        raise ValueError(f"approximate={form!r} is neither none nor tanh")
    return (relax.op.nn.gelu_tanh if form == "tanh" else relax.op.nn.gelu)(x)


@_formula("Mish")
def _mish(x: Expr) -> Expr:
    """x * tanh(log(1 + e)), e = exp(x), in float32 with one exponential.

    tanh(log(1 + e)) is w / (w + 2), w = e * (e + 2), and small results are as accurate as others.
    From x = 20 on it is 1 in float32 (2 / w is below 2^-24 from x = 9 on).
    """
    if ex.dtype_of(x) != "float32":
        return x * relax.op.tanh(relax.op.nn.softplus(x))
    two = ex.number(x, 2)
    e = relax.op.exp(relax.op.minimum(x, ex.number(x, _MISH_END)))
    w = e * (e + two)
    return x * (w / (w + two))


@_formula("Celu", alpha=1.0)
def _celu(x: Expr, alpha: float) -> Expr:
    """Where(x < 0, alpha * (exp(x / alpha) - 1), x)"""
    return _exponential(x, x if alpha == 1 else x / ex.number(x, alpha), alpha)


@_formula("Elu", alpha=1.0)
def _elu(x: Expr, alpha: float) -> Expr:
    """Where(x < 0, alpha * (exp(x) - 1), x)"""
    return _exponential(x, x, alpha)


@_formula("Selu", alpha=_SELU_ALPHA, gamma=_SELU_GAMMA)
def _selu(x: Expr, alpha: float, gamma: float) -> Expr:
    return _exponential(x, x, alpha) * ex.number(x, gamma)


def _exponential(x: Expr, inner: Expr, alpha: float) -> Expr:
    """Positive x stay as they are, and NaN too."""
    below = relax.op.exp(inner) - ex.number(x, 1)
    if alpha != 1:
        below = below * ex.number(x, alpha)
    return relax.op.where(x < ex.number(x, 0), below, x)


@_formula("ThresholdedRelu", alpha=1.0)
def _thresholded_relu(x: Expr, alpha: float) -> Expr:
    return relax.op.where(x > ex.number(x, alpha), x, ex.number(x, 0))


@_formula("Shrink", lambd=0.5, bias=0.0)
def _shrink(x: Expr, limit: float, bias: float) -> Expr:
    """Where(x < -lambd, x + bias, Where(x > lambd, x - bias, 0))"""
    moved, zero = ex.number(x, bias), ex.number(x, 0)
    upper = relax.op.where(x > ex.number(x, limit), x - moved, zero)
    return relax.op.where(x < ex.number(x, -limit), x + moved, upper)


@_formula("HardSigmoid", alpha=0.2, beta=0.5)
def _line(x: Expr, slope: float, start: float) -> Expr:
    """slope * x + start from 0 to 1, in operators that fold into a convolution before it."""
    line = x * ex.number(x, slope) + ex.number(x, start)
    return apply("Clip", line, min=0.0, max=1.0)


_formula("HardSwish")(lambda x: x * _line(x, 1 / 6, 0.5))


# ONNX Runtime's: Gelu has the meaning of the standard one.


def _biased_gelu(form: str) -> Converter:
    def convert(inputs: Inputs, attrs: Attrs) -> Any:
        x, bias = inputs[0], inputs[1]
        return apply("Gelu", x if bias is None else apply("Add", x, bias), approximate=form)

    return convert


operator("Gelu", "BiasGelu", domain=CONTRIB_DOMAIN)(_biased_gelu("none"))
operator("FastGelu", domain=CONTRIB_DOMAIN)(_biased_gelu("tanh"))


@_formula("QuickGelu", domain=CONTRIB_DOMAIN, alpha=1.702)
def _quick_gelu(x: Expr, alpha: float) -> Expr:
    """x * sigmoid(alpha * x)"""
    return x * relax.op.sigmoid(x * ex.number(x, alpha))


def _along_axis(made: Callable[[Expr, int], Expr]) -> Converter:
    """Along an axis; before opset 13 along all axes from one on, as one."""

    def convert(inputs: Inputs, attrs: Attrs) -> Any:
        x, rank = inputs[0], ex.rank_of(inputs[0])
        if attrs.get(OPSET, SOFTMAX_ALONG_AXIS) >= SOFTMAX_ALONG_AXIS:
            return made(x, attrs.get("axis", -1))
        axis = attrs.get("axis", 1)
        if not -rank <= axis < rank:
            raise ShapeError(f"its axis {axis} is none of an input of rank {rank}")
        if axis % rank == rank - 1:
            return made(x, -1)
        dims = dims_of(x)
        axis %= rank
        rows = reshaped_to(x, [*dims[:axis], product(dims[axis:])])
        return reshaped_to(made(rows, -1), dims)

    return convert


def _hardmax(x: Expr, axis: int) -> Expr:
    """argmax(x, 1): [n, 1] == arange(m); of equal elements the first one is chosen."""
    dims = dims_of(x)
    axis %= len(dims)
    first = ex.cast(relax.op.argmax(x, axis, keepdims=True), "int32")
    places = relax.op.arange(0, dims[axis], 1, "int32")
    column = relax.ShapeExpr([dims[axis], *[1] * (len(dims) - 1 - axis)])
    chosen = relax.op.equal(first, relax.op.reshape(places, column))
    return relax.op.astype(chosen, ex.dtype_of(x))


operator("Hardmax")(_along_axis(_hardmax))
operator("LogSoftmax")(_along_axis(relax.op.nn.log_softmax))
operator("Softmax")(_along_axis(relax.op.nn.softmax))
