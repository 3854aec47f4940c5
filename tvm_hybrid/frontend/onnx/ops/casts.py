"""Casts, also to and from types of 2, 4 or 8 bits (graph/narrow_types.py).

    Cast(x: f8, to=f16)    ->    R.astype(R.take(table: f32[256], x), "float16")
    Cast(x: f16, to=f8)    ->    table: u8[65536] at the upper half of each float32's bits
    Cast(x: f32, to=i4)    ->    R.astype(R.mod(R.astype(x, "int32") + 8, 16) - 8, "int8")

Integers keep their low bits. float64 is rounded to float32 first, as in ml_dtypes.
"""

from __future__ import annotations

from typing import Any

from onnx import TensorProto, helper
from tvm import relax, te, tirx

from ... import expressions as ex
from ...expressions import NARROW_INPUTS, Attrs, Expr, Inputs
from ..apply import apply
from ..graph import narrow_types
from ..graph.narrow_types import FLOATS, INTEGERS
from ..operators import operator


@operator("Cast")
def _cast(inputs: Inputs, attrs: Attrs) -> Any:
    x, source, target = inputs[0], attrs.get(NARROW_INPUTS, {}).get(0), attrs["to"]
    if source == target:
        return x
    if source in FLOATS:
        x = decoded(x, source)
    if target in FLOATS:
        return encoded(x, target, attrs)
    if target in INTEGERS:
        x, (low, high) = apply("Cast", x, to=TensorProto.INT32), INTEGERS[target]
        first, count = ex.number(x, low), ex.number(x, high - low + 1)
        x = apply("Add", apply("Mod", apply("Sub", x, first), count), first)
    return relax.op.astype(x, dtype_named(narrow_types.stored_type(target)))


def dtype_named(elem_type: int) -> str:
    """Relax's name of an element type."""
    return str(helper.tensor_dtype_to_np_dtype(elem_type))


def decoded(codes: Expr, elem_type: int) -> Expr:
    """A narrow float as float32."""
    array = ex.constant(codes)
    if array is not None:
        return ex.literal(narrow_types.decode(array, elem_type))
    table = ex.literal(narrow_types.decoding_table(elem_type))
    return ex.normalize(relax.op.take(table, relax.op.astype(codes, "int32"), 0, mode="clip"))


def encoded(value: Expr, elem_type: int, attrs: Attrs) -> Expr:
    """A value of any type as a narrow float, by the attributes saturate and round_mode."""
    form = bool(attrs.get("saturate", 1)), attrs.get("round_mode", "up")
    value = ex.cast(value, "float32")
    array = ex.constant(value)
    if array is not None:
        return ex.literal(narrow_types.encode(array, elem_type, *form))

    def compute(values: te.Tensor, table: te.Tensor) -> te.Tensor:
        def element(*position: Expr) -> Expr:
            bits = tirx.reinterpret("uint32", values[position])
            upper, lower = bits >> tirx.const(16, "uint32"), bits & tirx.const(0xFFFF, "uint32")
            rest = tirx.Select(lower != tirx.const(0, "uint32"), 1, 0)
            return table[upper.astype("int32") | rest]

        return te.compute(values.shape, element, name="encode")

    table = ex.literal(narrow_types.encoding_table(elem_type, *form))
    return ex.emit_te(compute, value, table, primfunc_name_hint="encode_float")
