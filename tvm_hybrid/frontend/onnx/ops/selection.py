"""Operators that choose elements by what these are: NonZero, Compress, Unique, the result of an If.

A kernel computes results of the largest size that is possible, and counts. The count becomes a
symbolic size, `R.match_cast(R.tensor_to_shape(count), R.Shape([n]))`, to which results are cut and
in terms of which TVM types and compiles what comes behind.

    condition, then [4, 8], other [n, 8]    ->    m = condition ? 4 : n, result [m, 8]
    flags = [0, 1, 1, 0]    ->    places = [1, 2, ?, ?], count = [2]    ->    [1, 2]
"""

from __future__ import annotations

import functools
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from microkernels.vector.expressions import reinterpret

from ...expressions import Attrs, Expr, Inputs, emit_te, is_nan, reshaped
from ..graph.graph import OWN_DOMAIN
from ..graph.kernels import cell, copied, cut, emit_kernel, pick, put, size_in, table
from ..graph.sizes import INDEX, dims_of, index, is_number, product, same_size
from ..operators import operator
from .sorting import Before, Order, rising, sort_by_digits, sort_places


@operator("Select", domain=OWN_DOMAIN)
def _select(inputs: Inputs, attrs: Attrs) -> Any:
    condition, then, other = inputs
    condition = reshaped(condition, ())
    sizes = [
        one if same_size(one, two) else _chosen(condition, one, two)
        for one, two in zip(dims_of(then), dims_of(other), strict=True)
    ]

    def compute(condition: te.Tensor, then: te.Tensor, other: te.Tensor, sizes: Any) -> te.Tensor:
        def element(*place: Expr) -> Expr:
            # An element of the other branch may be outside of it, so it must not be read.
            return tirx.if_then_else(condition(), then(*place), other(*place))

        return te.compute(sizes, element, name="taken")

    return emit_te(compute, condition, then, other, sizes, primfunc_name_hint="select_branch")


def _chosen(condition: Expr, one: Expr, two: Expr) -> tirx.Var:
    """One of two sizes."""

    def compute(condition: te.Tensor, sizes: list[Expr]) -> te.Tensor:
        one, two = (tirx.Cast(INDEX, size) for size in sizes)
        return te.compute((1,), lambda _: tirx.if_then_else(condition(), one, two), name="chosen")

    count = emit_te(compute, condition, [one, two], primfunc_name_hint="select_size")
    return size_in(count)


# NonZero and Compress: which elements are there is known when the model runs.
#
#     flags = [0, 1, 1, 0]    ->    places = [1, 2, ?, ?], count = [2]    ->    [1, 2]
#
# A kernel writes all places, at most as many as there are elements, and counts them. What is behind
# it is cut to the count.


@operator("NonZero")
def _nonzero(inputs: Inputs, attrs: Attrs) -> Any:
    x = inputs[0]
    dims = dims_of(x)
    places, count = _places(copied(x, [product(dims)]), product(dims))

    def coordinates(places: te.Tensor, dims: list[Expr]) -> te.Tensor:
        def element(axis: Expr, number: Expr) -> Expr:
            found = index(0)
            for each, size in enumerate(dims):
                step = product(dims[each + 1 :])
                # There may be no elements.
                step, size = te.max(step, index(1)), te.max(size, index(1))
                place = tirx.floormod(tirx.floordiv(places[number], step), size)
                found = place if each == 0 else tirx.Select(axis == each, place, found)
            return found

        return te.compute((len(dims), count), element, name="coordinates")

    return emit_te(coordinates, places, dims, primfunc_name_hint="coordinates")


@operator("Compress")
def _compress(inputs: Inputs, attrs: Attrs) -> Any:
    """A condition that is shorter than the axis ends where it ends."""
    (data, condition), axis = inputs, attrs.get("axis")
    if axis is None:
        data, axis = copied(data, [product(dims_of(data))]), 0
    dims = dims_of(data)
    axis %= len(dims)
    places, count = _places(condition, te.min(dims_of(condition)[0], dims[axis]))
    return pick(data, places, count, axis)


def _places(flags: Expr, extent: Expr) -> tuple[Expr, Expr]:
    """Where the first `extent` elements of a vector are not zero, and how many are not."""

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        (flags,), (places, count) = ins, outs
        put(count, index(0))
        with I.serial(extent) as i, I.If(_is_true(flags[i])), I.Then():
            put(places, i, count[0])
            put(count, count[0] + 1)

    results = [([extent], INDEX), ([1], INDEX)]
    places, count = emit_kernel("places", [flags], results, body)
    return places, size_in(count)


def _is_true(value: Expr) -> Expr:
    dtype = str(value.ty.dtype)
    if dtype == "bool":
        return value
    if "float" in dtype:  # all bits but the sign; TVM's comparison has no NaN differ from 0
        bits = f"uint{value.ty.dtype.bits}"
        value, dtype = reinterpret(bits, value) << tirx.const(1, bits), bits
    return value != tirx.const(0, dtype)


