"""Legalises divisions and shifts of integers, so that every value has a defined result.

Before

    lv = R.divide(a, b)          # int32

After

    lv = R.call_tir(divide, (a, b))

    y[i] = b[i] == 0 ? 0 : b[i] == -1 ? -a[i] : a[i] / (b[i] == 0 or b[i] == -1 ? 1 : b[i])

Integer division by zero is an error in ONNX Runtime. On x86 it crashes the process, and so does the
least integer divided by -1. Here quotient and remainder are 0 for a division by zero; for the least
integer by -1 they are the least integer and 0.

Sums, differences and products of 32 and 64 bits that overflow have none: TVM tells LLVM that they
do not, signed ones by nsw and unsigned ones by nuw. So computing with unsigned integers instead is
worse: then the sum of a negative number already breaks the promise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import ir, relax, te, tirx

from microkernels.base.tvm_compat.relax import Legalize, legalize_by_tvm
from relay_passes.ir.graph import op_name

from .legalize_floats import LEGALIZATIONS as FLOATS

_DIVISIONS: dict[str, tuple[Callable[..., tirx.Expr], bool]] = {
    "relax.divide": (tirx.truncdiv, True),
    "relax.floor_divide": (tirx.floordiv, True),
    "relax.mod": (tirx.truncmod, False),
    "relax.floor_mod": (tirx.floormod, False),
}
"""The operator in TIR, and whether it makes a quotient."""


def _division(name: str) -> Legalize:
    operator, is_quotient = _DIVISIONS[name]

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        dtype = str(call.ty.dtype)
        if "int" not in dtype or not _may_fail(call.args[1], dtype):
            return _default(name, builder, call)

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

    return legalize


def _shift(left: bool) -> Legalize:
    operator = tirx.shift_left if left else tirx.shift_right

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        dtype = str(call.ty.dtype)
        bits = int(dtype.lstrip("uint"))

        def guarded(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
            zero, last = tirx.const(0, dtype), tirx.const(bits - 1, dtype)
            within = tirx.all(tirx.GE(b, zero), tirx.LE(b, last))
            shifted = operator(a, tirx.Select(within, b, last))
            if not left and not dtype.startswith("u"):
                return shifted  # by the last place: nothing but the sign is left
            return tirx.Select(within, shifted, zero)

        return _elementwise(builder, call, guarded)

    return legalize


def _elementwise(
    builder: relax.BlockBuilder, call: relax.Call, of: Callable[..., tirx.Expr]
) -> relax.Expr:
    """A function of the elements of two tensors that broadcast."""

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        shape = call.ty.shape.values
        return te.compute(
            shape, lambda *i: of(_read(a, shape, i), _read(b, shape, i)), name="elements"
        )

    hint = op_name(call).split(".")[-1]
    return builder.call_te(compute, *call.args[:2], primfunc_name_hint=hint)


def _may_fail(divisor: relax.Expr, dtype: str) -> bool:
    """Whether a divisor can be 0 or -1."""
    if not isinstance(divisor, ir.GenericConst):
        return True
    values = divisor.value.numpy()
    return bool(((values == 0) | (values == np.array(-1).astype(dtype))).any())


def _read(
    tensor: te.Tensor, shape: Sequence[tirx.Expr], indices: tuple[tirx.Var, ...]
) -> tirx.Expr:
    """An element of what broadcasts to a shape."""
    last = indices[len(indices) - len(tensor.shape) :]
    extents = zip(tensor.shape, shape[len(shape) - len(tensor.shape) :], last, strict=True)
    return tensor(*(0 if _is_one(own) and not _is_one(all_) else i for own, all_, i in extents))


def _is_one(extent: tirx.Expr) -> bool:
    return getattr(extent, "value", None) == 1


def _default(name: str, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """The legalisation of floats, or TVM's own."""
    own = FLOATS.get(name)
    return own(builder, call) if own else legalize_by_tvm(builder, call)


LEGALIZATIONS: dict[str, Legalize] = {
    **{name: _division(name) for name in _DIVISIONS},
    "relax.left_shift": _shift(left=True),
    "relax.right_shift": _shift(left=False),
}
