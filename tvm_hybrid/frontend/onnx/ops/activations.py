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
_QUICK_ALPHA = 1.702


@operator("Softsign")
def _softsign(inputs: Inputs, attrs: Attrs) -> Any:
    x = inputs[0]
    below = ex.normalize(relax.op.add(ex.normalize(relax.op.abs(x)), ex.number(x, 1)))
    return relax.op.divide(x, below)


@operator("LeakyRelu")
def _leaky_relu(inputs: Inputs, attrs: Attrs) -> Any:
    return relax.op.nn.leakyrelu(inputs[0], attrs.get("alpha", 0.01))


@operator("PRelu")
def _prelu(inputs: Inputs, attrs: Attrs) -> Any:
    """One slope for each element along an axis, or a choice between two products."""
    x, slope = inputs
    sizes = dims_of(slope)
    rank = ex.rank_of(x)
    axes = [axis for axis, size in enumerate(sizes) if getattr(size, "value", 0) != 1]
    if len(axes) < 2:
        axis = rank - len(sizes) + axes[0] if axes else rank - 1
        size = sizes[axes[0]] if axes else 1
        return relax.op.nn.prelu(x, ex.normalize(relax.op.reshape(slope, (size,))), axis)
    zero = ex.number(x, 0)
    steep = ex.normalize(relax.op.multiply(x, slope))
    return relax.op.where(ex.normalize(relax.op.less(x, zero)), steep, x)


@operator("Gelu")
def _gelu(inputs: Inputs, attrs: Attrs) -> Any:
    form = attrs.get("approximate", "none")
    if form not in ("none", "tanh"):
        raise ValueError(f"approximate={form!r} is neither none nor tanh")
    return (relax.op.nn.gelu_tanh if form == "tanh" else relax.op.nn.gelu)(inputs[0])


@operator("Softplus")
def _softplus(inputs: Inputs, attrs: Attrs) -> Any:
    return relax.op.nn.softplus(inputs[0])


@operator("Mish")
def _mish(inputs: Inputs, attrs: Attrs) -> Any:
    """x * tanh(log(1 + e)), e = exp(x), in float32 with one exponential.

    tanh(log(1 + e)) is w / (w + 2), w = e * (e + 2), and small results are as accurate as others.
    From x = 20 on it is 1 in float32 (2 / w is below 2^-24 from x = 9 on).
    """
    x = inputs[0]
    if ex.dtype_of(x) != "float32":
        return relax.op.multiply(x, relax.op.tanh(relax.op.nn.softplus(x)))
    two = ex.number(x, 2)
    e = relax.op.exp(relax.op.minimum(x, ex.number(x, _MISH_END)))
    w = relax.op.multiply(e, relax.op.add(e, two))
    return relax.op.multiply(x, relax.op.divide(w, relax.op.add(w, two)))


@operator("Celu")
def _celu(inputs: Inputs, attrs: Attrs) -> Any:
    """Where(x < 0, alpha * (exp(x / alpha) - 1), x)"""
    x, alpha = inputs[0], attrs.get("alpha", 1.0)
    return _exponential(x, x if alpha == 1 else relax.op.divide(x, ex.number(x, alpha)), alpha)


@operator("Elu")
def _elu(inputs: Inputs, attrs: Attrs) -> Any:
    """Where(x < 0, alpha * (exp(x) - 1), x)"""
    return _exponential(inputs[0], inputs[0], attrs.get("alpha", 1.0))


@operator("Selu")
def _selu(inputs: Inputs, attrs: Attrs) -> Any:
    x = inputs[0]
    value = _exponential(x, x, attrs.get("alpha", _SELU_ALPHA))
    return relax.op.multiply(value, ex.number(x, attrs.get("gamma", _SELU_GAMMA)))


