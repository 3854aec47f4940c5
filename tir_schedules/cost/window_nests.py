"""The loop nests of templates that move windows over images.

conv1d, conv2d, conv3d     threads > bands > panels > lines > tiles > taps > channels > tile
depthwise_conv2d           threads > bands > tiles of columns > taps > tile
depthwise_pointwise        bands > those of the depthwise part, and of the matmul
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from tvm import DataType

from microkernels.microkernel import microkernel_named
from tir_schedules.chains.depthwise_pointwise_config import DepthwisePointwiseConfig, pointwise_rows
from tir_schedules.convolution.depthwise.config import DepthwiseConfig
from tir_schedules.convolution.depthwise.problem import Axis, DepthwiseProblem
from tir_schedules.convolution.direct.config import ConvConfig, form_of
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.core.loop_nest import (
    Bytes,
    Kind,
    Loop,
    LoopNest,
    balance_of,
    nested,
    pieces,
    register_tile,
)
from tir_schedules.core.region import Region

from .product_nests import matmul_nests


def conv_nests(region: Region, config: ConvConfig) -> Iterator[LoopNest]:
    """Of the templates "conv1d", "conv2d" and "conv3d"."""
    geometry, kernel = ConvGeometry.of(region).as_volume(), microkernel_named(config.kernel)
    planes = geometry.batch * geometry.outputs[0]
    _, height, width = geometry.outputs
    bands = planes * math.ceil(height / config.band)
    channels, groups = geometry.group_channels, geometry.groups
    n_vectors = math.ceil(geometry.group_out_channels / kernel.lanes)
    panels = pieces(n_vectors, config.vectors)
    vectors = n_vectors / panels
    parts = groups if groups > 1 else panels
    threads_m, threads_n = min(config.threads_m, bands), min(config.threads_n, parts)
    taps_z, taps_y, taps_x = geometry.kernel
    split = form_of(region, kernel) == "split"
    runs = math.prod(geometry.kernel) if split else taps_z * taps_y
    steps = kernel.steps(channels) if split else kernel.steps(taps_x * channels)
    x_item = 4 / kernel.kr if config.staged else DataType(region.inputs[0].dtype).itemsize
    tiles = pieces(width, config.rows)
    lines = min(config.lines, config.band)
    band_lines = math.ceil(config.band / lines)

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
    rows = width / tiles * lines
    mine = share_vectors, share_groups
    of_all = touched(planes, height, width, n_vectors, groups)
    of_thread = touched(planes / threads_m, height, width, *mine)
    of_band = touched(1, config.band, width, *mine)
    loops = [
        Loop("thread", threads_m * threads_n, "parallel", of_all),
        Loop("band", bands / threads_m, "serial", of_thread),
        Loop("panel", share_panels * share_groups, "serial", of_band),
        Loop("line", band_lines, "serial", touched(1, config.band, width, vectors, 1)),
        Loop("tile", tiles, "serial", touched(1, lines, width, vectors, 1)),
        Loop("tap", runs, "reduction", touched(1, lines, width / tiles, vectors, 1)),
        *register_tile(rows, vectors, steps, kernel.lanes, ("pixel", "vector", "channel")),
    ]
    useful = geometry.group_out_channels / (n_vectors * kernel.lanes)
    useful *= math.prod(geometry.kernel) * channels / (runs * steps * kernel.kr)
    balance = balance_of(bands, threads_m) * balance_of(parts, threads_n)
    yield LoopNest(nested(loops), geometry.flops / 2, useful, balance)


def depthwise_nests(region: Region, config: DepthwiseConfig) -> Iterator[LoopNest]:
    """Of the template "depthwise_conv2d"; lanes are those of 64 bytes of f32."""
    yield _depthwise(region, config, DepthwiseProblem.of(region).rows.outputs)


def depthwise_pointwise_nests(
    region: Region, config: DepthwisePointwiseConfig
) -> Iterator[LoopNest]:
    """Of the template "depthwise_pointwise": both parts in bands."""
    problem = DepthwiseProblem.of(region.parts[0])
    bands = problem.batch * pieces(problem.rows.outputs, config.lines)
    lines = min(config.lines, problem.rows.outputs)
    first = _depthwise(region.parts[0], config.depthwise, lines)
    (second,) = matmul_nests(pointwise_rows(region, lines), config.pointwise)
    kind: Kind = "parallel" if config.threads > 1 else "serial"
    for nest in (first, second):
        a, b, c = nest.loops[0].touched
        yield dataclasses.replace(
            nest,
            loops=(Loop("band", bands, kind, (a * bands, b, c * bands)), *nest.loops),
            operations=nest.operations * bands,
            balance=balance_of(bands, min(config.threads, bands)),
        )


def _depthwise(region: Region, config: DepthwiseConfig, lines: int) -> LoopNest:
    """So many lines of the result; of a whole region also all of its samples."""
    problem, lanes = DepthwiseProblem.of(region), 16
    item = DataType(region.inputs[0].dtype).itemsize
    vectors = math.ceil(problem.channels / lanes)
    whole = lines == problem.rows.outputs
    samples = problem.batch if whole else 1
    rows, columns = min(config.rows, lines), min(config.columns, problem.columns.outputs)
    bands, tiles = pieces(lines, rows), pieces(problem.columns.outputs, columns)
    width = min(config.vectors, vectors)
    block = min(vectors, config.blocks * width)
    chunks = pieces(vectors, block)
    threads = min(config.threads, samples * bands * chunks) if whole else 1
    columns_each, rows_each = problem.columns.outputs / tiles, lines / bands

    def touched(samples: float, lines: float, columns: float, vectors: float) -> Bytes:
        high, wide = _positions(problem.rows, lines), _positions(problem.columns, columns)
        channels = vectors * lanes
        results = 4.0 * samples * lines * columns * channels
        return samples * high * wide * channels * item, problem.taps * channels * 4.0, results

    outputs = problem.columns.outputs
    tile = touched(1, rows_each, columns_each, width)
    mine = touched(samples / threads, lines, outputs, vectors)
    of_block = touched(1, rows_each, columns_each, block)
    loops = [
        Loop("thread", threads, "parallel", touched(samples, lines, outputs, vectors)),
        Loop("sample", max(1.0, samples / threads), "serial", mine),
        Loop("channel block", chunks, "serial", touched(1, lines, outputs, vectors)),
        Loop("band", bands, "serial", touched(1, lines, outputs, block)),
        Loop("tile", tiles, "serial", touched(1, rows_each, outputs, block)),
        Loop("channel tile", pieces(block, width), "serial", of_block),
        Loop("tap", problem.taps, "reduction", tile),
        Loop("pixel", rows_each * columns_each, "unrolled", tile),
        Loop("vector", width, "unrolled", touched(1, 1, 1, width)),
        Loop("lane", lanes, "vector", touched(1, 1, 1, 1)),
    ]
    operations = float(samples * lines * outputs * problem.channels * problem.taps)
    useful = problem.channels / (vectors * lanes)
    return LoopNest(
        nested(loops), operations, useful, balance_of(samples * bands * chunks, threads)
    )


def _positions(axis: Axis, outputs: float) -> float:
    """Positions of x that so many neighbouring results read."""
    return min(axis.extent, (outputs - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1)
