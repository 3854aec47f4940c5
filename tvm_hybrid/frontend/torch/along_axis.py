"""Extremes, products, running extremes and searches along axes.

amax(x, [1], True)   ->  R.max(x, [1], keepdims=True)
cummax(x, 1)         ->  a kernel that walks along the axis, and the last place of each maximum
searchsorted(s, x)   ->  a kernel of binary searches, in which a NaN is the largest number
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder.utils import buffer_proxy

from ..expressions import Expr, emit, emit_te, is_nan, literal
from .promotion import type_name

_NARROW = ("float16", "bfloat16")


def amax(node: Any, importer: Any) -> Expr:
    """`aten.amax.default`: tensor, axes (none: all), whether they stay."""
    return _extreme(node, importer, relax.op.max)


def amin(node: Any, importer: Any) -> Expr:
    """`aten.amin.default`, as of `amax`."""
    return _extreme(node, importer, relax.op.min)


def _extreme(node: Any, importer: Any, reduce: Callable[..., Expr]) -> Expr:
    x = importer.env[node.args[0]]
    axes, keep = _argument(node, 1, "dim", None), _argument(node, 2, "keepdim", False)
    dtype = str(x.ty.dtype)
    if not node.args[0].meta["val"].dim():
        return x
    if dtype != "bool":
        return emit(reduce(x, axes or None, keep))
    found = emit(reduce(emit(relax.op.astype(x, "int8")), axes or None, keep))
    return emit(relax.op.astype(found, dtype))


def product(node: Any, importer: Any) -> Expr:
    """`aten.prod.dim_int`: tensor, axis, whether it stays."""
    x = importer.env[node.args[0]]
    if not node.args[0].meta["val"].dim():
        return x
    axis, keep = node.args[1], _argument(node, 2, "keepdim", False)
    return emit(relax.op.prod(x, axis, keepdims=keep))


def _argument(node: Any, position: int, name: str, default: Any) -> Any:
    """An argument that may be missing, or be given by name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def cummax(node: Any, importer: Any) -> tuple[Expr, Expr]:
    """`aten.cummax.default`: tensor, axis -> the largest so far, and the last place of it."""
    return _running_extreme(node, importer, te.max)


def cummin(node: Any, importer: Any) -> tuple[Expr, Expr]:
    """`aten.cummin.default`, as of `cummax`."""
    return _running_extreme(node, importer, te.min)


def _running_extreme(
    node: Any, importer: Any, better: Callable[[Expr, Expr], Expr]
) -> tuple[Expr, Expr]:
    x, axis = importer.env[node.args[0]], node.args[1]
    rank = node.meta["val"][0].dim()
    if not rank:
        return x, literal(np.zeros((), np.int64))
    axis %= rank
    kind = str(x.ty.dtype)
    given = emit(relax.op.astype(x, "int8")) if kind == "bool" else x
    name = "running_extreme"

    def scan(x: te.Tensor) -> te.Tensor:
        return topi.scanop(x, better, tirx.const(0, x.dtype), name, axis=axis)

    def seen(x: te.Tensor, best: te.Tensor) -> te.Tensor:
        """The place of an element that is the best so far, else 0."""

        def place(*at: Expr) -> Expr:
            new = tirx.any(x(*at) == best(*at), is_nan(x(*at)))
            return tirx.Select(new, at[axis].astype("int64"), tirx.const(0, "int64"))

        return te.compute(x.shape, place, name="places")

    def latest(places: te.Tensor) -> te.Tensor:
        return topi.scanop(places, te.max, tirx.const(0, "int64"), name, axis=axis)

    best = emit_te(scan, given, primfunc_name_hint=name)
    places = emit_te(seen, given, best, primfunc_name_hint="extreme_places")
    places = emit_te(latest, places, primfunc_name_hint=name)
    return emit(relax.op.astype(best, kind)) if kind == "bool" else best, places


def logcumsumexp(node: Any, importer: Any) -> Expr:
    """`aten.logcumsumexp.default`: tensor, axis."""
    x, axis = importer.env[node.args[0]], node.args[1]
    rank = node.meta["val"].dim()
    if not rank:
        return x
    kind = str(x.ty.dtype)
    wide = emit(relax.op.astype(x, "float32")) if kind in _NARROW else x

    def add(total: Expr, value: Expr) -> Expr:
        high, low = te.max(total, value), te.min(total, value)
        difference = low - high  # NaN if both are the same infinity, which is the sum
        same = tirx.all(high == low, tirx.isinf(high))
        return tirx.Select(same, high, high + tirx.log1p(tirx.exp(difference)))

    def scan(x: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, x.dtype)
        return topi.scanop(x, add, zero, "logcumsumexp", axis=axis % rank)

    found = emit_te(scan, wide, primfunc_name_hint="logcumsumexp")
    return emit(relax.op.astype(found, kind)) if kind in _NARROW else found


def searchsorted(node: Any, importer: Any) -> Expr:
    """`aten.searchsorted.Tensor`: sorted lines, values; which side, an order that sorts."""
    lines, values = (importer.env[each] for each in node.args[:2])
    sorter, right = node.kwargs.get("sorter"), node.kwargs.get("right", False)
    if node.kwargs.get("side") is not None:
        right = node.kwargs["side"] == "right"
    if sorter is not None:
        lines = emit(relax.op.gather_elements(lines, importer.env[sorter], axis=-1))
    return _searched(node, importer, lines, values, right)


