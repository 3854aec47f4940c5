"""The scores of a band of queries: q k^T into cache, then scale, mask and largest scores."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import Tile
from microkernels.vector.expressions import (
    Expr,
    bind,
    cast,
    constant,
    materialise,
    reinterpret,
)
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.attention.tiled.scores import hide_later_keys
from tir_schedules.attention.tiled.softmax import UNROLL, Band, for_vectors
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import extent
from tir_schedules.core.integer_product import is_integer
from tir_schedules.core.open_loops import choose
from tir_schedules.core.reduce_lanes import LaneTotals, combine_all
from tir_schedules.epilogue.epilogue import Columns, Epilogue
from tir_schedules.product.activations import Activations
from tir_schedules.product.open_operand import OpenOperand

from .integers import OpenIntegers
from .key_mask import KeyMask


@dataclass
class OpenScores:
    """Emits the scores of single bands.

    Attributes
    ----------
    problem : AttentionProblem
        Extents and layouts.
    kernel : Microkernel
        Of the scores.
    width : int
        Vectors of a panel of keys.
    epilogue : Epilogue
        Of the scores.
    m, n, keys : Expr
        Queries, keys, and vectors of them.
    q, k : Activations, OpenOperand
        What is multiplied.
    integers : OpenIntegers
        What accumulators start with.
    band : Band
        Where scores go.
    mask : KeyMask or None
        Added in the register tile; None: the epilogue is computed row by row.
    most_rows : int
        Queries of an ordinary band.
    """

    problem: AttentionProblem
    kernel: Microkernel
    width: int
    epilogue: Epilogue
    m: Expr
    n: Expr
    keys: Expr
    q: Activations
    k: OpenOperand
    integers: OpenIntegers
    band: Band
    mask: KeyMask | None
    most_rows: int

    @property
    def lanes(self) -> int:
        """Lanes of a vector of scores."""
        return self.kernel.lanes

    def multiply(self, row: Expr, rows: int) -> None:
        """q k^T of a band into cache."""
        width = self.width
        lowest = constant(-math.inf, "float32", self.lanes)
        if self.mask is not None:
            for i in range(rows):
                self.band.scores.store(i, self.band.edge, lowest)

        self.q.begin(row, rows)
        start = self.integers.start_of_scores(self.k, self.q)

        def tile(first: Expr, size: int, panel: Expr, j: Expr | int, wide: Expr | int) -> None:
            """Vectors of keys from `first` on, which are those from `j` on of a panel."""
            with opaque_block("scores"):

                def init(i: Expr | int, j: int) -> Expr:
                    assert start is not None
                    return start(row + i, first + j)

                result = self.kernel.emit(
                    rows,
                    size,
                    (self.k.steps,),
                    lambda i, ks: self.q.load(row + i, ks[0]),
                    lambda number, ks: self.k.load(panel, wide, ks[0], j + number),
                    init if start is not None else None,
                )
                for i in range(rows):
                    self._keep(result, i, row, first)

        with I.serial(I.floordiv(self.keys, width)) as number, opaque_block("panel"):
            panel = bind(number * width)
            tile(panel, width, panel, 0, width)
        if width == 1:
            return
        left = materialise(I.floormod(self.keys, width))
        panel = materialise(self.keys - left)
        if rows < self.most_rows:  # bands of few queries, which are not worth more code
            with I.serial(left) as number, opaque_block("side"):
                tile(bind(panel + number), 1, panel, number, left)
            return
        with I.If(left > 0), I.Then():
            choose(left, range(1, width), lambda size: tile(panel, size, panel, 0, size))

    def _keep(self, result: Tile, i: int, row: Expr, first: Expr) -> None:
        """Stores one row of a tile of scores; with a mask of keys, also their maxima."""
        lanes, scores = self.lanes, self.band.scores
        if self.mask is None:
            for j in range(result.vectors):
                value = reinterpret("float32", result.value(i, j))
                scores.store(i, (first + j) * lanes, value)
            return
        largest = scores.load(i, self.band.edge, lanes)
        for j in range(result.vectors):
            masked = self.mask(cast("float32", result.value(i, j)), row, first + j)
            value = bind(self._hidden(masked, row + i, first + j))
            largest = tirx.Max(largest, value)
            scores.store(i, (first + j) * lanes, value)
        scores.store(i, self.band.edge, largest)

    def _hidden(self, value: Expr, row: Expr, vector: Expr) -> Expr:
        if self.problem.causal is None:
            return value
        causal = extent(self.problem.causal)
        return hide_later_keys(bind(value), row, vector, causal, self.lanes)

    def finish(self, batch: Expr, row: Expr, r: Expr) -> None:
        """Scale and mask of a row of scores, and the largest score of every lane."""
        lanes, band = self.lanes, self.band
        lowest = constant(-math.inf, "float32", lanes)
        largest = LaneTotals(lanes, -math.inf)
        flat = bind(batch * self.m + (row + r))
        whole = materialise(I.floordiv(self.n, lanes))

        def some(first: Expr, count: int, valid: int | Expr = lanes) -> None:
            # LLVM does not know that stores leave the next scores alone: loads come first.
            places = [first + number for number in range(count)]
            given = [bind(band.scores.load(r, vector * lanes, lanes)) for vector in places]
            values = []
            for vector, score in zip(places, given, strict=True):
                columns = Columns(vector * lanes, lanes, valid)
                if is_integer(self.problem.scores):
                    score = bind(reinterpret("int32", score))
                value = cast("float32", self.epilogue(score, flat, columns))
                if columns.mask is not None:
                    value = tirx.Select(columns.mask, bind(value), lowest)
                values.append(bind(self._hidden(value, row + r, vector)))
            largest.store(tirx.Max(largest[0], combine_all(values, tirx.Max)))
            for vector, value in zip(places, values, strict=True):
                band.scores.store(r, vector * lanes, value)

        for_vectors(whole, UNROLL, some)
        if lanes > 1:
            left = materialise(I.floormod(self.n, lanes))
            with I.If(left > 0), I.Then(), opaque_block("mask"):
                some(whole, 1, left)
        band.scores.store(r, band.edge, largest[0])
