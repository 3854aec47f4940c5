"""A 3x3 convolution in tiles of 4x4 results, for the template "conv2d_winograd"."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, bind
from tir_schedules.convolution.geometry import ConvGeometry, one_image
from tir_schedules.core.region import Region

from .transforms import TILE


@dataclass(frozen=True)
class WinogradProblem:
    """A region in tiles.

    Attributes
    ----------
    geometry : ConvGeometry
        Its shape.
    rows, columns : int
        Tiles along the height and the width of an image.
    sample : Expr or None
        The image that they are of, where the number of images is known at run time only.
    """

    geometry: ConvGeometry
    rows: int
    columns: int
    sample: Expr | None = None

    @staticmethod
    def of(region: Region) -> WinogradProblem:
        """The tiles of a region; of a single image, where the number of images is open."""
        geometry = ConvGeometry.of(one_image(region))
        rows, columns = (math.ceil(extent / TILE) for extent in geometry.outputs)
        return WinogradProblem(geometry, rows, columns)

    @property
    def tiles(self) -> int:
        """Tiles of all samples."""
        return self.geometry.batch * self.rows * self.columns

    def place(self, tile: Expr) -> tuple[Expr, Expr, Expr]:
        """Emits the sample, row and column of a tile."""
        tile = bind(tile)
        line = bind(I.floordiv(tile, self.columns))
        column = bind(tile - line * self.columns)
        if self.sample is not None:
            return self.sample, line, column
        if self.geometry.batch == 1:
            return tirx.const(0, "int32"), line, column
        sample = bind(I.floordiv(line, self.rows))
        return sample, bind(line - sample * self.rows), column
