"""Dynamic quantisation of tokens: every row has a scale, found when the program runs.

    s, z = choose_qparams_per_token(x, int8)             x: [..., K], s and z: [..., 1]
    q = quantize_per_token(x, s, z, low, high, int8)     clip(round(x / s + z))
    y = dequantize_per_token(q, s, z, low, high, int8)   (q - z) * s

`relay_passes.quantize.row_scales` makes products of such tensors ones of integers. Quotients are
divided, where torch multiplies by the reciprocal, and all is float32, where torch may take float64:
ties may round otherwise.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from tvm import relax

from microkernels.base.errors import UnsupportedOperatorError

from ..expressions import emit
from .promotion import as_type, type_name

_LEAST = 1e-5  # torch's least largest magnitude of a row
_EPS = float(np.finfo(np.float32).eps)  # torch's least scale of a row with a zero point
_LOW, _HIGH = -128, 127


def choose_symmetric(node: Any, importer: Any) -> tuple[relax.Expr, relax.Expr]:
    """`choose_qparams_per_token`: x, int8 -> float64 and int64 [..., 1], as it is exported."""
    x = _source(node, importer)
    largest = emit(relax.op.max(emit(relax.op.abs(x)), axis=-1, keepdims=True))
    raised = emit(relax.op.maximum(largest, relax.const(_LEAST, "float32")))
    scale = emit(relax.op.divide(raised, relax.const(_HIGH, "float32")))
    zeros = emit(relax.op.astype(emit(relax.op.zeros_like(scale)), "int64"))
    return emit(relax.op.astype(scale, "float64")), zeros


def choose_asymmetric(node: Any, importer: Any) -> tuple[relax.Expr, relax.Expr]:
    """`choose_qparams_per_token_asymmetric`: x, int8 -> float64 and int64 [..., 1]."""
    op = relax.op
    x = _source(node, importer)

    def number(value: float) -> relax.Expr:
        return relax.const(value, "float32")

    low = emit(op.minimum(emit(op.min(x, axis=-1, keepdims=True)), number(0)))
    high = emit(op.maximum(emit(op.max(x, axis=-1, keepdims=True)), number(0)))
    step = emit(op.divide(emit(op.subtract(high, low)), number(_HIGH - _LOW)))
    scale = emit(op.maximum(step, number(_EPS)))
    below, above = emit(op.divide(low, scale)), emit(op.divide(high, scale))
    errors = emit(op.add(emit(op.add(below, number(_LOW))), emit(op.add(above, number(_HIGH)))))
    chosen = op.where(
        emit(op.greater(errors, number(0))),
        emit(op.subtract(number(_LOW), below)),
        emit(op.subtract(number(_HIGH), above)),
    )
    zero = emit(op.round(_clipped(emit(chosen), _LOW, _HIGH)))
    return emit(op.astype(scale, "float64")), emit(op.astype(zero, "int64"))


def quantize(node: Any, importer: Any) -> relax.Expr:
    """`quantize_per_token`: x, scales, zero points, low, high, type."""
    x, scales, zeros, low, high, torch_type = importer.retrieve_args(node)
    value = emit(relax.op.divide(as_type(x, "float32"), as_type(scales, "float32")))
    if not _are_zeros(node.args[2]):
        value = emit(relax.op.add(value, as_type(zeros, "float32")))
    value = _clipped(emit(relax.op.round(value)), low, high)
    return emit(relax.op.astype(value, type_name(torch_type)))


def dequantize(node: Any, importer: Any) -> relax.Expr:
    """`dequantize_per_token`: q, scales, zero points, low, high, type, type of the result."""
    q, scales, zeros = importer.retrieve_args(node)[:3]
    value = emit(relax.op.astype(q, "float32"))
    if not _are_zeros(node.args[2]):
        value = emit(relax.op.subtract(value, as_type(zeros, "float32")))
    value = emit(relax.op.multiply(value, as_type(scales, "float32")))
    return as_type(value, type_name(node.meta["val"].dtype))


def _are_zeros(node: Any) -> bool:
    """Whether a node is the zero points that `choose_qparams_per_token` gives."""
    picked = getattr(node, "target", None) is operator.getitem
    chosen_by = getattr(node.args[0], "target", None) if picked else None
    return getattr(chosen_by, "__name__", "") == "choose_qparams_per_token.default"


def _source(node: Any, importer: Any) -> relax.Expr:
    """What scales are chosen for, as float32."""
    x, torch_type = importer.retrieve_args(node)
    if type_name(torch_type) != "int8":
        raise UnsupportedOperatorError(
            f"operator choose_qparams_per_token (node {node.name!r}): rows as "
            f"{type_name(torch_type)} are not supported; quantise as int8"
        )
    return as_type(x, "float32")


def _clipped(x: relax.Expr, low: int, high: int) -> relax.Expr:
    limits = relax.prim_value(float(low)), relax.prim_value(float(high))
    return emit(relax.op.clip(x, *limits))


_ASYMMETRIC = ("choose_qparams_per_token_asymmetric", "_choose_qparams_per_token_asymmetric_impl")
PER_TOKEN = {
    "choose_qparams_per_token.default": choose_symmetric,
    **{f"{name}.default": choose_asymmetric for name in _ASYMMETRIC},
    "quantize_per_token.default": quantize,
    "dequantize_per_token.default": dequantize,
}
