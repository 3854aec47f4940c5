"""The constant weight of a convolution as its kernel reads it.

    for each group, each panel of channels: [runs][K of a run / kr][columns][kr]
    then, where a zero point asks for it, int32 for each class of positions and each column
    then, where bytes may be multiplied in pairs, one int32: whether that is exact for any x

A run is the part of a window that is contiguous in memory (`convolution.direct.config.form_of`). It
is padded with zeros to whole steps, and the columns of a group are padded to whole vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import relax

from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import has_pairs, pairs_fit
from microkernels.microkernel import Microkernel
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.convolution.positions import PositionClasses
from tir_schedules.core.blocking import Group
from tir_schedules.core.integer_product import is_integer
from tir_schedules.core.panels import Panels
from tir_schedules.core.region import Region
from tir_schedules.product.expressed_terms import expressed_answer, expressed_bytes, expressed_terms
from tir_schedules.product.zero_points import ZeroPoints

from .config import ConvConfig, Form, check, column_shares, form_of, panels_of


@dataclass(frozen=True)
class WeightLayout:
    """Sizes of a packed weight.

    Attributes
    ----------
    form : str
        As of `form_of`.
    runs, run, steps : int
        Runs of a window, elements of one, and steps of kr that it is padded to.
    shares : tuple of Group
        What threads take of a group's vectors, as of `column_shares`.
    packed : Panels
        The layout of one group.
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
    shares: tuple[Group, ...]
    packed: Panels
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
        widths = panels_of(geometry, config, kernel)
        runs = math.prod(geometry.kernel) * channels // run
        return WeightLayout(
            region=region,
            kernel=kernel,
            geometry=geometry,
            form=form,
            runs=runs,
            run=run,
            steps=kernel.steps(run),
            shares=column_shares(geometry, config, kernel),
            packed=Panels(kernel, run, geometry.group_out_channels, widths, runs),
            classes=classes,
        )

    @property
    def columns(self) -> int:
        """Columns of a group, padded."""
        return self.packed.columns

    @property
    def group_size(self) -> int:
        """Elements of a group's panels."""
        return self.packed.size

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
        return (self.answer + (4 if self.has_answer else 0),)

    @property
    def has_answer(self) -> bool:
        """Whether it says if pairs of bytes fit."""
        return is_integer(self.region) and has_pairs(self.kernel)

    @property
    def answer(self) -> int:
        """Where it says so."""
        return self.size + 4 * self.terms

    def pack(self, array: np.ndarray) -> np.ndarray:
        """The weight [*kernel, IC, OC] as the kernel reads it."""
        parts = [self.packed.pack(group) for group in np.split(array, self.geometry.groups, -1)]
        answer = self.has_answer and all(map(pairs_fit, parts))
        if self.classes is not None:
            points = ZeroPoints.of(self.region, self.kernel)
            found = np.stack([points.column_term(taps) for taps in self.classes.taps(array)])
            grouped = found.reshape(len(found), self.geometry.groups, -1)
            padding = self.columns - grouped.shape[-1]
            terms = np.pad(grouped, ((0, 0), (0, 0), (0, padding)))
            parts.append(terms.reshape(-1).view(array.dtype))
        if self.has_answer:
            parts.append(np.array([answer], "int32").view(array.dtype))
        return np.concatenate(parts)

    def express(self, expr: relax.Expr) -> relax.Expr:
        """What `pack` makes of a weight, as a Relax expression."""
        *taps, channels = self.region.inputs[1].shape
        lines = relax.op.reshape(expr, (math.prod(taps), channels))
        width = self.geometry.group_out_channels
        groups = [
            self.packed.express(
                lines
                if width == channels
                else relax.op.strided_slice(lines, [1], [start], [start + width])
            )
            for start in range(0, channels, width)
        ]
        parts = groups if self.classes is None else [*groups, self._expressed_terms(expr)]
        if self.has_answer:
            whole = groups[0] if len(groups) == 1 else relax.op.concat(groups, axis=0)
            answer = expressed_answer(whole, self.size)
            parts = [*parts, expressed_bytes(answer, 1, self.region.inputs[1].dtype)]
        return parts[0] if len(parts) == 1 else relax.op.concat(parts, axis=0)

    def _expressed_terms(self, expr: relax.Expr) -> relax.Expr:
        """The terms behind a weight of integers, as a Relax expression of it."""
        assert self.classes is not None
        geometry, tensor = self.geometry, self.region.inputs[1]
        taps, channels = math.prod(geometry.kernel), geometry.group_channels
        places = np.arange(taps).reshape(*geometry.kernel, 1, 1)
        counted = np.stack([np.isin(places, inside) for inside in self.classes.taps(places)])
        terms = expressed_terms(
            ZeroPoints.of(self.region, self.kernel),
            relax.op.reshape(expr, (taps, channels, tensor.shape[-1])),
            counted.reshape(-1, taps),
        )
        grouped = relax.op.reshape(
            terms, (len(counted), geometry.groups, geometry.group_out_channels)
        )
        padding = self.columns - geometry.group_out_channels
        if padding:
            grouped = relax.op.nn.pad(grouped, [0, 0, 0, 0, 0, padding])
        return expressed_bytes(grouped, self.terms, tensor.dtype)

    def unpack(self, expr: relax.Expr) -> relax.Expr:
        """The weight as a Relax expression of its packed form."""
        starts = range(0, self.size, self.group_size)
        groups = [self.packed.unpack(expr, start) for start in starts]
        weight = groups[0] if len(groups) == 1 else relax.op.concat(groups, axis=1)
        return relax.op.reshape(weight, self.region.inputs[1].shape)


def pack(region: Region, config: ConvConfig, isa: Isa, index: int, array: np.ndarray) -> np.ndarray:
    """The weight as `build` reads it."""
    return WeightLayout.of(region, config, check(region, config, isa)).pack(array)


def unpack(
    region: Region, config: ConvConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The weight [*kernel, IC, OC] as a Relax expression of its packed form."""
    return WeightLayout.of(region, config, check(region, config, isa)).unpack(expr)


def express(
    region: Region, config: ConvConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The packed weight as a Relax expression of one [*kernel, IC, OC]."""
    return WeightLayout.of(region, config, check(region, config, isa)).express(expr)


def packed_shape(region: Region, config: ConvConfig, isa: Isa, index: int) -> tuple[int, ...]:
    """Shape of the packed weight."""
    return WeightLayout.of(region, config, check(region, config, isa)).shape
