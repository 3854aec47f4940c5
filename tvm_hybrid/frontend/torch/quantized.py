"""Operators of graphs that pt2e has quantised, in the form that the low-precision passes know.

    quantize_per_tensor(x, scale, zero, low, high, int8)   ->  R.quantize(x, scale, zero)
    dequantize_per_channel(q, scales, zeros, axis, ...)    ->  R.dequantize(q, scales, zeros, axis)

A range that is narrower than the type's, such as -127 to 127, becomes limits after R.quantize.
R.quantize divides, whereas torch multiplies by the reciprocal: ties may round differently.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from microkernels.base.arrays import RANGES
from microkernels.base.errors import UnsupportedOperatorError
from relay_passes.ir.dynamic_quantize import emit_dynamic_range

from ..expressions import emit
from .promotion import as_type, type_name

# Dynamic quantisation of pt2e: the range of a tensor is computed at run time.
#
#     s, z = choose_qparams(x, 0, 255, eps, uint8)   ->  s, z of relay_passes.ir.dynamic_quantize
#     s, z = choose_qparams_symmetric(x, ...)        ->  s = max(max(abs(x)) / 127.5, eps), z fixed
#     q = quantize_per_tensor(x, s, z, ...)          ->  R.quantize(x, s, z, out_dtype="uint8")
#
# No scale is less than `eps`. If the zero point is computed, int8 from -128 to 127 equals uint8
# minus 128, and so do its products: programs hold the unsigned integers, for which there are
# kernels that compute the range themselves.


# (type, low, high) -> offset of these integers from the unsigned ones.
_OFFSETS = {("uint8", 0, 255): 0, ("int8", -128, 127): -128}


@dataclass
class ChosenRange:
    """The range that a `choose_qparams` computes.

    Attributes
    ----------
    scale, zero_point : relax.Expr
        float32 [], and [] of the integer type in the program.
    offset : int
        Added to the program's integers to get torch's: 0, or -128 for unsigned ones.
    quantised : dict of torch.fx.Node to relax.Var
        Node of the tensor with the offset -> the unsigned tensor.
    """

    scale: relax.Expr
    zero_point: relax.Expr
    offset: int
    quantised: dict[Any, relax.Var] = field(default_factory=dict)


def choose_qparams(node: Any, importer: Any) -> tuple[relax.Expr, relax.Expr]:
    """`choose_qparams`: x, low, high, eps, type -> float64 [1] and int64 [1]."""
    x, low, high, eps, torch_type = importer.retrieve_args(node)
    dtype = type_name(torch_type)
    if (dtype, low, high) not in _OFFSETS or str(x.ty.dtype) != "float32":
        raise UnsupportedOperatorError(
            f"operator choose_qparams (node {node.name!r}): {x.ty.dtype} as {dtype} from {low} to "
            f"{high} is not supported; quantise float32 as all of uint8 or int8"
        )
    found = emit_dynamic_range(importer.block_builder, x, eps)
    return _chosen(node, importer, ChosenRange(*found, _OFFSETS[dtype, low, high]))


def choose_symmetric(node: Any, importer: Any) -> tuple[relax.Expr, relax.Expr]:
    """`choose_qparams_symmetric`: like `choose_qparams`, with zero point 0, or 128 for uint8."""
    x, low, high, eps, torch_type = importer.retrieve_args(node)
    dtype = type_name(torch_type)
    if dtype not in RANGES or str(x.ty.dtype) != "float32":
        raise UnsupportedOperatorError(
            f"operator choose_qparams_symmetric (node {node.name!r}): {x.ty.dtype} as {dtype} is "
            "not supported; quantise float32 as uint8 or int8"
        )
    largest = emit(relax.op.max(emit(relax.op.abs(x))))
    step = emit(relax.op.divide(largest, relax.const((high - low) / 2, "float32")))
    scale = emit(relax.op.maximum(step, relax.const(eps, "float32")))
    zero_point = relax.const(128 if dtype == "uint8" else 0, dtype)
    return _chosen(node, importer, ChosenRange(scale, zero_point, 0))


def _chosen(node: Any, importer: Any, chosen: ChosenRange) -> tuple[relax.Expr, relax.Expr]:
    """Stores a range, and returns its scale and zero point in torch's types."""
    importer.ranges[node] = chosen
    scale = emit(relax.op.reshape(relax.op.astype(chosen.scale, "float64"), (1,)))
    zero = emit(relax.op.reshape(relax.op.astype(chosen.zero_point, "int64"), (1,)))
    return scale, emit(relax.op.add(zero, relax.const(chosen.offset, "int64")))


