"""Legalises R.quantize, R.dequantize and R.round in generic code, with ONNX's rounding.

Before

    lv = R.quantize(x, s, z, out_dtype="uint8")

After

    lv = R.call_tir(quantize, (x,))

    y[i] = cast("uint8", cast("int32", nearest(min(max(x[i] / s, 0 - z), 255 - z))) + z)

QuantizeLinear rounds x / s, an f32 division, to the nearest integer (ties to even), adds the zero
point and saturates. Round also rounds ties to even. TVM's own legalisations round ties away from
zero. Saturating before rounding gives the same result, because the bounds are integers, and keeps
infinities out of the conversion. A NaN becomes the least integer, as in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import ir, relax, te, tirx

from microkernels.base.integers import RANGES
from microkernels.base.tvm_compat.relax import Legalize, legalize_by_tvm
from relay_passes.ir.graph import static_tensor

_FLOATS = ("float32", "float16")
_LIMITS = {**RANGES, "uint16": (0, 65535), "int16": (-32768, 32767)}


def _quantize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype, data_dtype = str(call.ty.dtype), str(call.args[0].ty.dtype)
    if dtype not in _LIMITS or data_dtype not in _FLOATS:
        return legalize_by_tvm(builder, call)
    low, high = _LIMITS[dtype]
    axis = _axis(call)

    def compute(data: te.Tensor, *parameters: te.Tensor) -> te.Tensor:
        scale, zero_point = _readers(call.args[1:3], parameters, axis)

        def element(*indices: tirx.Var) -> tirx.Expr:
            zero = zero_point(indices).astype("int32")
            quotient = data(*indices).astype("float32") / scale(indices).astype("float32")
            bounds = [(tirx.IntImm("int32", each) - zero).astype("float32") for each in (low, high)]
            # The order matters for NaN: a comparison with it is false.
            inside = te.min(te.max(quotient, bounds[0]), bounds[1])
            return (_nearest(inside).astype("int32") + zero).astype(dtype)

        return te.compute(data.shape, element, name="quantized")

    return builder.call_te(compute, *_tensors(call), primfunc_name_hint="quantize")


def _dequantize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype, data_dtype = str(call.ty.dtype), str(call.args[0].ty.dtype)
    if dtype not in _FLOATS or data_dtype not in (*_LIMITS, "int32"):
        return legalize_by_tvm(builder, call)
    axis = _axis(call)

    def compute(data: te.Tensor, *parameters: te.Tensor) -> te.Tensor:
        scale, zero_point = _readers(call.args[1:3], parameters, axis)

        def element(*indices: tirx.Var) -> tirx.Expr:
            integer = data(*indices).astype("int32") - zero_point(indices).astype("int32")
            product = integer.astype("float32") * scale(indices).astype("float32")
            return _rounded(product).astype(dtype)

        return te.compute(data.shape, element, name="dequantized")

    return builder.call_te(compute, *_tensors(call), primfunc_name_hint="dequantize")


def _round(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.ty.dtype)
    if "float" not in dtype:
        return call.args[0]
    inner = "float64" if dtype == "float64" else "float32"

    def compute(data: te.Tensor) -> te.Tensor:
        def element(*indices: tirx.Var) -> tirx.Expr:
            return _nearest(data(*indices).astype(inner)).astype(dtype)

        return te.compute(data.shape, element, name="rounded")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="round")


LEGALIZATIONS: dict[str, Legalize] = {
    "relax.quantize": _quantize,
    "relax.dequantize": _dequantize,
    "relax.round": _round,
}

Read = Callable[[Sequence[tirx.Var]], tirx.Expr]


def _nearest(value: tirx.Expr) -> tirx.Expr:
    """The nearest integer, of two the even one; unlike tirx.nearbyint it vectorises."""
    return _intrinsic("llvm.nearbyint", value)


def _rounded(value: tirx.Expr) -> tirx.Expr:
    """A value that LLVM must round here: a sum with it may not become an FMA."""
    return _intrinsic("llvm.arithmetic.fence", value)


def _intrinsic(name: str, value: tirx.Expr) -> tirx.Expr:
    """A call of a function of LLVM that has a form for every floating-point type."""
    return tirx.call_llvm_pure_intrin(str(value.ty.dtype), name, value)


def _axis(call: relax.Call) -> int:
    return int(call.attrs.axis) % max(1, int(call.args[0].ty.ndim))


def _tensors(call: relax.Call) -> list[relax.Expr]:
    """The arguments that a kernel reads from memory."""
    return [call.args[0], *(arg for arg in call.args[1:3] if _number(arg) is None)]


def _number(expr: relax.Expr) -> np.generic | None:
    """The number that a one-element constant holds, else None."""
    if isinstance(expr, ir.GenericConst):
        array = expr.value.numpy()
        if array.size == 1:
            return array.reshape(-1)[0]
    return None


def _readers(
    arguments: Sequence[relax.Expr], tensors: Sequence[te.Tensor], axis: int
) -> list[Read]:
    """For scale and zero point, how to read them at an element's indices."""
    left = iter(tensors)
    return [
        _reader(arg, None if _number(arg) is not None else next(left), axis) for arg in arguments
    ]


def _reader(argument: relax.Expr, tensor: te.Tensor | None, axis: int) -> Read:
    if tensor is None:
        number, dtype = _number(argument), str(argument.ty.dtype)
        assert number is not None
        value = tirx.const(number.item(), dtype)
        return lambda indices: value
    static = static_tensor(argument)
    if static is not None and all(extent == 1 for extent in static.shape):
        return lambda indices: tensor(*[0] * len(tensor.shape))
    return lambda indices: tensor(indices[axis])
