"""Multiplies a few rows by a matrix that is read in place, once; the time is that of reading it.

    C[r, c] = sum over k of A[r, k] * B[k, c]        few rows r

Nothing is packed. `dots` is for a matrix in which the elements of one column are neighbours: every
vector of B is multiplied by as many elements of a row, and the partial sums of `lanes` columns are
added together in a tree (`sum_each`). `column_sums` is for a matrix in which the elements of one
row are neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.integers import RANGES
from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.vector import bfloat16
from microkernels.vector.expressions import (
    Expr,
    bind,
    constant,
    element_of,
    lanes_of,
    like,
    materialise,
    ramp,
    reinterpret,
    splat,
)
from tir_schedules.core.reduce_lanes import LaneTotals, add

from .tile_config import KERNEL_TYPES

_SIGN = 0x80
_KEPT_VECTORS = 16  # of a row; beyond, it is read again for every group


class Operands:
    """How elements in memory become what a kernel multiplies.

    Parameters
    ----------
    isa : Isa
        What the target has.
    matrix_dtype : str
        Of B in memory; it decides which kernel multiplies.
    rounded : bool
        Whether f32 elements are rounded to bfloat16.
    rows_unsigned : bool
        8-bit integers: whether the rows are the unsigned factor, and B the signed one.
    narrow : callable
        f32 -> bfloat16 (uint16 lanes).

    Attributes
    ----------
    kernel : Microkernel
        Whose `multiply_add` is used.
    row_element, matrix_element : str
        Types of the lanes that are multiplied.
    """

    def __init__(
        self,
        isa: Isa,
        matrix_dtype: str,
        rounded: bool,
        rows_unsigned: bool,
        narrow: Callable[[Expr], Expr],
    ) -> None:
        self.kernel: Microkernel = kernels_for(isa, *KERNEL_TYPES[matrix_dtype])[0]
        self.matrix_dtype, self.rounded, self.narrow = matrix_dtype, rounded, narrow
        self.rows_unsigned = rows_unsigned
        self.lanes, self.kr = self.kernel.lanes, self.kernel.kr
        self.group = self.lanes * self.kr
        self.row_element = self.matrix_element = self.kernel.operand_dtype
        if matrix_dtype in RANGES:
            names = ("uint8", "int8") if rows_unsigned else ("int8", "uint8")
            self.row_element, self.matrix_element = names

    def convert(self, value: Expr, dtype: str, element: str) -> Expr:
        """Lanes of type `dtype` as lanes that are multiplied; integers shifted into `element`."""
        if dtype in RANGES:
            if dtype == element:
                return value
            bits = reinterpret("uint8", value)
            shifted = bits ^ like(_SIGN, bits)
            return shifted if element == "uint8" else reinterpret(element, shifted)
        if dtype == "float32" and element == "float32":
            return bfloat16.widen(self.narrow(value)) if self.rounded else value
        if dtype == "float32":
            return self.narrow(value)
        bits = bfloat16.bits_of(value)
        return bfloat16.widen(bits) if element == "float32" else bits

    def load(self, buffer: Expr, start: Expr, valid: int, lanes: int, rows: bool = False) -> Expr:
        """`valid` consecutive elements as they are multiplied; further lanes are 0."""
        dtype = str(buffer.dtype)
        element = self.row_element if rows else self.matrix_element
        value = self.convert(buffer[ramp(start, valid)], dtype, element)
        return bind(widened(value, lanes))

    def spread(self, group: Expr) -> Expr:
        """kr elements of a row in every lane."""
        if self.kr == 1:
            return splat(group, self.lanes)
        word = I.reinterpret(f"int{self.kr * int(group.ty.dtype.bits)}", group)
        return I.reinterpret(f"{self.row_element}x{self.group}", splat(word, self.lanes))

    def multiply_add(self, accumulator: Expr, row: Expr, matrix: Expr) -> Expr:
        """accumulator + row * matrix; the unsigned factor comes first."""
        factors = (row, matrix) if self.rows_unsigned else (matrix, row)
        return self.kernel.multiply_add(accumulator, *factors)

    def row_sum(self, buffer: Expr, start: Expr, groups: Expr | int) -> Expr:
        """The sum of a padded row of 8-bit integers; an int32 scalar."""
        total = LaneTotals(self.lanes, 0, dtype="int32")
        one = constant(1, self.matrix_element, self.group)
        with I.serial(groups) as group:
            elements = buffer[ramp(start + group * self.group, self.group)]
            total.store(self.multiply_add(total[0], elements, one))
        return total.total(add)


def widened(value: Expr, lanes: int) -> Expr:
    """A vector with zeros behind it."""
    valid = lanes_of(value)
    if valid == lanes:
        return value
    if valid == 1:
        first = tirx.LT(ramp(0, lanes), constant(1, "int32", lanes))
        return tirx.Select(first, splat(value, lanes), constant(0, element_of(value), lanes))
    zeros = [like(0, value)] * math.ceil((lanes - valid) / valid)
    return shuffled([value, *zeros], range(lanes))


def shuffled(vectors: Sequence[Expr], lanes: Sequence[int]) -> Expr:
    """Lanes of the concatenated vectors."""
    return tirx.Shuffle(list(vectors), [tirx.const(lane, "int32") for lane in lanes])


def sum_each(vectors: Sequence[Expr]) -> Expr:
    """The sum of the lanes of each of `lanes` vectors; lane i is that of vector i.

    The rounds of `microkernels.vector.transpose.transpose_block`, with the two halves of every
    exchange added, so that each round leaves half as many vectors.
    """
    size = len(vectors)
    half = size // 2
    while half:
        kept = [lane if not lane & half else size + lane - half for lane in range(size)]
        added = [lane + half if not lane & half else size + lane for lane in range(size)]
        pairs = list(zip(vectors[:half], vectors[half:], strict=True))
        vectors = [materialise(shuffled(pair, kept) + shuffled(pair, added)) for pair in pairs]
        half //= 2
    return vectors[0]


def dots(
    operands: Operands,
    k: int,
    count: int,
    row: Callable[[Expr | int], Expr],
    matrix: Callable[[int, Expr | int, int], Expr],
) -> Expr:
    """Products of one row with `count` <= lanes columns, whose steps of k are contiguous.

    Parameters
    ----------
    operands : Operands
        What is multiplied.
    k, count : int
        Terms of each sum; columns. The lanes of further columns are 0.
    row : callable
        Number of a group of k -> the row's elements, zeros behind them.
    matrix : callable
        (column, number of a group of k, elements that exist) -> as many elements of B, widened.
    """
    lanes, acc_dtype = operands.lanes, operands.kernel.acc_dtype
    index = ramp(0, lanes)
    sums = [I.sblock_alloc_buffer((lanes,), acc_dtype) for _ in range(count)]
    zero = constant(0, acc_dtype, lanes)
    for total in sums:
        I.buffer_store(total, zero, [index])

    def add(column: int, elements: Expr, number: Expr | int, valid: int) -> None:
        total = sums[column]
        value = operands.multiply_add(total[index], elements, matrix(column, number, valid))
        I.buffer_store(total, value, [index])

    whole, rest = divmod(k, operands.group)
    pieces = [(number, operands.group) for number in range(whole)] + [(whole, rest)] * (rest > 0)
    if len(pieces) <= _KEPT_VECTORS:
        # The row stays in registers, and memory is read from one end to the other.
        kept = [bind(row(number)) for number, _valid in pieces]
        for column in range(count):
            for elements, (number, valid) in zip(kept, pieces, strict=True):
                add(column, elements, number, valid)
    else:
        with I.serial(whole) as step:
            elements = bind(row(step))
            for column in range(count):
                add(column, elements, step, operands.group)
        if rest:
            elements = bind(row(whole))
            for column in range(count):
                add(column, elements, whole, rest)
    values = [bind(total[index]) for total in sums]
    return sum_each(values + [zero] * (lanes - count))
