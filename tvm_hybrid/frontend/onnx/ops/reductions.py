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

OfOne = Callable[[Expr], Expr]
Reduce = Callable[[Expr, "list[int] | None", bool], Expr]
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


def _reduction(
    name: str, reduce: Reduce, before: OfOne = lambda x: x, after: OfOne = lambda x: x
) -> Converter:
    """Over axes, which are an attribute or an input; none are all, or none where that is asked."""

    def convert(inputs: Inputs, attrs: Attrs) -> Any:
        x, axes = inputs[0], attrs.get("axes")
        if inputs[1] is not None:
            misfit = "the axes are computed at run time; only known ones are supported"
            axes = ex.known_array(inputs[1], misfit).tolist()
        if not axes and attrs.get("noop_with_empty_axes", 0):
            return relax.op.abs(x) if name == "ReduceL2" else after(before(x))
        dtype = ex.dtype_of(x)
        wide = ex.cast(x, _COMPUTED_AS.get(name, {}).get(dtype, dtype))
        kept = bool(attrs.get("keepdims", 1))
        return ex.cast(after(reduce(before(wide), list(axes) if axes else None, kept)), dtype)

    return convert


def _log_sum_exp(x: Expr, axes: list[int] | None, kept: bool) -> Expr:
    """log(sum(exp(x - m))) + m, m: the largest element, so that no power overflows.

    If it is infinite, as in a row of -inf, that would be inf - inf; so the largest or least finite
    number is subtracted instead.
    """
    axes = axes or list(range(ex.rank_of(x)))
    finite = ml_dtypes.finfo(ex.dtype_of(x))
    most = relax.op.max(x, axes, True)
    most = apply("Clip", most, min=float(finite.min), max=float(finite.max))
    total = relax.op.log(apply("ReduceSum", relax.op.exp(x - most), axes=axes)) + most
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
        return last - place_of(ex.normalize(relax.op.flip(x, axis=axis)), axis, kept)

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
    variance = ex.normalize(relax.op.mean(x**two, axes, True) - mean**two)
    return (x - mean) / relax.op.sqrt(variance)


# Operator -> reduction, what is done before it, and after it.
_REDUCTIONS: dict[str, tuple[Any, ...]] = {
    "ReduceL1": (relax.op.sum, relax.op.abs),
    "ReduceL2": (relax.op.sum, lambda x: x * x, relax.op.sqrt),
    "ReduceLogSum": (relax.op.sum, lambda x: x, relax.op.log),
    "ReduceLogSumExp": (_log_sum_exp,),
    "ReduceMax": (relax.op.max,),
    "ReduceMean": (relax.op.mean,),
    "ReduceMin": (relax.op.min,),
    "ReduceProd": (relax.op.prod,),
    "ReduceSum": (relax.op.sum,),
    "ReduceSumSquare": (relax.op.sum, lambda x: x * x),
}
for _name, _parts in _REDUCTIONS.items():
    operator(_name)(_reduction(_name, *_parts))
operator("ArgMax")(_extreme(relax.op.argmax))
operator("ArgMin")(_extreme(relax.op.argmin))
operator("GlobalAveragePool")(_over_images(relax.op.mean))
operator("GlobalMaxPool")(_over_images(relax.op.max))
