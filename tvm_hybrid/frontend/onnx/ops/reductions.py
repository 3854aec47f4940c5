"""Operators that reduce axes: sums and means of all kinds, extremes and their places, softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx

from ...expressions import (
    Attrs,
    Converter,
    Expr,
    Inputs,
    constant,
    dtype_of,
    literal,
    normalize,
    rank_of,
)
from ..data_sized.sizes import dims_of, index
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


def _reduction(name: str) -> Converter:
    before, reduce, after = _REDUCTIONS[name]

    def convert(inputs: Inputs, attrs: Attrs) -> Any:
        axes = attrs.get("axes")
        if inputs[1] is not None:
            known = constant(inputs[1])
            if known is None:
                raise ValueError("the axes are computed at run time; only known ones are supported")
            axes = known.tolist()
        if not axes and attrs.get("noop_with_empty_axes", 0):
            return inputs[0]
        source = normalize(before(inputs[0]))
        kept = bool(attrs.get("keepdims", 1))
        return after(normalize(reduce(source, list(axes) if axes else None, kept)))

    return convert


def _extreme(place_of: Callable[[Expr, int, bool], Expr]) -> Converter:
    def convert(inputs: Inputs, attrs: Attrs) -> Any:
        x = inputs[0]
        axis, kept = attrs.get("axis", 0) % rank_of(x), bool(attrs.get("keepdims", 1))
        if not attrs.get("select_last_index", 0):
            return place_of(x, axis, kept)
        # The last of equal elements is the first from the other end.
        size = dims_of(x)[axis]
        if isinstance(size, tirx.IntImm):
            last: Expr = literal(np.array(int(size) - 1, np.int64))
        else:
            shape = relax.op.shape_to_tensor(relax.ShapeExpr([size - index(1)]))
            last = normalize(relax.op.reshape(normalize(shape), ()))
        turned = normalize(relax.op.flip(x, axis=axis))
        place = normalize(place_of(turned, axis, kept))
        return relax.op.subtract(last, place)

    return convert


def _over_images(reduce: Reduce) -> Converter:
    def convert(inputs: Inputs, attrs: Attrs) -> Any:
        return reduce(inputs[0], list(range(2, rank_of(inputs[0]))), True)

    return convert


def _softmax(made: Callable[[Expr, int], Expr]) -> Converter:
    """Of one axis; those of opsets before 13 were rewritten."""

    def convert(inputs: Inputs, attrs: Attrs) -> Any:
        return made(inputs[0], attrs.get("axis", -1))

    return convert


@operator("MeanVarianceNormalization")
def _mean_variance(inputs: Inputs, attrs: Attrs) -> Any:
    """(x - mean) / sqrt(mean of squares - square of mean), over images and their pixels."""
    x, axes = inputs[0], list(attrs.get("axes", (0, 2, 3)))
    two = literal(np.array(2, dtype_of(x)))
    mean = normalize(relax.op.mean(x, axes, True))
    squares = normalize(relax.op.mean(normalize(relax.op.power(x, two)), axes, True))
    variance = normalize(relax.op.subtract(squares, normalize(relax.op.power(mean, two))))
    centred = normalize(relax.op.subtract(x, mean))
    return relax.op.divide(centred, normalize(relax.op.sqrt(variance)))


for _name in _REDUCTIONS:
    operator(_name)(_reduction(_name))
operator("ArgMax")(_extreme(relax.op.argmax))
operator("ArgMin")(_extreme(relax.op.argmin))
operator("GlobalAveragePool")(_over_images(relax.op.mean))
operator("GlobalMaxPool")(_over_images(relax.op.max))
operator("LogSoftmax")(_softmax(relax.op.nn.log_softmax))
operator("Softmax")(_softmax(relax.op.nn.softmax))