# Unique: the different elements of a tensor, or the different slices along an axis.
#
# A kernel sorts the places of all slices, which puts equal ones side by side, the first of them in
# front: elements by their digits, slices of several by merges. NaN is equal to NaN and comes last;
# of 0 and -0 the first one stays.


@operator("Unique")
def _unique(inputs: Inputs, attrs: Attrs) -> Any:
    x, axis = inputs[0], attrs.get("axis")
    dims = dims_of(x)
    if axis is None:
        slices = [index(1), product(dims), index(1)]
        x = copied(x, [slices[1]])
        axis = 0
    else:
        axis %= len(dims)
        slices = [product(dims[:axis]), dims[axis], product(dims[axis + 1 :])]
    data = copied(x, slices)
    in_order = bool(attrs.get("sorted", 1))

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        (x,), (firsts, inverse, counts, count) = ins, outs
        extent = x.shape[1]
        order, group = table(extent), cell()
        single = is_number(x.shape[0], 1) and is_number(x.shape[2], 1)
        before = (_sort_elements if single else _sort)(x, order)
        put(group, index(-1))
        with I.serial(extent) as place:
            new = cell("bool")
            put(new, tirx.EQ(place, index(0)))
            with I.If(place > 0), I.Then():
                put(new, before(order[place - 1], order[place]))
            with I.If(new[0]), I.Then():
                put(group, group[0] + 1)
                put(firsts, order[place], group[0])
                put(counts, index(0), group[0])
            put(counts, counts[group[0]] + 1, group[0])
            put(inverse, group[0], order[place])
        put(count, group[0] + 1)
        if not in_order:
            _by_first_place(firsts, inverse, counts)

    extent = slices[1]
    results = [([extent], INDEX), ([extent], INDEX), ([extent], INDEX), ([1], INDEX)]
    firsts, inverse, counts, count = emit_kernel("unique", [data], results, body)
    found = size_in(count)
    values = pick(x, firsts, found, axis)
    return relax.Tuple([values, cut(firsts, found), inverse, cut(counts, found)])


def _sort(x: Expr, order: Expr) -> Before:
    """Puts the places of slices in order; whether one comes before another."""

    before = functools.partial(_compared, x)
    with I.serial(x.shape[1]) as place:
        put(order, place, place)
    sort_places(order, x.shape[1], before)
    return before


def _sort_elements(x: Expr, order: Expr) -> Before:
    """As `_sort`, of slices of one element: by digits."""
    extent = x.shape[1]
    ranks = table(extent, str(rising(x[0, index(0), 0]).ty.dtype))

    with I.serial(extent) as place:
        put(ranks, rising(x[0, place, 0]), place)
    sort_by_digits(Order(order, lambda place: ranks[place]), extent)
    return lambda one, other: ranks[one] < ranks[other]


def _compared(x: Expr, one: Expr, other: Expr) -> Expr:
    """Whether a slice comes before another: the first elements that differ decide."""
    result, place = cell("int8"), cell()
    outer, inner = x.shape[0], x.shape[2]
    put(result, tirx.const(0, "int8"))
    put(place, index(0))
    with I.While(tirx.all(tirx.EQ(result[0], tirx.const(0, "int8")), place[0] < outer * inner)):
        row, column = index(0), place[0]
        if not is_number(outer, 1):
            row, column = tirx.floordiv(column, inner), tirx.floormod(column, inner)
        left, right = x[row, one, column], x[row, other, column]
        with I.If(_lesser(left, right)), I.Then():
            put(result, tirx.const(1, "int8"))
        with I.If(_lesser(right, left)), I.Then():
            put(result, tirx.const(-1, "int8"))
        put(place, place[0] + 1)
    return result[0] > 0


def _lesser(left: Expr, right: Expr) -> Expr:
    """Whether a number comes before another; NaN comes behind all others, and is equal to NaN."""
    dtype = str(left.ty.dtype)
    if dtype == "bool":
        left, right = tirx.Cast("int8", left), tirx.Cast("int8", right)
    if "float" not in dtype:
        return left < right
    return tirx.any(left < right, tirx.all(is_nan(right), tirx.Not(is_nan(left))))


def _by_first_place(firsts: Expr, inverse: Expr, counts: Expr) -> None:
    """Numbers the groups anew, in the order of their first elements."""
    extent = inverse.shape[0]
    old_firsts, old_counts, number = table(extent), table(extent), table(extent)
    group, found = cell(), cell()
    with I.serial(extent) as place:
        put(old_firsts, firsts[place], place)
        put(old_counts, counts[place], place)
    put(found, index(0))
    with I.serial(extent) as place:
        put(group, inverse[place])
        with I.If(tirx.EQ(old_firsts[group[0]], place)), I.Then():
            put(number, found[0], group[0])
            put(firsts, place, found[0])
            put(counts, old_counts[group[0]], found[0])
            put(found, found[0] + 1)
        put(inverse, number[group[0]], place)
