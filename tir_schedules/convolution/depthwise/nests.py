"""A depthwise convolution before it is built: its loops.

threads > blocks of channels > samples > bands > tiles of columns > taps > tile
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tvm import DataType

from microkernels.machines.machine import Machine
from tir_schedules.core.loop_nest import Bytes, Loop, LoopNest, balance_of, nested, pieces
from tir_schedules.core.region import Region

from .config import DepthwiseConfig
from .results import Axis, DepthwiseProblem

WHY_VECTORS = "every channel has a window of its own: no matrix product for tiles"


def nests(region: Region, config: DepthwiseConfig) -> Iterator[LoopNest]:
    """The loops of the convolution; lanes are those of 64 bytes of f32."""
    problem = DepthwiseProblem.of(region)
    yield lines_nest(region, config, problem.rows.outputs, problem.batch)


def why_vectors(region: Region, config: DepthwiseConfig, machine: Machine) -> str:
    """Why it stays on vectors."""
    return WHY_VECTORS


def lines_nest(region: Region, config: DepthwiseConfig, lines: int, samples: int) -> LoopNest:
    """So many lines of the result, of so many samples."""
    problem, lanes = DepthwiseProblem.of(region), 16
    item = DataType(region.inputs[0].dtype).itemsize
    vectors = math.ceil(problem.channels / lanes)
    rows, columns = min(config.rows, lines), min(config.columns, problem.columns.outputs)
    bands, tiles = pieces(lines, rows), pieces(problem.columns.outputs, columns)
    most = min(config.vectors, vectors)
    chunks = pieces(vectors, config.blocks * most)
    block = vectors / chunks
    parts = pieces(block, most)
    width = block / parts
    threads = min(config.threads, samples * bands * chunks)
    columns_each, rows_each = problem.columns.outputs / tiles, lines / bands
    my_chunks, my_samples, my_bands = _share((chunks, samples, bands), threads)

    def touched(samples: float, lines: float, columns: float, vectors: float) -> Bytes:
        high, wide = _positions(problem.rows, lines), _positions(problem.columns, columns)
        channels = vectors * lanes
        results = 4.0 * samples * lines * columns * channels
        return samples * high * wide * channels * item, problem.taps * channels * 4.0, results

    outputs = problem.columns.outputs
    tile = touched(1, rows_each, columns_each, width)
    my_lines = my_bands * rows_each
    mine = touched(my_samples, my_lines, outputs, my_chunks * block)
    of_block = touched(1, rows_each, columns_each, block)
    loops = [
        Loop("thread", threads, "parallel", touched(samples, lines, outputs, vectors)),
        Loop("channel block", my_chunks, "serial", mine),
        Loop("sample", my_samples, "serial", touched(my_samples, my_lines, outputs, block)),
        Loop("band", my_bands, "serial", touched(1, my_lines, outputs, block)),
        Loop("tile", tiles, "serial", touched(1, rows_each, outputs, block)),
        Loop("channel tile", parts, "serial", of_block),
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


def _share(extents: Sequence[float], threads: float) -> Iterator[float]:
    """What one thread runs of nested loops: their iterations are divided in order."""
    for extent in extents:
        here = min(extent, threads)
        yield extent / here
        threads /= here


def _positions(axis: Axis, outputs: float) -> float:
    """Positions of x that so many neighbouring results read."""
    return min(axis.extent, (outputs - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1)
