"""The softmax of a row block of scores in cache, and how its probabilities are stored.

Each step runs over all rows of the block before the next step begins, so that the latency of adding
up the lanes of one row is hidden by other rows. 8-bit probabilities are divided by the sum,
then rounded. Probabilities of other types are not divided; the product with v is divided instead.
Between blocks of keys, maximum and sum continue as in Milakov and Gimelshein, "Online normalizer
calculation for softmax" (arXiv 1805.02867).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.arrays import RANGES
from microkernels.microkernel import Microkernel
from microkernels.tile import Place
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from microkernels.vector.ieee import round_to_integer
from microkernels.vector.placeholders import applied, as_integer, as_real
from microkernels.vector.vector_math import LOG2_E, exp2
from tir_schedules.core import emission, region
from tir_schedules.core.loop_nest import Combine, LaneTotals, add, combine_all, reduce_lanes
from tir_schedules.product.zero_points import shift_of

if TYPE_CHECKING:
    from .program import AttentionEmitter

# Matrices in cache whose rows AMX tiles read and write: flat buffers with a fixed row distance.
#
# Tile instructions get the distance between rows as a number. TVM shrinks or widens a 2-D buffer to
# the columns that it believes to be visited, and the number would then be wrong. The rows of a flat
# buffer stay where they are.


@dataclass(frozen=True)
class FlatPlace(Place):
    """A window of a flat buffer whose rows are `pitch` elements apart."""

    def index(self, row: Index, column: Index) -> list[Index]:
        """The index of an element of the window."""
        return [(self.row + row) * self.pitch + (self.column + column)]


@dataclass(frozen=True)
class Matrix:
    """Rows of elements in a flat buffer.

    Attributes
    ----------
    buffer : buffer
        One-dimensional.
    pitch : int or Expr
        Elements from one row to the next.
    """

    buffer: Expr
    pitch: Index

    @staticmethod
    def allocate(rows: int, pitch: Index, dtype: str, room: Index | None = None) -> Matrix:
        """Allocates a matrix in the current block, aligned to a cache line.

        `room` is the distance of rows to allocate, if it differs from `pitch`.
        """
        size = rows * (pitch if room is None else room)
        return Matrix(I.sblock_alloc_buffer((size,), dtype, align=64), pitch)

    def index(self, row: Index, column: Index) -> Index:
        """The index of an element."""
        return row * self.pitch + column

    def load(self, row: Index, column: Index, lanes: int) -> Expr:
        """Elements of a row from a column on."""
        return self.buffer[ex.ramp(self.index(row, column), lanes)]

    def store(self, row: Index, column: Index, value: Expr) -> None:
        """Stores as many elements as the value has lanes."""
        I.buffer_store(self.buffer, value, [ex.ramp(self.index(row, column), ex.lanes_of(value))])

    def place(self, row: Index = 0, column: Index = 0) -> Place:
        """The place where tiles are stored, from a row and a column on."""
        assert isinstance(self.pitch, int)
        return FlatPlace(self.buffer, row, column, pitch=self.pitch)


Beside = Callable[[Expr], None]
"""Emits further work for a row, beside its softmax."""
UNROLL = 4
_INFINITY = math.inf
_LARGE = 2.0**20


@dataclass(frozen=True)
class Quantization:
    """How probabilities become 8-bit integers, as the kernel multiplies them.

    Attributes
    ----------
    scale : float
        The scale.
    zero_point : int
        Shifted by 128 if the kernel multiplies int8 as uint8.
    highest : int
        The largest integer.
    """

    scale: float
    zero_point: int
    highest: int = 255

    @staticmethod
    def of(softmax: region.Region, kernel: Microkernel) -> Quantization | None:
        """The quantisation that a softmax ends with, for the product's kernel.

        None if its result is no 8-bit type.
        """
        if softmax.output.dtype not in RANGES:
            return None
        first = 1 + len(softmax.operands)
        scale, zero_point = (
            softmax.epilogue[argument - first].number for argument in softmax.epilogue[-1].args[1:]
        )
        shift = shift_of(softmax.output.dtype, kernel.a_dtype)
        return Quantization(
            as_real(scale), as_integer(zero_point) + shift, RANGES[kernel.a_dtype][1]
        )

    @property
    def saturates(self) -> bool:
        """Whether a probability of 1 may lie beyond the range."""
        return not applied(np.rint, 1.0001 / self.scale) + self.zero_point <= self.highest


@dataclass(frozen=True)
class Band:
    """A row block: rows of scores in cache.

    Attributes
    ----------
    scores : Matrix
        f32; probabilities overwrite it if they are f32.
    edge : int or Expr
        Column of a row's last vector, which holds the largest score of every lane, and later the
        sums of the powers. (LLVM would keep a separate buffer in registers, and spill it.)
    maximum : buffer
        [rows]: subtracted from the scores.
    probabilities : Matrix
        In the type of the kernel's lanes.
    inverse : buffer
        [rows]: multiplies the product or, if probabilities are quantised, the powers.
    sums : buffer or None
        [rows]: int32 sums of the quantised probabilities.
    sinks : buffer or None
        [rows]: scores of the sinks, scaled as the scores in cache are.
    """

    scores: Matrix
    edge: Index
    maximum: Expr
    probabilities: Matrix
    inverse: Expr
    sums: Expr | None = None
    sinks: Expr | None = None


@dataclass(frozen=True)
class Running:
    """The state of rows between blocks of keys: maxima, sums, factors and accumulated results.

    `factors` multiply what was accumulated before the current block. All but `result` are f32
    buffers with one number for each row.
    """

    maxima: Expr
    sums: Expr
    factors: Expr
    result: Matrix


class SoftmaxRows:
    """Emits the softmax of single rows.

    Parameters
    ----------
    emitter : AttentionEmitter
        Its row block has the scores and probabilities; its product's kernel decides their types.
    tails : bool
        Whether the tail of a loop over a dynamic number of vectors is computed at once: then sums
        have the order, and so the bits, of sums over a static number.

    Attributes
    ----------
    scale : float or None
        The factor that the scores still lack; None if they are complete, and may be so large that
        the product with log2(e) overflows.
    """

    def __init__(self, emitter: AttentionEmitter, tails: bool) -> None:
        kernel = self.kernel = emitter.product_kernel
        self.isa, self.band, self.tails = emitter.isa, emitter.band, tails
        self.quantization = emitter.quantization
        self.scale = None if emitter.fused is None else emitter.fused.scale
        self.lanes = kernel.lanes
        # A bfloat16 has 8 bits. Integers need all bits: a flipped one flips those of later layers.
        self.degree = 3 if kernel.a_dtype == "bfloat16" else 5

    def emit(
        self,
        rows: Index,
        vectors: Index,
        keys: Index,
        beside: Beside,
        running: Running | None = None,
        first: Index = 0,
    ) -> None:
        """Emits the softmax of all rows of a row block.

        Parameters
        ----------
        rows : int or Expr
            Rows of the row block.
        vectors : Expr or int
            Vectors of keys that are computed.
        keys : int or Expr
            Number of all keys, to know what padding adds to a sum.
        beside : callable
            Emits further work for a row.
        running : Running or None
            The state that is updated, from row `first` on, if there are several blocks of keys.
        """
        scale = 1.0 if self.quantization is None else 1 / self.quantization.scale
        with _each(rows) as row:
            if running is None:
                largest = self._row(row, tirx.Max)
                if self.band.sinks is not None:
                    largest = tirx.Max(largest, self.band.sinks[row])
            else:
                largest = self._brought_up(row, running, first + row)
            I.buffer_store(self.band.maximum, largest, [row])
        with _each(rows) as row:
            self._powers(row, vectors, self.band.maximum[row])
            beside(row)
        with _each(rows) as row:
            if running is None:
                total = self._row(row, add)
                if self.band.sinks is not None:
                    total += self._factor(self.band.sinks[row] - self.band.maximum[row])
                I.buffer_store(self.band.inverse, ex.scalar(scale, "float32") / total, [row])
            else:
                total = running.sums[first + row] * running.factors[first + row]
                I.buffer_store(running.sums, total + self._row(row, add), [first + row])
        if self.quantization is not None:
            with _each(rows) as row:
                self._quantize(row, vectors, keys)

    def _brought_up(self, row: Expr, running: Running, place: Index) -> Expr:
        """Returns the largest score so far; stores the factor for earlier results."""
        before = ex.bind(running.maxima[place])
        after = ex.bind(tirx.Max(before, self._row(row, tirx.Max)))
        nothing = tirx.LE(after, tirx.const(-_INFINITY, "float32"))
        # Nothing visible yet: any finite number serves instead of -inf, and gives zeros.
        shift = ex.bind(tirx.Select(nothing, tirx.const(0, "float32"), after))
        I.buffer_store(running.maxima, after, [place])
        I.buffer_store(running.factors, self._factor(before - shift), [place])
        return shift

    def _factor(self, difference: Expr) -> Expr:
        """The power of one difference of maxima, computed by the vector function."""
        vector = ex.splat(difference, self.lanes)
        power = exp2(vector * ex.like(LOG2_E * (self.scale or 1.0), vector), self.isa)
        return power if self.lanes == 1 else tirx.Shuffle([power], [tirx.const(0, "int32")])

    def _row(self, row: Expr, combine: Combine) -> Expr:
        """The lanes of a row's last vector combined: its largest score, or its total."""
        edge = self.band.scores.load(row, self.band.edge, self.lanes)
        return reduce_lanes(ex.bind(edge), combine)

    def _powers(self, row: Expr, vectors: Index, maximum: Expr) -> None:
        """Replaces the scores by the powers, and the maxima of the lanes by the lanes' sums."""
        shift = ex.bind(ex.splat(maximum, self.lanes))
        factor = ex.like(LOG2_E * (self.scale or 1.0), shift)
        if self.scale is None:
            self._replace(row, vectors, lambda score: (score - shift) * factor)
            return
        # One FMA, unless the product's rounding matters, which is a factor of all powers.
        scaled = ex.bind(shift * factor)
        size = ex.bind(maximum * ex.scalar(LOG2_E * self.scale, "float32"))
        low, high = (tirx.const(bound, "float32") for bound in (-_LARGE, _LARGE))
        small = tirx.And(tirx.LT(size, high), tirx.LT(low, size))
        emission.branch(
            small,
            lambda: self._replace(row, vectors, lambda score: score * factor - scaled),
            lambda: self._replace(row, vectors, lambda score: (score - shift) * factor),
        )

    def _replace(self, row: Expr, vectors: Index, exponent: Callable[[Expr], Expr]) -> None:
        """The loop of `_powers` over a row; `exponent` maps a score to an exponent of 2."""
        lanes, band = self.lanes, self.band
        total = LaneTotals(lanes, 0)

        def body(first: Expr, count: int) -> None:
            powers = []
            for number in range(count):
                score = band.scores.load(row, (first + number) * lanes, lanes)
                powers.append(ex.bind(exp2(exponent(score), self.isa, self.degree)))
            total.store(total[0] + combine_all(powers, add))
            for number, power in enumerate(powers):
                column = (first + number) * lanes
                if self.quantization is not None or self.kernel.a_dtype == "float32":
                    band.scores.store(row, column, power)
                else:
                    band.probabilities.store(row, column, self.kernel.rounded(power))

        for_vectors(vectors, UNROLL, body, self.tails)
        band.scores.store(row, band.edge, total[0])

    def _quantize(self, row: Expr, vectors: Index, keys: Index) -> None:
        """Divides by the sum and rounds to 8 bits."""
        assert self.quantization is not None
        lanes, band, points = self.lanes, self.band, self.quantization
        factor = ex.bind(ex.splat(band.inverse[row], lanes))
        sums = None if band.sums is None else LaneTotals(lanes, 0, dtype="int32")

        def body(first: Expr, count: int) -> None:
            for number in range(count):
                column = (first + number) * lanes
                value = band.scores.load(row, column, lanes) * factor
                integer = round_to_integer(value, points.zero_point)
                if points.saturates or self.tails:  # dynamic layers share their long code
                    integer = tirx.Min(integer, ex.like(points.highest, integer))
                integer = ex.bind(integer)
                band.probabilities.store(row, column, ex.cast(self.kernel.a_dtype, integer))
                if sums is not None:
                    sums.store(sums[0] + integer)

        for_vectors(vectors, UNROLL, body, self.tails)
        if sums is not None and band.sums is not None:
            count = vectors
            if isinstance(keys, int) and not isinstance(vectors, int):
                count = math.ceil(keys / lanes)
            zero_point = ex.scalar(points.zero_point, "int32")
            padding = (count * lanes - keys) * zero_point
            I.buffer_store(band.sums, sums.total(add) - padding, [row])


@contextmanager
def _each(rows: Index) -> Iterator[Expr]:
    """A loop over the rows of a row block."""
    with I.serial(rows) as row, emission.opaque_block("softmax"):
        yield row


def for_vectors(
    vectors: Index, unroll: int, body: Callable[[Expr, int], None], tails: bool = False
) -> None:
    """Runs `body(first, count)` over `vectors` vectors, `unroll` at a time.

    The tail of a dynamic number runs one by one or, with `tails`, at once.
    """
    if isinstance(vectors, int):
        whole, rest = divmod(vectors, unroll)
        if whole:
            with I.serial(whole) as turn:
                body(turn * unroll, unroll)
        if rest:
            body(tirx.const(whole * unroll, "int32"), rest)
        return
    with I.serial(I.floordiv(vectors, unroll)) as turn:
        body(turn * unroll, unroll)
    if tails:
        left = ex.materialise(I.floormod(vectors, unroll))
        with I.If(left > 0), I.Then():
            emission.choose(left, range(1, unroll), lambda count: body(vectors - left, count))
        return
    with I.serial(I.floormod(vectors, unroll)) as turn:
        body(vectors - I.floormod(vectors, unroll) + turn, 1)
