"""DeformConv as a matrix product.

DeformConv(x, w, offset, b, mask)
    ->  matmul(columns, transpose(w)) + b, channels moved to the front
        columns: [N, group, OH * OW, C / group * KH * KW], a kernel

Channels and the kernel must be known; batch and extents may be open. Narrow floats are sampled and
multiplied in float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from operator import add, mul
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.relax import op

from ... import expressions as ex
from ...expressions import Attrs, Expr, Inputs
from ..graph.requests import check, check_sizes, sizes_text
from ..graph.sizes import dims_of, index, plain, plain_dims, product, simplified
from ..operators import operator
from .pooling import window_counts, window_form

_FAR = -2  # an element whose next one is outside, too
_OUTSIDE = -1.0  # in place of a weight


@operator("DeformConv")
def _deform_conv(inputs: Inputs, attrs: Attrs) -> Any:
    """Samples, a product for each group, and the bias."""
    own = ex.dtype_of(inputs[0])
    wide = "float32" if own in ("float16", "bfloat16") else own
    x, w, offset = (ex.cast(each, wide) for each in list(inputs)[:3])
    bias, mask = (each if each is None else ex.cast(each, wide) for each in (inputs[3], inputs[4]))
    form = _form([x, w, offset, bias, mask], attrs)
    batch, outputs = dims_of(offset)[0], dims_of(offset)[2:]
    channels, weights, groups = plain_dims(x)[1], ex.known_dims(w)[0], form["group"]
    taps = math.prod(form["kernel_shape"])
    depth = channels // groups * taps
    columns = _columns(x, offset, mask, form)
    matrix = op.reshape(w, (groups, weights // groups, channels // groups, taps))
    matrix = op.reshape(op.permute_dims(matrix, [0, 3, 2, 1]), (groups, depth, weights // groups))
    value = op.matmul(columns, matrix)
    if bias is not None:
        value = value + op.reshape(bias, (groups, 1, weights // groups))
    value = op.permute_dims(value, [0, 1, 3, 2])
    value = op.reshape(value, relax.ShapeExpr([batch, index(weights), *outputs]))
    return ex.cast(value, own)


def _form(inputs: Sequence[Any], attrs: Attrs) -> Attrs:
    """Attributes with their defaults, once these and the inputs fit; ValueError if not.

    Sizes that are not known are checked by the program.
    """
    batch, channels, *extents = plain_dims(inputs[0])
    (weights, _, *kernel), rank = ex.known_dims(inputs[1]), len(extents)
    if not isinstance(channels, int):
        raise ValueError("the number of its channels must be known")
    form = {"offset_group": 1, **window_form(attrs, rank), "kernel_shape": kernel}
    sizes = [len(kernel), len(form["strides"]), len(form["dilations"]), len(form["pads"]) // 2]
    groups = form["group"], form["offset_group"]
    if sizes != [rank] * 4 or attrs.get("kernel_shape", kernel) != kernel:
        raise ValueError("kernel, strides, pads, dilations do not fit its input")
    if min(*groups, *form["strides"], *form["dilations"]) < 1:
        raise ValueError("groups, strides and dilations must be positive")
    if channels % groups[0] or channels % groups[1] or weights % groups[0]:
        raise ValueError("its groups do not divide its channels")
    (batch, channels, *extents), (weights, *_) = map(dims_of, inputs[:2])
    count, outputs = math.prod(kernel) * groups[1], window_counts(extents, kernel, form)
    outputs = list(map(simplified, outputs))
    expected = {
        1: [weights, channels // groups[0], *map(index, kernel)],
        2: [batch, index(count * rank), *outputs],
        3: [weights],
        4: [batch, index(count), *outputs],
    }
    for place, wanted in expected.items():
        if inputs[place] is None:
            continue
        found = dims_of(inputs[place])
        own, other = sizes_text(found), sizes_text(wanted)
        misfit = f"its input {place} has the shape {own}; the others ask for {other}"
        check_sizes(found, wanted, misfit)
    # There are elements to sample.
    none = tirx.EQ(product(dims_of(inputs[2])), index(0))
    check(tirx.any(product(extents) > 0, none))
    return form


def _columns(x: Expr, offset: Expr, mask: Expr | None, attrs: Attrs) -> Expr:
    """For each output element one row of bilinear samples, a sample for each channel of its group
    and each element of the kernel.

    A sample outside is 0, as are the parts of a sample that come from outside.
    """
    (batch, channels, *_), outputs = plain_dims(x), plain_dims(offset)[2:]
    rank, dtype, groups = ex.rank_of(x) - 2, ex.dtype_of(x), attrs["group"]
    taps, offset_groups = math.prod(attrs["kernel_shape"]), attrs["offset_group"]
    per_group, per_offset = channels // groups, channels // offset_groups
    # So many channels share a group and an offset group.
    unit = math.gcd(per_group, per_offset)
    corners = _corners(offset, plain_dims(x)[2:], attrs)
    flat = relax.ShapeExpr((batch, math.prod(plain_dims(x)[2:]), channels))
    pixels = relax.op.permute_dims(x, [0, *range(2, rank + 2), 1])
    pixels = ex.normalize(relax.op.reshape(pixels, flat))
    masks = []
    if mask is not None:
        shape = relax.ShapeExpr((batch, offset_groups, taps, *outputs))
        masks = [ex.normalize(relax.op.reshape(mask, shape))]

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
            value = functools.reduce(add, parts)
            return value * masks[0][own] if masks else value

        shape = (batch, groups, *outputs, taps, per_group // unit, unit)
        return te.compute(shape, element, name="deform_columns")

    columns = ex.emit_te(compute, pixels, corners, masks, primfunc_name_hint="deform_columns")
    rows = (batch, groups, math.prod(outputs), taps * per_group)
    return relax.op.reshape(columns, relax.ShapeExpr(rows))


def _corners(offset: Expr, extents: Sequence[int | Expr], attrs: Attrs) -> list[Expr]:
    """The elements around each sample, the first one for what is outside, and then their weights.

    Each is of the shape [N, offset groups, elements of the kernel, *output extents]. Places are
    within the image: TVM drops a bound of an index where a Select implies it, and then reads what
    the Select does not choose.
    """
    dtype, rank = ex.dtype_of(offset), len(extents)
    batch, _, *outputs = plain_dims(offset)
    taps, groups = math.prod(attrs["kernel_shape"]), attrs["offset_group"]
    shape = relax.ShapeExpr((batch, groups, taps, rank, *outputs))
    moved = ex.normalize(relax.op.reshape(offset, shape))

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
                    weight = functools.reduce(mul, weights)
                    return tirx.Select(tirx.all(*inside), weight, tirx.const(_OUTSIDE, dtype))
                flat = places[0]
                for place, extent in zip(places[1:], extents[1:], strict=True):
                    flat = flat * tirx.Cast("int32", extent) + place
                return tirx.Select(tirx.all(*inside), flat, tirx.const(0, "int32"))

            return element

        shape = (batch, groups, taps, *outputs)
        return [
            te.compute(shape, corner(which, part), name=f"corner_{which}_{part}")
            for part in (0, 1)
            for which in range(2**rank)
        ]

    kernel = attrs["kernel_shape"]
    at = np.indices(kernel).reshape(rank, -1)
    first = [at[axis] * attrs["dilations"][axis] - attrs["pads"][axis] for axis in range(rank)]
    starts = ex.literal(np.stack(first, 1).astype(np.int64))
    found = ex.emit_te(compute, moved, starts, list(extents), primfunc_name_hint="deform_corners")
    return [ex.emit(relax.TupleGetItem(found, i)) for i in range(2 ** (rank + 1))]
