"""TopK: always sorted, which an unsorted one may be; of equal elements the first.

    ranks = integers in the order of x[row, :, column]    the least is the first
    a few of many: a heap of the best so far, the last of them on top; whole blocks of elements
                   whose least rank is not below it are skipped
    else: a sort of all by digits
    values, places = x[row, place, column], place    for each place in the heap, or of the first k

NaN is greater than all numbers, as in ONNX Runtime; zeros of both signs are equal. TVM's operator
compares floats in a way that puts a row with a NaN in no order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from microkernels.vector.expressions import ramp

from ..expressions import Converter, Expr, literal
from .kernels import INDEX, cell, emit_kernel, index, put, table
from .requests import requested_sizes
from .sizes import dims_of, holds, is_number, product, reshaped_to
from .sorting import Heap, Order, place_in, rising, sort_by_digits

COLUMNS = 16  # whose elements are read together: one cache line
BLOCK = 32  # elements that are skipped together
FEW = 16
ONE_OF = 24  # where a heap takes as long as a sort by digits, of 768 to 4,000 elements


def _top_k(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x, dims = inputs[0], dims_of(inputs[0])
    axis = attrs.get("axis", -1) % len(dims)
    asked = inputs[1] if len(inputs) > 1 else literal(np.array([attrs.get("k", 1)], np.int64))
    (count,) = requested_sizes(builder, asked, dims[axis])
    largest = bool(attrs.get("largest", 1))
    outer, inner = product(dims[:axis]), product(dims[axis + 1 :])

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        _Rows(ins[0], outs[0], outs[1], largest).emit()

    x3, shape = reshaped_to(builder, x, [outer, dims[axis], inner]), [outer, count, inner]
    results = [(shape, x.ty.dtype), (shape, INDEX)]
    found = emit_kernel(builder, "top_k", [x3], results, body)
    chosen = [*dims[:axis], count, *dims[axis + 1 :]]
    return relax.Tuple([reshaped_to(builder, each, chosen) for each in found])


class _Rows:
    """The kernel, of `x[row, place, column]`."""

    def __init__(self, x: Expr, values: Expr, places: Expr, largest: bool) -> None:
        self._x, self._values, self._places, self._largest = x, values, places, largest
        self._extent, self._count = x.shape[1], places.shape[1]
        self._columns = 1 if is_number(x.shape[2], 1) else COLUMNS
        self._dtype = str(self._rank(index(0), index(0), index(0)).ty.dtype)
        # Behind the ranks of a column are some that are never chosen.
        self._apart = self._extent + BLOCK
        self._ranks = I.sblock_alloc_buffer([self._columns * self._apart], self._dtype)
        self._order = table(self._extent)
        self._last = cell(self._dtype)

    def emit(self) -> None:
        """All rows and columns, some columns at a time."""
        outer, _, inner = self._x.shape
        blocks = tirx.floordiv(inner + (self._columns - 1), self._columns)
        with I.serial(outer) as row, I.serial(blocks) as block:
            first = block * self._columns
            width = te.min(self._columns, inner - first) if self._columns > 1 else index(1)
            with I.serial(self._extent) as place, I.serial(width) as column:
                rank = self._rank(row, place, first + column)
                put(self._ranks, rank, column * self._apart + place)
            with I.serial(width) as column:
                base = column * self._apart
                with I.serial(BLOCK) as place:
                    never = tirx.max_value(self._dtype)
                    put(self._ranks, never, base + self._extent + place)
                self._choose(row, first + column, base)

    def _rank(self, row: Expr, place: Expr, column: Expr) -> Expr:
        rank = rising(self._x[row, place, column])
        return rank ^ tirx.const(-1, rank.ty.dtype) if self._largest else rank

    def _choose(self, row: Expr, column: Expr, base: Expr) -> None:
        """Stores the results of one column, whose ranks begin at `base`."""
        order = Order(self._order, lambda place: self._ranks[base + place])

        def store(place_of: Callable[[Expr], Expr]) -> None:
            with I.serial(self._count) as number:
                place = place_of(self._order[number])
                put(self._places, place, row, number, column)
                put(self._values, self._x[row, place, column], row, number, column)

        def by_heap() -> None:
            self._fill_heap(order, base)
            store(lambda entry: place_in(entry) if order.has_keys else entry)

        def by_digits() -> None:
            sort_by_digits(order, self._extent)
            store(lambda place: place)

        few = tirx.any(self._count * ONE_OF <= self._extent, self._count <= FEW)
        if holds(few):
            by_heap()
        elif holds(tirx.all(self._count * ONE_OF > self._extent, self._count > FEW)):
            by_digits()
        else:
            with I.If(few):
                with I.Then():
                    by_heap()
                with I.Else():
                    by_digits()

    def _fill_heap(self, order: Order, base: Expr) -> None:
        """Leaves the first elements in order."""
        count, last, heap = self._count, self._last, Heap(self._order, order.later)
        with I.serial(count) as place:
            put(self._order, order.entry(place), place)
        heap.build(count)
        put(last, order.rank_of(self._order[0]))
        blocks = tirx.floordiv(self._extent - count + (BLOCK - 1), BLOCK)
        with I.If(count > 0), I.Then(), I.serial(blocks) as block:
            start = count + block * BLOCK
            # Of equal elements the first has the place: a later one must be better.
            with (
                I.If(_least(self._ranks, base + start) < last[0]),
                I.Then(),
                I.serial(BLOCK) as number,
                I.If(self._ranks[base + start + number] < last[0]),
                I.Then(),
            ):
                put(self._order, order.entry(start + number))
                heap.sink(index(0), count)
                put(last, order.rank_of(self._order[0]))
        heap.sort(count)


def _least(ranks: Expr, start: Expr) -> Expr:
    """The least of a block, by vectors."""
    lanes = 256 // int(ranks.dtype.bits)
    vectors = [ranks[ramp(start + first, lanes)] for first in range(0, BLOCK, lanes)]
    while len(vectors) > 1:
        vectors = [te.min(*pair) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    name = f"llvm.vector.reduce.smin.v{lanes}i{ranks.dtype.bits}"
    return I.call_llvm_pure_intrin(str(ranks.dtype), name, vectors[0])


TOP_K_CONVERTERS: dict[str, Converter] = {"TopK": _top_k}
