"""OutlierList: what is left of bytes that were cut to seven bits, in a PrimFunc.

    a = c + t + r        t = min(max(a - c, 0), 127); r is mostly 0

A product of t by pairs of bytes never saturates (see `byte_outliers`). The r that are not 0 are in
a list, in groups of four elements of K: the group's number, four magnitudes, and their sign if
there are two. No magnitude is beyond 128, so that their products do not saturate either:
2 * 128 * 127 and -2 * 128 * 128 are within 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.kernels.byte_pairs import KR, signed_pairs
from microkernels.microkernel import Microkernel
from microkernels.tile import Address
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from microkernels.vector.memory import first_group, groups_found, saturating_difference

LARGEST = 127  # of t
LARGEST_OFFSET = 128  # of c: no magnitude of r is beyond 128 then
MOST_SHARE = 6  # one of so many groups may be in a list; with more, words are as fast
LANES = 32  # bytes that are looked at together
_ZERO = tirx.const(0, "int32")
_NEGATIVE = -1  # two words of -1
_POSITIVE = 0x10001  # two words of 1


class OutlierList:
    """The list of a block of rows.

    Parameters
    ----------
    most_rows, elements : int
        Rows of the largest block, and bytes of one.
    offset : Expr or None
        c, an int32 from 0 to `LARGEST_OFFSET`; None for 0.
    """

    def __init__(self, most_rows: int, elements: int, offset: Expr | None = None) -> None:
        self.groups, self.offset = -(-elements // KR), offset
        self.vectors = -(-elements // LANES)
        # A row is looked at where the list is not too long before it, and it adds every group.
        rows = most_rows // MOST_SHARE + (1 if offset is None else 2) + 1
        self.words = I.sblock_alloc_buffer((rows * self.groups,), "int32")
        self.numbers = I.sblock_alloc_buffer((rows * self.groups,), "int32")
        self.signs: Expr | None = None
        if offset is not None:
            self.signs = I.sblock_alloc_buffer((rows * self.groups,), "int32")
        self.begins = I.sblock_alloc_buffer((most_rows + 1,), "int32")
        self.count = I.sblock_alloc_buffer((1,), "int32")

    def begin(self, whole: Expr | None = None) -> None:
        """Begins the list of a block.

        `whole` says that no byte has to be cut, whatever it is.
        """
        I.buffer_store(self.count, _ZERO, [_ZERO])
        self.limit = ex.constant(LARGEST, "uint8", LANES)
        if whole is not None:
            largest = tirx.Select(whole, tirx.const(255, "int32"), LARGEST)
            self.limit = ex.splat(ex.cast("uint8", ex.materialise(largest)), LANES)
        self.least: Expr | None = None
        if self.offset is not None:
            self.least = ex.splat(ex.cast("uint8", self.offset), LANES)

    def short(self, most: Index) -> Expr:
        """Whether the list has at most so many groups."""
        return self.count[_ZERO] <= most

    def most(self, rows: Index) -> Index:
        """The longest list with which bytes are faster than words."""
        return rows * self.groups // MOST_SHARE

    def add_row(
        self,
        row: Index,
        most: Index,
        read: Callable[[Expr], Expr],
        write: Callable[[Expr, Expr], None],
    ) -> None:
        """Cuts the row of that number, the next one, unless the list is too long already.

        Parameters
        ----------
        most : Expr or int
            The longest list that is of use.
        read : callable
            First element -> so many bytes as are looked at together.
        write : callable
            (first element, bytes that were cut) -> None.
        """
        I.buffer_store(self.begins, self.count[_ZERO], [row])
        with I.If(self.short(most)), I.Then(), I.serial(self.vectors) as vector:
            first = vector * LANES
            value = ex.materialise(read(first))
            above = value
            if self.least is not None:
                above = ex.materialise(saturating_difference(value, self.least))
            write(first, tirx.Min(above, self.limit))
            self._list(saturating_difference(above, self.limit), vector, _POSITIVE)
            if self.least is not None:
                self._list(saturating_difference(self.least, value), vector, _NEGATIVE)

    def end(self, rows: Index) -> None:
        """Ends the list behind so many rows."""
        I.buffer_store(self.begins, self.count[_ZERO], [rows])

    def _list(self, rest: Expr, vector: Expr, sign: int) -> None:
        """Puts groups of bytes that are not all 0 into the list."""
        held = I.sblock_alloc_buffer((LANES,), "uint8", align=32)
        left = I.sblock_alloc_buffer((1,), "int32")
        I.buffer_store(held, rest, [ex.ramp(0, LANES)])
        found, count = groups_found(held[ex.ramp(0, LANES)]), LANES // KR
        if self.groups % count:  # what lies behind the row is none of it
            inside = tirx.Min(self.groups - vector * count, tirx.const(count, "int32"))
            found = found & (tirx.shift_left(tirx.const(1, "int32"), inside) - 1)
        I.buffer_store(left, found, [_ZERO])
        with I.While(left[_ZERO] != 0):
            group, at = I.bind(first_group(left[_ZERO])), I.bind(self.count[_ZERO])
            word = ex.reinterpret_group("int32", held[ex.ramp(group * KR, KR)], 1)
            I.buffer_store(self.words, word, [at])
            I.buffer_store(self.numbers, vector * count + group, [at])
            if self.signs is not None:
                I.buffer_store(self.signs, tirx.const(sign, "int32"), [at])
            I.buffer_store(self.count, at + 1, [_ZERO])
            I.buffer_store(left, left[_ZERO] & (left[_ZERO] - 1), [_ZERO])

    def for_each(self, row: Expr, body: Callable[[Expr, Products], None]) -> None:
        """Runs `body(number of the group, its products)` for the groups of a row."""
        begin = ex.materialise(self.begins[row])
        with I.serial(ex.materialise(self.begins[row + 1]) - begin) as each:
            at = begin + each
            body(ex.materialise(self.numbers[at]), Products(self, at))


class Products:
    """The products of one group of a list by vectors of the weight."""

    def __init__(self, found: OutlierList, at: Expr) -> None:
        self.found, self.at = found, at
        self.operands: tuple[Expr, Expr] | None = None

    def __call__(self, kernel: Microkernel, b: Expr | Address) -> Expr:
        """int32 lanes: what the group adds to a vector of columns, whose weight is `b`."""
        assert not isinstance(b, Address)
        lanes = kernel.lanes
        if self.operands is None:
            word, signs = ex.splat(self.found.words[self.at], lanes), self.found.signs
            factors = ex.constant(1, "int16", 2 * lanes)
            if signs is not None:
                factors = ex.reinterpret_group("int16", ex.splat(signs[self.at], lanes), 2 * lanes)
            magnitudes = I.reinterpret(ex.vector_type("uint8", KR * lanes), word)
            self.operands = I.bind(magnitudes), I.bind(factors)
        magnitudes, factors = self.operands
        return signed_pairs(kernel.isa_name, magnitudes, b, factors)
