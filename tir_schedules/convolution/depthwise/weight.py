"""The weight of a depthwise convolution as its tiles read it.

    f32            [C / lanes][KH][KW][lanes]
    interleaved    [C / (lanes kr)][pair][KW][kr][lanes][kr], then int32 [C] where zero points ask

A vector of interleaved channels has kr taps of a column in every lane. A tile has R rows of pixels,
and all of them use the same groups of kr neighbouring rows of x. A pair is a row of the tile with
such a group; the taps that this row does not use are 0.

    3x3, kr = 4, R = 2     rows 0 to 3 of x, with w0 w1 w2 0 for one result, 0 w0 w1 w2 for the next
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import relax

from microkernels.isa import Isa
from tir_schedules.convolution.geometry import PackedWeight
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region
from tir_schedules.product.zero_points import ZeroPoints, expressed_bytes, expressed_terms

from .config import DepthwiseConfig, DepthwiseProblem, check, dot_kernel


@dataclass(frozen=True)
class Groups:
    """Rows of x in groups of kr, and who wants them.

    Attributes
    ----------
    offsets : tuple of tuple of int
        Rows of each group, from the first of the window of the tile's first row on.
    pairs : tuple of tuple of int
        (row of the tile, group), in order.
    taps : dict
        Pair -> for each of the kr rows the tap, or None.
    """

    offsets: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]
    taps: dict[tuple[int, int], tuple[int | None, ...]]

    @staticmethod
    def of(problem: DepthwiseProblem, rows: int, kr: int) -> Groups:
        """The groups of a tile with so many rows."""
        axis = problem.rows
        if rows == 1:
            needed = [tap * axis.dilation for tap in range(axis.taps)]
        else:
            needed = list(range(axis.span(rows)))
        offsets = tuple(tuple(needed[start : start + kr]) for start in range(0, len(needed), kr))
        taps: dict[tuple[int, int], tuple[int | None, ...]] = {}
        for row in range(rows):
            tap_of = {row * axis.stride + tap * axis.dilation: tap for tap in range(axis.taps)}
            for number, group in enumerate(offsets):
                wanted = [tap_of.get(offset) for offset in group]
                if any(tap is not None for tap in wanted):
                    taps[row, number] = tuple(wanted + [None] * (kr - len(group)))
        return Groups(offsets, tuple(taps), taps)

    def elements(self, problem: DepthwiseProblem, unit: int) -> int:
        """Of an interleaved weight in blocks of so many channels, without what follows."""
        channels = math.ceil(problem.channels / unit) * unit
        return (
            len(self.pairs) * problem.columns.taps * channels * len(next(iter(self.taps.values())))
        )


class DepthwiseWeight(PackedWeight):
    """The weight [*kernel, 1, C] of a region, flat, for a configuration.

    Attributes
    ----------
    groups : Groups
        Rows of x that are interleaved, if they are.
    width, size : int
        Channels, padded to whole vectors, and elements without the terms of zero points.
    """

    def __init__(self, region: Region, config: DepthwiseConfig, isa: Isa) -> None:
        self.region, self.problem = region, check(region, config, isa)
        self.kernel, self.lanes, problem = dot_kernel(region, isa), isa.f32_lanes, self.problem
        if self.kernel is None:
            self.width = math.ceil(problem.channels / self.lanes) * self.lanes
            self.size = problem.taps * self.width
        else:
            self.lanes, self.kr = self.kernel.lanes, self.kernel.kr
            unit = self.lanes * self.kr
            self.width = math.ceil(problem.channels / unit) * unit
            self.groups = Groups.of(problem, config.rows, self.kr)
            self.size = self.groups.elements(problem, unit)
        self.shape = (self.size + (4 * self.width if self._has_term else 0),)

    @property
    def _has_term(self) -> bool:
        if self.kernel is None or not is_integer(self.region):
            return False
        return ZeroPoints.of(self.region, self.kernel).needs_column_sums

    def pack(self, array: np.ndarray) -> np.ndarray:
        problem, kr, lanes = self.problem, 1 if self.kernel is None else self.kr, self.lanes
        padded = np.zeros((problem.rows.taps, problem.columns.taps, self.width), array.dtype)
        padded[..., : problem.channels] = array.reshape(*padded.shape[:2], problem.channels)
        if self.kernel is None:
            return padded.reshape(problem.taps, -1, lanes).transpose(1, 0, 2).reshape(-1)
        pairs, blocks = self.groups.pairs, padded.reshape(*padded.shape[:2], -1, kr, lanes)
        shape = (blocks.shape[2], len(pairs), blocks.shape[1], kr, lanes, kr)
        packed = np.zeros(shape, array.dtype)
        for number, pair in enumerate(pairs):
            for place, tap in enumerate(self.groups.taps[pair]):
                if tap is not None:
                    packed[:, number, ..., place] = blocks[tap].transpose(1, 0, 2, 3)
        flat = packed.reshape(-1)
        if not self._has_term:
            return flat
        matrix = padded.reshape(problem.taps, -1)
        term = ZeroPoints.of(self.region, self.kernel).column_term(matrix)
        return np.concatenate([flat, term.view(flat.dtype)])

    def unpack(self, expr: relax.Expr) -> relax.Expr:
        op, problem, width, lanes = relax.op, self.problem, self.width, self.lanes
        if self.kernel is None:
            parts = (width // lanes, problem.taps, lanes)
            taps = op.permute_dims(op.reshape(expr, parts), [1, 0, 2])
        else:
            # The first row of a tile has its taps in order, and its pairs come first.
            kr, columns = self.kr, problem.columns.taps
            own = math.ceil(problem.rows.taps / kr)
            flat = op.strided_slice(expr, [0], [0], [self.size])
            blocks = (width // (lanes * kr), len(self.groups.pairs), columns, kr, lanes, kr)
            first = op.strided_slice(op.reshape(flat, blocks), [1], [0], [own])
            taps = op.permute_dims(first, [1, 5, 2, 0, 3, 4])
            taps = op.reshape(taps, (own * kr, columns * width))
            taps = op.strided_slice(taps, [0], [0], [problem.rows.taps])
        lines = op.reshape(taps, (problem.taps, width))
        channels = op.strided_slice(lines, [1], [0], [problem.channels])
        return op.reshape(channels, self.region.inputs[1].shape)

    def express(self, expr: relax.Expr) -> relax.Expr:
        op, problem, width, lanes = relax.op, self.problem, self.width, self.lanes
        padded = op.reshape(expr, (problem.taps, problem.channels))
        if width > problem.channels:
            padded = op.nn.pad(padded, [0, 0, 0, width - problem.channels])
        if self.kernel is None:
            vectors = op.reshape(padded, (problem.taps, width // lanes, lanes))
            return op.reshape(op.permute_dims(vectors, [1, 0, 2]), (self.size,))
        kr, groups = self.kr, self.groups
        rows, columns = problem.rows.taps, problem.columns.taps
        # Behind the rows of taps is one of zeros, for places that no tap takes.
        taken = [rows if tap is None else tap for pair in groups.pairs for tap in groups.taps[pair]]
        with_zeros = op.nn.pad(op.reshape(padded, (rows, columns * width)), [0, 1, 0, 0])
        chosen = op.take(with_zeros, relax.const(np.array(taken, np.int32)), axis=0, mode="clip")
        blocks = (len(groups.pairs), kr, columns, width // (lanes * kr), kr, lanes)
        packed = op.permute_dims(op.reshape(chosen, blocks), [3, 0, 2, 4, 5, 1])
        flat = op.reshape(packed, (self.size,))
        if not self._has_term:
            return flat
        whole = op.reshape(padded, (problem.taps, 1, width))
        every = np.ones((1, problem.taps), bool)
        terms = expressed_terms(ZeroPoints.of(self.region, self.kernel), whole, every)
        return op.concat([flat, expressed_bytes(terms, width, self.kernel.b_dtype)], axis=0)
