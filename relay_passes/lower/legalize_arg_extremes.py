"""Legalises R.argmax and R.argmin, so that their result is a valid index for all values.

Before

    lv = R.argmax(x, axis=1)

After

    lv = R.call_tir(argmax, (x,))

    with T.init(): place[i], most[i] = 0, -inf
    place[i], most[i] = most[i] >= x[i, k] ? (place[i], most[i]) : (k, x[i, k])

The result is the first NaN or else the first of equal elements, as in NumPy. TVM begins with the
index -1, and keeps it if nothing is larger than the least number of the type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from relay_passes.tvm_compat import Legalize

_FLOATS = ("float16", "float32", "float64", "bfloat16")


def _legalize(largest: bool) -> Legalize:
    name = "argmax" if largest else "argmin"

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        attrs = call.attrs
        axis = None if attrs.axis is None else int(attrs.axis)

        def compute(data: te.Tensor) -> te.Tensor:
            return _place(data, axis, bool(attrs.keepdims), str(call.ty.dtype), largest, name)

        return builder.call_te(compute, call.args[0], primfunc_name_hint=name)

    return legalize


def _place(
    data: te.Tensor, axis: int | None, keep: bool, index_dtype: str, largest: bool, name: str
) -> te.Tensor:
    rank = len(data.shape)
    axes = list(range(rank)) if axis is None else [axis % rank]
    reduced = {i: te.reduce_axis((0, data.shape[i]), f"k{i}") for i in axes}
    shape = [1 if i in reduced else extent for i, extent in enumerate(data.shape)]
    shape = [extent for i, extent in enumerate(shape) if keep or i not in reduced]
    place: tirx.Expr = tirx.const(0, index_dtype)
    for i in axes:
        place = place * data.shape[i].astype(index_dtype) + reduced[i].astype(index_dtype)

    def elements(*indices: tirx.Var) -> tuple[tirx.Expr, ...]:
        rest = iter(indices)
        at: list[Any] = []
        for i in range(rank):
            given = next(rest) if keep or i not in reduced else None
            at.append(reduced.get(i, given))
        return _reducer(str(data.dtype), index_dtype, largest)(
            (place, data(*at)), axis=list(reduced.values())
        )

    places, _ = te.compute(shape, elements, name=name)
    return te.compute(shape, lambda *indices: places(*indices), name=f"{name}_place")


def _reducer(dtype: str, index_dtype: str, largest: bool) -> Callable[..., tuple[tirx.Expr, ...]]:
    """Keeps what came first, unless what comes is larger, or a NaN and the first one."""
    infinity = -math.inf if largest else math.inf
    least = tirx.min_value(dtype) if largest else tirx.max_value(dtype)

    def combine(old: Any, new: Any) -> tuple[tirx.Expr, ...]:
        stays = old[1] >= new[1] if largest else old[1] <= new[1]
        if dtype in _FLOATS:
            # Not x == x, which TVM takes for true.
            is_number = tirx.LE(old[1], tirx.const(math.inf, dtype))
            stays = tirx.Select(is_number, stays, tirx.IntImm("bool", 1))
        return tuple(tirx.Select(stays, a, b) for a, b in zip(old, new, strict=True))

    def identity(*_types: str) -> tuple[tirx.Expr, ...]:
        start = tirx.const(infinity, dtype) if dtype in _FLOATS else least
        return tirx.const(0, index_dtype), start

    return te.comm_reducer(combine, identity, name="first")


LEGALIZATIONS: dict[str, Legalize] = {
    f"relax.{name}": _legalize(name == "argmax") for name in ("argmax", "argmin")
}
