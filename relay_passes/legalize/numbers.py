"""Legalises arithmetic for which TVM's own legalisation is wrong or undefined for some values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm_ffi
from tvm import IRModule, ir, relax, te, tirx

from microkernels.base.arrays import RANGES
from microkernels.base.tvm_compat.relax import Legalize, legalize_by_tvm
from relay_passes.ir.functions import is_foreign_kernel, named_pass
from relay_passes.ir.graph import op_name, static_tensor
from relay_passes.ir.rewrite import map_functions

from . import axes

# Legalises R.quantize, R.dequantize and R.round in generic code, with ONNX's rounding.
#
# Before
#
#     lv = R.quantize(x, s, z, out_dtype="uint8")
#
# After
#
#     lv = R.call_tir(quantize, (x,))
#
#     y[i] = cast("uint8", cast("int32", nearest(min(max(x[i] / s, 0 - z), 255 - z))) + z)
#
# QuantizeLinear rounds x / s, an f32 division, to the nearest integer (ties to even), adds the zero
# point and saturates. Round also rounds ties to even. TVM's own legalisations round ties away from
# zero. Saturating before rounding gives equal results, because the bounds are integers, and keeps
# infinities out of the conversion. A NaN becomes the smallest integer, as in ONNX Runtime.


_FLOATS = ("float32", "float16")
_LIMITS = {**RANGES, "uint16": (0, 65535), "int16": (-32768, 32767)}


def _quantize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype, data_dtype = str(call.ty.dtype), str(call.args[0].ty.dtype)
    if dtype not in _LIMITS or data_dtype not in _FLOATS:
        return legalize_by_tvm(builder, call)

    def element(x: tirx.Expr, scale: tirx.Expr, zero: tirx.Expr) -> tirx.Expr:
        quotient = x.astype("float32") / scale
        limits = (tirx.IntImm("int32", each) for each in _LIMITS[dtype])
        low, high = ((limit - zero).astype("float32") for limit in limits)
        # The order matters for NaN: a comparison with it is false.
        inside = te.min(te.max(quotient, low), high)
        return (_nearest(inside).astype("int32") + zero).astype(dtype)

    return _by_parameters(builder, call, element)


def _dequantize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype, data_dtype = str(call.ty.dtype), str(call.args[0].ty.dtype)
    if dtype not in _FLOATS or data_dtype not in (*_LIMITS, "int32"):
        return legalize_by_tvm(builder, call)

    def element(x: tirx.Expr, scale: tirx.Expr, zero: tirx.Expr) -> tirx.Expr:
        product = (x.astype("int32") - zero).astype("float32") * scale
        # LLVM must round here: a sum with the product may not become an FMA.
        return _intrinsic("llvm.arithmetic.fence", product).astype(dtype)

    return _by_parameters(builder, call, element)


def _by_parameters(
    builder: relax.BlockBuilder, call: relax.Call, of: Callable[..., tirx.Expr]
) -> relax.Expr:
    """An elementwise kernel with a scale read as float32 and a zero point read as int32."""
    hint, axis = op_name(call).removeprefix("relax."), int(call.attrs.axis)
    axis %= max(1, int(call.args[0].ty.ndim))
    numbers = [_number(arg) for arg in call.args[1:3]]

    def compute(data: te.Tensor, *given: te.Tensor) -> te.Tensor:
        left = iter(given)

        def reader(argument: relax.Expr, number: np.generic | None) -> Read:
            if number is not None:
                value = tirx.const(number.item(), str(argument.ty.dtype))
                return lambda indices: value
            tensor, static = next(left), static_tensor(argument)
            if static is not None and all(extent == 1 for extent in static.shape):
                return lambda indices: tensor(*[0] * len(tensor.shape))
            return lambda indices: tensor(indices[axis])

        scale, zero_point = map(reader, call.args[1:3], numbers)

        def element(*indices: tirx.Var) -> tirx.Expr:
            factor, zero = scale(indices).astype("float32"), zero_point(indices).astype("int32")
            return of(data(*indices), factor, zero)

        return te.compute(data.shape, element, name=f"{hint}d")

    known = zip(call.args[1:3], numbers, strict=True)
    tensors = [arg for arg, number in known if number is None]  # the kernel reads them from memory
    return builder.call_te(compute, call.args[0], *tensors, primfunc_name_hint=hint)


def _round(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.ty.dtype)
    if "float" not in dtype:
        return call.args[0]
    inner = "float64" if dtype == "float64" else "float32"

    def element(x: tirx.Expr) -> tirx.Expr:
        return _nearest(x.astype(inner)).astype(dtype)

    return axes.elementwise(builder, call, element, "rounded")


Read = Callable[[Sequence[tirx.Var]], tirx.Expr]


def _nearest(value: tirx.Expr) -> tirx.Expr:
    """The nearest integer, ties to even; unlike tirx.nearbyint it vectorises."""
    return _intrinsic("llvm.nearbyint", value)


def _intrinsic(name: str, value: tirx.Expr) -> tirx.Expr:
    """A call of an LLVM function that exists for every floating-point type."""
    return tirx.call_llvm_pure_intrin(str(value.ty.dtype), name, value)


def _number(expr: relax.Expr) -> np.generic | None:
    """The number that a one-element constant holds, else None."""
    array = expr.value.numpy() if isinstance(expr, ir.GenericConst) else None
    return array.reshape(-1)[0] if array is not None and array.size == 1 else None


# Legalises divisions and shifts of integers, so that every value has a defined result.
#
# Before
#
#     lv = R.divide(a, b)          # int32
#
# After
#
#     lv = R.call_tir(divide, (a, b))
#
#     y[i] = b[i] == 0 ? 0 : b[i] == -1 ? -a[i] : a[i] / (b[i] == 0 or b[i] == -1 ? 1 : b[i])
#
# Integer division by zero is an error in ONNX Runtime. On x86 it crashes the process, and so does
# the smallest integer divided by -1. Here quotient and remainder of a division by zero are 0; for
# the smallest integer by -1 they are the smallest integer and 0.
#
# Sums, differences and products of 32 and 64 bits that overflow have no defined result: TVM tells
# LLVM that they do not overflow, signed ones by nsw and unsigned ones by nuw. Computing with
# unsigned integers instead is worse: then even the sum with a negative number breaks the promise.


_DIVISIONS: dict[str, tuple[Callable[..., tirx.Expr], bool]] = {
    "relax.divide": (tirx.truncdiv, True),
    "relax.floor_divide": (tirx.floordiv, True),
    "relax.mod": (tirx.truncmod, False),
    "relax.floor_mod": (tirx.floormod, False),
}
"""The operator in TIR, and whether it computes a quotient."""


def _division(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    name, dtype = op_name(call), str(call.ty.dtype)
    operator, is_quotient = _DIVISIONS[name]
    divisor, may_fail = call.args[1], True
    if isinstance(divisor, ir.GenericConst):
        values = divisor.value.numpy()
        may_fail = bool(((values == 0) | (values == np.array(-1).astype(dtype))).any())
    if "int" not in dtype or not may_fail:
        return axes.LEGALIZATIONS.get(name, legalize_by_tvm)(builder, call)

    def guarded(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
        by_zero = tirx.EQ(b, zero)
        if dtype.startswith("u"):
            result = operator(a, tirx.Select(by_zero, one, b))
        else:
            by_less = tirx.EQ(b, tirx.const(-1, dtype))
            result = operator(a, tirx.Select(tirx.any(by_zero, by_less), one, b))
            result = tirx.Select(by_less, zero - a, result) if is_quotient else result
        return tirx.Select(by_zero, zero, result) if is_quotient else result

    return _elementwise(builder, call, guarded)


def _shift(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype, left = str(call.ty.dtype), op_name(call) == "relax.left_shift"
    operator = tirx.shift_left if left else tirx.shift_right
    bits = int(dtype.lstrip("uint"))

    def guarded(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        zero, last = tirx.const(0, dtype), tirx.const(bits - 1, dtype)
        within = tirx.all(tirx.GE(b, zero), tirx.LE(b, last))
        shifted = operator(a, tirx.Select(within, b, last))
        if not left and not dtype.startswith("u"):
            return shifted  # by bits - 1: only the sign remains
        return tirx.Select(within, shifted, zero)

    return _elementwise(builder, call, guarded)


def _elementwise(
    builder: relax.BlockBuilder, call: relax.Call, of: Callable[..., tirx.Expr]
) -> relax.Expr:
    """A kernel that computes each element from two tensors that broadcast."""

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        shape = call.ty.shape.values
        return te.compute(
            shape, lambda *i: of(_read(a, shape, i), _read(b, shape, i)), name="elements"
        )

    hint = op_name(call).split(".")[-1]
    return builder.call_te(compute, *call.args[:2], primfunc_name_hint=hint)


def _read(
    tensor: te.Tensor, shape: Sequence[tirx.Expr], indices: tuple[tirx.Var, ...]
) -> tirx.Expr:
    """The element of a broadcast tensor for some indices of the result."""
    last = indices[len(indices) - len(tensor.shape) :]
    extents = zip(tensor.shape, shape[len(shape) - len(tensor.shape) :], last, strict=True)
    return tensor(*(0 if _is_one(own) and not _is_one(all_) else i for own, all_, i in extents))


def _is_one(extent: tirx.Expr) -> bool:
    return getattr(extent, "value", None) == 1


@named_pass
def bfloat16_remainders(mod: IRModule) -> IRModule:
    """Remainders: computes remainders of bfloat16 numbers in float32, for which TVM has code.

    Before

        y[i] = truncmod(x[i], bfloat16(1.0))

    After

        y[i] = Cast("bfloat16", truncmod(Cast("float32", x[i]), float32(1.0)))

    The result is equal: a remainder is exact, and has no more digits than its operands. TVM's
    BF16ComputeLegalize skips remainders, and LLVM refuses TVM's code for them. Operators of Relax
    never contain them; kernels that a module brings along may.

    It must run before kernels are vectorised.
    """

    def change(remainder: tirx.Mod) -> tirx.Expr:
        if not _is_bfloat16(remainder):
            return remainder
        wide = tirx.Mod(remainder.a.astype("float32"), remainder.b.astype("float32"))
        return tirx.Cast("bfloat16", wide)

    def widened(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        found: list[tirx.Mod] = []
        tvm_ffi.structural_walk(kernel.body, (tirx.Mod, found.append))
        if not any(map(_is_bfloat16, found)):
            return kernel
        return kernel.with_body(tvm_ffi.structural_map(kernel.body, (tirx.Mod, change)))

    return map_functions(mod, is_foreign_kernel, widened)


def _is_bfloat16(value: tirx.Expr) -> bool:
    return str(value.ty.dtype) == "bfloat16"


LEGALIZATIONS: dict[str, Legalize] = {
    "relax.quantize": _quantize,
    "relax.dequantize": _dequantize,
    "relax.round": _round,
    **dict.fromkeys(_DIVISIONS, _division),
    "relax.left_shift": _shift,
    "relax.right_shift": _shift,
}
