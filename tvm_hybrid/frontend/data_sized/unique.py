"""Unique: the different elements of a tensor, or the different slices along an axis.

A kernel sorts the places of all slices, which puts equal ones side by side, the first of them in
front: elements by their digits, slices of several by merges. NaN is equal to NaN and comes last; of
0 and -0 the first one stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import relax, tirx

from ..expressions import Converter, Expr
from .kernels import INDEX, cell, emit_kernel, index, put, table
from .sizes import copied, cut, dims_of, is_number, pick, product, size_in
from .sorting import Before, Order, lesser, rising, sort_by_digits, sort_places


def _unique(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x, axis = inputs[0], attrs.get("axis")
    dims = dims_of(x)
    if axis is None:
        slices = [index(1), product(dims), index(1)]
        x = copied(builder, x, [slices[1]])
        axis = 0
    else:
        axis %= len(dims)
        slices = [product(dims[:axis]), dims[axis], product(dims[axis + 1 :])]
    data = copied(builder, x, slices)
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
    firsts, inverse, counts, count = emit_kernel(builder, "unique", [data], results, body)
    found = size_in(builder, count)
    values = pick(builder, x, firsts, found, axis)
    return relax.Tuple([values, cut(builder, firsts, found), inverse, cut(builder, counts, found)])


def _sort(x: Expr, order: Expr) -> Before:
    """Puts the places of slices in order; whether one comes before another."""

    def before(one: Expr, other: Expr) -> Expr:
        return _compared(x, one, other)

    extent = x.shape[1]
    with I.serial(extent) as place:
        put(order, place, place)
    sort_places(order, extent, before)
    return before


def _sort_elements(x: Expr, order: Expr) -> Before:
    """As `_sort`, of slices of one element: by digits."""
    extent = x.shape[1]
    ranks = table(extent, str(rising(x[0, index(0), 0]).ty.dtype))

    def before(one: Expr, other: Expr) -> Expr:
        return ranks[one] < ranks[other]

    with I.serial(extent) as place:
        put(ranks, rising(x[0, place, 0]), place)
    sort_by_digits(Order(order, lambda place: ranks[place]), extent)
    return before


def _compared(x: Expr, one: Expr, other: Expr) -> Expr:
    """Whether a slice comes before another: the first elements that differ decide."""
    result, place = cell("int8"), cell()
    outer, inner = x.shape[0], x.shape[2]
    put(result, tirx.const(0, "int8"))
    put(place, index(0))
    with I.While(tirx.all(tirx.EQ(result[0], tirx.const(0, "int8")), place[0] < outer * inner)):
        row, column = tirx.floordiv(place[0], inner), tirx.floormod(place[0], inner)
        left, right = x[row, one, column], x[row, other, column]
        with I.If(lesser(left, right)), I.Then():
            put(result, tirx.const(1, "int8"))
        with I.If(lesser(right, left)), I.Then():
            put(result, tirx.const(-1, "int8"))
        put(place, place[0] + 1)
    return result[0] > 0


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


UNIQUE_CONVERTERS: dict[str, Converter] = {"Unique": _unique}
