"""The register tiles of q k^T, and how their accumulators are stored as scores in cache.

A tile has few steps, D / kr, so its stores matter. On Zen 4 a store of 512 bits occupies the FMA
pipes for two cycles: with the stores of maxima 48 to 64 of a tile's 400 to 1600 cycles. Additions,
conversions and maxima run in parallel with the FMAs at no cost. Two stores of 256 bits would take
less, but LLVM merges them, and preventing that gains nothing.

AMX tiles are stored directly as scores. Scale, mask and maxima are then computed from L1, while the
next tiles are multiplied; a vector kernel computes them in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import Address, Tile
from microkernels.vector.expressions import Expr, bind, cast, constant, reinterpret
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import for_groups, opaque_block
from tir_schedules.core.product_plan import is_integer
from tir_schedules.epilogue.epilogue import Columns, Epilogue
from tir_schedules.product.activations import Activations
from tir_schedules.product.packed_operand import PackedOperand
from tir_schedules.product.zero_points import Start

from .rows import blocks_of
from .scores import FusedScores, hide_later_keys
from .softmax import Band

_MASKED = -math.inf


@dataclass(frozen=True)
class KeyBlock:
    """Vectors of keys [start, start + size), and how they are cut into panels."""

    start: Expr | int
    size: int
    panels: tuple[Group, ...]


class ScoreTiles:
    """Emits the scores of one attention.

    Parameters
    ----------
    problem : AttentionProblem
        Extents and layouts.
    batch : Expr
        Number of the attention.
    kernel : Microkernel
        The register tile.
    epilogue : Epilogue
        Of the scores.
    fused : FusedScores or None
        The epilogue, if the tiles take it.
    q, k : Activations, PackedOperand
        The operands.
    band : Band
        Where the scores go.
    """

    def __init__(
        self,
        problem: AttentionProblem,
        batch: Expr,
        kernel: Microkernel,
        epilogue: Epilogue,
        fused: FusedScores | None,
        q: Activations,
        k: PackedOperand,
        band: Band,
    ) -> None:
        self.problem, self.batch, self.kernel, self.epilogue = problem, batch, kernel, epilogue
        self.fused, self.q, self.k, self.band = fused, q, k, band
        self.lanes = kernel.lanes

    def emit(self, row: Expr, rows: int, block: KeyBlock, visible: Expr | int) -> None:
        """q k^T of a band into cache."""
        lanes, band, kernel = self.lanes, self.band, self.kernel
        lowest = constant(_MASKED, "float32", lanes)
        self._for_rows(rows, lambda r: band.scores.store(r, band.edge, lowest))
        part = self.problem.scores
        start = None
        if is_integer(part):
            start = Start(part, kernel, {}, self.problem.d, self.k.column_sum, self.q.row_sum)

        def panel(first: Expr | int, width: int) -> None:
            for_groups(blocks_of(kernel, rows), lambda r, size: tile(first, width, r, size))

        def tile(first: Expr | int, width: int, r0: Expr | int, size: int) -> None:
            with opaque_block("scores"):
                at = block.start + first
                init, columns = None, None
                if start is not None and start.by_column and kernel.by_tiles:
                    starts = start

                    def columns(j: int) -> Expr | Address:
                        return starts.columns(at + j)

                elif start is not None and start.needed:
                    starts = start

                    def init(i: Expr | int, j: int) -> Expr:
                        return starts(row + r0 + i, at + j)

                into = band.scores.place(r0, first * lanes) if kernel.by_tiles else None
                result = kernel.emit(
                    size,
                    width,
                    (self.k.steps,),
                    lambda i, ks: self.q.load(row + r0 + i, ks[0]),
                    lambda j, ks: self.k.load(at, width, ks[0], j),
                    init,
                    into,
                    peel=self.q.tail,
                    columns=columns,
                )
                if into is None or self.fused is not None:
                    self._for_rows(size, lambda i: self._keep(result, i, row, r0 + i, first, block))

        for group in block.panels:
            _for_some(group, visible, panel)

    def _for_rows(self, rows: int, body: Callable[[Expr | int], None]) -> None:
        """Runs `body(row)` for the rows of a tile: one by one where they are in registers."""
        if self.kernel.by_tiles:
            with I.serial(rows) as row:
                body(row)
            return
        for number in range(rows):
            body(number)

    def _keep(
        self,
        result: Tile,
        i: Expr | int,
        row: Expr,
        r: Expr | int,
        first: Expr | int,
        block: KeyBlock,
    ) -> None:
        """Stores one row of a tile of scores, and its maxima."""
        lanes, band = self.lanes, self.band
        largest = band.scores.load(r, band.edge, lanes)
        for j in range(result.vectors):
            vector = block.start + first + j
            value = result.value(i, j)
            if result.place is not None:
                value = reinterpret(self.kernel.acc_dtype, value)
            if self.fused is None:
                value = reinterpret("float32", value)
            else:
                value = self.fused(
                    cast("float32", value), self.batch * self.problem.m + row + r, vector
                )
                value = bind(self._hidden(value, row + r, vector))
                largest = tirx.Max(largest, value)
            band.scores.store(r, (first + j) * lanes, value)
        if self.fused is not None:
            band.scores.store(r, band.edge, largest)

    def _hidden(self, value: Expr, row: Expr, vector: Expr | int) -> Expr:
        if self.problem.causal is None:
            return value
        return hide_later_keys(value, row, vector, self.problem.causal, self.lanes)

    def finish(self, row: Expr, r: Expr, block: KeyBlock, visible: Expr | int) -> None:
        """The epilogue of a row of accumulators that rest in cache, and its maxima."""
        lanes, n, band = self.lanes, self.problem.n, self.band
        integer = is_integer(self.problem.scores)
        flat = self.batch * self.problem.m + row + r
        whole = n // lanes

        def finish(vector: Expr, valid: int) -> None:
            value = band.scores.load(r, vector * lanes, lanes)
            if integer:
                value = reinterpret("int32", value)
            at = block.start + vector
            columns = Columns(at * lanes, lanes, valid)
            value = cast("float32", self.epilogue(value, flat, columns))
            if columns.mask is not None:
                value = tirx.Select(columns.mask, value, constant(_MASKED, "float32", lanes))
            value = bind(self._hidden(value, row + r, at))
            band.scores.store(r, vector * lanes, value)
            largest = band.scores.load(r, band.edge, lanes)
            band.scores.store(r, band.edge, tirx.Max(largest, value))

        with I.serial(visible) as vector:
            if n % lanes == 0:
                finish(vector, lanes)
            elif whole == 0:
                finish(vector, n)
            else:
                with I.If(block.start + vector < whole):
                    with I.Then():
                        finish(vector, lanes)
                    with I.Else():
                        finish(vector, n % lanes)


def _for_some(group: Group, visible: Expr | int, body: Callable[[Expr | int, int], None]) -> None:
    """The pieces of a group that begin before `visible`."""
    if isinstance(visible, int):
        for_groups([group], body)
        return
    needed = I.floordiv(visible - group.start + (group.size - 1), group.size)
    with I.serial(tirx.Max(0, tirx.Min(needed, group.count))) as piece:
        body(group.start + piece * group.size, group.size)
