"""Converters of operators that sample images."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from operator import add, mul
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from tir_schedules.core.emission import opaque_block

from ... import expressions as ex
from ...expressions import OPSET, Attrs, Expr, Place
from ..graph.kernels import cell, emit_kernel, fields, put, reshaped_to
from ..graph.requests import check, check_equal, check_sizes, requested_sizes, sizes_text
from ..graph.sizes import dims_of, index, plain, plain_dims, product, simplified
from ..operators import operator
from .pooling import window_counts, window_form
from .shape import moved

# RoiAlign as ONNX defines it: the mean or maximum of bilinear samples in the bins of a region.
#
#     RoiAlign(x, regions, batch)    ->    transpose(roi_align(transpose(x), regions, batch))
#
# Channels are the last axis during sampling: a pixel's channels form a vector, and the position and
# weights of a sample are computed once for all of them.
#
# TVM's operator moves by half a pixel before it scales, takes for mode=max the largest sample
# instead of the largest weighted pixel of all samples, and reads out of bounds for a wrong batch
# index or a NaN.


_LEAST = -(1 << 30)  # a smaller number of samples counts as undefined (NaN)


class _Side:
    """One axis of a region: its bins and samples, and the state of the current sample.

    Attributes
    ----------
    extent : Expr
        Extent of the image along the axis.
    start, bin : Expr
        Start of the region, and extent of a bin.
    samples : Expr
        Number of samples in a bin; 0 or less for none.
    place, low, weights : Expr
        Cells: the sample's position, the element before it, the weights of that and the next one.
    """

    def __init__(self, extent: Expr, start: Expr, one_bin: Expr, ratio: int) -> None:
        self.dtype = dtype = str(start.ty.dtype)
        first, size, self.place = (cell(dtype) for _ in range(3))
        samples, self.low = cell(), cell()
        put(first, start)
        put(size, one_bin)
        if ratio > 0:
            put(samples, index(ratio))
        else:
            whole = te.ceil(size[0])
            known = tirx.Select(whole > tirx.const(_LEAST, dtype), whole, tirx.const(0, dtype))
            put(samples, known.astype("int64"))
        self.weights = I.sblock_alloc_buffer([2], dtype)
        self.extent, self.start, self.bin, self.samples = extent, first[0], size[0], samples[0]

    def go_to(self, position: Expr, step: Expr) -> None:
        """Makes sample number `step` of a bin the current sample."""
        dtype = self.dtype
        offset = (step.astype(dtype) + tirx.const(0.5, dtype)) * self.bin
        first = self.start + position.astype(dtype) * self.bin
        put(self.place, first + offset / self.samples.astype(dtype))
        last = (self.extent - 1).astype(dtype)
        held = te.min(te.max(self.place[0], tirx.const(0, dtype)), last)
        put(self.low, te.min(te.max(te.floor(held).astype("int64"), index(0)), self.extent - 1))
        share = held - self.low[0].astype(dtype)
        put(self.weights, tirx.const(1, dtype) - share, 0)
        put(self.weights, share, 1)

    def is_inside(self) -> Expr:
        """Whether the current sample counts; a sample at NaN does not."""
        place, least = self.place[0], tirx.const(-1, self.dtype)
        return tirx.all(place >= least, place <= self.extent.astype(self.dtype))

    def neighbours(self) -> list[tuple[Expr, Expr]]:
        """The two elements around the current sample, and their weights."""
        low = self.low[0]
        return [(low, self.weights[0]), (te.min(low + 1, self.extent - 1), self.weights[1])]


@operator("RoiAlign")
def _roi_align(x: Expr, regions: Expr, batch: Expr, *, mode: str = "avg", **attrs: Any) -> Expr:
    check_equal(dims_of(regions)[0], dims_of(batch)[0])
    dtype = ex.dtype_of(x)
    if mode not in ("avg", "max"):
        raise ValueError(f"mode={mode!r} is neither avg nor max")
    # Opset 16 added the attribute, with another default.
    default = "half_pixel" if attrs[OPSET] >= 16 else "output_half_pixel"
    transformation = attrs.get("coordinate_transformation_mode", default)
    if transformation not in ("half_pixel", "output_half_pixel"):
        raise ValueError(f"coordinate_transformation_mode={transformation!r}")
    sizes = attrs.get("output_height", 1), attrs.get("output_width", 1)
    ratio = attrs.get("sampling_ratio", 0)

    def number(value: float) -> Expr:
        return tirx.const(value, dtype)

    scale = number(attrs.get("spatial_scale", 1.0))
    half = number(0.5 if transformation == "half_pixel" else 0.0)

    def side(regions: Expr, region: Expr, extent: Expr, axis: int) -> _Side:
        """The side along an axis: rows are axis 0, but the second coordinate."""
        start = regions[region, 1 - axis] * scale - half
        length = regions[region, 3 - axis] * scale - half - start
        if transformation == "output_half_pixel":
            length = te.max(length, number(1))
        return _Side(extent, start, length / number(sizes[axis]), ratio)

    def body(x: Expr, regions: Expr, batch: Expr, y: Expr) -> None:
        images, *extents, channels = x.shape
        with I.parallel(regions.shape[0]) as region, opaque_block("region"):
            rows, columns = (side(regions, region, extents[axis], axis) for axis in (0, 1))
            image = te.min(te.max(batch[region].astype("int64"), index(0)), images - 1)
            none = tirx.EQ(images * extents[0] * extents[1], index(0))
            samples = (te.max(each.samples, index(0)) for each in (rows, columns))
            counts = [tirx.Select(none, index(0), each) for each in samples]
            begun = number(0)
            if mode == "max":
                some = te.min(*counts) > 0
                begun = tirx.Select(some, tirx.min_value(dtype), number(0))
            part = cell(dtype)
            put(part, number(1) / te.max(counts[0] * counts[1], index(1)).astype(dtype))
            with I.serial(index(sizes[0])) as row:
                with I.grid(index(sizes[1]), channels) as (column, channel):
                    put(y, begun, region, row, column, channel)
                with I.serial(counts[0]) as step:
                    rows.go_to(row, step)
                    with I.grid(index(sizes[1]), counts[1]) as (column, across):
                        columns.go_to(column, across)
                        inside = tirx.all(rows.is_inside(), columns.is_inside())
                        with I.If(inside):
                            with I.Then(), I.serial(channels) as channel:
                                here = (region, row, column, channel)
                                pairs = itertools.product(rows.neighbours(), columns.neighbours())
                                parts = [
                                    a * b * x[image, h, w, channel] for (h, a), (w, b) in pairs
                                ]
                                if mode == "avg":
                                    total = parts[0] + parts[1] + parts[2] + parts[3]
                                    put(y, y[here] + total * part[0], *here)
                                else:
                                    put(y, functools.reduce(te.max, parts, y[here]), *here)
                            if mode == "max":
                                with I.Else(), I.serial(channels) as channel:
                                    here = (region, row, column, channel)
                                    put(y, te.max(y[here], number(0)), *here)

    pixels = ex.normalize(relax.op.permute_dims(x, [0, 2, 3, 1]))
    shape = [dims_of(regions)[0], *sizes, dims_of(x)[1]]
    (y,) = emit_kernel("roi_align", [pixels, regions, batch], [(shape, dtype)], body)
    return relax.op.permute_dims(y, [0, 3, 1, 2])


# Relax's operator only takes numbers, so a grid of dynamic size is a kernel.
#
# any number of images, static extents    ->    R.image.affine_grid
# extents that follow from other sizes    ->    a kernel with the formula of that operator


_WIDTH = 2.0 - 1e-7  # from the first corner to the last, as in TVM


@operator("AffineGrid")
def _affine_grid(theta: Expr, size: Expr, *, align_corners: int = 0) -> Expr:
    images, _, *extents = requested_sizes(size)
    axes = len(extents)
    misfit = f"theta {theta.ty.shape} for a grid of {axes} axes"
    check_sizes(dims_of(theta), (images, index(axes), index(axes + 1)), misfit)
    if all(isinstance(extent, tirx.IntImm) for extent in extents):
        grid = relax.op.image.affine_grid(theta, tuple(map(int, extents)), bool(align_corners))
        return relax.op.permute_dims(grid, [0, *range(2, axes + 2), 1])
    for extent in extents if align_corners else ():  # one element has no two corners
        check(extent > 1, "align_corners wants two elements along each axis")
    dtype, one = ex.dtype_of(theta), tirx.const(1, "float64")

    def coordinate(at: Expr, extent: Expr) -> Expr:
        """Coordinate of an element, from -1 to 1; constants are rounded from float64 as in TVM."""
        if align_corners:
            steps = te.max(extent - 1, index(1)).astype("float64")
            start, step = tirx.const(-1, "float64"), tirx.const(_WIDTH, "float64") / steps
        else:
            elements = te.max(extent, index(1)).astype("float64")
            start, step = one / elements - one, tirx.const(2, "float64") / elements
        return start.astype(dtype) + at.astype(dtype) * step.astype(dtype)

    def element(place: Place, theta: te.Tensor, extents: list[Expr]) -> Expr:
        image, *elements, axis = place
        value = theta(image, axis, index(axes))
        for number, (at, extent) in enumerate(zip(elements, extents, strict=True)):
            factor = theta(image, axis, index(axes - 1 - number))
            value = value + factor * coordinate(at, extent)
        return value

    shape = [dims_of(theta)[0], *extents, index(axes)]
    return ex.emit_each("grid", shape, element, theta, list(extents), hint="affine_grid")


_FLOATS = ("float32", "float16", "bfloat16", "float64")
_PICKED = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32")  # exact in float64


@operator("GridSample")
def _grid_sample(images: Expr, grid: Expr, *, mode: str = "linear", **attrs: Any) -> Expr:
    axes = ex.rank_of(images) - 2
    check_equal(dims_of(images)[0], dims_of(grid)[0])
    check_equal(dims_of(grid)[-1], index(axes))
    methods = {"linear": "bilinear", "cubic": "bicubic", "bicubic": "bicubic"}
    own, method = ex.dtype_of(images), methods.get(mode, mode)
    if own not in _FLOATS and (mode != "nearest" or own not in _PICKED):
        raise ValueError(f"{own} is not interpolated; cast it to float before")
    if axes not in (2, 3) or (axes == 3 and method == "bicubic"):
        raise ValueError(f"{axes} spatial axes with mode={method}")
    padding, corners = attrs.get("padding_mode", "zeros"), bool(attrs.get("align_corners", 0))
    return grid_sampled(images, grid, method, padding, corners)


def grid_sampled(x: Expr, grid: Expr, method: str, padding: str, corners: bool) -> Expr:
    """Samples of [N, C, *sizes] at [N, *places, axes]; Relax has the axes before the places."""
    own, axes = ex.dtype_of(x), ex.rank_of(x) - 2
    # Relax's operator computes float16 in float32, and different types in the wider one.
    single = all(ex.dtype_of(each) in _FLOATS[:3] for each in (x, grid))
    x, grid = (ex.cast(each, "float32" if single else "float64") for each in (x, grid))
    sampled = relax.op.image.grid_sample(
        x,
        ex.normalize(relax.op.permute_dims(grid, [0, axes + 1, *range(1, axes + 1)])),
        method=method,
        layout="NCHW" if axes == 2 else "NCDHW",
        padding_mode=padding,
        align_corners=corners,
    )
    return ex.cast(ex.normalize(sampled), own)


# DeformConv as a matrix product.
#
#     DeformConv(x, w, offset, b, mask)
#         ->  matmul(columns, transpose(w)) + b, channels moved to the front
#             columns: [N, group, OH * OW, C / group * KH * KW], a kernel
#
# Channels and kernel sizes must be static; batch and extents may be dynamic. Narrow floats are
# sampled and multiplied in float32.


_FAR = -2  # this element and the next one are both outside
_OUTSIDE = -1.0  # marks a weight of an element outside


@operator("DeformConv")
def _deform_conv(x: Expr, w: Expr, offset: Expr, bias: Expr, mask: Expr, **attrs: Any) -> Expr:
    """DeformConv as samples, one product for each group, and the bias."""
    own = ex.dtype_of(x)
    wide = "float32" if own in ("float16", "bfloat16") else own
    given = x, w, offset, bias, mask
    x, w, offset, bias, mask = (each if each is None else ex.cast(each, wide) for each in given)
    form = _deformed([x, w, offset, bias, mask], attrs)
    batch, outputs = dims_of(offset)[0], dims_of(offset)[2:]
    channels, weights, groups = plain_dims(x)[1], ex.known_dims(w)[0], form["group"]
    taps = math.prod(form["kernel_shape"])
    depth = channels // groups * taps
    columns = _columns(x, offset, mask, form)
    split = (groups, weights // groups, channels // groups, taps)
    matrix = moved(w, split, [0, 3, 2, 1], (groups, depth, weights // groups))
    value = relax.op.matmul(columns, matrix)
    if bias is not None:
        value = value + relax.op.reshape(bias, (groups, 1, weights // groups))
    value = relax.op.permute_dims(value, [0, 1, 3, 2])
    value = relax.op.reshape(value, relax.ShapeExpr([batch, index(weights), *outputs]))
    return ex.cast(value, own)


def _deformed(inputs: Sequence[Any], attrs: Attrs) -> Attrs:
    """Checks attributes and inputs, and fills in default attributes; ValueError if they misfit."""
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
    expected = [
        [weights, channels // groups[0], *map(index, kernel)],
        [batch, index(count * rank), *outputs],
        [weights],
        [batch, index(count), *outputs],
    ]
    # The program checks dynamic sizes.
    for place, (value, wanted) in enumerate(zip(inputs[1:], expected, strict=True), 1):
        if value is not None:
            own, other = sizes_text(dims_of(value)), sizes_text(wanted)
            misfit = f"its input {place} has the shape {own}; the others ask for {other}"
            check_sizes(dims_of(value), wanted, misfit)
    # If there is anything to sample, the image must have elements.
    none = tirx.EQ(product(dims_of(inputs[2])), index(0))
    check(tirx.any(product(extents) > 0, none))
    return form


def _columns(x: Expr, offset: Expr, mask: Expr | None, attrs: Attrs) -> Expr:
    """Bilinear samples [batch, groups, output elements, kernel elements * channels of a group]."""
    (batch, channels, *_), outputs = plain_dims(x), plain_dims(offset)[2:]
    rank, dtype, groups = ex.rank_of(x) - 2, ex.dtype_of(x), attrs["group"]
    taps, offset_groups = math.prod(attrs["kernel_shape"]), attrs["offset_group"]
    per_group, per_offset = channels // groups, channels // offset_groups
    # This many successive channels share a group and an offset group.
    unit = math.gcd(per_group, per_offset)
    corners = _corners(offset, plain_dims(x)[2:], attrs)
    pixels = relax.op.permute_dims(x, [0, *range(2, rank + 2), 1])
    pixels = reshaped_to(pixels, (batch, math.prod(plain_dims(x)[2:]), channels))
    shape = relax.ShapeExpr((batch, offset_groups, taps, *outputs))
    masks = [] if mask is None else [ex.normalize(relax.op.reshape(mask, shape))]

    def element(
        at: Place, pixels: te.Tensor, corners: list[te.Tensor], masks: list[te.Tensor]
    ) -> Expr:
        image, group, *row, tap, part, within = at
        first = group * per_group + part * unit
        own = (image, first // per_offset, tap, *row)
        parts = []
        for place, weight in zip(corners[: 2**rank], corners[2**rank :], strict=True):
            pixel, share = pixels[image, place[own], first + within], weight[own]
            # A sample outside is 0, and so are the parts of a sample that lie outside.
            zero = tirx.const(0, dtype)
            parts.append(tirx.Select(share >= zero, share * pixel, zero))
        value = functools.reduce(add, parts)
        return value * masks[0][own] if masks else value

    sizes, name = (batch, groups, *outputs, taps, per_group // unit, unit), "deform_columns"
    columns = ex.emit_each(name, sizes, element, pixels, corners, masks, hint=name)
    return reshaped_to(columns, (batch, groups, math.prod(outputs), taps * per_group))


def _corners(offset: Expr, extents: Sequence[int | Expr], attrs: Attrs) -> list[Expr]:
    """Indices of the elements around each sample, 0 for elements outside, then their weights."""
    dtype, rank = ex.dtype_of(offset), len(extents)
    batch, _, *outputs = plain_dims(offset)
    taps, groups = math.prod(attrs["kernel_shape"]), attrs["offset_group"]
    moved = reshaped_to(offset, (batch, groups, taps, rank, *outputs))

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
                # Indices always lie in the image: TVM drops a bound of an index that a Select
                # implies, and then reads the element that the Select does not choose.
                return tirx.Select(tirx.all(*inside), flat, tirx.const(0, "int32"))

            return element

        # [N, offset groups, elements of the kernel, *output extents]
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
    return fields(found)
