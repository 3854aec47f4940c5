"""Regions of 3x3 convolutions by Winograd's tiles, and how far their results may be off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relay_passes.lower.codegen import kernel_context
from tests.guard import guarded
from tests.tir_schedules.conv_regions import conv_region
from tests.tir_schedules.run_region import compiled, expected, machine_for, packed, random_inputs
from tir_schedules.convolution.winograd.algorithm import SQUARE, matrices
from tir_schedules.convolution.winograd.config import WinogradProblem
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tvm_hybrid.runtime.feeds import tensor_of

A_T, G, B_T = matrices(3)
TILE, REACH = SQUARE.tile, SQUARE.reach

Shape = tuple[int, int]
ONES = (1, 1, 1, 1)
UNIT = 2.0**-24


def region_of(
    extents: Shape,
    channels: int,
    out_channels: int,
    padding: tuple[int, int, int, int] = ONES,
    **options: Any,
) -> Region:
    """A 3x3 convolution of stride 1."""
    fields = {"padding": padding, "op": "conv2d_winograd", **options}
    return conv_region(extents, channels, out_channels, (3, 3), **fields)


def scaled_inputs(region: Region, seed: int = 0) -> list[np.ndarray]:
    """Normal values, with results near one."""
    arrays = random_inputs(region, seed)
    arrays[1] = (arrays[1] / math.sqrt(9 * region.inputs[0].shape[-1])).astype(np.float32)
    return arrays


def outputs(
    region: Region,
    arrays: Sequence[np.ndarray],
    isa: str,
    config: Config | None = None,
    threads: int = 1,
) -> Iterator[np.ndarray]:
    """Results with all buffers before an unmapped page, then after one; compiled once."""
    machine, template = machine_for(isa, threads), template_for(region.op)
    config = config or template.default_config(region, machine)
    function = template.build(region, config, machine.isa)
    with kernel_context():
        kernel = compiled(function, isa)
    inputs = packed(region, config, machine.isa, arrays)
    for at_end in (True, False):
        output = guarded(np.zeros(region.output.shape, region.output.dtype), at_end)
        output[...] = 85 if output.dtype.kind in "iu" else np.nan
        kernel(*(tensor_of(guarded(x, at_end)) for x in inputs), tensor_of(output))
        yield output


def error_bound(channels: int, sums: np.ndarray) -> np.ndarray:
    """A bound that no error exceeds, for any data.

    Every result is reached through at most n consecutive roundings: four in each of the four
    transforms of data, one of the weight, and one for each channel. So its error is at most
    n u / (1 - n u) times `sums` (Higham, "Accuracy and Stability", section 3.1).

    Parameters
    ----------
    channels : int
        Channels of x.
    sums : ndarray
        The results with all matrices, x and weight replaced by their magnitudes (`magnitudes`).
    """
    roundings = 4 * 4 + 1 + channels
    bound: np.ndarray = roundings * UNIT / (1 - roundings * UNIT) * sums
    return bound


def magnitudes(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """|A^T| [(|G| |g| |G^T|) * (|B^T| |d| |B|)] |A|, summed over channels.

    Parameters
    ----------
    x : ndarray
        [tiles, 6, 6, C].
    weight : ndarray
        [3, 3, C, OC].

    Returns
    -------
    ndarray
        [tiles, 4, 4, OC].
    """
    a, g, b = np.abs(A_T), np.abs(G), np.abs(B_T)
    v = np.einsum("ij,tjkc,lk->tilc", b, np.abs(x), b, optimize=True)
    u = np.einsum("ij,jkco,lk->ilco", g, np.abs(weight), g, optimize=True)
    m = np.einsum("tilc,ilco->tilo", v, u, optimize=True)
    return np.asarray(np.einsum("pi,tilo,ql->tpqo", a, m, a, optimize=True))


def bound(region: Region, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """`error_bound` of the convolution, for every result."""
    problem = WinogradProblem.of(region)
    geometry = problem.geometry
    top, left = geometry.before
    height, width = TILE * problem.rows + REACH - TILE, TILE * problem.columns + REACH - TILE
    below, right = (
        max(0, height - top - geometry.extents[0]),
        max(0, width - left - geometry.extents[1]),
    )
    x = np.pad(arrays[0], ((0, 0), (top, below), (left, right), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (REACH, REACH), axis=(1, 2))
    chosen = windows[:, : height - REACH + 1 : TILE, : width - REACH + 1 : TILE]
    tiles = chosen.transpose(0, 1, 2, 4, 5, 3).reshape(-1, REACH, REACH, geometry.channels)
    sums = magnitudes(tiles.astype(np.float64), arrays[1].astype(np.float64))
    shape = (geometry.batch, problem.rows, problem.columns, TILE, TILE, geometry.out_channels)
    lines = sums.reshape(shape).transpose(0, 1, 3, 2, 4, 5)
    image = lines.reshape(geometry.batch, TILE * problem.rows, TILE * problem.columns, -1)
    rows, columns = geometry.outputs
    return error_bound(geometry.channels, image[:, :rows, :columns])


def check(region: Region, isa: str, config: Config | None = None, threads: int = 1) -> None:
    """The result is within the bound of the convolution's own roundings.

    The epilogues of these tests (an addition, a relu) pass errors on unchanged and round once.
    """
    arrays = scaled_inputs(region)
    wanted = expected(region, arrays)
    limit = bound(region, arrays) + 4 * np.finfo(np.float32).eps * np.abs(wanted)
    for result in outputs(region, arrays, isa, config, threads):
        error = np.abs(result.astype(np.float64) - wanted)
        assert (error <= limit).all(), (region.key, config, float((error - limit).max()))


def bias(out_channels: int) -> Tensor:
    """A number for each output channel."""
    return Tensor((out_channels,), "float32")
