"""Reductions: partial results in vectors, and their lanes combined to one number."""

from __future__ import annotations

from collections.abc import Callable

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, bind, constant, lanes_of, materialise, ramp

Combine = Callable[[Expr, Expr], Expr]


class LaneTotals:
    """Vectors in which a reduction is accumulated; several hide the latency of combining.

    Parameters
    ----------
    lanes : int
        Of a vector.
    start : float
        What every lane begins with.
    slots : int
        Vectors.
    dtype : str
        Type of an element.
    """

    def __init__(self, lanes: int, start: float, slots: int = 1, dtype: str = "float32") -> None:
        self.lanes, self.slots = lanes, slots
        self.buffer = I.sblock_alloc_buffer((slots * lanes,), dtype)
        for slot in range(slots):
            self.store(constant(start, dtype, lanes), slot)

    def __getitem__(self, slot: int) -> Expr:
        return self.buffer[ramp(slot * self.lanes, self.lanes)]

    def store(self, value: Expr, slot: int = 0) -> None:
        """Replaces a vector."""
        I.buffer_store(self.buffer, value, [ramp(slot * self.lanes, self.lanes)])

    def combined(self, combine: Combine) -> Expr:
        """All vectors combined to one."""
        return combine_all([bind(self[slot]) for slot in range(self.slots)], combine)

    def total(self, combine: Combine) -> Expr:
        """All lanes of all vectors combined, as a scalar expression."""
        return reduce_lanes(self.combined(combine), combine)


def add(a: Expr, b: Expr) -> Expr:
    """The sum of two expressions."""
    return a + b


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
