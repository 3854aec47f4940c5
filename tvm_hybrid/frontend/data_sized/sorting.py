"""A stable sort inside a kernel: merges of runs of 1, 2, 4, ... elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tvm.tirx.script.builder.ir as I
from tvm import te, tirx

from ..expressions import Expr, is_nan
from .kernels import cell, index, put, table

# Whether the first of two places has to come before the second; it may write statements.
Before: TypeAlias = Callable[[Expr, Expr], Expr]


def sort_places(order: Expr, count: Expr, before: Before) -> None:
    """Puts the first `count` places in `order` in order; equal ones stay as they are."""
    other = table(order.shape[0])
    width, left, right, later = cell(), cell(), cell(), cell("bool")
    put(width, index(1))
    with I.While(width[0] < count):
        with I.serial(tirx.floordiv(count + 2 * width[0] - 1, 2 * width[0])) as run:
            start = run * 2 * width[0]
            middle = te.min(start + width[0], count)
            end = te.min(start + 2 * width[0], count)
            put(left, start)
            put(right, middle)
            with I.serial(end - start) as step:
                put(later, left[0] >= middle)
                with I.If(tirx.all(left[0] < middle, right[0] < end)), I.Then():
                    put(later, before(order[right[0]], order[left[0]]))
                with I.If(later[0]):
                    with I.Then():
                        put(other, order[right[0]], start + step)
                        put(right, right[0] + 1)
                    with I.Else():
                        put(other, order[left[0]], start + step)
                        put(left, left[0] + 1)
        with I.serial(count) as place:
            put(order, other[place], place)
        put(width, width[0] * 2)


def lesser(left: Expr, right: Expr) -> Expr:
    """Whether a number comes before another; NaN comes behind all others, and is equal to NaN."""
    dtype = str(left.ty.dtype)
    if dtype == "bool":
        left, right = tirx.Cast("int8", left), tirx.Cast("int8", right)
    if "float" not in dtype:
        return left < right
    return tirx.any(left < right, tirx.all(is_nan(right), tirx.Not(is_nan(left))))
