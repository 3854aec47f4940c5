"""Operators that reduce axes: sums and means of all kinds, extremes and their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
from tvm import relax

from ... import expressions as ex
from ...expressions import Attrs, Converter, Expr, Inputs
from ..apply import apply
from ..graph.requests import check
from ..graph.sizes import dims_of, index, scalar_of
from ..operators import operator

Reduce = Callable[[Expr, "list[int] | None", bool], Expr]


def _plain(x: Expr) -> Expr:
    return x


def _square(x: Expr) -> Expr:
    return relax.op.multiply(x, x)


# Operator -> (before, reduction, after).
_REDUCTIONS: dict[str, tuple[Callable[[Expr], Expr], Reduce, Callable[[Expr], Expr]]] = {
    "ReduceL1": (relax.op.abs, relax.op.sum, _plain),
    "ReduceL2": (_square, relax.op.sum, relax.op.sqrt),
    "ReduceLogSum": (_plain, relax.op.sum, relax.op.log),
    "ReduceMax": (_plain, relax.op.max, _plain),
    "ReduceMean": (_plain, relax.op.mean, _plain),
    "ReduceMin": (_plain, relax.op.min, _plain),
    "ReduceProd": (_plain, relax.op.prod, _plain),
    "ReduceSum": (_plain, relax.op.sum, _plain),
    "ReduceSumSquare": (_square, relax.op.sum, _plain),
}
_OF_ONE = {"ReduceL2": relax.op.abs}  # in place of the root of a square
# Relax's mean of int32 is an int64, a bool has no extremes, and roots and logarithms are of floats.
_INTEGERS = ("int32", "int64", "uint32", "uint64")
_COMPUTED_AS = {
    "ReduceMax": {"bool": "uint8"},
    "ReduceMean": {"int32": "int64", "uint32": "int64"},
    "ReduceMin": {"bool": "uint8"},
    **dict.fromkeys(
        ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), dict.fromkeys(_INTEGERS, "float64")
    ),
}


def _reduction(name: str, reduced: Reduce) -> Converter:
    """Over axes, which are an attribute or an input; none are all, or none where that is asked."""
    before, _, after = _REDUCTIONS.get(name, (_plain, None, _plain))

    def convert(inputs: Inputs, attrs: Attrs) -> Any:
        x, axes = inputs[0], attrs.get("axes")
        if inputs[1] is not None:
            known = ex.constant(inputs[1])
            if known is None:
                raise ValueError("the axes are computed at run time; only known ones are supported")
            axes = known.tolist()
        if not axes and attrs.get("noop_with_empty_axes", 0):
            return _OF_ONE[name](x) if name in _OF_ONE else after(ex.normalize(before(x)))
        dtype = ex.dtype_of(x)
        wide = ex.cast(x, _COMPUTED_AS.get(name, {}).get(dtype, dtype))
        found = ex.normalize(
            reduced(wide, list(axes) if axes else None, bool(attrs.get("keepdims", 1)))
        )
        return ex.cast(found, dtype)

    return convert


def _by_parts(name: str) -> Reduce:
    before, reduce, after = _REDUCTIONS[name]
    return lambda x, axes, kept: after(ex.normalize(reduce(ex.normalize(before(x)), axes, kept)))


def _log_sum_exp(x: Expr, axes: list[int] | None, kept: bool) -> Expr:
    """log(sum(exp(x - m))) + m, m: the largest element, so that no power overflows.

    If it is infinite, as in a row of -inf, that would be inf - inf; so the largest or least finite
    number is subtracted instead.
    """
    axes = axes or list(range(ex.rank_of(x)))
    finite = ml_dtypes.finfo(ex.dtype_of(x))
    most = ex.normalize(relax.op.max(x, axes, True))
    most = ex.normalize(apply("Clip", most, min=float(finite.min), max=float(finite.max)))
    powers = relax.op.exp(relax.op.subtract(x, most))
    total = relax.op.add(relax.op.log(apply("ReduceSum", ex.normalize(powers), axes=axes)), most)
    return total if kept else relax.op.squeeze(total, axes)


def _extreme(place_of: Callable[[Expr, int, bool], Expr]) -> Converter:
    def convert(inputs: Inputs, attrs: Attrs) -> Any:
        x = inputs[0]
        axis, kept = attrs.get("axis", 0) % ex.rank_of(x), bool(attrs.get("keepdims", 1))
        check(dims_of(x)[axis] > 0)
        if not attrs.get("select_last_index", 0):
            return place_of(x, axis, kept)
        # The last of equal elements is the first from the other end.
        last = scalar_of(dims_of(x)[axis] - index(1))
        turned = ex.normalize(relax.op.flip(x, axis=axis))
        place = ex.normalize(place_of(turned, axis, kept))
        return relax.op.subtract(last, place)

    return convert


def _over_images(reduce: Reduce) -> Converter:
    def convert(inputs: Inputs, attrs: Attrs) -> Any:
        axes = list(range(2, ex.rank_of(inputs[0])))
        return reduce(inputs[0], axes, True) if axes else inputs[0]

    return convert


@operator("MeanVarianceNormalization")
def _mean_variance(inputs: Inputs, attrs: Attrs) -> Any:
    """(x - mean) / sqrt(mean of squares - square of mean), over images and their pixels."""
    x, axes = inputs[0], list(attrs.get("axes", (0, 2, 3)))
    two = ex.number(x, 2)
    mean = ex.normalize(relax.op.mean(x, axes, True))
    squares = ex.normalize(relax.op.mean(ex.normalize(relax.op.power(x, two)), axes, True))
    variance = ex.normalize(relax.op.subtract(squares, ex.normalize(relax.op.power(mean, two))))
    centred = ex.normalize(relax.op.subtract(x, mean))
    return relax.op.divide(centred, ex.normalize(relax.op.sqrt(variance)))


for _name in _REDUCTIONS:
    operator(_name)(_reduction(_name, _by_parts(_name)))
operator("ReduceLogSumExp")(_reduction("ReduceLogSumExp", _log_sum_exp))
operator("ArgMax")(_extreme(relax.op.argmax))
operator("ArgMin")(_extreme(relax.op.argmin))
operator("GlobalAveragePool")(_over_images(relax.op.mean))
operator("GlobalMaxPool")(_over_images(relax.op.max))
