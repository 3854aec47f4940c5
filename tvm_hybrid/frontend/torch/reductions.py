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

import math
from collections.abc import Callable
from typing import Any

from tvm import relax

from microkernels.base.errors import UnsupportedOperatorError

from ..expressions import emit
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
