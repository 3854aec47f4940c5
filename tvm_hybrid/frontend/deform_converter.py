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

from .data_sized.kernels import index
from .data_sized.requests import check, check_equal
from .data_sized.sizes import dims_of, is_open, plain, plain_dims, product
from .expressions import Converter, Expr, dtype_of, given, literal, rank_of
from .windows import window_count

_OUTSIDE = -2  # an element whose next one is outside, too


def _columns(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Expr:
    x, offset, mask = inputs[0], inputs[1], given(inputs, 2)
    batch, channels, *_ = plain_dims(x)
    rank = rank_of(x) - 2
    groups, rows = attrs["group"], math.prod(plain_dims(offset)[2:])
    taps = math.prod(attrs["kernel_shape"])
    per_group, per_offset = channels // groups, channels // attrs["offset_group"]
    _check_sizes(builder, inputs, attrs)
    low, share = _places(builder, offset, plain_dims(x)[2:], attrs)
    dtype = dtype_of(x)

    def compute(x: te.Tensor, low: te.Tensor, share: te.Tensor, *masks: te.Tensor) -> te.Tensor:
        # The kernel's own names of sizes that are open.
        extents, rows = plain(x.shape[2:]), plain(low.shape)[-1]

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

        shape = (plain(x.shape)[0], groups, rows, per_group * taps)
        return te.compute(shape, element, name="deform_columns")

    flat = []
    if mask is not None:
        shape = (batch, attrs["offset_group"], taps, rows)
        flat = [builder.normalize(relax.op.reshape(mask, shape))]
    return builder.emit_te(compute, x, low, share, *flat, primfunc_name_hint="deform_columns")


def _check_sizes(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> None:
    """Has the program check open sizes; the rewrite has seen to those that are known."""
    if not any(map(is_open, inputs)):
        return
    (batch, _, *extents), offset = dims_of(inputs[0]), dims_of(inputs[1])
    rank, taps = len(extents), math.prod(attrs["kernel_shape"])
    around = zip(attrs["pads"][:rank], attrs["pads"][rank:], strict=True)
    forms = (attrs[name] for name in ("kernel_shape", "strides", "dilations"))
    axes = zip(extents, around, *forms, strict=True)
    outputs = [window_count(*axis) for axis in axes]
    for value, parts in ((inputs[1], taps * rank), (given(inputs, 2), taps)):
        if value is not None:
            wanted = [batch, index(attrs["offset_group"] * parts), *outputs]
            for one, other in zip(dims_of(value), wanted, strict=True):
                check_equal(builder, one, other)
    # There are elements to sample.
    check(builder, tirx.any(product(extents) > 0, tirx.EQ(product(offset), index(0))))


def _places(
    builder: relax.BlockBuilder, offset: Expr, extents: Sequence[int | Expr], attrs: dict[str, Any]
) -> tuple[Expr, Expr]:
    """The element before each sample and how far behind it the sample is.

    Both are of the shape [N, offset groups, elements of the kernel, axes, output elements].
    """
    dtype, rank = dtype_of(offset), len(extents)
    batch, _, *outputs = plain_dims(offset)

    def emit(call: Expr) -> Expr:
        return builder.normalize(call)

    def number(value: int) -> Expr:
        return literal(np.array(value, dtype))

    taps = math.prod(attrs["kernel_shape"])
    shape = (batch, attrs["offset_group"], taps, rank, math.prod(outputs))
    grid = _grid(builder, outputs, attrs, dtype)
    moved = emit(relax.op.add(emit(relax.op.reshape(offset, shape)), grid))
    ends = _column(builder, extents, dtype)
    near = relax.op.logical_and(
        emit(relax.op.greater(moved, number(-1))), emit(relax.op.less(moved, ends))
    )
    low = emit(relax.op.floor(emit(relax.op.where(emit(near), moved, number(_OUTSIDE)))))
    return emit(relax.op.astype(low, "int32")), emit(relax.op.subtract(moved, low))


def _grid(
    builder: relax.BlockBuilder, outputs: Sequence[int | Expr], attrs: dict[str, Any], dtype: str
) -> Expr:
    """Where samples lie without offsets: [elements of the kernel, axes, output elements]."""
    rank, kernel = len(outputs), attrs["kernel_shape"]
    at = np.indices(kernel).reshape(rank, -1)
    first = [at[axis] * attrs["dilations"][axis] - attrs["pads"][axis] for axis in range(rank)]
    if all(isinstance(size, int) for size in outputs):
        place = np.indices(outputs).reshape(rank, -1)
        grid = [place[axis] * attrs["strides"][axis] + first[axis][:, None] for axis in range(rank)]
        return literal(np.stack(grid, 1).astype(dtype))
    starts, steps = literal(np.stack(first, 1)), literal(np.array(attrs["strides"], np.int64))

    def compute(starts: te.Tensor, steps: te.Tensor, outputs: list[Expr]) -> te.Tensor:
        def element(tap: Expr, axis: Expr, row: Expr) -> Expr:
            places: list[Expr] = []
            for size in reversed(outputs):
                places.insert(0, tirx.floormod(row, size))
                row = tirx.floordiv(row, size)
            place = places[0]
            for other in range(1, rank):
                place = tirx.Select(axis == other, places[other], place)
            return (place * steps[axis] + starts[tap, axis]).astype(dtype)

        return te.compute((at.shape[1], rank, math.prod(outputs)), element, name="deform_grid")

    return builder.emit_te(compute, starts, steps, list(outputs), primfunc_name_hint="deform_grid")


def _column(builder: relax.BlockBuilder, sizes: Sequence[int | Expr], dtype: str) -> Expr:
    """Sizes as a tensor [sizes, 1]."""
    if all(isinstance(size, int) for size in sizes):
        return literal(np.array(sizes, dtype)[:, None])
    row = builder.normalize(relax.op.shape_to_tensor(relax.ShapeExpr(list(sizes))))
    row = builder.normalize(relax.op.astype(row, dtype))
    return builder.normalize(relax.op.reshape(row, (len(sizes), 1)))


DEFORM_CONVERTERS: dict[str, Converter] = {"DeformColumns": _columns}
