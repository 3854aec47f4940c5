"""ByteDigits: a few rows of activations as integers of three bytes, for weights of 2 and 4 bits.

    A[m, k] = X[m, k] * unit[m, k / span]      X = (D2 * 256 + D1) * 256 + D0, each D an int8

`unit` is a power of two, so large that the largest X of a span is below 2^23. Then the products of
a span are sums of integers, which vpmaddubsw and vpmaddwd make exactly, 32 of them in two
instructions; a weight is never converted to f32:

    sum of A[m, k] * (Wq[k, n] - z) = unit * (S2 * 2^16 + S1 * 2^8 + S0 - z * sum of X[m, k])
    Sd = sum of Dd[m, k] * Wq[k, n]            |Dd * Wq| <= 128 * 15; 16 of them fit in 16 bits

An element is rounded by at most 2^-23 of the largest of its span, as in any block floating point
(Wilkinson, Rounding Errors in Algebraic Processes, section 1.26); f32 rounds it by 2^-24 of itself
with every product. Spans with numbers that are not finite, or whose largest is below 2^-104, are
not multiplied so: `fine` says whether a block of rows has none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.sym import Analyzer

from microkernels.tile import MultiplyAdd, Tile
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import emission, product_plan
from tir_schedules.core.loop_nest import add, combine_all, reduce_lanes

from .narrow_weight import NarrowWeight

LANES = 8  # of the f32 vectors of AVX2
DIGITS = 3
MOST_DIGIT_ROWS = 2  # more are multiplied as f32: digits take twice the instructions for each
SPANS = (32, 16)  # steps of K that share a unit; sums of more do not fit in 16 bits
DIGIT_VECTORS = 8  # of a panel that are multiplied by digits which are loaded once
_FRACTION = 23  # bits of an f32's significand behind its point
_TOP = 22  # the largest X is below 2^(_TOP + 1)
_LARGEST, _SMALLEST = 254 << _FRACTION, (_TOP + 1) << _FRACTION  # exponents of spans that are fine
# What a largest number is increased by before its exponent is taken: 127.5 / 128 of 2^23 and more
# would have no third digit.
_INCREASE = 3 << 15
_MAGNITUDE, _EXPONENT = 0x7FFFFFFF, 0xFF << _FRACTION
_ZERO = tirx.const(0, "int32")
_FOUR = 4  # int8 elements of a word, which one instruction adds up in pairs


def span_of(weight: NarrowWeight, k: int) -> int | None:
    """Steps of K that share a unit; None if the weight cannot be multiplied by digits."""
    if weight.bits == 8 or weight.lanes != LANES:
        return None
    blocked = weight.block if weight.blocks > 1 else k
    return next((span for span in SPANS if blocked % span == 0 and k % span == 0), None)


class ByteDigits:
    """The digits of a block of rows, in the PrimFunc under construction.

    Parameters
    ----------
    weight : NarrowWeight
        The format of the weight.
    k : int
        Elements of a row, of which `span_of` knows spans.
    zeros : bool
        Whether zero points are a tensor.
    read : callable
        (row, first column, columns) -> so many f32 elements of A.
    """

    def __init__(
        self, weight: NarrowWeight, k: int, zeros: bool, read: Callable[[Expr, Expr, int], Expr]
    ) -> None:
        span = span_of(weight, k)
        assert span is not None
        self.weight, self.k, self.read, self.span = weight, k, read, span
        self.spans = k // span
        # Two's complement numbers are multiplied as unsigned ones, which are larger by half.
        self.half = 2 ** (weight.bits - 1) if weight.signed else 0
        self.zero = None if zeros else weight.zero + self.half
        size = MOST_DIGIT_ROWS * self.spans
        self.digits = I.sblock_alloc_buffer((MOST_DIGIT_ROWS * DIGITS * k,), "int8", align=64)
        self.units = I.sblock_alloc_buffer((size,), "float32", align=64)
        self.sums = I.sblock_alloc_buffer((size,), "float32", align=64)  # of X, times -zero
        self.state = I.sblock_alloc_buffer((1,), "int32")  # 0: all spans are fine
        self.fine = self.state[_ZERO] == 0  # whether the rows at hand can be multiplied so
        self.first: Expr = tirx.const(0, "int32")  # row of the block

    def takes(self, rows: int, piece: product_plan.Piece) -> bool:
        """Whether a tile of so many rows and steps of K is multiplied by digits."""
        return rows <= MOST_DIGIT_ROWS and all(each % self.span == 0 for each in piece)

    def begin(self, row: Expr, rows: Index) -> None:
        """Makes the digits of `rows` rows from `row`."""
        self.first = row
        I.buffer_store(self.state, _ZERO, [_ZERO])
        with I.serial(rows) as i, I.serial(self.spans) as number, emission.opaque_block("digits"):
            self._span(row + i, i, number)

    def _span(self, row: Expr, i: Expr, number: Expr) -> None:
        first = number * self.span
        starts = range(0, self.span, LANES)
        values = [ex.bind(self.read(row, first + start, LANES)) for start in starts]
        bits = [ex.reinterpret("int32", value) for value in values]
        magnitudes = [ex.bind(each & ex.like(_MAGNITUDE, each)) for each in bits]
        largest = reduce_lanes(combine_all(magnitudes, tirx.Max), tirx.Max)
        exponent = ex.materialise((largest + _INCREASE) & _EXPONENT)
        wrong = tirx.any(exponent > _LARGEST, tirx.all(largest > 0, exponent < _SMALLEST))
        I.buffer_store(self.state, self.state[_ZERO] | tirx.Cast("int32", wrong), [_ZERO])
        unit = ex.materialise(
            tirx.Max(exponent, tirx.const(_SMALLEST, "int32")) - (_TOP << _FRACTION)
        )
        scale = ex.splat(ex.materialise(I.reinterpret("float32", _LARGEST - unit)), LANES)
        integers = []
        for start, value in zip(starts, values, strict=True):
            x = ex.bind(ex.cast("int32", tirx.nearbyint(value * scale)))
            integers.append(x)
            for digit in range(DIGITS):
                at = (i * DIGITS + digit) * self.k + first + start
                I.buffer_store(self.digits, ex.cast("int8", x), [ex.ramp(at, LANES)])
                if digit < DIGITS - 1:
                    x = ex.bind(tirx.shift_right(x + ex.like(128, x), ex.like(8, x)))
        place = i * self.spans + number
        total = ex.cast("float32", reduce_lanes(combine_all(integers, add), add))
        times = -1.0 if self.zero is None else -self.zero
        I.buffer_store(self.units, I.reinterpret("float32", unit), [place])
        I.buffer_store(self.sums, total * tirx.const(times, "float32"), [place])

    def block_of(self, span: Index) -> Index:
        """The block of the weight that a span lies in."""
        if self.weight.blocks == 1:
            return 0
        spans = self.weight.block // self.span
        return span if spans == 1 else I.floordiv(span, spans)

    def add(
        self,
        totals: Tile,
        vector: Expr,
        row: Expr,
        span: Expr,
        words: Callable[[Index], Expr],
        scale: Expr,
        zero: Expr | None,
        multiply_add: MultiplyAdd,
    ) -> None:
        """Adds the products of one span to one vector of a tile.

        Parameters
        ----------
        totals : Tile
            f32 accumulators.
        vector, row : Expr
            The vector's number, and the first row of the tile.
        span : Expr
            The span's number.
        words : callable
            Unit of K -> int32 lanes, words of the weight.
        scale, zero : Expr
            f32 lanes; there are zeros only where zero points are a tensor.
        multiply_add : callable
            Of the f32 kernel.
        """
        row = Analyzer().simplify(row - self.first)
        sums = self._sums(totals.rows, row, span, words)
        factor, shift = ex.bind(scale), None
        if zero is not None:
            shift = ex.bind(zero + ex.like(self.half, zero)) if self.half else zero
        for i, (low, middle, high) in enumerate(sums):
            place = (row + i) * self.spans + span
            rest = ex.splat(self.sums[place], LANES)
            value = ex.bind(low + (rest if shift is None else rest * shift))
            value = ex.bind(multiply_add(value, middle, ex.like(2.0**8, value)))
            value = ex.bind(multiply_add(value, high, ex.like(2.0**16, value)))
            unit = ex.bind(factor * ex.splat(self.units[place], LANES))
            total = multiply_add(totals.value(i, vector), value, unit)
            I.buffer_store(totals.buffers[i], total, [ex.ramp(vector * LANES, LANES)])

    def _sums(
        self, rows: int, row: Expr, span: Expr, words: Callable[[Index], Expr]
    ) -> list[list[Expr]]:
        """For each row the sums of the products of every digit in one span, as f32 lanes."""
        units = self.span // self.weight.unit
        positions = itertools.product(range(units), range(8 // self.weight.bits))
        kinds = list(itertools.product(range(rows), range(DIGITS)))
        every = ex.ramp(0, 2 * LANES)
        sums = {kind: I.sblock_alloc_buffer((2 * LANES,), "int16") for kind in kinds}
        for four, (unit, position) in enumerate(positions):
            if not position:
                word = ex.bind(self._unsigned(words(span * units + unit)))
            elements = self._elements(word, position)
            for i, digit in kinds:
                value = self._word(row + i, digit, span * self.span + _FOUR * four)
                products = _pair_products(elements, value)
                if four:
                    products = sums[i, digit][every] + products
                I.buffer_store(sums[i, digit], products, [every])
        return [
            [ex.bind(_sum_of_pairs(sums[i, digit][every])) for digit in range(DIGITS)]
            for i in range(rows)
        ]

    def _unsigned(self, word: Expr) -> Expr:
        """Words of two's complement numbers as words of unsigned ones."""
        if not self.half:
            return word
        flipped = sum(self.half << place for place in range(0, 32, self.weight.bits))
        return word ^ ex.like(flipped - 2**32, word)

    def _elements(self, word: Expr, position: int) -> Expr:
        """The elements at one position of all bytes, which are four steps of K."""
        bits = self.weight.bits
        shifted = tirx.shift_right(word, ex.like(bits * position, word)) if position else word
        return ex.bind(_bytes("uint8", shifted & ex.like((2**bits - 1) * 0x01010101, word)))

    def _word(self, row: Expr, digit: int, step: Index) -> Expr:
        """A digit of four steps of K from `step`, in every lane."""
        at = (row * DIGITS + digit) * self.k + step
        word = I.reinterpret("int32", self.digits[ex.ramp(at, _FOUR)])
        return ex.bind(_bytes("int8", ex.splat(word, LANES)))


def _bytes(element: str, words: Expr) -> Expr:
    """Words as four times as many bytes."""
    return I.reinterpret(ex.vector_type(element, LANES * _FOUR), words)


def _pair_products(unsigned: Expr, signed: Expr) -> Expr:
    """Products of bytes, added in pairs: vpmaddubsw."""
    dtype = ex.vector_type("int16", 2 * LANES)
    return I.call_llvm_pure_intrin(dtype, "llvm.x86.avx2.pmadd.ub.sw", unsigned, signed)


def _sum_of_pairs(sums: Expr) -> Expr:
    """Pairs of 16-bit lanes added, as f32 lanes: vpmaddwd by ones."""
    dtype = ex.vector_type("int32", LANES)
    ones = ex.constant(1, "int16", 2 * LANES)
    total = I.call_llvm_pure_intrin(dtype, "llvm.x86.avx2.pmadd.wd", sums, ones)
    return ex.cast("float32", total)