def _exponential(x: Expr, inner: Expr, alpha: float) -> Expr:
    """Positive x stay as they are, and NaN too."""
    below = relax.op.subtract(relax.op.exp(inner), ex.number(x, 1))
    if alpha != 1:
        below = relax.op.multiply(below, ex.number(x, alpha))
    return relax.op.where(relax.op.less(x, ex.number(x, 0)), below, x)


@operator("ThresholdedRelu")
def _thresholded_relu(inputs: Inputs, attrs: Attrs) -> Any:
    x = inputs[0]
    above = relax.op.greater(x, ex.number(x, attrs.get("alpha", 1.0)))
    return relax.op.where(above, x, ex.number(x, 0))


@operator("Shrink")
def _shrink(inputs: Inputs, attrs: Attrs) -> Any:
    """Where(x < -lambd, x + bias, Where(x > lambd, x - bias, 0))"""
    x, limit = inputs[0], attrs.get("lambd", 0.5)
    bias, zero = ex.number(x, attrs.get("bias", 0.0)), ex.number(x, 0)
    above = relax.op.greater(x, ex.number(x, limit))
    upper = relax.op.where(above, relax.op.subtract(x, bias), zero)
    below = relax.op.less(x, ex.number(x, -limit))
    return relax.op.where(below, relax.op.add(x, bias), upper)


@operator("HardSigmoid")
def _hard_sigmoid(inputs: Inputs, attrs: Attrs) -> Any:
    return _line(inputs[0], attrs.get("alpha", 0.2), attrs.get("beta", 0.5))


@operator("HardSwish")
def _hard_swish(inputs: Inputs, attrs: Attrs) -> Any:
    return relax.op.multiply(inputs[0], _line(inputs[0], 1 / 6, 0.5))


def _line(x: Expr, slope: float, start: float) -> Expr:
    """slope * x + start from 0 to 1, in operators that fold into a convolution before it."""
    line = relax.op.add(relax.op.multiply(x, ex.number(x, slope)), ex.number(x, start))
    return apply("Clip", ex.normalize(line), min=0.0, max=1.0)


# ONNX Runtime's: Gelu has the meaning of the standard one.


@operator("Gelu", "BiasGelu", domain=CONTRIB_DOMAIN)
def _bias_gelu(inputs: Inputs, attrs: Attrs) -> Any:
    return apply("Gelu", _biased(inputs))


@operator("FastGelu", domain=CONTRIB_DOMAIN)
def _fast_gelu(inputs: Inputs, attrs: Attrs) -> Any:
    return apply("Gelu", _biased(inputs), approximate="tanh")


def _biased(inputs: Inputs) -> Expr:
    return inputs[0] if inputs[1] is None else apply("Add", inputs[0], inputs[1])


@operator("QuickGelu", domain=CONTRIB_DOMAIN)
def _quick_gelu(inputs: Inputs, attrs: Attrs) -> Any:
    """x * sigmoid(alpha * x)"""
    x = inputs[0]
    gate = relax.op.sigmoid(relax.op.multiply(x, ex.number(x, attrs.get("alpha", _QUICK_ALPHA))))
    return relax.op.multiply(x, gate)


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
        return reshaped_to(ex.normalize(made(rows, -1)), dims)

    return convert


def _hardmax(x: Expr, axis: int) -> Expr:
    """argmax(x, 1): [n, 1] == arange(m); of equal elements the first one is chosen."""
    dims = dims_of(x)
    axis %= len(dims)
    first = ex.normalize(relax.op.argmax(x, axis, keepdims=True))
    places = relax.op.arange(0, dims[axis], 1, "int32")
    column = relax.ShapeExpr([dims[axis], *[1] * (len(dims) - 1 - axis)])
    chosen = relax.op.equal(ex.cast(first, "int32"), relax.op.reshape(places, column))
    return relax.op.astype(chosen, ex.dtype_of(x))


operator("Hardmax")(_along_axis(_hardmax))
operator("LogSoftmax")(_along_axis(relax.op.nn.log_softmax))
operator("Softmax")(_along_axis(relax.op.nn.softmax))
