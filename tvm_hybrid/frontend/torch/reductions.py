"""What makes one element of many, where TVM's converters make something else than PyTorch.

operator               TVM's converter                            here
max(x, dim)            the first of a sorted axis: no NaN wins    R.max, R.argmax
max, min of bool       fail                                       of int8
any of numbers         their maximum                              of x != 0
median                 passes over NaN                            NaN, and the place of the first
mean(x, [])            reduces nothing                            all axes
var                    reduces nothing; NaN where no element is   all axes; infinite
                       left, two roundings of a narrow float      in float32
linalg_vector_norm     fails for the order 0, reads no dtype      all orders, in float32
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder.utils import buffer_proxy

from microkernels.base.errors import UnsupportedOperatorError

from ..expressions import Expr, emit, emit_te, is_nan, literal
from .promotion import type_name

Value = Any  # relax.Expr, a tensor
_NARROW = ("float16", "bfloat16")


def mean(node: Any, importer: Any) -> Value:
    """`aten.mean.dim`: tensor, axes, whether they stay; a type."""
    x = importer.env[node.args[0]]
    axes, keep = _axis_and_keep(node)
    wanted = node.kwargs.get("dtype")
    if wanted is not None and type_name(wanted) not in (str(x.ty.dtype), *_NARROW):
        x = emit(relax.op.astype(x, type_name(wanted)))
    return emit(relax.op.mean(x, axes or None, keep))


def variance(node: Any, importer: Any) -> Value:
    """`aten.var.correction`: tensor, axes; a correction, whether axes stay."""
    x = importer.env[node.args[0]]
    axes, keep = _axis_and_keep(node)
    given = node.kwargs.get("correction")
    correction = 1 if given is None else given
    dtype = str(x.ty.dtype)
    if dtype in _NARROW:
        x = emit(relax.op.astype(x, "float32"))
    found = emit(relax.op.variance(x, axes or None, keep))
    if correction != 0:
        sizes = node.args[0].meta["val"].shape
        count = math.prod(sizes[axis] for axis in axes or range(len(sizes)))
        if not isinstance(count, int):
            raise UnsupportedOperatorError(
                f"operator var.correction (node {node.name!r}) along a dynamic size; only the "
                "correction 0 is supported there"
            )
        kind = str(x.ty.dtype)
        total = emit(relax.op.multiply(found, relax.const(float(count), kind)))
        left = float(max(count - correction, 0))
        found = emit(relax.op.divide(total, relax.const(left, kind)))
    return emit(relax.op.astype(found, dtype)) if dtype in _NARROW else found


def vector_norm(node: Any, importer: Any) -> Value:
    """`aten.linalg_vector_norm.default`: tensor, order, axes, whether they stay; a type."""
    x = importer.env[node.args[0]]
    order = node.args[1] if len(node.args) > 1 else 2
    axes = (node.args[2] if len(node.args) > 2 else None) or None
    keep = node.args[3] if len(node.args) > 3 else False
    wanted = type_name(node.meta["val"].dtype)
    kind = "float32" if wanted in _NARROW else wanted
    if str(x.ty.dtype) != kind:
        x = emit(relax.op.astype(x, kind))
    if order == 2:
        found = emit(relax.op.sqrt(emit(relax.op.sum(emit(relax.op.multiply(x, x)), axes, keep))))
    else:
        found = _of_order(emit(relax.op.abs(x)), order, axes, keep)
    return found if kind == wanted else emit(relax.op.astype(found, wanted))


def _of_order(size: Value, order: float, axes: Any, keep: bool) -> Value:
    """A norm of absolute values."""
    kind = str(size.ty.dtype)
    if math.isinf(order):
        return emit((relax.op.max if order > 0 else relax.op.min)(size, axes, keep))
    if order == 0:
        size = emit(relax.op.astype(relax.op.greater(size, relax.const(0, kind)), kind))
        return emit(relax.op.sum(size, axes, keep))
    if order == 1:
        return emit(relax.op.sum(size, axes, keep))
    powers = emit(relax.op.power(size, relax.const(float(order), kind)))
    total = emit(relax.op.sum(powers, axes, keep))
    return emit(relax.op.power(total, relax.const(1 / order, kind)))


def max_along(node: Any, importer: Any) -> Value:
    """`aten.max.dim`: tensor, axis, whether it stays -> values and their places."""
    x = importer.env[node.args[0]]
    axis, keep = _axis_and_keep(node)
    numbers = emit(relax.op.astype(x, "int8")) if str(x.ty.dtype) == "bool" else x
    place = emit(relax.op.argmax(numbers, axis, keep))
    return emit(relax.Tuple([_of_numbers(relax.op.max, x, axis, keep), place]))


def largest(node: Any, importer: Any) -> Value:
    """`aten.max.default`."""
    x = importer.env[node.args[0]]
    return _of_numbers(relax.op.max, x, None, False)


def smallest(node: Any, importer: Any) -> Value:
    """`aten.min.default`."""
    x = importer.env[node.args[0]]
    return _of_numbers(relax.op.min, x, None, False)


def any_along(node: Any, importer: Any) -> Value:
    """`aten.any.dim` and `aten.any.dims`: tensor, axis or axes, whether they stay."""
    x = importer.env[node.args[0]]
    axes, keep = _axis_and_keep(node)
    dtype = str(x.ty.dtype)
    if dtype != "bool":
        zero = emit(relax.op.equal(x, relax.const(0, dtype)))
        x = emit(relax.op.logical_not(zero))
    if axes == []:
        return x
    return _of_numbers(relax.op.max, x, axes, keep)


def median(node: Any, importer: Any) -> Value:
    """`aten.median.default` and `aten.median.dim` -> values, and along an axis their places."""
    x = importer.env[node.args[0]]
    found = importer.create_convert_map()[node.target.__name__](node)
    if "float" not in str(x.ty.dtype):
        return found
    nan = emit(relax.op.astype(relax.op.isnan(x), "int32"))
    axis, keep = _axis_and_keep(node)
    one_is = emit(relax.op.astype(relax.op.max(nan, axis, keep), "bool"))
    nothing = relax.const(float("nan"), str(x.ty.dtype))
    if axis is None:
        return emit(relax.op.where(one_is, nothing, found))
    values = emit(relax.op.where(one_is, nothing, emit(relax.TupleGetItem(found, 0))))
    first = emit(relax.op.argmax(nan, axis, keep))
    places = emit(relax.op.where(one_is, first, emit(relax.TupleGetItem(found, 1))))
    return emit(relax.Tuple([values, places]))


def _of_numbers(reduce: Callable[..., Value], x: Value, axes: Any, keep: bool) -> Value:
    """An extreme; of bool by way of int8, as TVM has no smallest bool."""
    if str(x.ty.dtype) != "bool":
        return emit(reduce(x, axes, keep))
    found = emit(reduce(emit(relax.op.astype(x, "int8")), axes, keep))
    return emit(relax.op.astype(found, "bool"))


def _axis_and_keep(node: Any) -> tuple[Any, bool]:
    """The second and the third argument, which may be missing or named."""
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    keep = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    return axis, keep


REDUCTIONS = {
    "var.correction": variance,
    "linalg_vector_norm.default": vector_norm,
    "max.dim": max_along,
    "max.default": largest,
    "min.default": smallest,
    "any.dim": any_along,
    "any.dims": any_along,
    "median.default": median,
    "median.dim": median,
}


# Extremes, products, running extremes and searches along axes.
#
# amax(x, [1], True)   ->  R.max(x, [1], keepdims=True)
# cummax(x, 1)         ->  a kernel that walks along the axis, and the last place of each maximum
# searchsorted(s, x)   ->  a kernel of binary searches, in which a NaN is the largest number


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
