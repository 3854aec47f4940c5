"""Reductions over windows that slide along rows of open size, one axis after the other.

    for i, j, k, l in grid(n, m, 3, 3):
        y[i, j] = max(y[i, j], 0 < 2*j + l <= w ? x[2*i + k, 2*j + l - 1] : lowest)

    ->  columns 2 * j + l, of which those from 1 to w are read: x[2*i + k, column - 1]

`open_window_loops` writes their loops.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from microkernels.vector.expressions import Expr

from .combine import COMBINE
from .expressions import (
    call_name,
    calls_of,
    int64,
    loads_of,
    strides_of,
    substitute,
    variables_beside_loads,
    variables_of,
)
from .nest import Axis, Nest, Store
from .padded_windows import conjunction, is_neutral

MOST_TAPS = 16
"""Elements of a row that are combined for one result, written out."""

MOST_APART = 4
"""Elements from one window to the next, or within a window."""


@dataclass(frozen=True)
class Windows:
    """A nest as windows along its last result axis.

    Attributes
    ----------
    nest : Nest
        With one store that reduces.
    taps : Axis
        The reduced axis along the row.
    step, apart : int
        Columns from one window to the next, and from one element of a window to the next.
    column : Var
        Position in the row: `step * result + apart * tap`.
    element : Expr
        What is reduced at a column, where all conditions hold.
    inside : tuple of Expr
        Conditions on the column.
    outer : tuple of Expr
        Conditions that all elements of the row share.
    """

    nest: Nest
    taps: Axis
    step: int
    apart: int
    column: tirx.Var
    element: Expr
    inside: tuple[Expr, ...]
    outer: tuple[Expr, ...]

    @property
    def along(self) -> Axis:
        """The result axis of a row."""
        return self.nest.spatial[-1]

    @property
    def others(self) -> tuple[Axis, ...]:
        """The reduced axes that go from row to row."""
        return tuple(axis for axis in self.nest.reduce if axis is not self.taps)

    @property
    def store(self) -> Store:
        """What reduces."""
        return self.nest.stores[0]

    @property
    def columns(self) -> Expr:
        """Length of a row."""
        last = (self.taps.extent - 1) * self.apart + 1
        return self.nest.analyzer().simplify(
            tirx.Max((self.along.stated - int64(1)) * int64(self.step) + int64(last), int64(0))
        )


def windows_of(nest: Nest) -> Windows | None:
    """The windows of a nest; None if it has none of a few elements that lie close together."""
    if len(nest.stores) != 1 or nest.lets or not nest.spatial or not nest.reduce:
        return None
    store = nest.stores[0]
    if type(store.value) not in COMBINE or store.init is None or nest.spatial[-1].end is None:
        return None
    parts = _parts(store)
    if parts is None or any(load.source.same_as(store.buffer) for load in loads_of(parts[0])):
        return None
    for taps in reversed(nest.reduce):
        found = None if taps.end is not None else _along(nest, taps, *parts)
        if found is not None:
            return found
    return None


def _parts(store: Store) -> tuple[Expr, list[Expr]] | None:
    """What is reduced, and the conditions without which it changes nothing."""
    value = store.value.b
    chosen = calls_of(value, "if_then_else")
    if not chosen:
        return value, []
    inner = value.value if isinstance(value, tirx.Cast) else value
    if len(chosen) != 1 or call_name(inner) != "if_then_else":
        return None
    condition, element, padding = inner.args
    if not is_neutral(store.value, padding, store.start):
        return None
    if isinstance(value, tirx.Cast):
        element = tirx.Cast(str(value.ty.dtype), element)
    conditions = conjunction(condition)
    if any(loads_of(each) or not isinstance(each, tirx.LT | tirx.LE) for each in conditions):
        return None
    return element, conditions


def _along(nest: Nest, taps: Axis, element: Expr, conditions: list[Expr]) -> Windows | None:
    """The windows whose elements follow each other along one reduced axis."""
    row, analyzer = nest.spatial[-1], nest.analyzer()

    def steps_of(position: Expr) -> tuple[int | None, int | None]:
        found = strides_of(position, [row.var, taps.var], analyzer)
        return found[row.var], found[taps.var]

    positions = [index for load in loads_of(element) for index in load.indices]
    steps = set(map(steps_of, positions)) - {(0, 0)}
    used = variables_beside_loads(element)
    if len(steps) != 1 or any(map(loads_of, positions)) or row.var in used or taps.var in used:
        return None
    step, apart = (0 if each is None else each for each in steps.pop())
    if not _are_close(step, apart) or taps.extent > MOST_TAPS:
        return None
    for each in conditions:
        far, near = steps_of(each.a - each.b)
        if far is None or near is None or far * apart != near * step:
            return None
    column, zero = tirx.Var("column", "int64"), int64(0)
    at = {row.var: zero, taps.var: column} if apart == 1 else {row.var: column, taps.var: zero}
    moved = [substitute(each, at) for each in conditions]
    inside = tuple(each for each in moved if column in variables_of(each))
    outer = tuple(each for each in moved if column not in variables_of(each))
    return Windows(nest, taps, step, apart, column, substitute(element, at), inside, outer)


def _are_close(step: int, apart: int) -> bool:
    return 0 < min(step, apart) == 1 and max(step, apart) <= MOST_APART
