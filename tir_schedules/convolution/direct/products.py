"""A convolution before it is built: its loops, and the product that its tiles compute.

threads > bands > panels > lines > tiles > taps > channels > tile
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm import DataType

from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.core.loop_nest import (
    Bytes,
    Loop,
    LoopNest,
    balance_of,
    nested,
    pieces,
    register_tile,
)
from tir_schedules.core.product import Product
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.core.region import Region

from .config import (
    ConvConfig,
    across_of,
    channel_parts,
    column_shares,
    form_of,
    grid_of,
    panels_of,
    tiles_of,
    vectors_of,
)
from .cost import candidates, estimated_cycles


def nests(region: Region, config: ConvConfig) -> Iterator[LoopNest]:
    """The loops of the convolution."""
    geometry, kernel = ConvGeometry.of(region).as_volume(), microkernel_named(config.kernel)
    planes = geometry.batch * geometry.outputs[0]
    _, height, width = geometry.outputs
    bands = planes * math.ceil(height / config.band)
    channels, groups = geometry.group_channels, geometry.groups
    n_vectors = vectors_of(geometry, kernel)
    threads_m, threads_n, threads_x = grid_of(geometry, config, kernel)
    parts = channel_parts(geometry, kernel)
    panels = len(panels_of(geometry, config, kernel))
    vectors = n_vectors / panels
    taps_z, taps_y, taps_x = geometry.kernel
    split = form_of(region, kernel) == "split"
    runs = math.prod(geometry.kernel) if split else taps_z * taps_y
    steps = kernel.steps(channels) if split else kernel.steps(taps_x * channels)
    x_item = 4 / kernel.kr if config.staged else DataType(region.inputs[0].dtype).itemsize
    average = planes * height / bands
    line_tiles = pieces(average, config.lines)
    lines = average / line_tiles
    most, tiles = tiles_of(geometry, config, kernel)
    # Tiles of tile registers are alike: the last one overlaps the one before.
    columns = most if kernel.by_tiles else width / tiles
    high, rows = lines, columns * lines
    if across_of(geometry, config, kernel) is not None:
        high, rows, columns = lines / tiles, most, width

    def touched(
        planes: float, lines: float, columns: float, vectors: float, groups: float
    ) -> Bytes:
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
        Loop("thread", threads_m * threads_n * threads_x, "parallel", of_all),
        Loop("band", bands / threads_m, "serial", of_thread),
        Loop("panel", share_panels * share_groups, "serial", of_band),
        Loop("line", line_tiles, "serial", touched(1, average, wide, vectors, 1)),
        Loop("tile", tiles / threads_x, "serial", touched(1, lines, wide, vectors, 1)),
        Loop("tap", runs, "reduction", touched(1, high, columns, vectors, 1)),
        *register_tile(rows, vectors, steps, kernel.lanes, ("pixel", "vector", "channel")),
    ]
    useful = geometry.group_out_channels / (n_vectors * kernel.lanes)
    useful *= width * lines / (tiles * rows)
    useful *= math.prod(geometry.kernel) * channels / (runs * steps * kernel.kr)
    balance = balance_of(bands, threads_m) * balance_of(parts, threads_n)
    balance *= balance_of(tiles, threads_x)
    yield LoopNest(nested(loops), geometry.flops / 2, useful, balance)


def products(region: Region, config: ConvConfig, machine: Machine) -> Iterator[Product]:
    """Tiles of pixels of a line, or of several; what overlaps at their end is computed twice."""
    line = ConvGeometry.of(region)
    geometry, kernel = line.as_volume(), microkernel_named(config.kernel)
    depth, height, width = geometry.outputs
    rows, tiles = tiles_of(geometry, config, kernel)
    k = math.prod(geometry.kernel) * geometry.group_channels
    bands = geometry.batch * depth * math.ceil(height / config.band)
    lines = min(math.ceil(bands / config.threads_m) * config.band, geometry.batch * depth * height)
    share = column_shares(geometry, config, kernel)[0].size * kernel.lanes
    lines_of_tiles = 1 if across_of(geometry, config, kernel) is None else config.lines
    yield Product(
        part=region,
        plan=ProductPlan(
            kernel=kernel,
            m=rows,
            n=min(geometry.group_out_channels, share),
            k=k,
            rows=rows,
            vectors=config.vectors,
            m_block=rows,
            k_block=kernel.steps(k),
        ),
        copies=lines // lines_of_tiles * math.ceil(tiles / config.threads_x) * geometry.groups,
        cycles=estimated_cycles(region, config, machine),
        others=lambda: [
            (other.kernel, estimated_cycles(region, other, machine))
            for other in candidates(region, machine)
        ],
        filled=(height * width, line.kernel[-1] * line.group_channels),
    )
