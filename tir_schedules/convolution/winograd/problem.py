"""A 3x3 convolution in tiles of results, for the template "conv2d_winograd"."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, bind, materialise
from tir_schedules.convolution.geometry import ConvGeometry, one_image
from tir_schedules.core.emission import ceil_div
from tir_schedules.core.extents import extent
from tir_schedules.core.region import Region

from .transforms import Algorithm


@dataclass(frozen=True)
class WinogradProblem:
    """A region in tiles.

    Attributes
    ----------
    geometry : ConvGeometry
        Its shape.
    rows, columns : int or Expr
        Tiles along the height and the width of an image.
    algorithm : Algorithm
        How they are computed.
    sample : Expr or None
        The image that they are of, where the number of images is known at run time only.
    """

    geometry: ConvGeometry
    rows: int | Expr
    columns: int | Expr
    algorithm: Algorithm
    sample: Expr | None = None

    @staticmethod
    def of(region: Region) -> WinogradProblem:
        """The tiles of a region; of a single image of a usual size, where sizes are open."""
        geometry, algorithm = ConvGeometry.of(one_image(region)), Algorithm.of(region)
        rows, columns = (math.ceil(extent / algorithm.tile) for extent in geometry.outputs)
        return WinogradProblem(geometry, rows, columns, algorithm)

    @staticmethod
    def opened(region: Region) -> WinogradProblem:
        """The tiles of all images of open sizes, counted when the kernel runs; emits that."""
        geometry, algorithm = ConvGeometry.of(region), Algorithm.of(region)
        rows, columns = (
            materialise(ceil_div(extent(size), algorithm.tile)) for size in geometry.outputs
        )
        return WinogradProblem(geometry, rows, columns, algorithm)

    @property
    def tiles(self) -> int:
        """Tiles of all samples, if they are known."""
        assert isinstance(self.rows, int) and isinstance(self.columns, int)
        return self.geometry.batch * self.rows * self.columns

    @property
    def opened_tiles(self) -> Expr:
        """Emits the same where they are not."""
        assert not isinstance(self.rows, int)
        return materialise(self.rows * self.columns * extent(self.geometry.batch))

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
