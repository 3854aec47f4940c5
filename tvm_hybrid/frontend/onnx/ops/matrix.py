"""Converters of operators on matrices.

operator    Relax
Det         a kernel: Gaussian elimination, in float32 at least, the largest of a column as pivot
EyeLike     R.eye
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from onnx import helper
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder

from tir_schedules.core.emission import opaque_block

from ...expressions import Attrs, Expr, Inputs, cast, dtype_of, emit_te, literal, normalize
from ..graph.graph import OWN_DOMAIN
from ..graph.requests import check, check_equal, requested_sizes
from ..graph.sizes import INDEX, dims_of, index, is_open, plain, plain_dims
from ..operators import operator
from .pooling import window_count

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
        return te.extern(
            # Elimination changes a copy, which has one more row: for what is being exchanged.
            [(count,), (count, rows + 1, rows)],
            [matrices],
            lambda ins, outs: _eliminate(ins[0], outs[0], outs[1], count, rows),
            dtype=[wide, wide],
            name="det",
        )

    pair = emit_te(compute, flat, primfunc_name_hint="det")
    found = normalize(relax.TupleGetItem(pair, 0))
    return cast(normalize(relax.op.reshape(found, tuple(batch))), dtype)


def _eliminate(
    source: Expr, out: Expr, work: Expr, count: int | Expr, size: int | Expr
) -> tirx.Stmt:
    """The determinants; matrices of few rows have code of their own, and need no memory."""

    def emit(sizes: Sequence[int]) -> None:
        if not sizes:
            _matrices(source, out, work, count, size)
            return
        with I.If(tirx.EQ(size, index(sizes[0]))):
            with I.Then():
                _matrices(source, out, None, count, sizes[0])
            with I.Else():
                emit(sizes[1:])

    with IRBuilder() as builder, opaque_block("det"):
        if isinstance(size, int):
            _matrices(source, out, None if size in WRITTEN else work, count, size)
        else:
            emit(WRITTEN)
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
    dtype = dtype_of(inputs[0])
    if "dtype" in attrs:
        dtype = str(helper.tensor_dtype_to_np_dtype(attrs["dtype"]))
    rows, columns = dims_of(inputs[0])
    return relax.op.eye(rows, columns, attrs.get("k", 0), dtype)


# The front end's own operators for Fourier transforms of dynamic sizes.
#
#     Frames(x: [N, samples, parts], length, step)    ->    [N, frames, length, parts]
#     FourierTable(read, made, length)                ->    [read * parts, made * made_parts]
#
# A frame begins every `step` elements. All frames lie inside the signal.
#
# A table is the right operand of the product that transforms a signal: `read` elements, of `parts`
# numbers each, become `made` elements. Its entries are powers of a root of unity, `length` of them.


MAX_TABLE_BYTES = 1 << 28


@operator("Frames", domain=OWN_DOMAIN)
def _frames(inputs: Inputs, attrs: Attrs) -> Expr:
    x, length, step = inputs[0], attrs["length"], attrs["step"]
    batch, samples, parts = plain_dims(x)
    check(
        index(0) + samples >= length,
        f"a signal of {samples} has no frame of {length} elements",
    )
    count = window_count(samples, (0, 0), length, step, 1)

    def compute(flat: te.Tensor, count: Expr) -> te.Tensor:
        return te.compute(
            (flat.shape[0], count, length * parts),
            lambda n, frame, place: flat[n, frame * step * parts + place],
            name="frames",
        )

    # Each frame is one run of memory, which is copied in vectors.
    flat = normalize(relax.op.reshape(x, (batch, samples * parts)))
    frames = emit_te(compute, flat, count, primfunc_name_hint="frames")
    return relax.op.reshape(frames, (batch, count, length, parts))


@operator("FourierTable", domain=OWN_DOMAIN)
def _table(inputs: Inputs, attrs: Attrs) -> Expr:
    """Entries are computed in float64 for each power of the root, and rounded once."""
    parts, made_parts, dtype = attrs["parts"], attrs["made_parts"], attrs["dtype"]
    read, made, length = (requested_sizes(each)[0] for each in inputs)
    size = read * made * index(parts * made_parts * np.dtype(dtype).itemsize)
    check(length > index(0), "a transform of no elements")
    check(size <= index(MAX_TABLE_BYTES), f"a table of more than {MAX_TABLE_BYTES} bytes")

    def roots(length: Expr) -> te.Tensor:
        """The cosine and the sine of every power's angle, times the factor of the inverse."""

        def element(power: Expr, part: Expr) -> Expr:
            whole = tirx.Cast("float64", length)
            angle = tirx.Cast("float64", power) * tirx.const(2 * math.pi, "float64") / whole
            value = tirx.Select(tirx.EQ(part, index(0)), tirx.cos(angle), tirx.sin(angle))
            return tirx.Cast(dtype, value / whole if attrs["inverse"] else value)

        return te.compute((length, index(2)), element, name="roots")

    def table(roots: te.Tensor, read: Expr, made: Expr) -> te.Tensor:
        """Entry (2 j + p, 2 k + q) is what part p of element j adds to part q of element k."""
        length = roots.shape[0]

        def element(row: Expr, column: Expr) -> Expr:
            j, part = tirx.floordiv(row, parts), tirx.floormod(row, parts)
            k, made_part = tirx.floordiv(column, made_parts), tirx.floormod(column, made_parts)
            power = tirx.floormod(j * k, te.max(length, 1))
            crossed = tirx.Cast(INDEX, tirx.NE(part, made_part))
            # The real part subtracts the imaginary one's sine; without `inverse` the angle is < 0.
            sign = tirx.EQ(part, index(1 if attrs["inverse"] else 0))
            negative = tirx.all(tirx.NE(part, made_part), sign)
            value = roots[power, crossed]
            value = tirx.Select(negative, -value, value)
            if not attrs["mirrored"]:
                return value
            # Elements that do not mirror themselves stand for two; the others are real.
            single = tirx.any(tirx.EQ(j, index(0)), tirx.EQ(j * 2, length))
            once = tirx.Select(tirx.EQ(part, index(0)), value, tirx.const(0, dtype))
            return tirx.Select(single, once, value * tirx.const(2, dtype))

        return te.compute((read * parts, made * made_parts), element, name="fourier_table")

    powers = emit_te(roots, length, primfunc_name_hint="fourier_roots")
    return emit_te(table, powers, read, made, primfunc_name_hint="fourier_table")


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
