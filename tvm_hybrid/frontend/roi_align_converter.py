"""RoiAlign as ONNX defines it: bilinear samples of a region, their mean or the largest of them.

TVM's operator moves by half a pixel before it scales, takes for mode=max the largest sample instead
of the largest of the four weighted pixels of all samples, and reads where the batch index and a NaN
point to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from .data_sized.sizes import dims_of
from .expressions import Converter, Expr, dtype_of


@dataclass(frozen=True)
class _Side:
    """Along one axis of a region: where it begins, a bin's extent, and how many samples it has."""

    start: Expr
    bin: Expr
    samples: Expr

    def place(self, position: Expr, sample: Expr) -> Expr:
        """Where a sample of a bin lies."""
        dtype = str(self.bin.ty.dtype)
        offset = (sample.astype(dtype) + tirx.const(0.5, dtype)) * self.bin
        return self.start + position.astype(dtype) * self.bin + offset / self.samples.astype(dtype)


def _roi_align(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x, regions, batch = inputs
    channels = dims_of(x)[1]
    dtype = dtype_of(x)
    mode = attrs.get("mode", b"avg")
    if mode not in (b"avg", b"max"):
        raise ValueError(f"mode={mode!r} is neither avg nor max")
    transformation = attrs.get("coordinate_transformation_mode", b"output_half_pixel")
    if transformation not in (b"half_pixel", b"output_half_pixel"):
        raise ValueError(f"coordinate_transformation_mode={transformation!r}")
    shifted = transformation == b"half_pixel"
    sizes = attrs.get("output_height", 1), attrs.get("output_width", 1)
    ratio = attrs.get("sampling_ratio", 0)
    scale = tirx.const(attrs.get("spatial_scale", 1.0), dtype)
    shape = (dims_of(regions)[0], channels, *sizes)

    def number(value: float) -> Expr:
        return tirx.const(value, dtype)

    def side(regions: te.Tensor, region: Expr, axis: int) -> _Side:
        """Rows are axis 0, but the second coordinate."""
        half = number(0.5 if shifted else 0.0)
        start = regions[region, 1 - axis] * scale - half
        length = regions[region, 3 - axis] * scale - half - start
        if not shifted:
            length = te.max(length, number(1))
        one_bin = length / number(sizes[axis])
        count = tirx.const(ratio, "int32") if ratio > 0 else te.ceil(one_bin).astype("int32")
        return _Side(start, one_bin, count)

    def compute(x: te.Tensor, regions: te.Tensor, batch: te.Tensor) -> te.Tensor:
        images, _, *extents = x.shape

        def element(region: Expr, channel: Expr, row: Expr, column: Expr) -> Expr:
            sides = [side(regions, region, axis) for axis in (0, 1)]
            # A region without samples has one that lies outside: no reduction is empty.
            steps = [te.reduce_axis((0, te.max(each.samples, 1))) for each in sides]
            places = [
                each.place(position, step.var)
                for each, position, step in zip(sides, (row, column), steps, strict=True)
            ]
            outside = tirx.any(
                *(each.samples <= 0 for each in sides),
                *(
                    tirx.any(place < number(-1), place > extent.astype(dtype))
                    for place, extent in zip(places, extents, strict=True)
                ),
            )
            image = te.min(te.max(batch[region].astype("int32"), 0), images - 1)
            weighted = [
                tirx.if_then_else(outside, number(0), weight * x[image, channel, y, z])
                for y, a in _neighbours(places[0], extents[0])
                for z, b in _neighbours(places[1], extents[1])
                for weight in (a * b,)
            ]
            if mode == b"avg":
                total = weighted[0] + weighted[1] + weighted[2] + weighted[3]
                count = te.max(sides[0].samples * sides[1].samples, 1).astype(dtype)
                return te.sum(total / count, axis=steps)
            best = te.max(te.max(weighted[0], weighted[1]), te.max(weighted[2], weighted[3]))
            return te.max(best, axis=steps)

        return te.compute(shape, element, name="roi_align")

    return builder.emit_te(compute, x, regions, batch, primfunc_name_hint="roi_align")


def _neighbours(place: Expr, extent: Expr) -> list[tuple[Expr, Expr]]:
    """The two elements around a place, held inside, and their weights."""
    dtype = str(place.ty.dtype)
    last = (extent - 1).astype(dtype)
    held = te.min(te.max(tirx.const(0, dtype), place), last)
    low = te.min(te.max(te.floor(held).astype("int32"), 0), extent - 1)
    share = held - low.astype(dtype)
    return [(low, tirx.const(1, dtype) - share), (te.min(low + 1, extent - 1), share)]


ROI_ALIGN_CONVERTERS: dict[str, Converter] = {"RoiAlign": _roi_align}
