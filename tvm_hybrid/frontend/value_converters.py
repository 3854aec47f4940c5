"""Converters of operators that TVM's importer leaves open for some values.

operator        TVM's converter                          ours
Cast            a dozen operators; 0 for infinities      one cast, `microkernels.vector.ieee`
BitCast         none                                    the same bits as another type
BitShift        undefined beyond the width               as the operator's text says
Mod             fmod=0 of floats: NaN for infinities,    the sign of the divisor, as in Python
                the sign of the dividend for zeros
IsInf           ignores detect_positive and _negative    compares with one infinity or both
Sign            fails for unsigned integers              the smaller of each and 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, te, tirx

from .expressions import Converter, Expr, constant, dtype_of, literal, static_dims


def _cast(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    return relax.op.astype(inputs[0], str(helper.tensor_dtype_to_np_dtype(attrs["to"])))


def _bit_cast(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x, target = inputs[0], str(helper.tensor_dtype_to_np_dtype(attrs["to"]))
    if "bool" in (target, dtype_of(x)):  # whose bytes are 0 and 1
        return relax.op.astype(x, target)

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *place: tirx.reinterpret(target, x[place]))

    return builder.emit_te(compute, x, primfunc_name_hint="bit_cast")


def _bit_shift(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """A shift by the width or more, or by less than 0, moves all bits out."""
    x, amount = inputs
    dtype, left = dtype_of(x), attrs["direction"] == b"LEFT"
    shift = relax.op.left_shift if left else relax.op.right_shift
    bits = np.dtype(dtype).itemsize * 8
    known = constant(amount)
    if known is not None and not ((known < 0) | (known >= bits)).any():
        return shift(x, amount)

    def number(value: int) -> Expr:
        return literal(np.array(value, dtype))

    out = builder.normalize(relax.op.greater_equal(amount, number(bits)))
    if not dtype.startswith("uint"):
        below = builder.normalize(relax.op.less(amount, number(0)))
        out = builder.normalize(relax.op.logical_or(out, below))
    most = builder.normalize(relax.op.where(out, number(bits - 1), amount))
    shifted = builder.normalize(shift(x, most))
    if not left and not dtype.startswith("uint"):
        return shifted  # nothing but the sign is left
    return relax.op.where(out, number(0), shifted)


def _mod(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x, divisor = inputs
    dtype = dtype_of(x)
    if attrs.get("fmod", 0):
        return relax.op.mod(x, divisor)
    if "float" not in dtype:
        return relax.op.floor_mod(x, divisor)
    zero = literal(np.array(0, dtype))

    def emit(call: Expr) -> Expr:
        return builder.normalize(call)

    rest = emit(relax.op.mod(x, divisor))
    below = emit(relax.op.less(divisor, zero))
    differ = emit(relax.op.logical_xor(emit(relax.op.less(rest, zero)), below))
    moved = emit(relax.op.where(differ, emit(relax.op.add(rest, divisor)), rest))
    signed = emit(relax.op.where(below, literal(np.array(-0.0, dtype)), zero))
    return relax.op.where(emit(relax.op.equal(rest, zero)), signed, moved)


def _is_inf(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x = inputs[0]
    dtype, dims = dtype_of(x), static_dims(x)
    both = attrs.get("detect_positive", 1), attrs.get("detect_negative", 1)
    if all(both) or dims is None:
        return relax.op.isinf(x) if all(both) else None
    if not any(both):
        return literal(np.zeros(dims, bool))
    limit = np.inf if both[0] else -np.inf
    return relax.op.equal(x, literal(np.array(limit, dtype)))


def _sign(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    dtype = dtype_of(inputs[0])
    if not dtype.startswith("uint"):
        return None
    return relax.op.minimum(inputs[0], literal(np.array(1, dtype)))


VALUE_CONVERTERS: dict[str, Converter] = {
    "BitCast": _bit_cast,
    "BitShift": _bit_shift,
    "Cast": _cast,
    "IsInf": _is_inf,
    "Mod": _mod,
    "Sign": _sign,
}
