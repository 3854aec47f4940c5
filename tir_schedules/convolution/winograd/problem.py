"""A convolution in tiles of results, for the template "conv2d_winograd"."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, Index, bind, materialise
from tir_schedules.convolution.geometry import ConvGeometry, one_image
from tir_schedules.core.emission import branch, ceil_div
from tir_schedules.core.extents import extent
from tir_schedules.core.region import Region
from tir_schedules.core.size import is_open

from .algorithm import Algorithm


@dataclass(frozen=True)
class WinogradProblem:
    """A region in tiles.

    With dilation, the results of a tile are as far from each other as the taps: the tiles of every
    phase follow each other, then the next tile of every phase.

    Attributes
    ----------
    geometry : ConvGeometry
        Its shape, with a height and a width.
    rows, columns : int or Expr
        Tiles along the height and the width of an image.
    algorithm : Algorithm
        How they are computed.
    sample : Expr or None
        The image that they are of, where the number of images is known at run time only.
    line : bool
        Whether x and the result have no height.
    """

    geometry: ConvGeometry
    rows: Index
    columns: Index
    algorithm: Algorithm
    sample: Expr | None = None
    line: bool = False

    @staticmethod
    def of(region: Region, counted: bool = False) -> WinogradProblem:
        """The tiles of a region; of a single image of a usual size, where sizes are dynamic.

        If `counted`, the tiles of all images of dynamic sizes: code is emitted that counts them.
        """

        def count(size: int, step: int, tile: int) -> Index:
            if counted:
                return materialise(_phases(size, step) * ceil_div(extent(size), step * tile))
            return _phases(size, step) * math.ceil(size / (step * tile))

        geometry = ConvGeometry.of(region if counted else one_image(region))
        pairs = zip(geometry.kernel, geometry.dilation, strict=True)
        dilation = tuple(step if taps > 1 else 1 for taps, step in pairs)  # a single tap has none
        image, algorithm = replace(geometry, dilation=dilation).with_axes(2), Algorithm.of(region)
        sizes = zip(image.outputs, image.dilation, algorithm.axes, strict=True)
        rows, columns = (count(size, step, axis.tile) for size, step, axis in sizes)
        return WinogradProblem(image, rows, columns, algorithm, line=len(geometry.kernel) == 1)

    @property
    def tiles(self) -> int:
        """Tiles of all samples, if they are known."""
        assert isinstance(self.rows, int) and isinstance(self.columns, int)
        return self.geometry.batch * self.rows * self.columns

    def padded(self, axis: int) -> bool:
        """Whether windows reach outside of x along an axis."""
        return self.geometry.before[axis] > 0 or self.geometry.after[axis] > 0

    def steps(self, axis: int) -> int:
        """How far the results of a tile are from each other along an axis."""
        return self.geometry.dilation[axis]

    def start(self, axis: int, number: Expr) -> Expr:
        """The first result of a tile along an axis, of that number."""
        step, tile = self.geometry.dilation[axis], self.algorithm.axes[axis].tile
        if step == 1:
            return number * tile
        phases = _phases(self.geometry.outputs[axis], step)
        whole = I.floordiv(number, phases)
        return number - whole * phases + whole * (step * tile)

    def last_start(self, axis: int) -> int | None:
        """No tile of an axis has its first result behind this one; None if that is not known."""
        tiles = (self.rows, self.columns)[axis]
        if not isinstance(tiles, int):
            return None
        step, tile = self.geometry.dilation[axis], self.algorithm.axes[axis].tile
        phases = _phases(self.geometry.outputs[axis], step)
        return (tiles // phases - 1) * step * tile + phases - 1

    def index(self, sample: Expr, y: Expr, x: Expr) -> list[Expr]:
        """The indices of a position of x, or of the result, in front of the channels."""
        return [sample, x] if self.line else [sample, y, x]

    def place(self, tile: Expr) -> tuple[Expr, Expr, Expr]:
        """Emits the sample, row and column of a tile."""
        known = isinstance(self.columns, int) and isinstance(self.rows, int)
        named = bind if known else materialise
        tile = named(tile)
        line = named(I.floordiv(tile, self.columns))
        column = named(tile - line * self.columns)
        if self.sample is not None:
            return self.sample, line, column
        if self.geometry.batch == 1:
            return tirx.const(0, "int32"), line, column
        sample = named(I.floordiv(line, self.rows))
        return sample, named(line - sample * self.rows), column


def _phases(size: int, step: int) -> int:
    """First results of tiles that are less than a step from the beginning."""
    return step if is_open((size,)) else min(size, step)


# Conditions, branches and shares of work.


def all_of(conditions: Sequence[Expr]) -> Expr | None:
    """The conjunction; None of nothing."""
    return functools.reduce(tirx.And, conditions) if conditions else None


def either(
    conditions: Sequence[Expr], then: Callable[[], None], otherwise: Callable[[], None]
) -> None:
    """One of two pieces of code: the first where all conditions hold."""
    condition = all_of(conditions)
    if condition is None:
        then()
    else:
        branch(condition, then, otherwise)


def in_memory(values: Sequence[Expr]) -> list[Expr]:
    """The values, each computed once.

    TVM writes a sum of names out anew for every use of its own name: of the transform along one
    axis in that along the other, ten times as many instructions as there are.
    """
    return [materialise(value) for value in values]


def part_of(count: Index, members: int, member: Expr) -> tuple[Index, Index]:
    """First and end of one member's share of `count` things."""
    if members == 1:
        return 0, count
    return I.floordiv(member * count, members), I.floordiv((member + 1) * count, members)
