"""NarrowWeight: a constant weight whose elements take 2, 4 or 8 bits of memory.

    W[k, n] = (Wq[k, n] - zero[k / block, n]) * scale[k / block, n]

Elements of 2 and 4 bits are packed in words of 32 bits. A word holds 16 or 8 consecutive steps of K
of one column, so that one load and one shift give a vector of columns for one step. The lowest bits
of its four bytes are four consecutive steps, the next ones the four steps behind these, and so on,
so that one load, one shift and a mask give four steps as bytes, too. Elements of 8 bits take one
byte each. Panels are consecutive. Within a panel the order is [steps][columns],
padded with zeros to whole words and whole vectors. Scales and zero points lie in panels too:
[blocks][columns]. Unsigned bytes with zero point 128 are stored as signed ones without zero point.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, tirx

from microkernels.base.arrays import SHIFT
from microkernels.kernels.byte_pairs import pair_products, pair_sums
from microkernels.microkernel import Microkernel
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import emission, product_plan
from tir_schedules.core.blocking import Panels
from tir_schedules.core.loop_nest import add, combine_all, reduce_lanes
from tir_schedules.epilogue.epilogue import Columns

WORD_BITS = 32
BITS = (2, 4, 8)


@dataclass
class NarrowWeight:
    """Format of one weight, for vectors of `lanes` columns.

    Attributes
    ----------
    bits : int
        2, 4 or 8: the low bits of an element of Wq; only these are stored.
    signed : bool
        Whether they are a two's complement number.
    rows, columns : int
        Shape of Wq as a matrix.
    block : int
        Steps of K that share a scale; the last block may be shorter.
    zero : float
        Zero point of all elements; zero points that differ are a separate tensor instead.
    lanes : int
        Columns in a vector.
    scales : str
        Type of the packed scales, "float32" or "float16".
    """

    bits: int
    signed: bool
    rows: int
    columns: int
    block: int
    zero: float
    lanes: int
    scales: str = "float32"

    def __post_init__(self) -> None:
        # Blocks of K that have a scale each, and vectors of columns.
        self.blocks = math.ceil(self.rows / self.block)
        self.n_vectors = math.ceil(self.columns / self.lanes)
        # Elements of packed scales or zero points.
        self.per_block_size = self.blocks * self.n_vectors * self.lanes
        # Steps of K that are decoded together; a block begins at a multiple of them.
        self.unit = 8 if self.blocks == 1 else math.gcd(self.block, 8)
        # Bytes of one word of a column, and words of a column.
        self.word_bytes = 1
        if self.bits < 8:
            self.unit, self.word_bytes = WORD_BITS // self.bits, WORD_BITS // 8
        self.words = math.ceil(self.rows * self.bits / (8 * self.word_bytes))
        # Bytes of one vector of columns over all steps, and of the packed weight.
        self.vector_bytes = self.words * self.word_bytes * self.lanes
        self.packed_bytes = self.n_vectors * self.vector_bytes

    @property
    def flipped(self) -> bool:
        """Whether the highest bit is stored inverted: q - 128 as a signed byte is q."""
        return self.bits == 8 and not self.signed and self.zero == SHIFT

    def pack(self, array: np.ndarray, panels: Panels) -> np.ndarray:
        """Wq in panels.

        Parameters
        ----------
        array : ndarray
            int8 or uint8, `rows` x `columns` elements in order.
        panels : Panels
            Those of the f32 weight.

        Returns
        -------
        ndarray
            Flat, of the same type.
        """
        per_byte = 8 // self.bits
        elements = np.zeros((self.words, per_byte, self.word_bytes, self.columns), np.uint8)
        matrix = np.ascontiguousarray(array).view(np.uint8).reshape(self.rows, self.columns)
        low = matrix & (2**self.bits - 1)
        elements.reshape(-1, self.columns)[: self.rows] = low ^ SHIFT if self.flipped else low
        in_bytes = np.zeros((self.words, self.word_bytes, self.columns), np.uint8)
        for position in range(per_byte):
            in_bytes |= elements[:, position] << np.uint8(self.bits * position)
        matrix = in_bytes.reshape(-1, self.columns)
        return self._of_words(panels).pack(matrix).view(array.dtype)

    def _of_words(self, panels: Panels) -> Panels:
        """The panels as they are stored, whose steps are words."""
        kernel = replace(panels.kernel, kr=self.word_bytes)
        return replace(panels, kernel=kernel, k=self.words * self.word_bytes)

    def unpack(self, packed: relax.Expr, panels: Panels) -> relax.Expr:
        """Wq [rows, columns] as a Relax expression of what `pack` made."""
        per_byte = 8 // self.bits
        matrix = self._of_words(panels).unpack(packed)
        if self.flipped:
            matrix = relax.op.bitwise_xor(matrix, relax.const(SHIFT, "uint8"))
        if self.bits == 8:
            return matrix
        dtype = "int8" if self.signed else "uint8"
        words = relax.op.reshape(matrix, (self.words, 1, self.word_bytes, self.columns))
        shifts = np.arange(per_byte, dtype=dtype).reshape(1, -1, 1, 1) * self.bits
        elements = relax.op.right_shift(words, relax.const(shifts, dtype))
        low = relax.op.bitwise_and(elements, relax.const(2**self.bits - 1, dtype))
        if self.signed:
            sign = relax.const(2 ** (self.bits - 1), dtype)
            low = relax.op.subtract(relax.op.bitwise_xor(low, sign), sign)
        steps = relax.op.reshape(low, (self.words * self.word_bytes * per_byte, self.columns))
        return relax.op.strided_slice(steps, [0], [0], [self.rows])

    def per_block(self, array: np.ndarray) -> np.ndarray:
        """Scales or zero points of any shape that `per_block_shape` takes, as [blocks, columns]."""
        shape = per_block_shape(array.shape)
        return np.broadcast_to(array.reshape(shape), (self.blocks, self.columns))

    def values(self, array: np.ndarray) -> np.ndarray:
        """The elements of Wq as float64 [rows, columns], less the common zero point."""
        low = np.ascontiguousarray(array).view(np.uint8).reshape(self.rows, self.columns)
        low = (low & (2**self.bits - 1)).astype(np.float64)
        if self.signed:
            low -= np.where(low >= 2 ** (self.bits - 1), 2.0**self.bits, 0.0)
        return low - self.zero

    def emit_unit(self, packed: Expr, panel: Expr, width: int, unit: Index, j: Index) -> list[Expr]:
        """The f32 vectors of the `unit` steps of one unit, less the common zero point.

        Parameters
        ----------
        packed : buffer
            What `pack` made.
        panel, width : Expr, int
            The panel's first vector and its width in vectors.
        unit : Expr
            Which unit of K.
        j : int
            Vector within the panel.
        """
        if self.bits == 8:
            steps = range(self.unit)
            loaded = [self._load(packed, panel, width, unit * self.unit + s, j) for s in steps]
            if self.flipped:
                return [ex.cast("float32", ex.reinterpret("int8", element)) for element in loaded]
            return [self._shifted(ex.cast("float32", element)) for element in loaded]
        word = self.emit_words(packed, panel, width, j, unit)
        if self.lanes == 16:
            return [self._looked_up(word, step) for step in range(self.unit)]
        return [self._shifted(ex.cast("float32", self._bits(word, s))) for s in range(self.unit)]

    def emit_words(self, packed: Expr, panel: Expr, width: int, j: Index, unit: Index) -> Expr:
        """The words of one unit of 2 or 4 bits as int32 lanes; for parameters see `emit_unit`."""
        word = self._load(packed, panel, width, unit, j)
        return ex.bind(I.reinterpret(ex.vector_type("int32", self.lanes), word))

    @property
    def half(self) -> int:
        """The number added to two's complement numbers to multiply them as unsigned ones."""
        return 2 ** (self.bits - 1) if self.signed else 0

    def unsigned(self, word: Expr) -> Expr:
        """Words of two's complement numbers as words of unsigned ones."""
        if not self.half:
            return word
        flipped = sum(self.half << place for place in range(0, WORD_BITS, self.bits))
        return word ^ ex.like(flipped - 2**WORD_BITS, word)

    def bytes_at(self, word: Expr, position: int) -> Expr:
        """The unsigned elements at one position of all bytes: four steps of K."""
        shift = self.bits * position
        shifted = tirx.shift_right(word, ex.like(shift, word)) if position else word
        masked = shifted & ex.like((2**self.bits - 1) * 0x01010101, word)
        return ex.bind(ex.reinterpret_group("uint8", masked, self.lanes * self.word_bytes))

    def _load(self, packed: Expr, panel: Expr, width: int, word: Index, j: Index) -> Expr:
        bytes_ = self.lanes * self.word_bytes
        start = panel * self.vector_bytes + (word * width + j) * bytes_
        return packed[ex.ramp(start, bytes_)]

    def _place(self, step: int) -> int:
        """The lowest bit of a step in its word."""
        return 8 * (step % self.word_bytes) + self.bits * (step // self.word_bytes)

    def _shifted(self, value: Expr) -> Expr:
        return value - ex.constant(self.zero, "float32", self.lanes) if self.zero else value

    def _bits(self, word: Expr, step: int) -> Expr:
        """The element of one step as int32."""

        def number(value: int) -> Expr:
            return ex.constant(value, "int32", self.lanes)

        if not self.signed:
            low = tirx.shift_right(word, number(self._place(step)))
            return tirx.bitwise_and(low, number(2**self.bits - 1))
        high = tirx.shift_left(word, number(WORD_BITS - self.bits - self._place(step)))
        return tirx.shift_right(high, number(WORD_BITS - self.bits))

    def _looked_up(self, word: Expr, step: int) -> Expr:
        """Looks up the element of one step as f32."""
        index = word
        if step:
            index = tirx.shift_right(word, ex.constant(self._place(step), "int32", self.lanes))
        # vpermps looks at the low four bits of an index only.
        name = "llvm.x86.avx512.permvar.sf.512"
        return I.call_llvm_pure_intrin("float32x16", name, self._table(), index)

    def _table(self) -> Expr:
        """The element for every value of an index's low four bits."""
        entry = ex.ramp(0, 16)
        size = ex.constant(2**self.bits, "int32", 16)
        low = tirx.floormod(entry, size)
        if self.signed:
            half = ex.constant(2 ** (self.bits - 1), "int32", 16)
            low = tirx.floormod(entry + half, size) - half
        return self._shifted(ex.cast("float32", low))


def per_block_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Blocks and columns of a tensor of scales: (), (N,), (B, N) or (B, 1, N); each may be 1."""
    if len(shape) < 2:
        return 1, shape[0] if shape else 1
    return shape[0], shape[-1]


# ByteDigits: a few rows of activations as integers of three bytes, for weights of 2 and 4 bits.
#
#     A[m, k] = X[m, k] * unit[m, k / span]      X = (D2 * 256 + D1) * 256 + D0, each D an int8
#
# `unit` is a power of two, so large that the largest X of a span is below 2^23. Then the products
# of a span are sums of integers, which vpmaddubsw and vpmaddwd make exactly, 32 of them in two
# instructions, or vpdpbusd, 64 in one; a weight is never converted to f32:
#
#     sum of A[m, k] * (Wq[k, n] - z) = unit * (S2 * 2^16 + S1 * 2^8 + S0 - z * sum of X[m, k])
#     Sd = sum of Dd[m, k] * Wq[k, n]            |Dd * Wq| <= 128 * 15; 16 of them fit in 16 bits
#
# An element is rounded by at most 2^-23 of the largest of its span, as in any block floating point
# (Wilkinson, Rounding Errors in Algebraic Processes, section 1.26); f32 rounds it by 2^-24 of
# itself with every product. Digits cannot multiply spans with numbers that are not finite, or whose
# largest is below 2^-104: `fine` says whether a block of rows has none.


_LANES = 8  # of the f32 vectors of AVX2, the shortest that multiply digits
DIGITS = 3
# More are multiplied as f32: on AVX2 digits would take twice the instructions for each. By VNNI two
# rows have more digits than there are registers (Zen 5, 1024x1024 in L2: 26 us, f32 17; one row
# 7.7, f32 12.7).
MOST_DIGIT_ROWS, MOST_ROWS_BY_VNNI = 2, 1
SPANS = (32, 16)  # steps of K with one `unit`; sums of more steps do not fit in 16 bits
# Vectors of a panel that are multiplied by digits which are loaded once, on AVX2 and by VNNI.
DIGIT_VECTORS, VECTORS_BY_VNNI = 8, 3
_FRACTION = 23  # bits of an f32's significand after its point
_TOP = 22  # the largest X is below 2^(_TOP + 1)
_LARGEST, _SMALLEST = 254 << _FRACTION, (_TOP + 1) << _FRACTION  # exponents of spans that are fine
# Added to a largest number before its exponent is taken: 127.5 / 128 of 2^23 and more would have no
# third digit.
_INCREASE = 3 << 15
_MAGNITUDE, _EXPONENT = 0x7FFFFFFF, 0xFF << _FRACTION
_ZERO = tirx.const(0, "int32")
_FOUR = 4  # int8 elements of a word, which one instruction adds up in pairs


def most_digit_rows(lanes: int) -> int:
    """Rows that digits multiply at most, for vectors of `lanes` f32."""
    return MOST_DIGIT_ROWS if lanes == _LANES else MOST_ROWS_BY_VNNI


def span_of(weight: NarrowWeight, k: int) -> int | None:
    """Steps of K that share a unit; None if the weight cannot be multiplied by digits."""
    if weight.bits == 8 or weight.lanes < _LANES:
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
        Elements of a row, for which `span_of` is not None.
    zeros : bool
        Whether zero points are a tensor.
    read : callable
        (row, columns) -> elements of A in memory.
    kernel : Microkernel or None
        The kernel of signed by unsigned bytes; pairs of bytes on AVX2 if None.
    """

    def __init__(
        self,
        weight: NarrowWeight,
        k: int,
        zeros: bool,
        read: Callable[[Expr, Columns], Expr],
        kernel: Microkernel | None = None,
    ) -> None:
        span = span_of(weight, k)
        assert span is not None
        self.weight, self.k, self.read, self.span = weight, k, read, span
        self.kernel, self.lanes, self.most = kernel, weight.lanes, most_digit_rows(weight.lanes)
        self.spans = k // span
        self.zero = None if zeros else weight.zero + weight.half
        size = self.most * self.spans
        self.digits = I.sblock_alloc_buffer((self.most * DIGITS * k,), "int8", align=64)
        self.units = I.sblock_alloc_buffer((size,), "float32", align=64)
        self.rests = I.sblock_alloc_buffer((size,), "float32", align=64)  # sums of X, times -zero
        self.state = I.sblock_alloc_buffer((1,), "int32")  # 0: all spans are fine
        self.fine = self.state[_ZERO] == 0  # whether digits can multiply these rows
        self.first: Expr = tirx.const(0, "int32")  # first row of the block

    def takes(self, rows: int, piece: product_plan.Piece) -> bool:
        """Whether digits multiply a tile of `rows` rows and `piece` of K."""
        return rows <= self.most and all(each % self.span == 0 for each in piece)

    def begin(self, row: Expr, rows: Index) -> None:
        """Makes the digits of `rows` rows from `row`."""
        self.first = row
        I.buffer_store(self.state, _ZERO, [_ZERO])
        with I.serial(rows) as i, I.serial(self.spans) as number, emission.opaque_block("digits"):
            self._span(row + i, i, number)

    def _span(self, row: Expr, i: Expr, number: Expr) -> None:
        first = number * self.span
        lanes = self.lanes
        starts = range(0, self.span, lanes)
        vectors = [self.read(row, Columns(first + start, lanes, lanes)) for start in starts]
        values = [ex.bind(ex.cast("float32", vector)) for vector in vectors]
        bits = [ex.reinterpret("int32", value) for value in values]
        magnitudes = [ex.bind(each & ex.like(_MAGNITUDE, each)) for each in bits]
        largest = reduce_lanes(combine_all(magnitudes, tirx.Max), tirx.Max)
        exponent = ex.materialise((largest + _INCREASE) & _EXPONENT)
        wrong = tirx.any(exponent > _LARGEST, tirx.all(largest > 0, exponent < _SMALLEST))
        I.buffer_store(self.state, self.state[_ZERO] | tirx.Cast("int32", wrong), [_ZERO])
        least = tirx.const(_SMALLEST, "int32")
        unit = ex.materialise(tirx.Max(exponent, least) - (_TOP << _FRACTION))
        scale = ex.splat(ex.materialise(I.reinterpret("float32", _LARGEST - unit)), lanes)
        integers = []
        for start, value in zip(starts, values, strict=True):
            x = ex.bind(ex.cast("int32", tirx.nearbyint(value * scale)))
            integers.append(x)
            for digit in range(DIGITS):
                at = (i * DIGITS + digit) * self.k + first + start
                I.buffer_store(self.digits, ex.cast("int8", x), [ex.ramp(at, lanes)])
                if digit < DIGITS - 1:
                    x = ex.bind(tirx.shift_right(x + ex.like(128, x), ex.like(8, x)))
        place = i * self.spans + number
        total = ex.cast("float32", reduce_lanes(combine_all(integers, add), add))
        times = -1.0 if self.zero is None else -self.zero
        I.buffer_store(self.units, I.reinterpret("float32", unit), [place])
        I.buffer_store(self.rests, total * tirx.const(times, "float32"), [place])

    def block_of(self, span: Index) -> Index:
        """The block of the weight that a span lies in."""
        if self.weight.blocks == 1:
            return 0
        spans = self.weight.block // self.span
        return span if spans == 1 else I.floordiv(span, spans)

    def sums(
        self, rows: int, row: Expr, span: Expr, words: Callable[[Index], Expr]
    ) -> list[list[Expr]]:
        """For each row the sums of the products of each digit in one span, as f32 lanes.

        `words` maps a unit of K to int32 lanes, words of the weight.
        """
        units = self.span // self.weight.unit
        positions = itertools.product(range(units), range(8 // self.weight.bits))
        kinds = list(itertools.product(range(rows), range(DIGITS)))
        sums = {kind: self._room() for kind in kinds}
        for four, (unit, position) in enumerate(positions):
            if not position:
                word = ex.bind(self.weight.unsigned(words(span * units + unit)))
            elements = self.weight.bytes_at(word, position)
            for i, digit in kinds:
                value = self._word(row + i, digit, span * self.span + _FOUR * four)
                self._add(sums[i, digit], elements, value, not four)
        totals = {kind: self._total(sums[kind]) for kind in kinds}
        floats = {kind: ex.bind(ex.cast("float32", total)) for kind, total in totals.items()}
        return [[floats[i, digit] for digit in range(DIGITS)] for i in range(rows)]

    def _room(self) -> Expr:
        """Allocates sums of products, in int32 lanes or in twice as many int16 lanes."""
        if self.kernel is None:
            return I.sblock_alloc_buffer((2 * self.lanes,), "int16")
        return I.sblock_alloc_buffer((self.lanes,), "int32")

    def _add(self, sums: Expr, elements: Expr, value: Expr, begins: bool) -> None:
        """Adds the products of four steps of K to sums, which may begin with them."""
        every = ex.ramp(0, int(sums.shape[0]))
        if self.kernel is None:
            products = pair_products("avx2", elements, value)
            products = products if begins else sums[every] + products
        else:
            before = ex.constant(0, "int32", self.lanes) if begins else sums[every]
            products = self.kernel.multiply_add(before, value, elements)
        I.buffer_store(sums, products, [every])

    def _total(self, sums: Expr) -> Expr:
        every = ex.ramp(0, int(sums.shape[0]))
        return sums[every] if self.kernel else pair_sums("avx2", sums[every], 1)

    def _word(self, row: Expr, digit: int, step: Index) -> Expr:
        """A digit of four steps of K from `step`, in every lane."""
        at = (row * DIGITS + digit) * self.k + step
        word = I.reinterpret("int32", self.digits[ex.ramp(at, _FOUR)])
        return ex.bind(ex.reinterpret_group("int8", ex.splat(word, self.lanes), self.lanes * _FOUR))
