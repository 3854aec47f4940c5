"""Removes conditions: windows skip their padding, and axes are cut into pieces of one kind.

    padded[h, w, c] = if_then_else(1 <= h < 113 and 1 <= w < 113, x[h - 1, w - 1, c], lowest)
    y[i, j, c] = max over k, l of padded[2 * i + k, 2 * j + l, c]

->  y[i, j, c] = max over k in [max(0, 1 - 2 * i), min(3, 113 - 2 * i)), l likewise
                 of x[2 * i + k - 1, 2 * j + l - 1, c]

A padded pixel does not change a maximum, minimum or sum, so it is skipped (`without_padding`), and
windows slide over the array itself (`window_of`).

    for j in range(n + m): y[j] = if_then_else(j < n, a[j], b[j - n])

->  for j in range(n): y[j] = a[j]
    for j in range(m): y[n + j] = b[j]

`pieces` cuts an axis in this way. Conditions are comparisons of positions, and minima and maxima.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import detect_linear_equation

from microkernels.vector.expressions import Expr

from . import expressions
from .accumulators import COMBINE
from .expressions import call_name, calls_of, const_int, int64, loads_of, same, variables_of
from .loops import access_strides
from .nest import Axis, Nest, Store

_NEUTRAL = (tirx.Max, tirx.Min)
_FAR = 1 << 40


@dataclass(frozen=True)
class Bound:
    """The positions of a window that count: `low <= slope * place + step * position < high`.

    `place` is a result axis, or None if only the position matters; `step` is positive.
    """

    place: tirx.Var | None
    slope: int
    step: int
    low: int
    high: int

    def first(self, place: Any) -> Any:
        """The first position that counts at a place (number or expression); may be negative."""
        return 0 - (place * self.slope - self.low) // self.step

    def last(self, place: Any) -> Any:
        """The end of the positions that count; may be beyond the window."""
        return 0 - (place * self.slope - self.high) // self.step


Bounds = dict[tirx.Var, Bound]
"""The part of each reduced axis that counts."""


def without_padding(nest: Nest) -> tuple[Nest, Bounds] | None:
    """The nest without its conditions, and the bounds that they set to its reduced axes.

    Returns None if there are other conditions, or conditions on the last result axis. Within the
    bounds all conditions hold, so that the nest reads no element that it did not read before.
    """
    if not nest.reduce or len(nest.stores) != 1 or nest.lets or not nest.spatial:
        return None
    store = nest.stores[0]
    if not isinstance(store.value, (*_NEUTRAL, tirx.Add)) or store.init is None:
        return None
    chosen = chosen_element(store)
    if chosen is None:
        return None
    condition, element = chosen
    load = element
    while isinstance(load, tirx.Cast):
        load = load.value
    if not isinstance(load, TensorLoad) or any(map(loads_of, load.indices)):
        return None
    bounds = _bounds(nest, condition)
    if bounds is None:
        return None
    stripped = replace(store, value=type(store.value)(store.value.a, element))
    return replace(nest, stores=(stripped,)), bounds


def chosen_element(store: Store) -> tuple[Expr, Expr] | None:
    """A condition, and the reduced value if it holds; None if the padding changes the result."""
    value = store.value.b
    inner = value.value if isinstance(value, tirx.Cast) else value
    if call_name(inner) != "if_then_else" or len(calls_of(store.value, "if_then_else")) != 1:
        return None
    condition, element, padding = inner.args
    if isinstance(store.value, tirx.Add):
        number = getattr(padding, "value", None)
        is_neutral = isinstance(padding, tirx.FloatImm | tirx.IntImm) and number == 0
    else:
        is_neutral = same(padding, store.start)
    if not is_neutral:
        return None
    is_cast = isinstance(value, tirx.Cast)
    return condition, tirx.Cast(str(value.ty.dtype), element) if is_cast else element


def _bounds(nest: Nest, condition: Expr) -> Bounds | None:
    """The bounds that a conjunction of comparisons sets; None if it is more than bounds."""
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
        # part: a < b, or a <= b
        difference = part.a - part.b - int64(isinstance(part, tirx.LE))
        linear = [const_int(c) for c in detect_linear_equation(difference, variables)]
        if len(linear) != len(variables) + 1 or any(c is None for c in linear) or not linear[0]:
            return None
        # step * position + slope * place + base < 0
        step, *slopes, base = (int(c or 0) for c in linear)
        slope = slopes[0] if slopes else 0
        bound = (
            Bound(place, slope, step, -_FAR, -base)
            if step > 0
            else Bound(place, -slope, -step, base + 1, _FAR)
        )
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


def conjunction(condition: Expr) -> list[Expr]:
    """The comparisons that a condition consists of, orders as `<` or `<=`."""
    if isinstance(condition, tirx.And):
        return [*conjunction(condition.a), *conjunction(condition.b)]
    if isinstance(condition, tirx.GE):
        return [condition.b <= condition.a]
    if isinstance(condition, tirx.GT):
        return [condition.b < condition.a]
    return [condition]


_BELOW = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_CHOICES = (tirx.Min, tirx.Max)


@dataclass(frozen=True)
class Piece:
    """A part of an axis, from `first` to before `end`, with the nest that computes it."""

    first: Expr
    end: Expr
    nest: Nest


@dataclass(frozen=True)
class _Border:
    """The answer to a question is `below` before position `at`, and the opposite from there on."""

    at: Expr
    below: bool


def pieces(nest: Nest, axis: tirx.Var, end: Expr, inner: set[tirx.Var], most: int) -> list[Piece]:
    """The parts of an axis, in order; the whole axis if there would be too many.

    Parameters
    ----------
    axis, end
        The axis runs from 0 to `end`.
    inner : set of Var
        Axes whose loops are inside; conditions that depend on them stay.
    most : int
        The largest number of parts.
    """
    analyzer = nest.analyzer()

    def decided(nest: Nest, at: Expr, before: bool) -> Nest:
        """The nest on one side of a border, with the questions that this side answers folded."""

        def answered(question: Any) -> Expr:
            border = border_of(question, axis, inner)
            if border is None or not same(analyzer.simplify(border.at), at):
                return question
            is_below = border.below == before
            if not isinstance(question, _CHOICES):
                return tirx.const(is_below, "bool")
            return question.a if is_below == isinstance(question, tirx.Min) else question.b

        def in_value(value: Expr) -> Expr:
            return tvm_ffi.structural_map(value, ((*_BELOW, *_CHOICES), answered))

        found = nest.with_values(in_value).tidied()
        used = set[tirx.Var]().union(*map(variables_of, found.values()))
        return replace(found, lets=tuple(each for each in found.lets if each[0] in used))

    whole = Piece(int64(0), end, without_equalities(nest, axis, inner))
    found, left = list[Piece](), [whole]
    while left:
        piece = left.pop(0)
        questions = (
            expressions.nodes_of(value, (*_BELOW, *_CHOICES)) for value in piece.nest.values()
        )
        borders = (border_of(each, axis, inner) for each in itertools.chain(*questions))
        border = next((each for each in borders if each is not None), None)
        if border is None:
            found.append(piece)
            continue
        at = middle = analyzer.simplify(border.at)
        if not analyzer.can_prove(at <= piece.end):
            middle = tirx.Min(middle, piece.end)
        if not analyzer.can_prove(middle >= piece.first):
            middle = tirx.Max(middle, piece.first)
        middle = analyzer.simplify(middle)
        parts = [
            Piece(first, last, decided(piece.nest, at, before))
            for first, last, before in ((piece.first, middle, True), (middle, piece.end, False))
            if not analyzer.can_prove(last - first <= 0)
        ]
        left = [*parts, *left]
        if len(found) + len(left) > most:
            return [Piece(int64(0), end, nest)]
    return found


def without_equalities(nest: Nest, axis: tirx.Var, inner: set[tirx.Var]) -> Nest:
    """The nest with `a == b` as `a <= b and b <= a` if these have borders along the axis."""

    def change(question: tirx.EQ | tirx.NE) -> Expr:
        kind, both = (tirx.LE, tirx.And) if isinstance(question, tirx.EQ) else (tirx.LT, tirx.Or)
        parts = kind(question.a, question.b), kind(question.b, question.a)
        has_borders = all(border_of(part, axis, inner) for part in parts)
        return both(*parts) if has_borders else question

    kinds = (tirx.EQ, tirx.NE)
    return nest.with_values(lambda value: tvm_ffi.structural_map(value, (kinds, change)))


def border_of(question: Expr, axis: tirx.Var, inner: set[tirx.Var]) -> _Border | None:
    """Where the answer to a comparison changes, or where the smaller side of a choice does."""
    if str(question.a.ty.dtype) not in ("int32", "int64"):
        return None
    used = variables_of(question)
    if axis not in used or not used.isdisjoint(inner) or loads_of(question):
        return None
    parts = detect_linear_equation(question.a - question.b, [axis])
    slope = const_int(parts[0]) if len(parts) == 2 else None
    if not slope:
        return None
    # slope * axis + base, compared with 0
    base = parts[1]
    below = not isinstance(question, tirx.GT | tirx.GE)
    exact = isinstance(question, tirx.LE | tirx.GT)  # 0 counts as below
    if slope < 0:
        slope, base, below, exact = -slope, -base, not below, not exact
    at = _quotient(-base, slope) + int64(1) if exact else -_quotient(base, slope)
    return _Border(at, below)


def _quotient(value: Expr, divisor: int) -> Expr:
    return value if divisor == 1 else tirx.floordiv(value, int64(divisor))


@dataclass(frozen=True)
class Window:
    """A flat reduction whose windows slide along `place`; `position` runs through a window."""

    nest: Nest  # without padding
    along: Axis  # the result axis that lanes lie on
    place: Axis | None  # None if `position` is
    position: Axis | None
    bounds: Bounds
    far: int = 0  # distance in elements from place to place
    near: int = 0  # distance in elements from position to position

    @property
    def rows(self) -> tuple[Axis, ...]:
        """The reduced axes except the one within a row."""
        return tuple(axis for axis in self.nest.reduce if axis is not self.position)


def window_of(nest: Nest, bounds: Bounds) -> Window | None:
    """How windows slide in a flat nest; None if they do not overlap and have no bounds."""
    if len(nest.stores) != 1 or nest.lets or type(nest.stores[0].value) not in COMBINE:
        return None
    store = nest.stores[0]
    own, value = store.value.a, store.value.b
    if not isinstance(own, TensorLoad) or not own.source.same_as(store.buffer):
        return None
    element = value.value if isinstance(value, tirx.Cast) else value
    if not isinstance(element, TensorLoad) or loads_of(element.indices[0]):
        return None
    if element.source.same_as(store.buffer):
        return None
    loads, stores = access_strides(nest)
    pairs = zip(nest.distinct_reads(), loads, strict=True)
    strides = next(steps for load, steps in pairs if load.same_as(element))
    if any(step is None for step in strides.values()):
        return None
    steps = {var: step or 0 for var, step in strides.items()}
    along = nest.spatial[-1] if nest.spatial else None
    if along is None or steps[along.var] != 1 or any(s[along.var] != 1 for s in stores):
        return None
    if any(along.var in expressions.variables_beside_loads(each.value) for each in nest.results):
        return None
    if any(bound.place is not None and bound.place.same_as(along.var) for bound in bounds.values()):
        return None
    candidates = []
    for place, position in itertools.product(nest.spatial[:-1], nest.reduce):
        far, near = steps[place.var], steps[position.var]
        if far <= 0 or near <= 0:
            continue
        bound = bounds.get(position.var)
        slides = bound is not None and bound.place is not None and bound.place.same_as(place.var)
        if bound is not None and not slides:
            continue
        if slides or (far <= near * (position.extent - 1) and near <= far * (place.extent - 1)):
            candidates.append((near, far, place, position))
    if not candidates:
        return Window(nest, along, None, None, bounds) if bounds else None
    near, far, place, position = min(candidates, key=lambda each: each[:2])
    return Window(nest, along, place, position, bounds, far, near)


def columns_of(window: Window, windows: int) -> dict[int, tuple[int, int]]:
    """For each column that some windows read, by distance, a (window, position) that reads it."""
    if window.position is None:
        return {0: (0, 0)}
    points = itertools.product(range(windows), range(window.position.extent))
    found = {number * window.far + at * window.near: (number, at) for number, at in points}
    return dict(sorted(found.items()))
