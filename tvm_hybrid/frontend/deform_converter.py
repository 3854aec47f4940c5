"""DeformColumns: the front end's own operator for what a deformable convolution multiplies.

    DeformColumns(x: [N, C, H, W], offset, mask)    ->    [N, group, OH * OW, C / group * KH * KW]

For each output element one row of bilinear samples, a sample for each channel of its group and each
element of the kernel. A sample outside is 0, as are the parts of a sample that come from outside.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from .expressions import Converter, Expr, dtype_of, given, known_dims, literal

_OUTSIDE = -2  # an element whose next one is outside, too


def _columns(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Expr:
    x, offset, mask = inputs[0], inputs[1], given(inputs, 2)
    batch, channels, *extents = known_dims(x)
    outputs = known_dims(offset)[2:]
    groups, rank = attrs["group"], len(extents)
    taps, rows = math.prod(attrs["kernel_shape"]), math.prod(outputs)
    per_group, per_offset = channels // groups, channels // attrs["offset_group"]
    low, share = _places(builder, offset, extents, attrs)
    dtype = dtype_of(x)

    def compute(x: te.Tensor, low: te.Tensor, share: te.Tensor, *masks: te.Tensor) -> te.Tensor:
        def element(image: Expr, group: Expr, row: Expr, column: Expr) -> Expr:
            channel, tap = group * per_group + column // taps, column % taps
            source = channel // per_offset

            def sides(axis: int) -> list[tuple[Expr, Expr]]:
                """The two elements around the sample along an axis, and their weights."""
                position = (image, source, tap, axis, row)
                first, part = low[position], share[position]
                return [(first, tirx.const(1, dtype) - part), (first + 1, part)]

            parts = []
            for corner in itertools.product(*map(sides, range(rank))):
                at = [index for index, _ in corner]
                held = [
                    te.min(te.max(index, 0), extent - 1)
                    for index, extent in zip(at, extents, strict=True)
                ]
                inside = tirx.all(
                    *(index >= 0 for index in at),
                    *(index < extent for index, extent in zip(at, extents, strict=True)),
                )
                weight = functools.reduce(operator.mul, [part for _, part in corner])
                value = weight * x[(image, channel, *held)]
                parts.append(tirx.Select(inside, value, tirx.const(0, dtype)))
            value = functools.reduce(operator.add, parts)
            return value * masks[0][image, source, tap, row] if masks else value

        shape = (batch, groups, rows, per_group * taps)
        return te.compute(shape, element, name="deform_columns")

    flat = []
    if mask is not None:
        shape = (batch, attrs["offset_group"], taps, rows)
        flat = [builder.normalize(relax.op.reshape(mask, shape))]
    return builder.emit_te(compute, x, low, share, *flat, primfunc_name_hint="deform_columns")


def _places(
    builder: relax.BlockBuilder, offset: Expr, extents: Sequence[int], attrs: dict[str, Any]
) -> tuple[Expr, Expr]:
    """The element before each sample and how far behind it the sample is.

    Both are of the shape [N, offset groups, elements of the kernel, axes, output elements].
    """
    dtype, rank, kernel = dtype_of(offset), len(extents), attrs["kernel_shape"]
    outputs = known_dims(offset)[2:]
    at, place = np.indices(kernel).reshape(rank, -1), np.indices(outputs).reshape(rank, -1)
    grid = [
        place[axis] * attrs["strides"][axis]
        + (at[axis] * attrs["dilations"][axis] - attrs["pads"][axis])[:, None]
        for axis in range(rank)
    ]

    def emit(call: Expr) -> Expr:
        return builder.normalize(call)

    def number(value: int) -> Expr:
        return literal(np.array(value, dtype))

    shape = (known_dims(offset)[0], attrs["offset_group"], at.shape[1], rank, place.shape[1])
    moved = emit(
        relax.op.add(
            emit(relax.op.reshape(offset, shape)), literal(np.stack(grid, 1).astype(dtype))
        )
    )
    ends = literal(np.array(extents, dtype)[:, None])
    near = relax.op.logical_and(
        emit(relax.op.greater(moved, number(-1))), emit(relax.op.less(moved, ends))
    )
    low = emit(relax.op.floor(emit(relax.op.where(emit(near), moved, number(_OUTSIDE)))))
    return emit(relax.op.astype(low, "int32")), emit(relax.op.subtract(moved, low))


DEFORM_CONVERTERS: dict[str, Converter] = {"DeformColumns": _columns}
