"""Operators that read elements at places that are computed, or from data of open sizes.

Indices come from the user's feeds: each is held inside the data, and data without elements is not
read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from ..expressions import Converter, Expr, constant, known_dims
from .index_grids import index_grid
from .kernels import INDEX, index
from .requests import check
from .sizes import dims_of, is_open, product, same_size


def gather(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Slices of open data, or at an open number of places."""
    data, indices = inputs
    before, places = dims_of(data), dims_of(indices)
    axis = attrs.get("axis", 0) % len(before)
    values = constant(indices)
    if values is not None and values.size == 1:
        return _slice_at(builder, data, axis, int(values.item()), places)
    end = axis + len(places)
    shape = [*before[:axis], *places, *before[axis + 1 :]]
    grid = index_grid(builder, indices)
    if grid is not None and grid.counts(places) and same_size(product(places), before[axis]):
        return relax.op.reshape(data, relax.ShapeExpr(shape))
    check_choice(builder, [before[axis]], places)

    def compute(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            place = _held(indices(*i[axis:end]), data.shape[axis])
            return _read(data, [*i[:axis], place, *i[end:]])

        return te.compute(shape, element, name="gathered")

    return builder.emit_te(compute, data, indices, primfunc_name_hint="gather")


def _slice_at(
    builder: relax.BlockBuilder, data: Expr, axis: int, place: int, places: Sequence[Expr]
) -> Expr:
    """One slice along an open axis, which the program checks to be there."""
    dims = dims_of(data)
    check(builder, dims[axis] > place if place >= 0 else dims[axis] >= -place)
    first = index(place) if place >= 0 else dims[axis] + place
    part = relax.op.strided_slice(data, [axis], [first], [first + 1], assume_inbound=True)
    sizes = [*dims[:axis], *places, *dims[axis + 1 :]]
    return relax.op.reshape(builder.normalize(part), relax.ShapeExpr(sizes))


def _gather_elements(
    builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    data, indices = inputs
    known = not is_open(data) and not is_open(indices)
    if known and (constant(indices) is not None or not math.prod(known_dims(data))):
        return None
    axis = attrs.get("axis", 0) % len(dims_of(data))
    check_choice(builder, dims_of(data), dims_of(indices))

    def compute(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            places = [_held(place, size) for place, size in zip(i, data.shape, strict=True)]
            places[axis] = _held(indices(*i), data.shape[axis])
            return _read(data, places)

        return te.compute(indices.shape, element, name="gathered")

    return builder.emit_te(compute, data, indices, primfunc_name_hint="gather_elements")


def _gather_nd(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    data, indices = inputs
    if not is_open(data) and not is_open(indices):
        return None
    before, places = dims_of(data), dims_of(indices)
    batch, depth = attrs.get("batch_dims", 0), places[-1]
    if not isinstance(depth, tirx.IntImm):
        raise ValueError("the number of indices for each place depends on data")
    first, last = len(places) - 1, batch + int(depth)
    shape = [*places[:-1], *before[last:]]
    check_choice(builder, before[batch:last], places[:-1])

    def compute(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            found = [
                _held(indices(*i[:first], index(number)), data.shape[batch + number])
                for number in range(int(depth))
            ]
            return _read(data, [*i[:batch], *found, *i[first:]])

        return te.compute(shape, element, name="gathered")

    return builder.emit_te(compute, data, indices, primfunc_name_hint="gather_nd")


def check_choice(
    builder: relax.BlockBuilder, extents: Sequence[Expr], places: Sequence[Expr]
) -> None:
    """Has the program check that there are elements to choose from, if one is to be chosen."""
    # There are none to be chosen where a size of both is 0.
    rest = [size for size in extents if not any(same_size(size, place) for place in places)]
    check(builder, tirx.any(product(rest) > 0, tirx.EQ(product(places), index(0))))


def check_extreme(builder: relax.BlockBuilder, data: Expr, axis: int) -> None:
    """Likewise for the place of an extreme element along an axis."""
    check(builder, dims_of(data)[axis] > 0)


def _held(place: Expr, extent: Expr) -> Expr:
    """A place inside an axis; negative ones count from its end."""
    dtype = str(place.ty.dtype)
    place = tirx.Cast(INDEX, place) if dtype != INDEX else place
    wrapped = place if dtype.startswith("u") else tirx.Select(place < 0, place + extent, place)
    return te.max(te.min(wrapped, extent - 1), index(0))


def _read(data: te.Tensor, places: Sequence[Expr]) -> Expr:
    """An element; 0 if there is none."""
    sizes = [size for size in data.shape if not isinstance(size, tirx.IntImm)]
    if not sizes:
        return data(*places)
    some = product(sizes) > 0
    return tirx.if_then_else(some, data(*places), tirx.const(0, str(data.dtype)))


ACCESS_CONVERTERS: dict[str, Converter] = {
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
}
