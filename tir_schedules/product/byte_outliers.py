"""Outliers of rows of bytes: what is left of a row whose elements were cut to seven bits.

    a = c + t + r        t = min(max(a - c, 0), 127), which never saturates in pairs; r mostly 0

The product of t is one by bytes (see `byte_product`). The r that are not 0 stand in a list: the step
of K, and four magnitudes, which are at most 128 and so do not saturate either (2 * 128 * 128 is
within 16 bits where it is negative, 2 * 128 * 127 where it is positive). Their products start the
accumulators. c is 0, or so near the zero point that most elements are within 127 of it; c times the
sums of the weight's columns belongs to what zero points start accumulators with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.kernels.byte_pairs import signed_pairs
from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import (
    Expr,
    cast,
    constant,
    materialise,
    ramp,
    reinterpret_group,
    splat,
    vector_type,
)
from microkernels.vector.groups import saturating_difference, which_groups
from tir_schedules.core.emission import opaque_block
from tir_schedules.epilogue.epilogue import Columns

from .activations import Activations
from .tile_loops import LoadPanel

LARGEST = 127  # of t
LARGEST_OFFSET = 128  # so that no magnitude of r is beyond 128
MOST_SHARE = 6  # one of so many groups of four elements may be in the list
_MOST_VECTORS = 8  # that start together
_LANES = 32  # bytes that are looked at together
_GROUP = 4
_ZERO = tirx.const(0, "int32")


class ByteOutliers:
    """Rows cut to seven bits, and what that leaves, in the PrimFunc under construction.

    Parameters
    ----------
    rows : Activations
        The rows, whole vectors of bytes.
    most_rows : int
        Of the largest block.
    panels : sequence of int
        Vectors of each panel.
    offset : Expr or None
        c, an int32 from 0 to `LARGEST_OFFSET`; None for 0.
    start : callable or None
        (row, vector of columns) -> what accumulators start with apart from outliers.
    column_sums : callable
        Vector of columns -> sums of the weight; only called where there is an offset.
    load_b : callable
        The packed weight, as of `TileLoops`.
    """

    def __init__(
        self,
        rows: Activations,
        most_rows: int,
        panels: Sequence[int],
        offset: Expr | None,
        start: Callable[[Expr, Expr], Expr] | None,
        column_sums: Callable[[Expr | int], Expr],
        load_b: LoadPanel,
    ) -> None:
        kernel, signs = rows.kernel, 1 if offset is None else 2
        self.kernel: Microkernel = kernel
        self.rows, self.offset, self._start, self.load_b = rows, offset, start, load_b
        self.column_sums = column_sums
        self.groups = kernel.steps(rows.k)
        self.pitch = -(-rows.k // _LANES) * _LANES
        # A row is looked at where the list is not too long before it.
        size = most_rows * self.groups // MOST_SHARE + signs * self.groups
        self.cut = I.sblock_alloc_buffer((most_rows, self.pitch), "uint8", align=64)
        self.words = I.sblock_alloc_buffer((size,), "int32")
        self.steps = I.sblock_alloc_buffer((size,), "int32")
        self.signs = I.sblock_alloc_buffer((size,), "int32") if signs > 1 else None
        self.begins = I.sblock_alloc_buffer((most_rows + 1,), "int32")
        # Several panels side by side: each entry is then read less often.
        self.side = max(1, _MOST_VECTORS // panels[0]) if len(set(panels)) == 1 else 1
        self.side = min(self.side, len(panels))
        self.n_vectors = sum(panels)
        width = self.side * max(panels) * kernel.lanes
        self.starts = I.sblock_alloc_buffer((most_rows, width), "int32", align=64)
        self.first = I.sblock_alloc_buffer((1,), "int32")  # vector of `starts`; behind all: none
        self.count: int | Expr = 0

    def split(self, first: Expr, count: int | Expr, fits: Expr, most: Expr | int) -> Expr:
        """Cuts rows that have begun; whether the list is short enough.

        Parameters
        ----------
        first, count : Expr
            The rows.
        fits : Expr
            Whether no element has to be cut, whatever it is.
        most : Expr or int
            The longest list.
        """
        self.count = count
        seen = I.sblock_alloc_buffer((1,), "int32")
        I.buffer_store(seen, _ZERO, [_ZERO])
        largest = materialise(tirx.Select(fits, tirx.const(255, "int32"), LARGEST))
        limit = splat(cast("uint8", largest), _LANES)
        offset = None
        if self.offset is not None:
            found = materialise(tirx.Select(fits, _ZERO, self.offset))
            offset = splat(cast("uint8", found), _LANES)
        with opaque_block("outliers"), I.serial(count) as row:
            I.buffer_store(self.begins, seen[_ZERO], [row])
            with I.If(seen[_ZERO] <= most), I.Then(), I.serial(self.pitch // _LANES) as vector:
                self._cut(first + row, row, vector, limit, offset, seen)
        I.buffer_store(self.begins, seen[_ZERO], [count])
        I.buffer_store(self.first, tirx.const(self.n_vectors, "int32"), [_ZERO])
        return seen[_ZERO] <= most

    def _cut(
        self, row: Expr, to: Expr, vector: Expr, limit: Expr, offset: Expr | None, seen: Expr
    ) -> None:
        """Some bytes of one row."""
        columns = Columns(vector * _LANES, _LANES, _LANES)
        value = materialise(self.rows.operand(row, columns))
        above = value if offset is None else materialise(saturating_difference(value, offset))
        I.buffer_store(self.cut, tirx.Min(above, limit), [to, ramp(vector * _LANES, _LANES)])
        self._list(saturating_difference(above, limit), vector, 1, seen)
        if offset is not None:
            self._list(saturating_difference(offset, value), vector, -1, seen)

    def _list(self, rest: Expr, vector: Expr, sign: int, seen: Expr) -> None:
        """Puts groups of bytes that are not all 0 into the list."""
        held = I.sblock_alloc_buffer((_LANES,), "uint8", align=32)
        left = I.sblock_alloc_buffer((1,), "int32")
        I.buffer_store(held, rest, [ramp(0, _LANES)])
        found = which_groups(held[ramp(0, _LANES)])
        if self.groups * _GROUP < self.pitch:  # what lies behind the row is none of it
            inside = tirx.const(self.groups, "int32") - vector * (_LANES // _GROUP)
            some = tirx.Min(inside, tirx.const(_LANES // _GROUP, "int32"))
            found = found & (tirx.shift_left(tirx.const(1, "int32"), some) - 1)
        I.buffer_store(left, found, [_ZERO])
        with I.While(left[_ZERO] != 0):
            group = I.bind(
                I.call_llvm_pure_intrin(
                    "int32", "llvm.cttz.i32", left[_ZERO], tirx.const(True, "bool")
                )
            )
            at = I.bind(seen[_ZERO])
            word = reinterpret_group("int32", held[ramp(group * _GROUP, _GROUP)], 1)
            I.buffer_store(self.words, word, [at])
            I.buffer_store(self.steps, vector * (_LANES // _GROUP) + group, [at])
            if self.signs is not None:
                I.buffer_store(self.signs, tirx.const(0x10001 if sign > 0 else -1, "int32"), [at])
            I.buffer_store(seen, at + 1, [_ZERO])
            I.buffer_store(left, left[_ZERO] & (left[_ZERO] - 1), [_ZERO])

    def load(self, row: Expr, step: Expr | int) -> Expr:
        """kr elements of a row as `Activations.load`, without the outliers."""
        place = ramp(step * self.kernel.kr, self.kernel.kr)
        return self.kernel.spread(self.cut[self._within(row), place])

    def add(self, vector: Expr, vectors: int) -> None:
        """What the accumulators of a panel start with: `TileLoops.begin_panel`."""
        side, first = self.side * vectors, self.first
        if self.side == 1:
            I.buffer_store(first, vector, [_ZERO])
            self._add(vector, vectors, 1)
            return
        behind = tirx.Or(vector < first[_ZERO], vector >= first[_ZERO] + side)
        with I.If(behind), I.Then():
            last = tirx.const(self.n_vectors - side, "int32")
            I.buffer_store(first, tirx.Min(vector, last), [_ZERO])
            self._add(materialise(first[_ZERO]), vectors, self.side)

    def _add(self, vector: Expr, width: int, side: int) -> None:
        """What some panels of one width start with."""
        kernel, lanes = self.kernel, self.kernel.lanes
        vectors = range(width * side)
        with opaque_block("add_outliers"), I.serial(self.count) as row:
            totals = I.sblock_alloc_buffer((len(vectors) * lanes,), "int32")
            for j in vectors:
                value = self.start_without(self.rows.block + row, vector + j)
                I.buffer_store(totals, value, [ramp(j * lanes, lanes)])
            begin = materialise(self.begins[row])
            with I.serial(materialise(self.begins[row + 1]) - begin) as number:
                at = begin + number
                word = splat(self.words[at], lanes)
                a = I.bind(I.reinterpret(vector_type("uint8", _GROUP * lanes), word))
                factors = constant(1, "int16", 2 * lanes)
                if self.signs is not None:
                    factors = reinterpret_group("int16", splat(self.signs[at], lanes), 2 * lanes)
                factors = I.bind(factors)
                step = materialise(self.steps[at])
                for j in vectors:
                    b = self.load_b(vector + j // width * width, width, step, j % width)
                    place = ramp(j * lanes, lanes)
                    total = totals[place] + signed_pairs(kernel.isa_name, a, b, factors)
                    I.buffer_store(totals, total, [place])
            for j in vectors:
                place = ramp(j * lanes, lanes)
                I.buffer_store(self.starts, totals[place], [row, place])

    def start_without(self, row: Expr, vector: Expr | int) -> Expr:
        """What accumulators start with where a block has no outliers."""
        lanes = self.kernel.lanes
        value = constant(0, "int32", lanes)
        if self._start is not None:
            value = self._start(row, vector)
        if self.offset is not None:
            value = value + self.column_sums(vector) * splat(self.offset, lanes)
        return value

    def start(self, row: Expr, vector: Expr) -> Expr:
        """What accumulators start with: `TileLoops.start`."""
        lanes = self.kernel.lanes
        return self.starts[self._within(row), ramp((vector - self.first[_ZERO]) * lanes, lanes)]

    def _within(self, row: Expr) -> Expr:
        return self.rows._within(row)
