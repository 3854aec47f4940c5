"""NumPy versions of operators that ONNX's reference evaluator lacks, or has slow or inexact.

Each function takes the inputs of an operator, and its attributes by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

from ...frontend.onnx.graph.graph import CONTRIB_DOMAIN
from ...frontend.onnx.ops.quantized import unpack
from ...frontend.onnx.ops.resize_taps import Resizing, axis_taps
from .windows import average_pool, conv, conv_transpose, convolved, max_pool, per_channel, wide_type


def matmul(a: Any, b: Any) -> np.ndarray:
    """MatMul; integer products wrap around, as in NumPy."""
    if a.dtype.kind in "iu":
        return np.asarray(a @ b)
    wide = wide_type(a.dtype)
    return np.asarray(a.astype(wide, copy=False) @ b.astype(wide, copy=False), a.dtype)


def gemm(
    a: Any, b: Any, c: Any = None, *, alpha: Any, beta: Any, transA: Any, transB: Any, **_: Any
) -> np.ndarray:
    """Gemm."""
    wide = a.dtype if a.dtype.kind in "iu" else wide_type(a.dtype)
    left, right = a.T if transA else a, b.T if transB else b
    result = (left.astype(wide, copy=False) @ right.astype(wide, copy=False)) * _of(wide, alpha)
    if c is not None:
        result = result + c.astype(wide) * _of(wide, beta)
    return np.asarray(result, a.dtype)


def _of(dtype: Any, number: float) -> Any:
    return np.asarray(number).astype(dtype)


def conv_integer(x: Any, w: Any, x_zero: Any = None, w_zero: Any = None, **form: Any) -> np.ndarray:
    """ConvInteger, with int32 results."""
    x, w = x.astype(np.int32), w.astype(np.int32)
    if x_zero is not None:
        x = x - np.int32(x_zero.item())
    if w_zero is not None:
        w = w - per_channel(w_zero.astype(np.int32), w.ndim, 0)
    return convolved(x, w, **form).astype(np.int64).astype(np.int32)


def qlinear_conv(*inputs: Any, **form: Any) -> np.ndarray:
    """QLinearConv, rounded to nearest even and saturated."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = inputs
    sums = conv_integer(x, w, x_zero, w_zero, **form)
    if bias and bias[0] is not None:
        sums = sums + per_channel(bias[0], x.ndim)
    factors = per_channel(x_scale.item() * w_scale.reshape(-1) / y_scale.item(), x.ndim)
    values = np.rint(sums.astype(np.float32) * factors.astype(np.float32)) + int(y_zero.item())
    limits = np.iinfo(y_zero.dtype)
    return np.asarray(np.clip(values, limits.min, limits.max), y_zero.dtype)


