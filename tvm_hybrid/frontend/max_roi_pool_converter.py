"""MaxRoiPool: the largest element of each bin of a region.

TVM's operator compares every element of an image with every bin. This kernel reads what lies in a
bin: the rows of a bin are reduced to one line, by vectors, and the line by the columns of each bin.

Coordinates are rounded, and bins divided, as ONNX Runtime does it; there, too, a bin of -inf alone
has the least finite number. The maximum of a NaN is NaN, as in MaxPool; in ONNX Runtime it depends
on what comes behind the NaN. A batch index is held inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from tir_schedules.core.emission import opaque_block

from .data_sized.kernels import INDEX, emit_kernel, index, put, table
from .data_sized.sizes import dims_of
from .expressions import Converter, Expr, cast, dtype_of

_FAR = 1 << 30  # beyond all coordinates that are used


@dataclass(frozen=True)
class _Bins:
    """The bins along one axis of a region: where each begins, and where it ends."""

    starts: Expr
    ends: Expr

    @classmethod
    def new(cls, count: int) -> _Bins:
        return cls(*(I.sblock_alloc_buffer([count], INDEX) for _ in range(2)))

    def fill(self, first: Expr, last: Expr, extent: Expr) -> None:
        """Divides the coordinates from `first` to `last` evenly, neighbours sharing an element."""
        dtype, count = "float32", int(self.starts.shape[0])
        size = te.max(last - first + 1, index(1)).astype(dtype) / tirx.const(count, dtype)

        def inside(place: Expr) -> Expr:
            return te.min(te.max(place.astype(INDEX) + first, index(0)), extent)

        with I.serial(index(count)) as number:
            put(self.starts, inside(te.floor(number.astype(dtype) * size)), number)
            put(self.ends, inside(te.ceil((number + 1).astype(dtype) * size)), number)

    def of(self, number: Expr) -> tuple[Expr, Expr]:
        """First element of a bin, and how many it has; 0 if it lies outside."""
        start = self.starts[number]
        return start, te.max(self.ends[number] - start, index(0))


def _max_roi_pool(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x, regions = inputs
    dtype, (height, width) = dtype_of(x), attrs["pooled_shape"]
    if dtype != "float64":  # those of 16 bits, which float32 holds exactly
        x, regions = (cast(builder, each, "float32") for each in (x, regions))
    scale = tirx.const(attrs.get("spatial_scale", 1.0), dtype_of(regions))
    least = tirx.min_value(dtype_of(x))

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        (x, regions), (y,) = ins, outs
        images, channels, *extents = x.shape
        with I.parallel(regions.shape[0]) as region, opaque_block("region"):
            first = [_rounded(regions[region, axis] * scale) for axis in range(1, 5)]
            rows, columns = _Bins.new(height), _Bins.new(width)
            rows.fill(first[1], first[3], extents[0])
            columns.fill(first[0], first[2], extents[1])
            image = te.min(te.max(_whole(regions[region, 0]), index(0)), images - 1)
            line = table(extents[1], str(x.dtype))
            start, end = columns.starts[0], columns.ends[width - 1]
            with I.grid(channels, index(height)) as (channel, bin_row):
                with I.serial(te.max(end - start, index(0))) as place:
                    put(line, least, start + place)
                top, count = rows.of(bin_row)
                with I.grid(count, te.max(end - start, index(0))) as (row, place):
                    at = start + place
                    put(line, te.max(line[at], x[image, channel, top + row, at]), at)
                with I.serial(index(width)) as bin_column:
                    left, wide = columns.of(bin_column)
                    here = (region, channel, bin_row, bin_column)
                    empty = tirx.EQ(te.min(count, wide), index(0))
                    put(y, tirx.Select(empty, tirx.const(0, y.dtype), least), *here)
                    with I.If(tirx.Not(empty)), I.Then(), I.serial(wide) as place:
                        put(y, te.max(y[here], line[left + place]), *here)

    shape = [dims_of(regions)[0], dims_of(x)[1], height, width]
    (y,) = emit_kernel(builder, "max_roi_pool", [x, regions], [(shape, dtype_of(x))], body)
    return cast(builder, y, dtype)


def _whole(number: Expr) -> Expr:
    """A float without its fraction, as an index; far away for NaN and infinity."""
    far = tirx.const(_FAR, str(number.ty.dtype))
    held = tirx.Select(number > -far, number, -far)
    return tirx.Select(held < far, held, far).astype(INDEX)


def _rounded(number: Expr) -> Expr:
    """The nearest index; of two, the one that is farther from 0. (TVM rounds to the even one.)"""
    dtype = str(number.ty.dtype)
    whole = _whole(number)
    rest = number - whole.astype(dtype)
    half = tirx.const(0.5, dtype)
    return (
        whole
        + tirx.Select(rest >= half, index(1), index(0))
        - tirx.Select(rest <= -half, index(1), index(0))
    )


MAX_ROI_POOL_CONVERTERS: dict[str, Converter] = {"MaxRoiPool": _max_roi_pool}
