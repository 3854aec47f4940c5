"""A depthwise convolution before it is built: its loops.

threads > samples > blocks of channels > bands > tiles of columns > taps > tile
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm import DataType

from tir_schedules.core.loop_nest import Bytes, Loop, LoopNest, balance_of, nested, pieces
from tir_schedules.core.machine import Machine
from tir_schedules.core.region import Region

from .config import DepthwiseConfig
from .problem import Axis, DepthwiseProblem

WHY_VECTORS = "every channel has a window of its own: no matrix product for tiles"


def nests(region: Region, config: DepthwiseConfig) -> Iterator[LoopNest]:
    """The loops of the convolution; lanes are those of 64 bytes of f32."""
    yield lines_nest(region, config, DepthwiseProblem.of(region).rows.outputs)


def why_vectors(region: Region, config: DepthwiseConfig, machine: Machine) -> str:
    """Why it stays on vectors."""
    return WHY_VECTORS


def lines_nest(region: Region, config: DepthwiseConfig, lines: int) -> LoopNest:
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
