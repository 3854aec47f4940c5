"""Legalises operators on floats for which TVM's own legalisation is wrong for some values.

Before

    lv = R.multiply(x, R.const(0.0))
    lv1 = R.sign(y)
    lv2 = R.nn.softplus(z)

After

    lv = R.call_tir(multiply, (x, R.const(0.0)))    # inside a kernel, TVM would make 0 of x * 0
    lv1 = R.call_tir(sign, (y,))                    # NaN for NaN
    lv2 = R.call_tir(softplus, (z,))                # accurate for negative z

Leaky ReLU is here for a slope of 0, and casts to integers for values that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import ir, relax, te, tirx, topi

from microkernels.base.tvm_compat.relax import Legalize, legalize_by_tvm
from microkernels.vector import ieee

Element = Callable[[tirx.Expr], tirx.Expr]
_ARITHMETIC = {
    "relax.add": topi.add,
    "relax.subtract": topi.subtract,
    "relax.multiply": topi.multiply,
    "relax.divide": topi.divide,
}


def _arithmetic(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A constant 0 stays a tensor, which TVM cannot fold."""
    if not any(_is_zero(arg) for arg in call.args):
        return legalize_by_tvm(builder, call)
    return builder.call_te(_ARITHMETIC[str(call.op.name)], *call.args)


def _is_zero(expr: relax.Expr) -> bool:
    if not isinstance(expr, ir.GenericConst) or "float" not in str(expr.ty.dtype):
        return False
    array = expr.value.numpy()
    return array.size == 1 and not array.astype(np.float32).any()


def _elementwise(builder: relax.BlockBuilder, call: relax.Call, element: Element) -> relax.Expr:
    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *indices: element(x(*indices)))

    name = str(call.op.name).rsplit(".", 1)[-1]
    return builder.call_te(compute, call.args[0], primfunc_name_hint=name)


def _sign(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.ty.dtype)
    if "float" not in dtype:
        return legalize_by_tvm(builder, call)
    zero, one, minus = (tirx.const(number, dtype) for number in (0, 1, -1))

    def element(x: tirx.Expr) -> tirx.Expr:
        rest = tirx.Select(tirx.EQ(x, zero), zero, x)
        return tirx.Select(x > zero, one, tirx.Select(x < zero, minus, rest))

    return _elementwise(builder, call, element)


def _leaky_relu(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.ty.dtype)
    slope, zero = tirx.const(float(call.attrs.alpha), dtype), tirx.const(0, dtype)
    return _elementwise(builder, call, lambda x: tirx.Select(x < zero, ieee.multiply(x, slope), x))


def _softplus(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.ty.dtype)
    plain = call.attrs is None or (call.attrs.beta == 1.0 and call.attrs.threshold == 20.0)
    if not plain or dtype not in ("float16", "float32", "float64"):
        return legalize_by_tvm(builder, call)

    def element(x: tirx.Expr) -> tirx.Expr:
        if dtype != "float64":  # generic.vector_math has it
            return tirx.call_pure_extern(dtype, "softplus", x)
        zero = tirx.const(0, dtype)
        return te.max(x, zero) + tirx.log1p(tirx.exp(zero - tirx.abs(x)))

    return _elementwise(builder, call, element)


def _cast(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    source, dtype = str(call.args[0].ty.dtype), str(call.ty.dtype)
    if source not in ("float16", "float32", "float64") or not dtype.startswith(("int", "uint")):
        return legalize_by_tvm(builder, call)
    return _elementwise(builder, call, lambda x: ieee.convert(dtype, x))


LEGALIZATIONS: dict[str, Legalize] = {
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    "relax.astype": _cast,
    "relax.nn.leakyrelu": _leaky_relu,
    "relax.nn.softplus": _softplus,
    "relax.sign": _sign,
}
