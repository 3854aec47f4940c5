"""The front end's own operators for Fourier transforms of dynamic sizes.

    Frames(x: [N, samples, parts], length, step)    ->    [N, frames, length, parts]
    FourierTable(read, made, length)                ->    [read * parts, made * made_parts]

A frame begins every `step` elements. All frames lie inside the signal.

A table is the right operand of the product that transforms a signal: `read` elements, of `parts`
numbers each, become `made` elements. Its entries are powers of a root of unity, `length` of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from .data_sized.kernels import INDEX, index
from .data_sized.requests import check, requested_sizes
from .data_sized.sizes import plain_dims
from .expressions import Converter, Expr
from .windows import window_count

MAX_TABLE_BYTES = 1 << 28


def _frames(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Expr:
    x, length, step = inputs[0], attrs["length"], attrs["step"]
    batch, samples, parts = plain_dims(x)
    check(
        builder,
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
    flat = builder.normalize(relax.op.reshape(x, (batch, samples * parts)))
    frames = builder.emit_te(compute, flat, count, primfunc_name_hint="frames")
    return relax.op.reshape(frames, (batch, count, length, parts))


def _table(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Expr:
    """Entries are computed in float64 for each power of the root, and rounded once."""
    parts, made_parts, dtype = attrs["parts"], attrs["made_parts"], attrs["dtype"].decode()
    read, made, length = (requested_sizes(builder, each)[0] for each in inputs)
    size = read * made * index(parts * made_parts * np.dtype(dtype).itemsize)
    check(builder, length > index(0), "a transform of no elements")
    check(builder, size <= index(MAX_TABLE_BYTES), f"a table of more than {MAX_TABLE_BYTES} bytes")

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

    powers = builder.emit_te(roots, length, primfunc_name_hint="fourier_roots")
    return builder.emit_te(table, powers, read, made, primfunc_name_hint="fourier_table")


FOURIER_CONVERTERS: dict[str, Converter] = {"FourierTable": _table, "Frames": _frames}
