"""How windows slide over a flat array: along which axis, by how much, and which positions count.

y[i, j, c] = max over k, l of x[2 * i + k - 1, 2 * j + l - 1, c]

->  Window(along=c, place=j, position=l, far=2 * 64, near=64, bounds={k: .., l: ..})
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tvm import tirx
from tvm.ir.expr import TensorLoad

from .expressions import loads_of, variables_beside_loads
from .loops import access_strides
from .nest import Axis, Nest
from .padded_windows import Bounds
from .strided_reads import COMBINE


@dataclass(frozen=True)
class Window:
    """A flat reduction whose windows slide along `place`; `position` runs through a window.

    Attributes
    ----------
    nest : Nest
        Without padding.
    along : Axis
        The result axis that lanes lie on.
    place, position : Axis or None
        Together, or not at all.
    bounds : Bounds
        What counts of the reduced axes.
    far, near : int
        Distance in elements from place to place, and from position to position.
    """

    nest: Nest
    along: Axis
    place: Axis | None
    position: Axis | None
    bounds: Bounds
    far: int = 0
    near: int = 0

    @property
    def rows(self) -> tuple[Axis, ...]:
        """The reduced axes but the one within a row."""
        return tuple(axis for axis in self.nest.reduce if axis is not self.position)


def window_of(nest: Nest, bounds: Bounds) -> Window | None:
    """How windows slide in a flat nest; None if neither do they overlap nor are there bounds."""
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
    if any(along.var in variables_beside_loads(each.value) for each in nest.results):
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
    """For the distance of every column that some windows read, a window and a position in it."""
    if window.position is None:
        return {0: (0, 0)}
    points = itertools.product(range(windows), range(window.position.extent))
    found = {number * window.far + at * window.near: (number, at) for number, at in points}
    return dict(sorted(found.items()))
