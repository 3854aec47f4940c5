"""Converts TopK: always sorted, which an unsorted one may be; of equal elements the first.

    TopK(x: i64, k)     ->    R.topk(x, k)
    TopK(x: u32, k)     ->    the same of x as int64
    TopK(x: f32, k)     ->    places by R.topk(keys, k), integers in the order of x; values from x

TVM's operator fails when it runs for some integers, and compares floats in a way that puts a row
with a NaN in no order. Here NaN is greater than all numbers, as in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from .data_sized.sizes import is_open
from .data_sized.top_k import open_top_k
from .expressions import Converter, Expr, cast, constant, dtype_of, is_nan, literal

_SORTED_AS = {"int16": "int32", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
_NARROW = ("float16", "bfloat16")


def _top_k(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    k = np.array(attrs.get("k", 1)) if len(inputs) < 2 else constant(inputs[1])
    if k is None or is_open(inputs[0]):
        return open_top_k(builder, inputs, attrs)
    x, axis, largest = inputs[0], attrs.get("axis", -1), bool(attrs.get("largest", 1))

    def first(keys: Expr, what: str) -> Expr:
        return builder.normalize(relax.op.topk(keys, k.item(), axis, what, largest, "int64"))

    dtype = dtype_of(x)
    if "float" in dtype:
        places = first(_float_keys(builder, x), "indices")
        return relax.Tuple([builder.normalize(relax.op.gather_elements(x, places, axis)), places])
    keys, wide = x, _SORTED_AS.get(dtype, dtype)
    top = literal(np.array(2**63, np.uint64))
    if dtype == "uint64":  # with the highest bit flipped, the order is that of int64
        keys = builder.normalize(relax.op.bitwise_xor(x, top))
    pair = first(cast(builder, keys, wide), "both")
    if wide == dtype:
        return pair
    values = builder.normalize(relax.op.astype(builder.normalize(pair[0]), dtype))
    if dtype == "uint64":
        values = builder.normalize(relax.op.bitwise_xor(values, top))
    return relax.Tuple([values, builder.normalize(pair[1])])


def _float_keys(builder: relax.BlockBuilder, x: Expr) -> Expr:
    """Integers in the order of floats: those of negative numbers count backwards, both zeros are
    one, and NaN is the largest."""
    if dtype_of(x) in _NARROW:
        x = cast(builder, x, "float32")
    dtype = dtype_of(x)
    bits = dtype.replace("float", "int")
    most = tirx.const(np.iinfo(bits).max, bits)
    zero = tirx.const(0, bits)

    def compute(x: te.Tensor) -> te.Tensor:
        def key(*place: Expr) -> Expr:
            code = tirx.reinterpret(bits, x(*place))
            ordered = tirx.Select(code < zero, code ^ most, code)
            number = tirx.Select(x(*place) == tirx.const(0, dtype), zero, ordered)
            return tirx.Select(is_nan(x(*place)), most, number)

        return te.compute(x.shape, key, name="key")

    return builder.emit_te(compute, x, primfunc_name_hint="float_keys")


TOP_K_CONVERTERS: dict[str, Converter] = {"TopK": _top_k}
