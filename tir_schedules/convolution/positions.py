"""Groups the positions of a window by which of its taps lie within the image.

A zero point is multiplied by the sum of the weights of these taps, so the sum differs at the edges.
Along an axis there are few classes: each of the first positions is one, all positions with every
tap inside are one, and each of the last positions is one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import tirx

from microkernels.vector.expressions import Expr

from .geometry import ConvGeometry


@dataclass(frozen=True)
class AxisClasses:
    """The classes of one axis: `low` positions at its beginning, `high` at its end, all others."""

    outputs: int
    low: int
    high: int

    @staticmethod
    def of(geometry: ConvGeometry, axis: int) -> AxisClasses:
        """The classes of an axis of a convolution."""
        outputs, (first, last) = geometry.outputs[axis], geometry.whole(axis)
        if first == last:
            return AxisClasses(outputs, outputs - 1, 0)
        return AxisClasses(outputs, first, outputs - last)

    @property
    def count(self) -> int:
        """How many classes there are."""
        return min(self.outputs, self.low + 1 + self.high)

    def number(self, output: Expr | int) -> Expr | int:
        """The class of a position."""
        if isinstance(output, int):
            return min(output, self.low) + max(0, output - (self.outputs - 1 - self.high))
        if self.count == 1:
            return 0
        beyond = tirx.Max(output - (self.outputs - 1 - self.high), tirx.const(0, "int32"))
        return tirx.Min(output, tirx.const(self.low, "int32")) + beyond

    def representative(self, number: int) -> int:
        """A position of a class."""
        return number if number <= self.low else self.outputs - self.count + number


class PositionClasses:
    """The classes of all positions of a convolution; one if every window counts as whole.

    Parameters
    ----------
    geometry : ConvGeometry
        Of any number of axes.
    whole : bool
        Whether every tap of every window counts.
    """

    def __init__(self, geometry: ConvGeometry, whole: bool) -> None:
        self.geometry = geometry
        axes = range(len(geometry.outputs))
        self.axes = [
            AxisClasses(geometry.outputs[axis], 0, 0) if whole else AxisClasses.of(geometry, axis)
            for axis in axes
        ]
        self.whole = whole

    @property
    def count(self) -> int:
        """How many classes there are."""
        return int(np.prod([axis.count for axis in self.axes]))

    def number(self, position: Sequence[Expr | int]) -> Expr | int:
        """The class of a position; 0 where every window is whole."""
        if self.whole:
            return 0
        found: Expr | int = 0
        for axis, output in zip(self.axes, position, strict=True):
            found = found * axis.count + axis.number(output)
        return found

    def taps(self, weight: np.ndarray) -> list[np.ndarray]:
        """For every class the part of a weight [*kernel, IC, OC] that lies inside, as [K, OC]."""
        found = []
        for numbers in itertools.product(*(range(axis.count) for axis in self.axes)):
            inside = [slice(None)] * len(self.axes)
            if not self.whole:
                inside = [
                    slice(*self.geometry.inside(i, axis.representative(number)))
                    for i, (axis, number) in enumerate(zip(self.axes, numbers, strict=True))
                ]
            found.append(weight[tuple(inside)].reshape(-1, weight.shape[-1]))
        return found
