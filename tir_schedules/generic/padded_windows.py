"""Pools and sums over padded images: skips padded pixels, so that no padded copy is needed.

    padded[h, w, c] = if_then_else(1 <= h < 113 and 1 <= w < 113, x[h - 1, w - 1, c], lowest)
    y[i, j, c] = max over k, l of padded[2 * i + k, 2 * j + l, c]

->  y[i, j, c] = max over k in [max(0, 1 - 2 * i), min(3, 113 - 2 * i)), l likewise
                 of x[2 * i + k - 1, 2 * j + l - 1, c]

A padded pixel does not change a maximum, minimum or sum, so it can be skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.sym import detect_linear_equation

from microkernels.vector.expressions import Expr

from .expressions import (
    call_name,
    calls_of,
    const_int,
    int64,
    loads_of,
    map_calls,
    same,
    variables_of,
)
from .nest import Axis, Nest

_NEUTRAL = (tirx.Max, tirx.Min)


@dataclass(frozen=True)
class Bound:
    """Where the positions of a window count: `low <= slope * place + step * position < high`.

    `place` is a result axis, or None where only the position counts; `step` is positive.
    """

    place: tirx.Var | None
    slope: int
    step: int
    low: int
    high: int

    def first(self, place: int) -> int:
        """The first position that counts at a place, perhaps negative."""
        return -((self.slope * place - self.low) // self.step)

    def last(self, place: int) -> int:
        """The position after the last that counts, perhaps beyond the window."""
        return -((self.slope * place - self.high) // self.step)

    def first_at(self, place: Expr) -> Expr:
        """`first` of an expression."""
        return int64(0) - self._floor_divided(place, self.low)

    def last_at(self, place: Expr) -> Expr:
        """`last` of an expression."""
        return int64(0) - self._floor_divided(place, self.high)

    def _floor_divided(self, place: Expr, border: int) -> Expr:
        distance = place * int64(self.slope) - int64(border)
        return distance if self.step == 1 else tirx.FloorDiv(distance, int64(self.step))


Bounds = dict[tirx.Var, Bound]
"""For reduced axes the part of them that counts."""


def bounds_at(bound: Bound | None, axis: Axis, place: Expr) -> tuple[Expr, Expr]:
    """First position and number of positions of a reduced axis that count at a place."""
    if bound is None:
        return int64(0), int64(axis.extent)
    first = tirx.Max(bound.first_at(place), int64(0))
    last = tirx.Min(bound.last_at(place), int64(axis.extent))
    return first, last - first


def without_padding(nest: Nest) -> tuple[Nest, Bounds] | None:
    """The nest without its conditions, and what they leave of its reduced axes.

    None if it has conditions of another kind, or on the last result axis. Within the bounds all
    conditions hold, so that what was not read before is not read.
    """
    if not nest.reduce or len(nest.stores) != 1 or nest.lets or not nest.spatial:
        return None
    store = nest.stores[0]
    if not isinstance(store.value, (*_NEUTRAL, tirx.Add)) or store.init is None:
        return None
    value = store.value.b
    inner = value.value if isinstance(value, tirx.Cast) else value
    if call_name(inner) != "if_then_else" or len(calls_of(store.value, "if_then_else")) != 1:
        return None
    condition, element, padding = inner.args
    element_load = element.value if isinstance(element, tirx.Cast) else element
    if not isinstance(element_load, TensorLoad) or any(map(loads_of, element_load.indices)):
        return None
    if not is_neutral(store.value, padding, store.init):
        return None
    bounds = _bounds(nest, condition)
    if bounds is None:
        return None

    def change(call: Call) -> Expr:
        return call.args[1] if call_name(call) == "if_then_else" else call

    stripped = replace(store, value=map_calls(store.value, change))
    return replace(nest, stores=(stripped,)), bounds


def is_neutral(value: Expr, padding: Expr, init: Expr) -> bool:
    """Whether a padded element changes nothing in what a reduction comes to."""
    if isinstance(value, tirx.Add):
        number = getattr(padding, "value", None)
        return isinstance(padding, tirx.FloatImm | tirx.IntImm) and number == 0
    return same(padding, init)


def _bounds(nest: Nest, condition: Expr) -> Bounds | None:
    """The bounds that a conjunction of comparisons makes, if it makes no others."""
    found: Bounds = {}
    for part in conjunction(condition):
        if not isinstance(part, tirx.LT | tirx.LE) or loads_of(part):
            return None
        used = variables_of(part)
        reduced = [axis for axis in nest.reduce if axis.var in used]
        places = [axis for axis in nest.spatial[:-1] if axis.var in used]
        if len(reduced) != 1 or len(places) > 1 or len(used) != 1 + len(places):
            return None
        position, place = reduced[0], places[0].var if places else None
        variables = [position.var] if place is None else [position.var, place]
        # part: a < b, or a <= b; as numbers: step * position + slope * place + base < 0
        difference = part.a - part.b - int64(isinstance(part, tirx.LE))
        linear = [const_int(c) for c in detect_linear_equation(difference, variables)]
        if len(linear) != len(variables) + 1 or any(c is None for c in linear) or not linear[0]:
            return None
        numbers = [int(c or 0) for c in linear]
        bound = _half(numbers, place)
        other = found.get(position.var)
        if other is not None:
            if (other.place, other.slope, other.step) != (bound.place, bound.slope, bound.step):
                return None
            bound = replace(bound, low=max(bound.low, other.low), high=min(bound.high, other.high))
        found[position.var] = bound
    extents = {axis.var: axis.extent for axis in nest.axes()}
    for var, bound in found.items():
        last_place = 0 if bound.place is None else extents[bound.place] - 1
        far = abs(bound.slope) * last_place + bound.step * extents[var]
        if bound.slope < 0:
            return None
        found[var] = replace(bound, low=max(bound.low, 0), high=min(bound.high, far))
    return found


_FAR = 1 << 40


def _half(numbers: list[int], place: tirx.Var | None) -> Bound:
    """The bound that `step * position + slope * place + base < 0` sets."""
    step, base = numbers[0], numbers[-1]
    slope = numbers[1] if place is not None else 0
    if step > 0:
        return Bound(place, slope, step, -_FAR, -base)
    return Bound(place, -slope, -step, base + 1, _FAR)


def conjunction(condition: Expr) -> list[Expr]:
    """The comparisons that a condition is made of, each with `<` or `<=` where it has an order."""
    if isinstance(condition, tirx.And):
        return [*conjunction(condition.a), *conjunction(condition.b)]
    if isinstance(condition, tirx.GE):
        return [condition.b <= condition.a]
    if isinstance(condition, tirx.GT):
        return [condition.b < condition.a]
    return [condition]
