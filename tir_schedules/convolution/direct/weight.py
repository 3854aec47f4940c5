"""The constant weight of a convolution, packed as the kernel reads it.

    for each group, each panel of channels: [runs][K of a run / kr][columns][kr]
    then, if zero points need it, int32 for each class of positions and each column
    then, if bytes may be multiplied in pairs, one int32: whether that is exact for any x

A run is the part of a window that is contiguous in memory (`convolution.direct.config.form_of`).
Runs are padded with zeros to whole steps, and the columns of a group to whole vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import DataType, relax

from microkernels.isa import Isa
from microkernels.kernels.byte_pairs import has_pairs
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.tile import Address
from microkernels.vector.expressions import Expr, Index
from microkernels.vector.memory import prefetch
from tir_schedules.convolution.geometry import ConvGeometry, PositionClasses
from tir_schedules.core import loop_nest
from tir_schedules.core.arrays import A, as_bytes, joined, padded, reshaped, sliced
from tir_schedules.core.blocking import Panels
from tir_schedules.core.product_plan import Product, ProductPlan, is_integer
from tir_schedules.core.region import Region
from tir_schedules.core.template import PackedInput
from tir_schedules.product import zero_points
from tir_schedules.product.tile_products import LoadPanel

from .config import ConvConfig, ConvPlan, Form, check, form_of
from .cost import candidates, estimated_cycles


@dataclass(frozen=True)
class WeightLayout(PackedInput):
    """The packed weight of a convolution: its parts and their sizes."""

    region: Region
    plan: ConvPlan
    form: Form
    packed: Panels  # the layout of one group
    classes: PositionClasses | None  # of the terms behind the weight, if there are any

    @staticmethod
    def of(region: Region, config: ConvConfig, kernel: Microkernel) -> WeightLayout:
        """The layout of a region's weight for a configuration."""
        plan = ConvPlan(ConvGeometry.of(region), config, kernel)
        geometry, form = plan.geometry, form_of(region, kernel)
        channels, width = geometry.group_channels, geometry.kernel[-1]
        run = width * channels if form == "fused" else channels
        classes = None
        if is_integer(region) and zero_points.ZeroPoints.of(region, kernel).needs_column_sums:
            classes = PositionClasses(geometry, config.staged)
        runs = math.prod(geometry.kernel) * channels // run
        packed = Panels(kernel, run, geometry.group_out_channels, plan.panels, runs)
        return WeightLayout(region, plan, form, packed, classes)

    @property
    def kernel(self) -> Microkernel:
        """The kernel that reads the weight."""
        return self.plan.kernel

    @property
    def geometry(self) -> ConvGeometry:
        """The geometry of the convolution."""
        return self.plan.geometry

    @property
    def steps(self) -> int:
        """Steps of kr elements in a padded run."""
        return self.kernel.steps(self.packed.k)

    @property
    def size(self) -> int:
        """Elements of the packed weight, without the terms behind it."""
        return self.geometry.groups * self.packed.size

    @property
    def terms(self) -> int:
        """Number of int32 terms behind the weight."""
        count = 0 if self.classes is None else self.classes.count
        return count * self.geometry.groups * self.packed.columns

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of the packed array."""
        return (self.answer + (4 if self.has_answer else 0),)

    @property
    def has_answer(self) -> bool:
        """Whether the array ends with the answer: are pairs of bytes exact for any x."""
        return is_integer(self.region) and has_pairs(self.kernel)

    @property
    def answer(self) -> int:
        """Where the answer begins."""
        return self.size + 4 * self.terms

    def pack(self, array: A) -> A:
        """The weight [*kernel, IC, OC] in the layout that the kernel reads."""
        geometry, dtype = self.geometry, self.region.inputs[1].dtype
        taps, channels, width = geometry.kernel, geometry.out_channels, geometry.group_out_channels
        lines = reshaped(array, (math.prod(taps), geometry.group_channels, channels))
        if width == channels:
            parts = [self.packed.pack(lines)]
        else:
            groups = [sliced(lines, 2, at, at + width) for at in range(0, channels, width)]
            parts = [joined(list(map(self.packed.pack, groups)))]
        if self.classes is not None:
            places = np.arange(math.prod(taps)).reshape(*taps, 1, 1)
            counted = [np.isin(places, inside).reshape(-1) for inside in self.classes.taps(places)]
            points = zero_points.ZeroPoints.of(self.region, self.kernel)
            terms = points.column_terms(lines, np.stack(counted))
            of_groups = reshaped(terms, (len(counted), geometry.groups, width))
            behind = padded(of_groups, (0, 0, self.packed.columns - width))
            parts.append(as_bytes(behind, self.terms, dtype))
        if self.has_answer:
            answer = zero_points.pairs_answer(parts[0], self.size)
            parts.append(as_bytes(answer, 1, dtype))
        return joined(parts) if len(parts) > 1 else parts[0]

    def unpack(self, expr: relax.Expr) -> relax.Expr:
        starts = range(0, self.size, self.packed.size)
        groups = [self.packed.unpack(expr, start) for start in starts]
        weight = groups[0] if len(groups) == 1 else relax.op.concat(groups, axis=1)
        return relax.op.reshape(weight, self.region.inputs[1].shape)


def packed_weight(region: Region, config: ConvConfig, isa: Isa, _index: int) -> WeightLayout:
    """The layout of the weight for a legal configuration."""
    return WeightLayout.of(region, config, check(region, config, isa))


# The loops of a convolution and the product that its tiles compute, for `explain`.
#
# threads > bands > panels > lines > tiles > taps > channels > tile


def nests(region: Region, config: ConvConfig) -> Iterator[loop_nest.LoopNest]:
    """The loops of a convolution."""
    plan = ConvPlan.of(region, config)
    geometry, kernel = plan.geometry.as_volume(), plan.kernel
    planes = geometry.batch * geometry.outputs[0]
    _, height, width = geometry.outputs
    bands = planes * math.ceil(height / config.band)
    channels, groups = geometry.group_channels, geometry.groups
    n_vectors, (threads_m, threads_n, threads_x) = plan.vectors, plan.grid
    panels = len(plan.panels)
    vectors = n_vectors / panels
    taps_z, taps_y, taps_x = geometry.kernel
    split = form_of(region, kernel) == "split"
    runs = math.prod(geometry.kernel) if split else taps_z * taps_y
    steps = kernel.steps(channels) if split else kernel.steps(taps_x * channels)
    x_item = 4 / kernel.kr if config.staged else DataType(region.inputs[0].dtype).itemsize
    average = planes * height / bands
    line_tiles = loop_nest.pieces(average, config.lines)
    lines = average / line_tiles
    most, tiles = plan.tiles
    # AMX tiles all have one size: the last one overlaps the one before.
    columns = most if kernel.by_tiles else width / tiles
    high, rows = lines, columns * lines
    if plan.across is not None:
        high, rows, columns = lines / tiles, most, width

    def touched(
        planes: float, lines: float, columns: float, vectors: float, groups: float
    ) -> loop_nest.Bytes:
        high = min((lines - 1) * geometry.strides[1] + taps_y, geometry.extents[1])
        wide = min((columns - 1) * geometry.strides[2] + taps_x, geometry.extents[2])
        x = planes * taps_z * high * wide * channels * groups * x_item
        results = planes * lines * columns * vectors * groups * kernel.lanes * 4.0
        return x, runs * steps * vectors * groups * kernel.lanes * 4.0, results

    share_groups = groups / threads_n if groups > 1 else 1.0
    share_panels = panels if groups > 1 else panels / threads_n
    share_vectors = vectors * share_panels
    mine = share_vectors, share_groups
    of_all = touched(planes, height, width, n_vectors, groups)
    wide = width / threads_x
    of_thread = touched(planes / threads_m, height, wide, *mine)
    of_band = touched(1, average, wide, *mine)
    loops = [
        loop_nest.Loop("thread", threads_m * threads_n * threads_x, "parallel", of_all),
        loop_nest.Loop("band", bands / threads_m, "serial", of_thread),
        loop_nest.Loop("panel", share_panels * share_groups, "serial", of_band),
        loop_nest.Loop("line", line_tiles, "serial", touched(1, average, wide, vectors, 1)),
        loop_nest.Loop("tile", tiles / threads_x, "serial", touched(1, lines, wide, vectors, 1)),
        loop_nest.Loop("tap", runs, "reduction", touched(1, high, columns, vectors, 1)),
        *loop_nest.register_tile(
            rows, vectors, steps, kernel.lanes, ("pixel", "vector", "channel")
        ),
    ]
    useful = geometry.group_out_channels / (n_vectors * kernel.lanes)
    useful *= width * lines / (tiles * rows)
    useful *= math.prod(geometry.kernel) * channels / (runs * steps * kernel.kr)
    balance = loop_nest.balance_of(bands, threads_m) * loop_nest.balance_of(
        plan.channel_parts, threads_n
    )
    balance *= loop_nest.balance_of(tiles, threads_x)
    yield loop_nest.LoopNest(loop_nest.nested(loops), geometry.flops / 2, useful, balance)


def products(region: Region, config: ConvConfig, machine: Machine) -> Iterator[Product]:
    """The product of the tiles of one or more lines; overlapping pixels are computed twice."""
    of_conv, line = ConvPlan.of(region, config), ConvGeometry.of(region)
    geometry, kernel = line.as_volume(), of_conv.kernel
    depth, height, width = geometry.outputs
    rows, tiles = of_conv.tiles
    k = math.prod(geometry.kernel) * geometry.group_channels
    bands = geometry.batch * depth * math.ceil(height / config.band)
    lines = min(math.ceil(bands / config.threads_m) * config.band, geometry.batch * depth * height)
    lines_of_tiles = 1 if of_conv.across is None else config.lines
    n = min(geometry.group_out_channels, of_conv.shares[0].size * kernel.lanes)
    tile = {"rows": rows, "vectors": config.vectors, "m_block": rows, "k_block": kernel.steps(k)}
    yield Product(
        part=region,
        plan=ProductPlan(kernel=kernel, m=rows, n=n, k=k, **tile),
        copies=lines // lines_of_tiles * math.ceil(tiles / config.threads_x) * geometry.groups,
        cycles=estimated_cycles(region, config, machine),
        others=lambda: [
            (other.kernel, estimated_cycles(region, other, machine))
            for other in candidates(region, machine)
        ],
        filled=(height * width, line.kernel[-1] * line.group_channels),
    )


LINE = 64  # bytes of a cache line


@dataclass(frozen=True)
class PanelFetch:
    """Prefetches the next panel of a weight while the tiles of a panel multiply.

        panel of 3 vectors, 7 tiles: a step of a tile prefetches 3/7 of a step of the next panel

    The first tile of a panel would have to wait if L3 reads more slowly than a tile multiplies.
    Behind the last panel, lines are prefetched that nobody needs.
    """

    packed: Panels
    weight: Expr  # packed
    tiles: int  # of a panel; together they prefetch the next panel once

    def places(self, width: int, number: Index, step: Index) -> list[Index]:
        """The vectors of the next panel that a step of a tile prefetches, counted in vectors.

        `width` is the vectors of the panel, `number` that of the tile, `step` the step of K.
        """
        kernel = self.packed.kernel
        vector = kernel.lanes * kernel.kr * int(DataType(kernel.b_dtype).itemsize)
        vectors = max(1, LINE // vector)  # in a cache line
        count = math.ceil(width / (vectors * self.tiles))
        place = (number * self.packed.steps + step) * count
        return [I.floordiv((place + each) * width, self.tiles * count) for each in range(count)]

    def beside(self, load_b: LoadPanel, number: Index) -> LoadPanel:
        """A `load_b` that also prefetches tile `number`'s chunk of the next panel."""

        def load(panel: Index, width: int, step: Index, j: int) -> Expr | Address:
            if j == 0:
                for place in self.places(width, number, step):
                    prefetch(self.weight[self.packed.start(panel + width, 1, place, 0)])
            return load_b(panel, width, step, j)

        return load