def bucketize(node: Any, importer: Any) -> Expr:
    """`aten.bucketize.Tensor`: values, boundaries; which side."""
    values, lines = (importer.env[each] for each in node.args[:2])
    return _searched(node, importer, lines, values, node.kwargs.get("right", False))


def _searched(node: Any, importer: Any, lines: Expr, values: Expr, right: bool) -> Expr:
    """How many elements of a line are less than a value; `right`: or equal to it."""
    dtype = type_name(node.meta["val"].dtype)
    kinds = {str(each.ty.dtype) for each in (lines, values)}
    wide = "float32" if kinds <= {*_NARROW} else max(kinds, key=_width)
    lines, values = (
        emit(relax.op.astype(each, wide)) if str(each.ty.dtype) != wide else each
        for each in (lines, values)
    )

    def compute(lines: te.Tensor, values: te.Tensor) -> Any:
        return te.extern(
            [values.shape],
            [lines, values],
            lambda ins, outs: _searches(ins[0], ins[1], outs[0], right),
            dtype=[dtype],
            name="searchsorted",
        )

    return emit_te(compute, lines, values, primfunc_name_hint="searchsorted")


def _searches(lines: Any, values: Any, places: Any, right: bool) -> tirx.Stmt:
    length, dtype = lines.shape[-1], places.dtype
    several = len(lines.shape) > 1
    count = functools.reduce(operator.mul, values.shape, 1)
    per_line = values.shape[-1] if several else 1
    with IRBuilder() as ib:
        lines, values, places = map(buffer_proxy, (lines, values, places))
        with I.parallel(0, count) as number:
            start = number // per_line * length if several else 0
            low, high = (buffer_proxy(I.decl_buffer([1], dtype, scope="local")) for _ in range(2))
            low[0], high[0] = tirx.const(0, dtype), tirx.Cast(dtype, length)
            with I.While(low[0] < high[0]):
                middle = low[0] + (high[0] - low[0]) // 2
                element, value = lines[start + middle], values[number]
                # A NaN is not before anything, and so is behind everything.
                with I.If(element > value if right else element >= value):
                    with I.Then():
                        high[0] = middle
                    with I.Else():
                        low[0] = middle + 1
            places[number] = low[0]
        return ib.get()


def _width(dtype: str) -> tuple[bool, int]:
    """What makes a type the common one of two."""
    return "float" in dtype, np.dtype(dtype).itemsize if dtype != "bfloat16" else 2


ALONG_AXIS: dict[str, Callable[[Any, Any], Any]] = {
    "amax.default": amax,
    "amin.default": amin,
    "prod.dim_int": product,
    "cummax.default": cummax,
    "cummin.default": cummin,
    "logcumsumexp.default": logcumsumexp,
    "searchsorted.Tensor": searchsorted,
    "bucketize.Tensor": bucketize,
}


# Slices whose ends are open sizes, of which torch has proved that they lie inside.
#
#     x: [s, 8], slice(x, 0, 1, n)  ->  R.strided_slice(x, [0], [1], [1 + (n - 1)])   of size n - 1
#
# TVM takes the smaller of an end and the size, an expression that no template knows.


def cut(node: Any, importer: Any) -> Any:
    """`aten.slice.Tensor`: tensor, axis, start, end, step."""
    defaults: tuple[Any, ...] = (None, 0, None, None, 1)
    _, axis, start, end, step = tuple(node.args) + defaults[len(node.args) :]
    axis %= node.meta["val"].dim()
    begin = 0 if start is None else importer.env.get(start, start)
    size = importer.sizes.of(node.meta["val"].shape[axis])
    if size == 0:
        # R.strided_slice wants no end before its start.
        made = node.meta["val"]
        sizes = relax.ShapeExpr([importer.sizes.of(each) for each in made.shape])
        return emit(relax.op.zeros(sizes, type_name(made.dtype)))
    proved = step == 1 and not isinstance(size, tirx.Min)
    if not (proved and _is_open(start, end)) or _is_negative(begin):
        return importer.create_convert_map()["slice.Tensor"](node)
    x = importer.env[node.args[0]]
    sliced = relax.op.strided_slice(x, [axis], [begin], [begin + size], assume_inbound=True)
    return emit(sliced)


def _is_open(*ends: Any) -> bool:
    """Whether one of the ends is a value of the graph."""
    return any(hasattr(end, "meta") for end in ends)


def _is_negative(begin: Any) -> bool:
    return isinstance(begin, int) and begin < 0


def concatenate(node: Any, importer: Any) -> Any:
    """Concatenation as torch has it: a vector without elements may stand beside anything.

    A cache of keys and values begins as such a vector.

        cat([empty: [0], x: [2, 4, 7, 8]], -2)  ->  R.concat((x,), axis=-2)

    `aten.cat.default`.
    """
    parts = [each for each in node.args[0] if tuple(each.meta["val"].shape) != (0,)]
    values = [importer.env[each] for each in parts or node.args[0]]
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return emit(relax.op.concat(values, axis=axis))
