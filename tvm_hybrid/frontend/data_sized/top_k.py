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
from .sizes import dims_of, product, reshaped_to
from .sorting import first_places, lesser


def open_top_k(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Values and places. All are sorted, in order of places where they are equal."""
    x, dims = inputs[0], dims_of(inputs[0])
    axis = attrs.get("axis", -1) % len(dims)
    asked = inputs[1] if len(inputs) > 1 else literal(np.array([attrs["k"]], np.int64))
    (count,) = requested_sizes(builder, asked, dims[axis])
    largest = bool(attrs.get("largest", 1))
    outer, inner = product(dims[:axis]), product(dims[axis + 1 :])

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        (x,), (places,) = ins, outs
        extent, count = x.shape[1], places.shape[1]
        order = table(count)
        with I.grid(x.shape[0], x.shape[2]) as (row, column):

            def before(one: Expr, other: Expr) -> Expr:
                left, right = x[row, one, column], x[row, other, column]
                return lesser(right, left) if largest else lesser(left, right)

            first_places(order, count, extent, before)
            with I.serial(count) as place:
                put(places, order[place], row, place, column)

    x3 = reshaped_to(builder, x, [outer, dims[axis], inner])
    (places,) = emit_kernel(builder, "top_k", [x3], [([outer, count, inner], INDEX)], body)
    found = reshaped_to(builder, places, [*dims[:axis], count, *dims[axis + 1 :]])

    def values(x: te.Tensor, places: te.Tensor) -> te.Tensor:
        return te.compute(
            places.shape, lambda *i: x(*i[:axis], places(*i), *i[axis + 1 :]), name="values"
        )

    return relax.Tuple([builder.emit_te(values, x, found, primfunc_name_hint="values"), found])