def limited(q: relax.Expr, low: int, high: int) -> relax.Expr:
    """Clips integers to limits, which may be narrower than those of their type."""
    dtype = str(q.ty.dtype)
    limits = np.iinfo(dtype)
    if low > limits.min:
        q = emit(relax.op.maximum(q, relax.const(low, dtype)))
    if high < limits.max:
        q = emit(relax.op.minimum(q, relax.const(high, dtype)))
    return q


def _range_of(node: Any, importer: Any) -> ChosenRange | None:
    """The range that chose a node's scale and zero point, if type and limits agree; else None."""
    picks: list[tuple[Any, ...]] = [getattr(each, "args", ()) for each in node.args[1:3]]
    if [pick[1:] for pick in picks] != [(0,), (1,)] or picks[0][0] is not picks[1][0]:
        return None
    chosen_by = picks[0][0]
    if chosen_by not in importer.ranges:
        return None
    same = node.args[3:6] == (*chosen_by.args[1:3], chosen_by.args[4])
    return importer.ranges[chosen_by] if same else None


def quantize(node: Any, importer: Any) -> relax.Expr:
    """`quantize_per_tensor` or `quantize_per_channel`: x, scale, zero, (axis,) low, high, type."""
    x, scale, zero, *rest = importer.retrieve_args(node)
    axis, (low, high, torch_type) = (-1, rest) if len(rest) == 3 else (rest[0], rest[1:])
    dtype, chosen = type_name(torch_type), _range_of(node, importer)
    if chosen is None:
        parameters = _parameter(scale, "float32"), _parameter(zero, dtype)
        value = emit(relax.op.quantize(x, *parameters, axis=axis, out_dtype=dtype))
        return limited(value, low, high)
    dtype = str(chosen.zero_point.ty.dtype)
    q = emit(relax.op.quantize(x, chosen.scale, chosen.zero_point, axis=-1, out_dtype=dtype))
    if not chosen.offset:
        return q if low == -high else limited(q, low, high)
    chosen.quantised[node] = q
    wide = relax.op.add(relax.op.astype(q, "int16"), relax.const(chosen.offset, "int16"))
    return emit(relax.op.astype(wide, "int8"))


def dequantize(node: Any, importer: Any) -> relax.Expr:
    """`dequantize_per_tensor` or `dequantize_per_channel`: arguments as for `quantize`."""
    source, wanted = node.args[0], type_name(node.meta["val"].dtype)
    chosen = _range_of(node, importer)
    # If there is an offset, the tensor must have been quantised with this range.
    known = chosen is not None and (not chosen.offset or source in chosen.quantised)
    if chosen is not None and known and wanted == "float32":
        q = chosen.quantised.get(source, importer.env[source])
        return emit(relax.op.dequantize(q, chosen.scale, chosen.zero_point, -1, "float32"))
    q, scale, zero, *rest = importer.retrieve_args(node)
    axis = rest[0] if len(rest) == 4 else -1
    narrow = str(q.ty.dtype)
    zeros = relax.const(0, narrow) if zero is None else _parameter(zero, narrow)
    scales = _parameter(scale, "float32")
    return as_type(emit(relax.op.dequantize(q, scales, zeros, axis, "float32")), wanted)


def _parameter(value: Any, dtype: str) -> relax.Expr:
    """A scale or zero point; a constant of rank 0 or 1 if it is known."""
    if isinstance(value, GenericConst):
        array = value.value.numpy()
        return relax.const(array.astype(dtype).reshape(() if array.size == 1 else (-1,)))
    if isinstance(value, (int, float)):
        return relax.const(value, dtype)
    return emit(relax.op.astype(value, dtype))


