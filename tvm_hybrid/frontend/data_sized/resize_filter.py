"""Sums of any number of elements along an axis of open extent, as antialiasing wants them.

    y[o] = sum over t of x[first[o] + t] * weight[o, t]

Filters are as wide as 1 / scale, and both tables are made when the program runs. A region that is
read goes this way, too: it takes less code than a table for each tap, and all axes may have one.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

from tvm import relax, te, tirx

from ..expressions import Expr, cast, dtype_of
from .kernels import index
from .resize_axis import Element, Numbers, apart, emit_table, f32
from .resize_tables import REACH, Table, held, weight_of
from .sizes import dims_of, size_in

MOST_WRITTEN = 16  # elements on each side of a filter whose sum is written out


def wants_filter(table: Table) -> bool:
    """Whether filters are or may be wider than without antialiasing, or a region is read."""
    if table.how.mode == "nearest":
        return False
    scale, region = table.axis.scale, table.axis.region
    widened = table.how.antialias and not (isinstance(scale, float) and scale >= 1)
    return widened or any(isinstance(number, Element) for number in region)


def filtered(
    builder: relax.BlockBuilder, x: Expr, table: Table, number: int, is_apart: bool
) -> Expr:
    """A float tensor resized along an axis of this number.

    Parameters
    ----------
    is_apart
        Whether products are rounded by themselves, and added up in the order of the taps.
    """
    reach = _reach(builder, table, MOST_WRITTEN if is_apart else None)

    def first(i: Expr, numbers: Numbers, reach: Expr) -> Expr:
        return te.floor(table.place(i, numbers)).astype("int64") - reach + 1

    def firsts(numbers: Numbers, others: list[Expr]) -> te.Tensor:
        shape = (numbers.outputs,)
        return te.compute(shape, lambda i: first(i, numbers, others[0]), name="first")

    def weights(numbers: Numbers, others: list[Expr]) -> te.Tensor:
        (reach,) = others
        shape = (numbers.outputs, 2 * reach)
        narrowed = _narrowed(numbers) if table.how.antialias else None

        def weight(i: Expr, tap: Expr) -> Expr:
            at = first(i, numbers, reach) + tap
            return weight_of(table.how, at, table.place(i, numbers), numbers.extent, narrowed)

        raw = te.compute(shape, weight, name="raw")
        tap = te.reduce_axis((0, 2 * reach), name="tap")
        total = te.compute(shape[:1], lambda i: te.sum(raw[i, tap], axis=tap), name="total")
        return te.compute(
            shape, lambda i, t: (raw[i, t] / total[i]).astype("float32"), name="weight"
        )

    begins = emit_table(builder, table.axis, "first", firsts, [reach])
    parts = emit_table(builder, table.axis, "filter", weights, [reach])
    shape = [*dims_of(x)[:number], table.axis.after, *dims_of(x)[number + 1 :]]

    def compute(x: te.Tensor, begins: te.Tensor, parts: te.Tensor, shape: list[Expr]) -> te.Tensor:
        taps = parts.shape[1]
        tap = te.reduce_axis((0, taps), name="tap")

        def product(place: Sequence[Expr], tap: Expr) -> Expr:
            at = held(begins[place[number]] + tap, x.shape[number])
            value = x(*place[:number], at, *place[number + 1 :]) * parts[place[number], tap]
            return apart(value) if is_apart else value

        def element(*place: Expr) -> Expr:
            if not is_apart or not isinstance(taps, tirx.IntImm):
                return te.sum(product(place, tap.var), axis=tap)
            # Written out: a schedule adds up a known number in any order.
            return functools.reduce(
                operator.add, (product(place, index(each)) for each in range(int(taps)))
            )

        return te.compute(shape, element, name="filtered")

    parts = cast(builder, parts, dtype_of(x))
    return builder.emit_te(compute, x, begins, parts, shape, primfunc_name_hint="resize_filtered")


def _reach(builder: relax.BlockBuilder, table: Table, most: int | None) -> Expr:
    """Elements of a filter on each side: a number, of `most` at most, or a size that is found."""
    radius, scale = REACH[table.how.mode], table.axis.scale
    if not table.how.antialias:
        return index(radius)
    if isinstance(scale, float):
        wide = math.ceil(radius / min(scale, 1.0))
        if most is None or wide <= most:
            return index(wide)

    def compute(numbers: Numbers, _: list[Expr]) -> te.Tensor:
        wide = te.ceil(tirx.const(radius, "float64") / _narrowed(numbers)).astype("int64")
        # Nothing is made of no elements, and no elements of any.
        some = tirx.all(numbers.outputs > 0, numbers.extent > 0)
        return te.compute(
            (1,), lambda _: tirx.if_then_else(some, wide, index(radius)), name="reach"
        )

    return size_in(builder, emit_table(builder, table.axis, "reach", compute))


def _narrowed(numbers: Numbers) -> Expr:
    return te.min(numbers.scale, f32(1)).astype("float64")
