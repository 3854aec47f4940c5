"""The constant weight of a convolution as its kernel reads it.

    for each group, each panel of channels: [runs][K of a run / kr][columns][kr]
    then, where a zero point asks for it, int32 for each class of positions and each column

A run is the part of a window that is contiguous in memory (`convolution.direct.config.form_of`). It
is padded with zeros to whole steps, and the columns of a group are padded to whole vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import relax

from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.packing import pack_weight
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.convolution.positions import PositionClasses
from tir_schedules.core.blocking import Group
from tir_schedules.core.region import Region
from tir_schedules.product.zero_points import ZeroPoints, is_integer

from .config import ConvConfig, Form, check, form_of, panels_of


@dataclass(frozen=True)
class WeightLayout:
    """Sizes of a packed weight.

    Attributes
    ----------
    form : str
        As of `form_of`.
    runs, run, steps : int
        Runs of a window, elements of one, and steps of kr that it is padded to.
    columns : int
        Columns of a group, padded.
    panels : tuple of Group
        Panels of a group, in vectors.
    classes : PositionClasses or None
        Of the terms behind the weight, if there are any.
    """

    region: Region
    kernel: Microkernel
    geometry: ConvGeometry
    form: Form
    runs: int
    run: int
    steps: int
    columns: int
    panels: tuple[Group, ...]
    classes: PositionClasses | None

    @staticmethod
    def of(region: Region, config: ConvConfig, kernel: Microkernel) -> WeightLayout:
        """The layout for a configuration."""
        geometry, form = ConvGeometry.of(region), form_of(region, kernel)
        channels, width = geometry.group_channels, geometry.kernel[-1]
        run = width * channels if form == "fused" else channels
        classes = None
        if is_integer(region) and ZeroPoints.of(region, kernel).needs_column_sums:
            classes = PositionClasses(geometry, config.staged)
        return WeightLayout(
            region=region,
            kernel=kernel,
            geometry=geometry,
            form=form,
            runs=math.prod(geometry.kernel) * channels // run,
            run=run,
            steps=kernel.steps(run),
            columns=math.ceil(geometry.group_out_channels / kernel.lanes) * kernel.lanes,
            panels=panels_of(geometry, config, kernel),
            classes=classes,
        )

    @property
    def group_size(self) -> int:
        """Elements of a group's panels."""
        return self.runs * self.steps * self.kernel.kr * self.columns

    @property
    def size(self) -> int:
        """Elements of the packed weight, without terms."""
        return self.geometry.groups * self.group_size

    @property
    def terms(self) -> int:
        """How many int32 stand behind the weight."""
        count = 0 if self.classes is None else self.classes.count
        return count * self.geometry.groups * self.columns

    @property
    def shape(self) -> tuple[int]:
        """Shape of the packed array."""
        return (self.size + 4 * self.terms,)

    @property
    def widths(self) -> list[int]:
        """Width of every panel of a group."""
        return [panel.size for panel in self.panels for _ in range(panel.count)]

    def pack(self, array: np.ndarray) -> np.ndarray:
        """The weight [*kernel, IC, OC] as the kernel reads it."""
        parts = [self._pack_group(group) for group in np.split(array, self.geometry.groups, -1)]
        if self.classes is not None:
            points = ZeroPoints.of(self.region, self.kernel)
            found = np.stack([points.column_term(taps) for taps in self.classes.taps(array)])
            grouped = found.reshape(len(found), self.geometry.groups, -1)
            padding = self.columns - grouped.shape[-1]
            terms = np.pad(grouped, ((0, 0), (0, 0), (0, padding)))
            parts.append(terms.reshape(-1).view(array.dtype))
        return np.concatenate(parts)

    def _pack_group(self, group: np.ndarray) -> np.ndarray:
        runs = group.reshape(self.runs, self.run, group.shape[-1])
        padding = self.steps * self.kernel.kr - self.run
        padded = np.pad(runs, ((0, 0), (0, padding), (0, 0)))
        return pack_weight(padded.reshape(-1, group.shape[-1]), self.widths, self.kernel)

    def unpack(self, expr: relax.Expr) -> relax.Expr:
        """The weight as a Relax expression of its packed form."""
        op, kernel, geometry = relax.op, self.kernel, self.geometry
        depth = self.runs * self.steps * kernel.kr
        groups, position = [], 0
        for _ in range(geometry.groups):
            panels = []
            for width in self.widths:
                columns = width * kernel.lanes
                panel = op.strided_slice(expr, [0], [position], [position + depth * columns])
                panel = op.reshape(panel, (depth // kernel.kr, columns, kernel.kr))
                panels.append(op.reshape(op.permute_dims(panel, [0, 2, 1]), (depth, columns)))
                position += depth * columns
            matrix = panels[0] if len(panels) == 1 else op.concat(panels, axis=1)
            runs = op.reshape(matrix, (self.runs, self.steps * kernel.kr, self.columns))
            n = geometry.group_out_channels
            groups.append(op.strided_slice(runs, [1, 2], [0, 0], [self.run, n]))
        weight = groups[0] if len(groups) == 1 else op.concat(groups, axis=2)
        return op.reshape(weight, self.region.inputs[1].shape)


def pack(region: Region, config: ConvConfig, isa: Isa, index: int, array: np.ndarray) -> np.ndarray:
    """The weight as `build` reads it."""
    return WeightLayout.of(region, config, check(region, config, isa)).pack(array)


def unpack(
    region: Region, config: ConvConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The weight [*kernel, IC, OC] as a Relax expression of its packed form."""
    return WeightLayout.of(region, config, check(region, config, isa)).unpack(expr)


def packed_shape(region: Region, config: ConvConfig, isa: Isa, index: int) -> tuple[int, ...]:
    """Shape of the packed weight."""
    return WeightLayout.of(region, config, check(region, config, isa)).shape