# Dynamic quantisation of tokens: every row has a scale, computed at run time.
#
#     s, z = choose_qparams_per_token(x, int8)             x: [..., K], s and z: [..., 1]
#     q = quantize_per_token(x, s, z, low, high, int8)     clip(round(x / s + z))
#     y = dequantize_per_token(q, s, z, low, high, int8)   (q - z) * s
#
# `relay_passes.quantize.row_scales` turns products of such tensors into integer products. Division
# is used where torch multiplies by the reciprocal, and float32 where torch may use float64: ties
# may round differently.


_LEAST = 1e-5  # torch's lower bound for the largest magnitude of a row
_EPS = float(np.finfo(np.float32).eps)  # torch's lower bound for a row's scale with a zero point
_LOW, _HIGH = -128, 127


def choose_of_rows(node: Any, importer: Any) -> tuple[relax.Expr, relax.Expr]:
    """`choose_qparams_per_token`: x, int8 -> float64 and int64 [..., 1], as exported."""
    x = _source(node, importer)
    largest = emit(relax.op.max(emit(relax.op.abs(x)), axis=-1, keepdims=True))
    raised = emit(relax.op.maximum(largest, relax.const(_LEAST, "float32")))
    scale = emit(relax.op.divide(raised, relax.const(_HIGH, "float32")))
    zeros = emit(relax.op.astype(emit(relax.op.zeros_like(scale)), "int64"))
    return emit(relax.op.astype(scale, "float64")), zeros


def choose_asymmetric_of_rows(node: Any, importer: Any) -> tuple[relax.Expr, relax.Expr]:
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


def quantize_rows(node: Any, importer: Any) -> relax.Expr:
    """`quantize_per_token`: x, scales, zero points, low, high, type."""
    x, scales, zeros, low, high, torch_type = importer.retrieve_args(node)
    value = emit(relax.op.divide(as_type(x, "float32"), as_type(scales, "float32")))
    if not _are_zeros(node.args[2]):
        value = emit(relax.op.add(value, as_type(zeros, "float32")))
    value = _clipped(emit(relax.op.round(value)), low, high)
    return emit(relax.op.astype(value, type_name(torch_type)))


def dequantize_rows(node: Any, importer: Any) -> relax.Expr:
    """`dequantize_per_token`: q, scales, zero points, low, high, type, type of the result."""
    q, scales, zeros = importer.retrieve_args(node)[:3]
    value = emit(relax.op.astype(q, "float32"))
    if not _are_zeros(node.args[2]):
        value = emit(relax.op.subtract(value, as_type(zeros, "float32")))
    value = emit(relax.op.multiply(value, as_type(scales, "float32")))
    return as_type(value, type_name(node.meta["val"].dtype))


def _are_zeros(node: Any) -> bool:
    """Whether a node takes its zero points from `choose_qparams_per_token`, which are 0."""
    picked = getattr(node, "target", None) is operator.getitem
    chosen_by = getattr(node.args[0], "target", None) if picked else None
    return getattr(chosen_by, "__name__", "") == "choose_qparams_per_token.default"


def _source(node: Any, importer: Any) -> relax.Expr:
    """The tensor for which scales are chosen, as float32."""
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
QUANTIZED = {
    "choose_qparams.tensor": choose_qparams,
    "choose_qparams_symmetric.tensor": choose_symmetric,
    "choose_qparams_per_token.default": choose_of_rows,
    **{f"{name}.default": choose_asymmetric_of_rows for name in _ASYMMETRIC},
    "quantize_per_token.default": quantize_rows,
    "dequantize_per_token.default": dequantize_rows,
    **{f"quantize_per_tensor.{form}": quantize for form in ("default", "tensor")},
    **{f"dequantize_per_tensor.{form}": dequantize for form in ("default", "tensor")},
    "quantize_per_channel.default": quantize,
    "dequantize_per_channel.default": dequantize,
}
