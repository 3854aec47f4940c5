"""Converters of the front end's own operators for floats of 4 or 8 bits, by tables.

DecodeFloat(codes: u8)       ->    R.take(table: f32[256], codes)
EncodeFloat(values: f32)     ->    table: u8[65536] at the upper half of each value's bits
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from .expressions import Converter, Expr, literal
from .narrow_types import decoding_table, encoding_table


def _decode(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Expr:
    index = builder.normalize(relax.op.astype(inputs[0], "int32"))
    return relax.op.take(literal(decoding_table(attrs["elem_type"])), index, 0, mode="clip")


def _encode(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Expr:
    mode = attrs["round_mode"].decode()
    table = encoding_table(attrs["elem_type"], bool(attrs["saturate"]), mode)

    def compute(values: te.Tensor, table: te.Tensor) -> te.Tensor:
        def element(*position: Expr) -> Expr:
            bits = tirx.reinterpret("uint32", values[position])
            upper, lower = bits >> tirx.const(16, "uint32"), bits & tirx.const(0xFFFF, "uint32")
            rest = tirx.Select(lower != tirx.const(0, "uint32"), 1, 0)
            return table[upper.astype("int32") | rest]

        return te.compute(values.shape, element, name="encode")

    return builder.emit_te(compute, inputs[0], literal(table), primfunc_name_hint="encode_float")


NARROW_CONVERTERS: dict[str, Converter] = {"DecodeFloat": _decode, "EncodeFloat": _encode}
