"""Converters of operators that sample images."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from tir_schedules.core.emission import opaque_block

from ... import expressions as ex
from ...expressions import OPSET, Attrs, Expr, Inputs
from ..graph.kernels import cell, emit_kernel, put
from ..graph.requests import check, check_equal, check_sizes, requested_sizes
from ..graph.sizes import dims_of, index
from ..operators import operator

# RoiAlign as ONNX defines it: bilinear samples of a region, their mean or the largest of them.
#
#     RoiAlign(x, regions, batch)    ->    transpose(roi_align(transpose(x), regions, batch))
#
# Channels come last while it samples: those of a pixel are a vector then, and where a sample lies,
# by which weights, is computed once for all of them.
#
# TVM's operator moves by half a pixel before it scales, takes for mode=max the largest sample
# instead of the largest of the four weighted pixels of all samples, and reads where the batch index
# and a NaN point to.


_LEAST = -(1 << 30)  # samples in place of an undefined number


class _Side:
    """One axis of a region: its bins and their samples, and what is known of the present sample.

    Attributes
    ----------
    extent : Expr
        Elements of the image along the axis.
    start, bin : Expr
        Where the region begins, and the extent of a bin.
    samples : Expr
        How many samples a bin has; 0 or less if it has none.
    place, low, weights : Expr
        Cells: where the sample lies, the element before it, and the weights of that and the next.
    """

    def __init__(self, extent: Expr, start: Expr, one_bin: Expr, ratio: int) -> None:
        dtype = str(start.ty.dtype)
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
        """Makes a sample of a bin the present one."""
        dtype = str(self.start.ty.dtype)
        offset = (step.astype(dtype) + tirx.const(0.5, dtype)) * self.bin
        first = self.start + position.astype(dtype) * self.bin
        put(self.place, first + offset / self.samples.astype(dtype))
        last = (self.extent - 1).astype(dtype)
        held = te.min(te.max(self.place[0], tirx.const(0, dtype)), last)
        put(self.low, te.min(te.max(te.floor(held).astype("int64"), index(0)), self.extent - 1))
        share = held - self.low[0].astype(dtype)
        put(self.weights, tirx.const(1, dtype) - share, 0)
        put(self.weights, share, 1)

    @property
    def is_inside(self) -> Expr:
        """Whether the present sample counts; that at a NaN does not."""
        dtype = str(self.start.ty.dtype)
        place = self.place[0]
        return tirx.all(place >= tirx.const(-1, dtype), place <= self.extent.astype(dtype))

    @property
    def neighbours(self) -> list[tuple[Expr, Expr]]:
        """The two elements around the present sample, and their weights."""
        low = self.low[0]
        return [(low, self.weights[0]), (te.min(low + 1, self.extent - 1), self.weights[1])]


@operator("RoiAlign")
def _roi_align(inputs: Inputs, attrs: Attrs) -> Any:
    x, regions, batch = inputs
    check_equal(dims_of(regions)[0], dims_of(batch)[0])
    dtype, mode = ex.dtype_of(x), attrs.get("mode", "avg")
    if mode not in ("avg", "max"):
        raise ValueError(f"mode={mode!r} is neither avg nor max")
    # Opset 16 brought the attribute, and another default.
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
        """Rows are axis 0, but the second coordinate."""
        start = regions[region, 1 - axis] * scale - half
        length = regions[region, 3 - axis] * scale - half - start
        if transformation == "output_half_pixel":
            length = te.max(length, number(1))
        return _Side(extent, start, length / number(sizes[axis]), ratio)

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        (x, regions, batch), (y,) = ins, outs
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
                        inside = tirx.all(rows.is_inside, columns.is_inside)
                        with I.If(inside):
                            with I.Then(), I.serial(channels) as channel:
                                here = (region, row, column, channel)
                                pairs = itertools.product(rows.neighbours, columns.neighbours)
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


# Relax's operator knows only numbers: a grid of open sizes is a kernel.
#
# of any number of images of known extents    ->    R.image.affine_grid
# of extents that follow from other sizes     ->    a kernel with the formula of that operator


_WIDTH = 2.0 - 1e-7  # from the first corner to the last one, as TVM has it


@operator("AffineGrid")
def _affine_grid(inputs: Inputs, attrs: Attrs) -> Any:
    theta, size = inputs
    images, _, *extents = requested_sizes(size)
    axes = len(extents)
    misfit = f"theta {theta.ty.shape} for a grid of {axes} axes"
    check_sizes(dims_of(theta), (images, index(axes), index(axes + 1)), misfit)
    corners = bool(attrs.get("align_corners", 0))
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return _open_grid(theta, extents, corners)
    grid = relax.op.image.affine_grid(theta, tuple(map(int, extents)), corners)
    return relax.op.permute_dims(grid, [0, *range(2, axes + 2), 1])


def _open_grid(theta: Expr, extents: Sequence[Expr], corners: bool) -> Expr:
    """The grid, [images, *extents, axes]."""
    if corners:
        for extent in extents:  # a single element has no two corners
            check(extent > 1, "align_corners wants two elements along each axis")
    axes, dtype, one = len(extents), ex.dtype_of(theta), tirx.const(1, "float64")

    def coordinate(at: Expr, extent: Expr) -> Expr:
        """Where an element lies, from -1 to 1; constants are rounded from float64, as in TVM."""
        if corners:
            steps = te.max(extent - 1, index(1)).astype("float64")
            start, step = tirx.const(-1, "float64"), tirx.const(_WIDTH, "float64") / steps
        else:
            elements = te.max(extent, index(1)).astype("float64")
            start, step = one / elements - one, tirx.const(2, "float64") / elements
        return start.astype(dtype) + at.astype(dtype) * step.astype(dtype)

    def compute(theta: te.Tensor, extents: list[Expr]) -> te.Tensor:
        def element(*place: Expr) -> Expr:
            image, *elements, axis = place
            value = theta(image, axis, index(axes))
            for number, (at, extent) in enumerate(zip(elements, extents, strict=True)):
                factor = theta(image, axis, index(axes - 1 - number))
                value = value + factor * coordinate(at, extent)
            return value

        shape = [theta.shape[0], *extents, index(axes)]
        return te.compute(shape, element, name="grid")

    return ex.emit_te(compute, theta, list(extents), primfunc_name_hint="affine_grid")


_FLOATS = ("float32", "float16", "bfloat16", "float64")
_PICKED = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32")  # exact in float64


@operator("GridSample")
def _grid_sample(inputs: Inputs, attrs: Attrs) -> Any:
    """Relax has the coordinates of the grid before the places: [N, 2, H, W]."""
    images, grid = inputs
    axes = ex.rank_of(images) - 2
    check_equal(dims_of(images)[0], dims_of(grid)[0])
    check_equal(dims_of(grid)[-1], index(axes))
    methods = {"linear": "bilinear", "cubic": "bicubic", "bicubic": "bicubic"}
    mode: str = attrs.get("mode", "linear")
    own, method = ex.dtype_of(images), methods.get(mode, mode)
    if own not in _FLOATS and (mode != "nearest" or own not in _PICKED):
        raise ValueError(f"{own} is not interpolated; cast it to float before")
    if axes not in (2, 3) or (axes == 3 and method == "bicubic"):
        raise ValueError(f"{axes} spatial axes with mode={method}")
    # The operator makes float32 of float16, and of different types the wider one.
    single = all(ex.dtype_of(each) in _FLOATS[:3] for each in inputs)
    images, grid = (ex.cast(each, "float32" if single else "float64") for each in inputs)
    order = [0, axes + 1, *range(1, axes + 1)]
    sampled = relax.op.image.grid_sample(
        images,
        ex.normalize(relax.op.permute_dims(grid, order)),
        method=method,
        layout="NCHW" if axes == 2 else "NCDHW",
        padding_mode=attrs.get("padding_mode", "zeros"),
        align_corners=bool(attrs.get("align_corners", 0)),
    )
    return ex.cast(ex.normalize(sampled), own)
