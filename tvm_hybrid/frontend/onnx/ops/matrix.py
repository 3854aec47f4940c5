"""Converters of operators on matrices.

operator    Relax
Det         a kernel: Gaussian elimination, in float32 at least, the largest of a column as pivot
EyeLike     R.eye
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from onnx import helper
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder

from tir_schedules.core.emission import opaque_block

from ...expressions import Attrs, Expr, Inputs, cast, dtype_of, emit_te, literal, normalize
from ..graph.requests import check_equal
from ..graph.sizes import dims_of, index, is_open, plain, plain_dims
from ..operators import operator

WRITTEN = (2, 3, 4)
"""Rows of matrices that have code of their own where sizes are open."""


@operator("Det")
def _det(inputs: Inputs, attrs: Attrs) -> Any:
    x, dtype = inputs[0], dtype_of(inputs[0])
    *batch, rows, columns = plain_dims(x)
    misfit = f"matrices of {rows} rows and {columns} columns are not square"
    check_equal(dims_of(x)[-2], dims_of(x)[-1], misfit)
    if rows == 0 and all(isinstance(size, int) for size in batch):
        return literal(np.ones(batch, x.ty.dtype.dtype))
    wide = dtype if dtype == "float64" else "float32"
    count = math.prod(batch)
    flat = normalize(relax.op.reshape(cast(x, wide), (count, rows, rows)))

    def compute(matrices: te.Tensor) -> list[te.Tensor]:
        # The kernel's own names of sizes that are open.
        count, rows, _ = plain(matrices.shape)
        # Elimination changes a copy, which has one more row: for what is being exchanged.
        shapes = [(count,), (count, rows + 1, rows)]
        return te.extern(shapes, [matrices], _eliminate, dtype=[wide, wide], name="det")

    pair = emit_te(compute, flat, primfunc_name_hint="det")
    return cast(relax.op.reshape(relax.TupleGetItem(pair, 0), tuple(batch)), dtype)


def _eliminate(ins: Sequence[Expr], outs: Sequence[Expr]) -> tirx.Stmt:
    """The determinants; matrices of few rows have code of their own, and need no memory."""
    (source,), (out, work) = ins, outs
    count, size, _ = plain(source.shape)
    is_known = isinstance(size, int)
    with IRBuilder() as builder, opaque_block("det"), ExitStack() as others:
        for few in () if is_known else WRITTEN:
            others.enter_context(I.If(tirx.EQ(size, index(few))))
            with I.Then():
                _matrices(source, out, None, count, few)
            others.enter_context(I.Else())
        _matrices(source, out, None if is_known and size in WRITTEN else work, count, size)
    return builder.get()


def _matrices(
    source: Expr, out: Expr, memory: Expr | None, count: int | Expr, size: int | Expr
) -> None:
    """The product of the pivots of each matrix; every exchange of rows turns its sign."""
    with I.parallel(count) as n, opaque_block("matrix"):
        found = I.sblock_alloc_buffer([1], out.dtype)
        before = [] if memory is None else [n]
        work = I.sblock_alloc_buffer([size + 1, size], out.dtype) if memory is None else memory
        size = index(size) if isinstance(size, int) else size

        def get(row: Expr | int, column: Expr | int) -> Expr:
            return work[(*before, row, column)]

        def put(row: Expr | int, column: Expr | int, value: Expr) -> None:
            I.buffer_store(work, value, [*before, row, column])

        I.buffer_store(found, tirx.const(1, out.dtype), [0])
        with I.serial(size) as i, I.serial(size) as j:
            put(i, j, source[n, i, j])
        with I.serial(size) as k:
            with I.serial(size - 1 - k) as below:
                row = k + 1 + below
                with I.If(tirx.abs(get(row, k)) > tirx.abs(get(k, k))), I.Then():
                    I.buffer_store(found, -found[0], [0])
                    with I.serial(size) as j:
                        put(size, j, get(k, j))
                        put(k, j, get(row, j))
                        put(row, j, get(size, j))
            with I.serial(size - 1 - k) as below:
                row = k + 1 + below
                # Below a pivot of 0 there are zeros, or NaN, which is to stay.
                nothing = get(row, k) == tirx.const(0, out.dtype)
                quotient = get(row, k) / get(k, k)
                put(size, 0, tirx.Select(nothing, tirx.const(0, out.dtype), quotient))
                with I.serial(size - 1 - k) as right:
                    column = k + 1 + right
                    put(row, column, get(row, column) - get(size, 0) * get(k, column))
            I.buffer_store(found, found[0] * get(k, k), [0])
        I.buffer_store(out, found[0], [n])


@operator("EyeLike")
def _eye_like(inputs: Inputs, attrs: Attrs) -> Any:
    (rows, columns), dtype = dims_of(inputs[0]), dtype_of(inputs[0])
    if "dtype" in attrs:
        dtype = str(helper.tensor_dtype_to_np_dtype(attrs["dtype"]))
    return relax.op.eye(rows, columns, attrs.get("k", 0), dtype)


@operator("Einsum")
def _einsum(inputs: Inputs, attrs: Attrs) -> Any:
    """As an operator, which may become a product."""
    if any(map(is_open, inputs)):
        terms = attrs["equation"].replace(" ", "").split("->")[0].split(",")
        if len(inputs) > 1 and any("." in term for term in terms):
            raise ValueError("dimensions without a letter, of several inputs of open sizes")
        found: dict[str, Any] = {}
        for term, value in zip(terms, inputs, strict=True):
            dims, (before, _, behind) = dims_of(value), term.partition("...")
            places = [*enumerate(before), *((i - len(behind), c) for i, c in enumerate(behind))]
            for place, letter in places:
                check_equal(found.setdefault(letter, dims[place]), dims[place])
    return relax.op.einsum(tuple(inputs), attrs["equation"])