def matmul_integer(a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> np.ndarray:
    """MatMulInteger, with int32 results."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    if a_zero is not None:
        left = left - (a_zero.astype(np.float64)[..., None] if a_zero.ndim else a_zero)
    if b_zero is not None:
        right = right - (b_zero[..., None, :].astype(np.float64) if b_zero.ndim else b_zero)
    return np.asarray(left @ right).astype(np.int64).astype(np.int32)


def matmul_nbits(*inputs: Any, K: int, N: int, block_size: int, **form: Any) -> np.ndarray:
    """MatMulNBits in float32, regardless of accuracy_level."""
    x, packed, scales, zeros, order, bias, *_ = (*inputs, None, None, None)
    bits = form.get("bits", 4)
    if order is not None:
        raise NotImplementedError("rows in another order (g_idx)")
    blocks = -(-K // block_size)
    middle: Any = np.float32(1 << (bits - 1))
    if zeros is not None and zeros.dtype == np.uint8:
        middle = unpack(zeros.reshape(N, -1), bits)[:, :blocks, None].astype(np.float32)
    elif zeros is not None:
        middle = zeros.reshape(N, blocks, 1).astype(np.float32)
    numbers = unpack(packed, bits).reshape(N, blocks, block_size).astype(np.float32)
    weight = (numbers - middle) * scales.reshape(N, blocks, 1).astype(np.float32)
    result = x.astype(np.float32, copy=False) @ weight.reshape(N, -1)[:, :K].T
    return np.asarray(result if bias is None else result + bias, x.dtype)


def erf(x: np.ndarray) -> np.ndarray:
    """Erf with a relative error of erfc below 1.2e-7.

    Press et al., "Numerical Recipes in C", second edition, section 6.2, `erfcc`.
    """
    value = np.abs(x).astype(np.float64)
    t = 1 / (1 + 0.5 * value)
    polynomial = functools.reduce(lambda total, factor: total * t + factor, _ERFC)
    rest = t * np.exp(polynomial - value * value)
    return np.asarray(np.copysign(1 - rest, x), x.dtype)


# Coefficients, from the highest power down.
_ERFC = (
    *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
    *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
)


def resize(
    x: np.ndarray, scales: Any, sizes: Any, how: Resizing, axes: Sequence[int]
) -> np.ndarray:
    """Resize by scales or to sizes, one axis after the other."""
    result: Any = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    for place, axis in enumerate(axes):
        extent = x.shape[axis]
        by_size = scales is None or not len(scales)
        outputs = int(sizes[place]) if by_size else int(extent * np.float32(scales[place]))
        scale = outputs / extent if by_size else float(scales[place])
        taps = axis_taps(how, extent, outputs, scale)
        if taps.is_identity:
            continue
        shape = [-1 if each == axis else 1 for each in range(x.ndim)]
        result = sum(
            np.take(result, index, axis) * weight.reshape(shape)
            for index, weight in zip(taps.index.T, taps.weight.T, strict=True)
        )
    if x.dtype.kind not in "iu":
        return np.asarray(result, x.dtype)
    limits = np.iinfo(x.dtype)
    return np.clip(np.rint(result), limits.min, limits.max).astype(x.dtype)


def _class(name: str, run: Callable[..., np.ndarray], domain: str = "") -> type:
    """Makes a class that the evaluator finds by the operator's name."""

    def _run(_: Any, *inputs: Any, **form: Any) -> tuple[np.ndarray, ...]:
        return (run(*inputs, **form),)

    return type(name, (OpRun,), {"op_domain": domain, "_run": _run})


def _max_pool_class() -> type:
    plain: Any = load_op("", "MaxPool")

    def run(self: Any, x: Any, **form: Any) -> tuple[np.ndarray, ...]:
        if len(self.onnx_node.output) > 1:
            return tuple(plain._run(self, x, **form))
        return (max_pool(x, **form),)

    return type("MaxPool", (plain,), {"_run": run})


def _resize_class(version: int) -> type:
    plain: Any = load_op("", "Resize")

    def since_11(
        self: Any, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None, **form: Any
    ) -> tuple[np.ndarray, ...]:
        coordinates = form["coordinate_transformation_mode"]
        policy = form.get("keep_aspect_ratio_policy") or "stretch"
        if coordinates == "tf_crop_and_resize" or policy != "stretch" or x.size == 0:
            return tuple(plain._run(self, x, roi, scales, sizes, **form))
        flags = bool(form["exclude_outside"]), bool(form.get("antialias"))
        numbers = form["nearest_mode"], form["cubic_coeff_a"]
        how = Resizing(form["mode"], coordinates, *numbers, *flags)
        axes = [axis % x.ndim for axis in form.get("axes") or range(x.ndim)]
        return (resize(x, scales, sizes, how, axes),)

    def before(_: Any, x: Any, scales: Any, **form: Any) -> tuple[np.ndarray, ...]:
        how = Resizing(form["mode"], "asymmetric", "simple")
        return (resize(x, scales, None, how, range(x.ndim)),)

    return type("Resize", (plain,), {"_run": since_11 if version >= 11 else before})


def _refusing(
    name: str, reason: str, refuses: Callable[[onnx.NodeProto], bool] = lambda _: True
) -> type:
    """Makes a class that refuses some nodes of an operator, for a reason that follows its name."""
    plain: Any = load_op("", name)

    def __init__(self: Any, node: onnx.NodeProto, *others: Any) -> None:
        if refuses(node):
            raise NotImplementedError(f"{name} {reason}")
        plain.__init__(self, node, *others)

    return type(name, (plain,), {"__init__": __init__})


_COLLECTS = "may compute collected results wrongly"
_DRAWS = "would draw other numbers than the program"


def operators(version: int) -> list[type]:
    """All operators, for a version of ONNX's operator set."""
    return [*_OPERATORS, _resize_class(version)]


_OPERATORS: list[type] = [
    _class("AveragePool", average_pool),
    _class("Conv", conv),
    _class("ConvInteger", conv_integer),
    _class("ConvTranspose", conv_transpose),
    _class("Erf", erf),
    _class("Gemm", gemm),
    _class("MatMul", matmul),
    _class("MatMulInteger", matmul_integer),
    _class("MatMulNBits", matmul_nbits, CONTRIB_DOMAIN),
    _class("QLinearConv", qlinear_conv),
    _max_pool_class(),
    _refusing("Loop", _COLLECTS, lambda node: len(node.output) > len(node.input) - 2),
    _refusing("Scan", _COLLECTS),
    *(_refusing(name, _DRAWS) for name in ("Bernoulli", "RandomNormal", "RandomNormalLike")),
    *(_refusing(name, _DRAWS) for name in ("RandomUniform", "RandomUniformLike")),
    # The newest versions also serve older operator versions, which the evaluator lacks.
    type("DequantizeLinear", (load_op("", "DequantizeLinear"),), {}),
    type("QuantizeLinear", (load_op("", "QuantizeLinear"),), {}),
]
