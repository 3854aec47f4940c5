"""Reducing the lanes of a vector to one number."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from microkernels.vector.expressions import Expr, bind, lanes_of, materialise

Combine = Callable[[Expr, Expr], Expr]


def reduce_lanes(value: Expr, combine: Combine) -> Expr:
    """All lanes combined, as a scalar expression.

    Halves are combined until one lane is left: log2(lanes) steps, in registers of half the width
    each time, and for sums the order of pairwise summation.

    Parameters
    ----------
    value : Expr
        Any type, a power of two lanes.
    combine : callable
        Associative and commutative, on expressions of any number of lanes.
    """
    lanes = lanes_of(value)
    value = materialise(value)
    while lanes > 1:
        lanes //= 2
        value = bind(value)
        value = combine(_lanes(value, 0, lanes), _lanes(value, lanes, lanes))
    return materialise(value)


def combine_all(values: list[Expr], combine: Combine) -> Expr:
    """The values combined pairwise, as a tree."""
    while len(values) > 1:
        pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = [bind(pair) for pair in pairs] + values[len(pairs) * 2 :]
    return values[0]


def _lanes(value: Expr, start: int, count: int) -> Expr:
    return tirx.Shuffle([value], [tirx.const(start + i, "int32") for i in range(count)])
