"""Legalises R.argmax and R.argmin, so that their result is a valid index for all values.

Before

    lv = R.argmax(x, axis=1)

After

    lv = R.call_tir(argmax, (x,))

    most[i] = max(most[i], x[i, k])
    first[i] = min(first[i], x[i, k] == most[i] ? k : largest int)
    place[i] = min(first[i], m - 1)

Both reductions are vectors of either axis; TVM's single one, of pairs, is no vector along the
reduced axis. The result is the first NaN or else the first of equal elements, as in NumPy. TVM
begins with the index -1, and keeps it if nothing is larger than the least number of the type.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx

from microkernels.base.tvm_compat.relax import Legalize

_FLOATS = ("float16", "float32", "float64", "bfloat16")
_MOST = (1 << 31) - 1  # elements that int32 numbers


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
    shape = [extent for i, extent in enumerate(data.shape) if keep or i not in axes]
    shape = [tirx.const(1, "int64") if keep and i in axes else n for i, n in enumerate(shape)]
    count = math.prod((data.shape[i] for i in axes), start=tirx.const(1, "int64"))
    kind = "int32" if isinstance(count, tirx.IntImm) and int(count) <= _MOST else "int64"

    def steps() -> dict[int, Any]:
        return {i: te.reduce_axis((0, data.shape[i]), f"k{i}") for i in axes}

    def element(indices: tuple[tirx.Var, ...], reduced: dict[int, Any]) -> tirx.Expr:
        rest = iter(indices)
        at: list[Any] = []
        for i in range(rank):
            given = next(rest) if keep or i not in reduced else None
            at.append(reduced.get(i, given))
        return data(*at)

    def extreme(*indices: tirx.Var) -> tirx.Expr:
        reduced = steps()
        combine = te.max if largest else te.min
        return combine(element(indices, reduced), axis=list(reduced.values()))

    extremes = te.compute(shape, extreme, name=name)

    def first(*indices: tirx.Var) -> tirx.Expr:
        reduced = steps()
        place: tirx.Expr = tirx.const(0, kind)
        for i in axes:
            place = place * data.shape[i].astype(kind) + reduced[i].var.astype(kind)
        found = _same(element(indices, reduced), extremes(*indices))
        nowhere = tirx.max_value(kind)
        return te.min(tirx.Select(found, place, nowhere), axis=list(reduced.values()))

    places = te.compute(shape, first, name=f"{name}_first")
    last = te.max(count.astype(kind) - tirx.const(1, kind), tirx.const(0, kind))
    return te.compute(
        shape,
        lambda *indices: te.min(places(*indices), last).astype(index_dtype),
        name=f"{name}_place",
    )


def _same(element: tirx.Expr, extreme: tirx.Expr) -> tirx.Expr:
    """Whether an element is the extreme of its row, which is NaN if one of them is."""
    dtype = str(element.ty.dtype)
    if dtype not in _FLOATS:
        return tirx.EQ(element, extreme)
    # Not x == x, which TVM takes for true.
    infinity = tirx.const(math.inf, dtype)
    return tirx.Select(
        tirx.LE(extreme, infinity), tirx.EQ(element, extreme), ~(element <= infinity)
    )


LEGALIZATIONS: dict[str, Legalize] = {
    f"relax.{name}": _legalize(name == "argmax") for name in ("argmax", "argmin")
}
