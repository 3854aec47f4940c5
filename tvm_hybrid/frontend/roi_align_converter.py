"""RoiAlign as ONNX defines it: bilinear samples of a region, their mean or the largest of them.

    RoiAlign(x, regions, batch)    ->    transpose(roi_align(transpose(x), regions, batch))

Channels come last while it samples: those of a pixel are a vector then, and where a sample lies, by
which weights, is computed once for all of them.

TVM's operator moves by half a pixel before it scales, takes for mode=max the largest sample instead
of the largest of the four weighted pixels of all samples, and reads where the batch index and a NaN
point to.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from tir_schedules.core.emission import opaque_block

from .data_sized.kernels import cell, emit_kernel, index, put
from .data_sized.sizes import dims_of
from .expressions import Converter, Expr, dtype_of

_LEAST = -(1 << 30)  # samples in place of an undefined number


@dataclass(frozen=True)
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

    extent: Expr
    start: Expr
    bin: Expr
    samples: Expr
    place: Expr
    low: Expr
    weights: Expr

    @classmethod
    def new(cls, extent: Expr, start: Expr, one_bin: Expr, ratio: int) -> _Side:
        """The axis with cells of its own."""
        dtype = str(start.ty.dtype)
        kept = [cell(dtype) for _ in range(3)]
        samples, low = cell(), cell()
        put(kept[0], start)
        put(kept[1], one_bin)
        if ratio > 0:
            put(samples, index(ratio))
        else:
            whole = te.ceil(kept[1][0])
            known = tirx.Select(whole > tirx.const(_LEAST, dtype), whole, tirx.const(0, dtype))
            put(samples, known.astype("int64"))
        weights = I.sblock_alloc_buffer([2], dtype)
        return cls(extent, kept[0][0], kept[1][0], samples[0], kept[2], low, weights)

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


def _roi_align(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x, regions, batch = inputs
    dtype = dtype_of(x)
    mode = attrs.get("mode", b"avg")
    if mode not in (b"avg", b"max"):
        raise ValueError(f"mode={mode!r} is neither avg nor max")
    transformation = attrs.get("coordinate_transformation_mode", b"output_half_pixel")
    if transformation not in (b"half_pixel", b"output_half_pixel"):
        raise ValueError(f"coordinate_transformation_mode={transformation!r}")
    sizes = attrs.get("output_height", 1), attrs.get("output_width", 1)
    ratio = attrs.get("sampling_ratio", 0)

    def number(value: float) -> Expr:
        return tirx.const(value, dtype)

    scale = number(attrs.get("spatial_scale", 1.0))
    half = number(0.5 if transformation == b"half_pixel" else 0.0)

    def side(regions: Expr, region: Expr, extent: Expr, axis: int) -> _Side:
        """Rows are axis 0, but the second coordinate."""
        start = regions[region, 1 - axis] * scale - half
        length = regions[region, 3 - axis] * scale - half - start
        if transformation == b"output_half_pixel":
            length = te.max(length, number(1))
        return _Side.new(extent, start, length / number(sizes[axis]), ratio)

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        (x, regions, batch), (y,) = ins, outs
        images, *extents, channels = x.shape
        with I.parallel(regions.shape[0]) as region, opaque_block("region"):
            rows, columns = (side(regions, region, extents[axis], axis) for axis in (0, 1))
            image = te.min(te.max(batch[region].astype("int64"), index(0)), images - 1)
            none = tirx.EQ(images * extents[0] * extents[1], index(0))
            counts = [
                tirx.Select(none, index(0), te.max(each.samples, index(0)))
                for each in (rows, columns)
            ]
            begun = number(0)
            if mode == b"max":
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
                                parts = [
                                    a * b * x[image, h, w, channel]
                                    for (h, a), (w, b) in itertools.product(
                                        rows.neighbours, columns.neighbours
                                    )
                                ]
                                if mode == b"avg":
                                    total = parts[0] + parts[1] + parts[2] + parts[3]
                                    put(y, y[here] + total * part[0], *here)
                                else:
                                    put(y, functools.reduce(te.max, parts, y[here]), *here)
                            if mode == b"max":
                                with I.Else(), I.serial(channels) as channel:
                                    here = (region, row, column, channel)
                                    put(y, te.max(y[here], number(0)), *here)

    pixels = builder.normalize(relax.op.permute_dims(x, [0, 2, 3, 1]))
    shape = [dims_of(regions)[0], *sizes, dims_of(x)[1]]
    (y,) = emit_kernel(builder, "roi_align", [pixels, regions, batch], [(shape, dtype)], body)
    return relax.op.permute_dims(y, [0, 3, 1, 2])


ROI_ALIGN_CONVERTERS: dict[str, Converter] = {"RoiAlign": _roi_align}
