"""DeformColumns: the front end's own operator for what a deformable convolution multiplies.

    DeformColumns(x: [N, C, H, W], offset, mask)    ->    [N, group, OH * OW, C / group * KH * KW]

For each output element one row of bilinear samples, a sample for each channel of its group and each
element of the kernel. A sample outside is 0, as are the parts of a sample that come from outside.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from .data_sized.kernels import index
from .data_sized.requests import check, check_equal
from .data_sized.sizes import dims_of, is_open, plain, plain_dims, product
from .expressions import Converter, Expr, dtype_of, given, literal, rank_of
from .windows import window_count

_FAR = -2  # an element whose next one is outside, too
_OUTSIDE = -1.0  # in place of a weight


def _columns(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Expr:
    x, offset, mask = inputs[0], inputs[1], given(inputs, 2)
    (batch, channels, *_), outputs = plain_dims(x), plain_dims(offset)[2:]
    rank, dtype, groups = rank_of(x) - 2, dtype_of(x), attrs["group"]
    taps, offset_groups = math.prod(attrs["kernel_shape"]), attrs["offset_group"]
    per_group, per_offset = channels // groups, channels // offset_groups
    # So many channels share a group and an offset group.
    unit = math.gcd(per_group, per_offset)
    _check_sizes(builder, inputs, attrs)
    corners = _corners(builder, offset, plain_dims(x)[2:], attrs)
    pixels = builder.normalize(relax.op.permute_dims(x, [0, *range(2, rank + 2), 1]))
    flat = (batch, math.prod(plain_dims(x)[2:]), channels)
    pixels = builder.normalize(relax.op.reshape(pixels, relax.ShapeExpr(flat)))
    masks = []
    if mask is not None:
        shape = relax.ShapeExpr((batch, offset_groups, taps, *outputs))
        masks = [builder.normalize(relax.op.reshape(mask, shape))]

    def compute(pixels: te.Tensor, corners: list[te.Tensor], masks: list[te.Tensor]) -> te.Tensor:
        places, weights = corners[: 2**rank], corners[2**rank :]
        # The kernel's own names of sizes that are open.
        batch, _, _, *outputs = plain(places[0].shape)

        def element(image: Expr, group: Expr, *at: Expr) -> Expr:
            *row, tap, part, within = at
            first = group * per_group + part * unit
            own = (image, first // per_offset, tap, *row)
            parts = []
            for place, weight in zip(places, weights, strict=True):
                pixel, share = pixels[image, place[own], first + within], weight[own]
                zero = tirx.const(0, dtype)
                parts.append(tirx.Select(share >= zero, share * pixel, zero))
            value = functools.reduce(operator.add, parts)
            return value * masks[0][own] if masks else value

        shape = (batch, groups, *outputs, taps, per_group // unit, unit)
        return te.compute(shape, element, name="deform_columns")

    columns = builder.emit_te(compute, pixels, corners, masks, primfunc_name_hint="deform_columns")
    rows = (batch, groups, math.prod(outputs), taps * per_group)
    return relax.op.reshape(columns, relax.ShapeExpr(rows))


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


def _corners(
    builder: relax.BlockBuilder, offset: Expr, extents: Sequence[int | Expr], attrs: dict[str, Any]
) -> list[Expr]:
    """The elements around each sample, the first one for what is outside, and then their weights.

    Each is of the shape [N, offset groups, elements of the kernel, *output extents]. Places are
    within the image: TVM drops a bound of an index where a Select implies it, and then reads what
    the Select does not choose.
    """
    dtype, rank = dtype_of(offset), len(extents)
    batch, _, *outputs = plain_dims(offset)
    taps, groups = math.prod(attrs["kernel_shape"]), attrs["offset_group"]
    shape = relax.ShapeExpr((batch, groups, taps, rank, *outputs))
    moved = builder.normalize(relax.op.reshape(offset, shape))

    def compute(moved: te.Tensor, starts: te.Tensor, extents: list[Expr]) -> list[te.Tensor]:
        batch, _, _, _, *outputs = plain(moved.shape)

        def corner(which: int, part: int) -> Callable[..., Expr]:
            def element(image: Expr, group: Expr, tap: Expr, *row: Expr) -> Expr:
                places, weights, inside = [], [], []
                for axis, extent in enumerate(extents):
                    grid = row[axis] * attrs["strides"][axis] + starts[tap, axis]
                    place = moved[(image, group, tap, axis, *row)] + grid.astype(dtype)
                    near = tirx.all(place > tirx.const(-1, dtype), place < tirx.Cast(dtype, extent))
                    low = te.floor(tirx.Select(near, place, tirx.const(_FAR, dtype)))
                    share = place - low
                    step = which >> (rank - 1 - axis) & 1
                    weights.append(share if step else tirx.const(1, dtype) - share)
                    at = low.astype("int32") + step
                    places.append(at)
                    inside += [at >= 0, at < tirx.Cast("int32", extent)]
                if part:
                    weight = functools.reduce(operator.mul, weights)
                    return tirx.Select(tirx.all(*inside), weight, tirx.const(_OUTSIDE, dtype))
                flat = functools.reduce(
                    lambda flat, axis: flat * tirx.Cast("int32", extents[axis]) + places[axis],
                    range(1, rank),
                    places[0],
                )
                return tirx.Select(tirx.all(*inside), flat, tirx.const(0, "int32"))

            return element

        return [
            te.compute(
                (batch, groups, taps, *outputs), corner(which, part), name=f"corner_{which}_{part}"
            )
            for part in (0, 1)
            for which in range(2**rank)
        ]

    kernel = attrs["kernel_shape"]
    at = np.indices(kernel).reshape(rank, -1)
    first = [at[axis] * attrs["dilations"][axis] - attrs["pads"][axis] for axis in range(rank)]
    starts = literal(np.stack(first, 1).astype(np.int64))
    found = builder.emit_te(
        compute, moved, starts, list(extents), primfunc_name_hint="deform_corners"
    )
    return [builder.emit(relax.TupleGetItem(found, i)) for i in range(2 ** (rank + 1))]


DEFORM_CONVERTERS: dict[str, Converter] = {"DeformColumns": _columns}
