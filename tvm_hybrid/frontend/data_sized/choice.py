"""Select: the result of the branch of an If that is taken, where the branches differ in sizes.

condition, then [4, 8], other [n, 8]    ->    m = condition ? 4 : n, result [m, 8]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from microkernels.vector.expressions import reinterpret

from ...runtime.tensors import numpy_dtype
from ..expressions import Converter, Expr, reshaped
from .kernels import INDEX, emit_kernel, index, put
from .sizes import copied, dims_of, pick, product, same_size, size_in


def _select(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    condition, then, other = inputs
    condition = reshaped(builder, condition, ())
    sizes = [
        one if same_size(one, two) else _chosen(builder, condition, one, two)
        for one, two in zip(dims_of(then), dims_of(other), strict=True)
    ]

    def compute(
        condition: te.Tensor, then: te.Tensor, other: te.Tensor, sizes: list[Expr]
    ) -> te.Tensor:
        # An element of the other branch may be outside of it, so it must not be read.
        return te.compute(
            sizes,
            lambda *place: tirx.if_then_else(condition(), then(*place), other(*place)),
            name="taken",
        )

    return builder.emit_te(
        compute, condition, then, other, sizes, primfunc_name_hint="select_branch"
    )


def _chosen(builder: relax.BlockBuilder, condition: Expr, one: Expr, two: Expr) -> tirx.Var:
    """One of two sizes."""

    def compute(condition: te.Tensor, sizes: list[Expr]) -> te.Tensor:
        one, two = (tirx.Cast(INDEX, size) for size in sizes)
        return te.compute((1,), lambda _: tirx.if_then_else(condition(), one, two), name="chosen")

    count = builder.emit_te(compute, condition, [one, two], primfunc_name_hint="select_size")
    return size_in(builder, count)


CHOICE_CONVERTERS: dict[str, Converter] = {"Select": _select}


# NonZero and Compress: which elements are there is known when the model runs.
#
#     flags = [0, 1, 1, 0]    ->    places = [1, 2, ?, ?], count = [2]    ->    [1, 2]
#
# A kernel writes all places, at most as many as there are elements, and counts them. What is behind
# it is cut to the count.


def _nonzero(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x = inputs[0]
    dims = dims_of(x)
    places, count = _places(builder, copied(builder, x, [product(dims)]), product(dims))

    def coordinates(places: te.Tensor, dims: list[Expr]) -> te.Tensor:
        def element(axis: Expr, number: Expr) -> Expr:
            found = index(0)
            for each, size in enumerate(dims):
                step = product(dims[each + 1 :])
                place = tirx.floormod(tirx.floordiv(places[number], _some(step)), _some(size))
                found = place if each == 0 else tirx.Select(axis == each, place, found)
            return found

        return te.compute((len(dims), count), element, name="coordinates")

    return builder.emit_te(coordinates, places, dims, primfunc_name_hint="coordinates")


def _compress(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """A condition that is shorter than the axis ends where it ends."""
    data, condition = inputs
    axis = attrs.get("axis")
    if axis is None:
        data, axis = copied(builder, data, [product(dims_of(data))]), 0
    dims = dims_of(data)
    axis %= len(dims)
    extent = te.min(dims_of(condition)[0], dims[axis])
    places, count = _places(builder, condition, extent)
    return pick(builder, data, places, count, axis)


def _some(size: Expr) -> Expr:
    """A size to divide by, where there may be no elements."""
    return te.max(size, index(1))


def _places(builder: relax.BlockBuilder, flags: Expr, extent: Expr) -> tuple[Expr, Expr]:
    """Where the first `extent` elements of a vector are not zero, and how many are not."""

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        (flags,), (places, count) = ins, outs
        put(count, index(0))
        with I.serial(extent) as i, I.If(_is_true(flags[i])), I.Then():
            put(places, i, count[0])
            put(count, count[0] + 1)

    results = [([extent], INDEX), ([1], INDEX)]
    places, count = emit_kernel(builder, "places", [flags], results, body)
    return places, size_in(builder, count)


def _is_true(value: Expr) -> Expr:
    dtype = str(value.ty.dtype)
    if dtype == "bool":
        return value
    if "float" in dtype:  # all bits but the sign; TVM's comparison has no NaN differ from 0
        bits = f"uint{numpy_dtype(dtype).itemsize * 8}"
        value, dtype = reinterpret(bits, value) << tirx.const(1, bits), bits
    return value != tirx.const(0, dtype)


SELECTION_CONVERTERS: dict[str, Converter] = {"Compress": _compress, "NonZero": _nonzero}
