"""TopK of data whose sizes are open, or with a k that is computed; NaN is the largest number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, te

from ..expressions import Expr, literal
from .kernels import INDEX, emit_kernel, put, table
from .requests import requested_sizes
from .sizes import copied, cut, dims_of, product
from .sorting import lesser, sort_places


def open_top_k(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Values and places. All are sorted, in order of places where they are equal."""
    x, dims = inputs[0], dims_of(inputs[0])
    axis = attrs.get("axis", -1) % len(dims)
    asked = inputs[1] if len(inputs) > 1 else literal(np.array([attrs["k"]], np.int64))
    (count,) = requested_sizes(builder, asked, dims[axis])
    largest = bool(attrs.get("largest", 1))
    slices = [product(dims[:axis]), dims[axis], product(dims[axis + 1 :])]

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        (x,), (places,) = ins, outs
        outer, extent, inner = x.shape
        order = table(extent)
        with I.grid(outer, inner) as (row, column):
            with I.serial(extent) as place:
                put(order, place, place)

            def before(one: Expr, other: Expr) -> Expr:
                left, right = x[row, one, column], x[row, other, column]
                return lesser(right, left) if largest else lesser(left, right)

            sort_places(order, extent, before)
            with I.serial(extent) as place:
                put(places, order[place], row, place, column)

    (places,) = emit_kernel(builder, "top_k", [copied(builder, x, slices)], [(slices, INDEX)], body)
    found = cut(builder, copied(builder, places, dims), count, axis)

    def values(x: te.Tensor, places: te.Tensor) -> te.Tensor:
        return te.compute(
            places.shape, lambda *i: x(*i[:axis], places(*i), *i[axis + 1 :]), name="values"
        )

    return relax.Tuple([builder.emit_te(values, x, found, primfunc_name_hint="values"), found])
