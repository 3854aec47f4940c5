"""Reductions for which TVM's converters compute other results than PyTorch.

operator               TVM's converter                            here
max(x, dim)            the first of a sorted axis: ignores NaN    R.max, R.argmax
max, min of bool       fail                                       as int8
any of numbers         their maximum                              of x != 0
median                 ignores NaN                                NaN, and the index of the first
mean(x, [])            reduces nothing                            all axes
var                    reduces nothing; NaN if the divisor is 0,  all axes; infinite
                       rounds a narrow float twice                in float32
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
from tvm.tirx.script.builder.utils import buffer_proxy

from microkernels.base.errors import UnsupportedOperatorError

from ..expressions import Expr, Place, dtype_of, emit, emit_each, emit_te, is_nan, literal
from ..onnx.graph.kernels import emit_kernel
from .promotion import as_type, type_name

Value = Any  # relax.Expr, a tensor
_NARROW = ("float16", "bfloat16")


def mean(node: Any, importer: Any) -> Value:
    """`aten.mean.dim`: tensor, axes, whether axes are kept; dtype."""
    x = importer.env[node.args[0]]
    axes, keep = _axis_and_keep(node)
    wanted = node.kwargs.get("dtype")
    if wanted is not None and type_name(wanted) not in _NARROW:
        x = as_type(x, type_name(wanted))
    return emit(relax.op.mean(x, axes or None, keep))


def variance(node: Any, importer: Any) -> Value:
    """`aten.var.correction`: tensor, axes; correction, whether axes are kept."""
    x = importer.env[node.args[0]]
    axes, keep = _axis_and_keep(node)
    given = node.kwargs.get("correction")
    correction = 1 if given is None else given
    dtype = str(x.ty.dtype)
    x = as_type(x, "float32") if dtype in _NARROW else x
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
    return as_type(found, dtype)


def vector_norm(node: Any, importer: Any) -> Value:
    """`aten.linalg_vector_norm.default`: tensor, order, axes, whether axes are kept; dtype."""
    defaults: tuple[Any, ...] = (None, 2, None, False)
    _, order, axes, keep = tuple(node.args) + defaults[len(node.args) :]
    wanted = type_name(node.meta["val"].dtype)
    kind = "float32" if wanted in _NARROW else wanted
    x = as_type(importer.env[node.args[0]], kind)
    size = x if order == 2 else emit(relax.op.abs(x))
    if math.isinf(order):
        extreme = relax.op.max if order > 0 else relax.op.min
        return as_type(emit(extreme(size, axes or None, keep)), wanted)
    if order == 0:
        terms = emit(relax.op.astype(relax.op.greater(size, relax.const(0, kind)), kind))
    elif order == 1:
        terms = size
    elif order == 2:
        terms = emit(relax.op.multiply(size, size))
    else:
        terms = emit(relax.op.power(size, relax.const(float(order), kind)))
    found = emit(relax.op.sum(terms, axes or None, keep))
    if order == 2:
        found = emit(relax.op.sqrt(found))
    elif order not in (0, 1):
        found = emit(relax.op.power(found, relax.const(1 / order, kind)))
    return as_type(found, wanted)


def max_along(node: Any, importer: Any) -> Value:
    """`aten.max.dim`: tensor, axis, whether it is kept -> values and their indices."""
    x = importer.env[node.args[0]]
    axis, keep = _axis_and_keep(node)
    place = emit(relax.op.argmax(_as_number(x), axis, keep))
    return emit(relax.Tuple([_of_numbers(relax.op.max, x, axis, keep), place]))


def any_along(node: Any, importer: Any) -> Value:
    """`aten.any.dim` and `aten.any.dims`: tensor, axis or axes, whether they are kept."""
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
    """`aten.median.default` and `aten.median.dim` -> values, and along an axis their indices."""
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
    """Maximum or minimum; bool is computed as int8, as TVM has no smallest bool."""
    return as_type(emit(reduce(_as_number(x), axes, keep)), dtype_of(x))


def _as_number(x: Value) -> Value:
    return as_type(x, "int8") if dtype_of(x) == "bool" else x


def _axis_and_keep(node: Any) -> tuple[Any, bool]:
    """The second and the third argument, which may be missing or named."""
    named = dict(zip(("dim", "keepdim"), node.args[1:], strict=False))
    given = {"dim": None, "keepdim": False, **node.kwargs, **named}
    return given["dim"], given["keepdim"]


# Extremes, products, running extremes and searches along axes.
#
# amax(x, [1], True)   ->  R.max(x, [1], keepdims=True)
# cummax(x, 1)         ->  a kernel that scans the axis, and the last index of each maximum
# searchsorted(s, x)   ->  a kernel of binary searches, in which NaN is the largest number


def extreme_along(node: Any, importer: Any, reduce: Callable[..., Expr]) -> Expr:
    """`aten.amax`, `amin`, `max` and `min`: tensor, axes (none: all), whether they are kept."""
    x = importer.env[node.args[0]]
    axes, keep = _axis_and_keep(node)
    return _of_numbers(reduce, x, axes or None, keep) if node.args[0].meta["val"].dim() else x


def product(node: Any, importer: Any) -> Expr:
    """`aten.prod.dim_int`: tensor, axis, whether it is kept."""
    x = importer.env[node.args[0]]
    if not node.args[0].meta["val"].dim():
        return x
    axis, keep = _axis_and_keep(node)
    return emit(relax.op.prod(x, axis, keepdims=keep))


def running_extreme(
    node: Any, importer: Any, better: Callable[[Expr, Expr], Expr]
) -> tuple[Expr, Expr]:
    """`aten.cummax` and `aten.cummin`: tensor, axis -> the extreme so far, and its last index."""
    x, axis = importer.env[node.args[0]], node.args[1]
    rank = node.meta["val"][0].dim()
    if not rank:
        return x, literal(np.zeros((), np.int64))
    axis %= rank
    given, name = _as_number(x), "running_extreme"

    def scan(x: te.Tensor) -> te.Tensor:
        return topi.scanop(x, better, tirx.const(0, x.dtype), name, axis=axis)

    def seen(at: Place, x: te.Tensor, best: te.Tensor) -> Expr:
        """The index of an element that equals the extreme so far, else 0."""
        new = tirx.any(x(*at) == best(*at), is_nan(x(*at)))
        return tirx.Select(new, at[axis].astype("int64"), tirx.const(0, "int64"))

    def latest(places: te.Tensor) -> te.Tensor:
        return topi.scanop(places, te.max, tirx.const(0, "int64"), name, axis=axis)

    best = emit_te(scan, given, primfunc_name_hint=name)
    shape, hint = given.ty.shape.values, "extreme_places"
    places = emit_each("places", shape, seen, given, best, hint=hint)
    places = emit_te(latest, places, primfunc_name_hint=name)
    return as_type(best, dtype_of(x)), places


def logcumsumexp(node: Any, importer: Any) -> Expr:
    """`aten.logcumsumexp.default`: tensor, axis."""
    x, axis = importer.env[node.args[0]], node.args[1]
    rank = node.meta["val"].dim()
    if not rank:
        return x
    kind = str(x.ty.dtype)
    wide = as_type(x, "float32") if kind in _NARROW else x

    def add(total: Expr, value: Expr) -> Expr:
        high, low = te.max(total, value), te.min(total, value)
        difference = low - high  # NaN if both are the same infinity; the sum is then that infinity
        same = tirx.all(high == low, tirx.isinf(high))
        return tirx.Select(same, high, high + tirx.log1p(tirx.exp(difference)))

    def scan(x: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, x.dtype)
        return topi.scanop(x, add, zero, "logcumsumexp", axis=axis % rank)

    found = emit_te(scan, wide, primfunc_name_hint="logcumsumexp")
    return as_type(found, kind)


def searchsorted(node: Any, importer: Any) -> Expr:
    """`aten.searchsorted.Tensor`: sorted rows, values; side, sorting permutation."""
    lines, values = (importer.env[each] for each in node.args[:2])
    sorter, right = node.kwargs.get("sorter"), node.kwargs.get("right", False)
    if node.kwargs.get("side") is not None:
        right = node.kwargs["side"] == "right"
    if sorter is not None:
        lines = emit(relax.op.gather_elements(lines, importer.env[sorter], axis=-1))
    return _searched(node, importer, lines, values, right)


def bucketize(node: Any, importer: Any) -> Expr:
    """`aten.bucketize.Tensor`: values, boundaries; side."""
    values, lines = (importer.env[each] for each in node.args[:2])
    return _searched(node, importer, lines, values, node.kwargs.get("right", False))


def _searched(node: Any, importer: Any, lines: Expr, values: Expr, right: bool) -> Expr:
    """The number of elements in a row that are less than a value, or equal to it if `right`."""
    dtype = type_name(node.meta["val"].dtype)
    kinds = {str(each.ty.dtype) for each in (lines, values)}
    width = {kind: 2 if kind == "bfloat16" else np.dtype(kind).itemsize for kind in kinds}
    wide = max(kinds, key=lambda kind: ("float" in kind, width[kind]))
    wide = "float32" if kinds <= {*_NARROW} else wide
    lines, values = as_type(lines, wide), as_type(values, wide)

    results = [(list(values.ty.shape.values), dtype)]
    body = functools.partial(_searches, right=right)
    (found,) = emit_kernel("searchsorted", [lines, values], results, body)
    return found


def _searches(lines: Any, values: Any, places: Any, right: bool) -> None:
    length, dtype = lines.shape[-1], places.dtype
    several = len(lines.shape) > 1
    count = functools.reduce(operator.mul, values.shape, 1)
    per_line = values.shape[-1] if several else 1
    lines, values, places = map(buffer_proxy, (lines, values, places))
    with I.parallel(0, count) as number:
        start = number // per_line * length if several else 0
        low, high = (buffer_proxy(I.decl_buffer([1], dtype, scope="local")) for _ in range(2))
        low[0], high[0] = tirx.const(0, dtype), tirx.Cast(dtype, length)
        with I.While(low[0] < high[0]):
            middle = low[0] + (high[0] - low[0]) // 2
            element, value = lines[start + middle], values[number]
            # NaN is not less than anything, so it comes after everything.
            with I.If(element > value if right else element >= value):
                with I.Then():
                    high[0] = middle
                with I.Else():
                    low[0] = middle + 1
        places[number] = low[0]


# Slices whose ends are dynamic sizes that torch has proved to lie inside.
#
#     x: [s, 8], slice(x, 0, 1, n)  ->  R.strided_slice(x, [0], [1], [1 + (n - 1)])   of size n - 1
#
# TVM's converter would take the minimum of end and size, an expression that no template knows.


def cut(node: Any, importer: Any) -> Any:
    """`aten.slice.Tensor`: tensor, axis, start, end, step."""
    defaults: tuple[Any, ...] = (None, 0, None, None, 1)
    _, axis, start, end, step = tuple(node.args) + defaults[len(node.args) :]
    axis %= node.meta["val"].dim()
    begin = 0 if start is None else importer.env.get(start, start)
    size = importer.sizes.of(node.meta["val"].shape[axis])
    if size == 0:
        # R.strided_slice requires that the end is not before the start.
        made = node.meta["val"]
        sizes = relax.ShapeExpr([importer.sizes.of(each) for each in made.shape])
        return emit(relax.op.zeros(sizes, type_name(made.dtype)))
    proved = step == 1 and not isinstance(size, tirx.Min)
    is_dynamic = any(hasattr(bound, "meta") for bound in (start, end))  # a node of the graph
    if not proved or not is_dynamic or (isinstance(begin, int) and begin < 0):
        return importer.create_convert_map()["slice.Tensor"](node)
    x = importer.env[node.args[0]]
    sliced = relax.op.strided_slice(x, [axis], [begin], [begin + size], assume_inbound=True)
    return emit(sliced)


def concatenate(node: Any, importer: Any) -> Any:
    """`aten.cat.default`; as in torch, an empty vector may be joined with tensors of any rank.

    A cache of keys and values starts as such a vector.

        cat([empty: [0], x: [2, 4, 7, 8]], -2)  ->  R.concat((x,), axis=-2)
    """
    parts = [each for each in node.args[0] if tuple(each.meta["val"].shape) != (0,)]
    values = [importer.env[each] for each in parts or node.args[0]]
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return emit(relax.op.concat(values, axis=axis))


CONVERTERS: dict[str, Callable[..., Any]] = {
    "amax.default": functools.partial(extreme_along, reduce=relax.op.max),
    "amin.default": functools.partial(extreme_along, reduce=relax.op.min),
    "prod.dim_int": product,
    "cummax.default": functools.partial(running_extreme, better=te.max),
    "cummin.default": functools.partial(running_extreme, better=te.min),
    "logcumsumexp.default": logcumsumexp,
    "searchsorted.Tensor": searchsorted,
    "bucketize.Tensor": bucketize,
    "var.correction": variance,
    "linalg_vector_norm.default": vector_norm,
    "max.dim": max_along,
    "max.default": functools.partial(extreme_along, reduce=relax.op.max),
    "min.default": functools.partial(extreme_along, reduce=relax.op.min),
    "any.dim": any_along,
    "any.dims": any_along,
    "median.default": median,
    "median.dim": median,
    "cat.default": concatenate,
    "slice.Tensor": cut,
}
