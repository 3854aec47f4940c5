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
from microkernels.microkernel import Microkernel
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region
from tir_schedules.core.template import Packing
from tir_schedules.product.zero_points import ZeroPoints, expressed_bytes, expressed_terms

from .config import DepthwiseConfig, check, dot_kernel
from .results import DepthwiseProblem


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


class DepthwisePacking(Packing[DepthwiseConfig]):
    """The weight in vectors of channels or, of bytes, in interleaved taps."""

    def pack(
        self, region: Region, config: DepthwiseConfig, isa: Isa, index: int, array: np.ndarray
    ) -> np.ndarray:
        """The weight [*kernel, 1, C], flat, as `build` reads it."""
        problem = check(region, config, isa)
        kernel = dot_kernel(region, isa)
        c = problem.channels
        if kernel is None:
            padded = np.zeros((problem.taps, _padded(c, isa.f32_lanes)), array.dtype)
            padded[:, :c] = array.reshape(problem.taps, c)
            return padded.reshape(problem.taps, -1, isa.f32_lanes).transpose(1, 0, 2).reshape(-1)
        kr, lanes = kernel.kr, kernel.lanes
        groups = Groups.of(problem, config.rows, kr)
        shape = (problem.rows.taps, problem.columns.taps, _padded(c, lanes * kr))
        padded = np.zeros(shape, array.dtype)
        padded[..., :c] = array.reshape(*shape[:2], c)
        blocks = padded.reshape(*shape[:2], -1, kr, lanes)
        packed = np.zeros(
            (blocks.shape[2], len(groups.pairs), shape[1], kr, lanes, kr), array.dtype
        )
        for number, pair in enumerate(groups.pairs):
            for place, tap in enumerate(groups.taps[pair]):
                if tap is not None:
                    packed[:, number, ..., place] = blocks[tap].transpose(1, 0, 2, 3)
        flat = packed.reshape(-1)
        if not _has_term(region, kernel):
            return flat
        matrix = padded.reshape(problem.taps, -1)
        term = ZeroPoints.of(region, kernel).column_term(matrix)
        return np.concatenate([flat, term.view(flat.dtype)])

    def unpack(
        self, region: Region, config: DepthwiseConfig, isa: Isa, index: int, expr: relax.Expr
    ) -> relax.Expr:
        """The weight as a Relax expression of its packed form."""
        problem = check(region, config, isa)
        kernel = dot_kernel(region, isa)
        c, shape = problem.channels, region.inputs[1].shape
        width = _padded(c, isa.f32_lanes if kernel is None else kernel.lanes * kernel.kr)
        if kernel is None:
            parts = (width // isa.f32_lanes, problem.taps, isa.f32_lanes)
            taps = relax.op.permute_dims(relax.op.reshape(expr, parts), [1, 0, 2])
        else:
            # The first row of a tile has its taps in order, and its pairs come first.
            kr, lanes = kernel.kr, kernel.lanes
            groups = Groups.of(problem, config.rows, kr)
            own, columns = math.ceil(problem.rows.taps / kr), problem.columns.taps
            flat = relax.op.strided_slice(expr, [0], [0], [weight_size(problem, config, kernel)])
            blocks = (width // (lanes * kr), len(groups.pairs), columns, kr, lanes, kr)
            first = relax.op.strided_slice(relax.op.reshape(flat, blocks), [1], [0], [own])
            taps = relax.op.permute_dims(first, [1, 5, 2, 0, 3, 4])
            taps = relax.op.reshape(taps, (own * kr, columns * width))
            taps = relax.op.strided_slice(taps, [0], [0], [problem.rows.taps])
        lines = relax.op.reshape(taps, (problem.taps, width))
        return relax.op.reshape(relax.op.strided_slice(lines, [1], [0], [c]), shape)

    def express(
        self, region: Region, config: DepthwiseConfig, isa: Isa, index: int, expr: relax.Expr
    ) -> relax.Expr:
        """The packed weight as a Relax expression of one [*kernel, 1, C]."""
        problem = check(region, config, isa)
        kernel, op, c = dot_kernel(region, isa), relax.op, problem.channels
        width = _padded(c, isa.f32_lanes if kernel is None else kernel.lanes * kernel.kr)
        lines = op.reshape(expr, (problem.taps, c))
        padded = lines if width == c else op.nn.pad(lines, [0, 0, 0, width - c])
        if kernel is None:
            vectors = op.reshape(padded, (problem.taps, width // isa.f32_lanes, isa.f32_lanes))
            return op.reshape(op.permute_dims(vectors, [1, 0, 2]), (problem.taps * width,))
        kr, lanes = kernel.kr, kernel.lanes
        groups = Groups.of(problem, config.rows, kr)
        rows, columns = problem.rows.taps, problem.columns.taps
        # Behind the rows of taps is one of zeros, for places that no tap takes.
        taken = [rows if tap is None else tap for pair in groups.pairs for tap in groups.taps[pair]]
        with_zeros = op.nn.pad(op.reshape(padded, (rows, columns * width)), [0, 1, 0, 0])
        chosen = op.take(with_zeros, relax.const(np.array(taken, np.int32)), axis=0, mode="clip")
        blocks = (len(groups.pairs), kr, columns, width // (lanes * kr), kr, lanes)
        packed = op.permute_dims(op.reshape(chosen, blocks), [3, 0, 2, 4, 5, 1])
        size = weight_size(problem, config, kernel)
        flat = op.reshape(packed, (size,))
        if not _has_term(region, kernel):
            return flat
        whole = op.reshape(padded, (problem.taps, 1, width))
        every = np.ones((1, problem.taps), bool)
        terms = expressed_terms(ZeroPoints.of(region, kernel), whole, every)
        return op.concat([flat, expressed_bytes(terms, width, kernel.b_dtype)], axis=0)

    def shape(
        self, region: Region, config: DepthwiseConfig, isa: Isa, index: int
    ) -> tuple[int, ...]:
        """Shape of the packed weight: flat, with four bytes a channel behind it if needed."""
        problem = check(region, config, isa)
        kernel = dot_kernel(region, isa)
        if kernel is None:
            return (problem.taps * _padded(problem.channels, isa.f32_lanes),)
        size = weight_size(problem, config, kernel)
        if _has_term(region, kernel):
            size += 4 * _padded(problem.channels, kernel.lanes * kernel.kr)
        return (size,)


PACKING = DepthwisePacking()


def weight_size(problem: DepthwiseProblem, config: DepthwiseConfig, kernel: Microkernel) -> int:
    """Elements of an interleaved weight, without what follows."""
    pairs = len(Groups.of(problem, config.rows, kernel.kr).pairs)
    channels = _padded(problem.channels, kernel.lanes * kernel.kr)
    return pairs * problem.columns.taps * channels * kernel.kr


def _has_term(region: Region, kernel: Microkernel) -> bool:
    return is_integer(region) and ZeroPoints.of(region, kernel).needs_column_sums


def _padded(channels: int, unit: int) -> int:
    return math.ceil(channels / unit) * unit
