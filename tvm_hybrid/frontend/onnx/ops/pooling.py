"""Converters of maxima's indices, and of operators that put windows back into an image.

operator         Relax
MaxPool          a kernel for the indices: an argmax over each window
MaxUnpool        a kernel: zeros, then each element at its index
Col2Im           a kernel: each pixel is the sum over the windows that contain it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import te, tirx

from tir_schedules.core.emission import opaque_block

from ... import expressions as ex
from ...expressions import Attrs, Expr, Place
from ..graph import sizes as of_sizes
from ..graph.kernels import cell, emit_kernel, put, reshaped_to, table
from ..graph.requests import check, check_equal, check_sizes, requested_sizes
from ..graph.sizes import INDEX, dims_of, index, is_dynamic, plain, plain_dims, product, simplified
from ..operators import apply, operator


def max_pool_places(x: Expr, attrs: Attrs) -> Expr:
    """Indices of the maxima in the flat tensor; a NaN counts as the maximum, the first one wins."""
    if "float16" in ex.dtype_of(x):
        x = ex.cast(x, "float32")
    images, channels, *extents = dims_of(x)
    sizes = window_counts(extents, attrs["kernel_shape"], attrs)
    if is_dynamic(x):
        check(tirx.any(product(extents) > 0, tirx.EQ(product(sizes), index(0))))
    flat = reshaped_to(x, [images * channels, *extents])
    shape, body = [images * channels, *sizes], partial(_find_places, attrs=attrs)
    (found,) = emit_kernel("max_pool_places", [flat], [(shape, "int64")], body)
    places = reshaped_to(found, [images, channels, *sizes])
    if attrs["storage_order"] == 0:
        return places

    def by_columns(place: Place, places: te.Tensor, extents: list[int | Expr]) -> Expr:
        """The index for storage_order 1, in which the first spatial axis is contiguous."""
        image = math.prod(extents)
        rest, moved, step = places[place], tirx.const(0, "int64"), image
        for extent in reversed(extents):
            step //= extent
            moved += tirx.floormod(rest, extent) * step
            rest = tirx.floordiv(rest, extent)
        return rest * image + moved

    given = dims_of(places), by_columns, places, plain_dims(x)[2:]
    return ex.emit_each("compute", *given, hint="places_by_columns")


def _find_places(x: Expr, places: Expr, attrs: Attrs) -> None:
    """Writes the index of each window's maximum in each image; -1 if the window is outside."""
    kernel, dtype = attrs["kernel_shape"], str(x.dtype)
    is_float = dtype.startswith("float")
    least = tirx.const(-math.inf, dtype) if is_float else tirx.min_value(dtype)
    step, pad = attrs["strides"][-1], attrs["pads"][len(kernel) - 1]
    images, *extents = x.shape
    *outer, results = range(1, len(places.shape))
    with I.parallel(images) as image, opaque_block("image"), ExitStack() as loops:
        room = te.max(places.shape[results], 1)
        best, found = (I.sblock_alloc_buffer([room], each) for each in (dtype, INDEX))
        window = [loops.enter_context(I.serial(places.shape[axis])) for axis in outer]
        ranges = [_inside(at, extents[axis], axis, attrs) for axis, at in enumerate(window)]

        def flat(at: Sequence[Expr]) -> Expr:
            place = image.astype(INDEX)
            for extent, each in zip(extents, at, strict=True):
                place = place * extent + each
            return place

        with I.serial(places.shape[results]) as result:
            first, count = _inside(result, extents[-1], len(extents) - 1, attrs)
            some = product([count, *(each for _, each in ranges)]) > 0
            place = flat([*(start for start, _ in ranges), first])
            put(found, tirx.Select(some, place, index(-1)), result)
            put(best, least, result)
        with ExitStack() as rows:
            taps = [rows.enter_context(I.serial(count)) for _, count in ranges]
            at = [
                start + tap * apart
                for (start, _), tap, apart in zip(ranges, taps, attrs["dilations"], strict=False)
            ]
            # One loop compares an element of all windows of a row of results, in vectors.
            for tap in range(kernel[-1]):
                # The windows of the row whose element number `tap` is in the image.
                ahead, extent = tap * attrs["dilations"][-1] - pad, extents[-1]
                begin = index(max(-(ahead // step), 0))
                end = tirx.floordiv(extent - 1 - ahead, index(step)) + 1
                end = te.min(end, places.shape[results])
                with I.serial(te.max(end - begin, 0)) as number:
                    result = begin + number
                    here = [*at, result * step + ahead]
                    value, known = x[(image, *here)], best[result]
                    new = tirx.all(ex.is_nan(value), tirx.Not(ex.is_nan(known)))
                    better = tirx.any(value > known, new)
                    put(found, tirx.Select(better, flat(here), found[result]), result)
                    put(best, tirx.Select(better, value, known), result)
        with I.serial(places.shape[results]) as result:
            put(places, found[result], image, *window, result)


def _inside(at: Expr, extent: Expr, axis: int, attrs: Attrs) -> tuple[Expr, Expr]:
    """The first element of a window inside the image along an axis, and the number inside."""
    apart = attrs["dilations"][axis]
    start = at * attrs["strides"][axis] - attrs["pads"][axis]
    before = te.max(tirx.floordiv(apart - 1 - start, apart), 0)
    end = te.min(tirx.floordiv(extent - start + apart - 1, apart), attrs["kernel_shape"][axis])
    return start + before * apart, te.max(end - before, 0)


@operator("MaxUnpool")
def _max_unpool(x: Expr, places: Expr, output_shape: Expr, **attrs: Any) -> Expr:
    """MaxUnpool; indices refer to the pooled image, which `output_shape` may extend."""
    dims = plain_dims(x)
    check_sizes(dims_of(x), dims_of(places), "there are not as many places as elements")
    form, image = window_form(attrs), [*dims[:2]]
    rank = len(form["kernel_shape"])
    for axis, size in enumerate(form["kernel_shape"]):
        cropped = form["pads"][axis] + form["pads"][rank + axis]
        image.append((dims[axis + 2] - 1) * form["strides"][axis] - cropped + size)
    for size in image:
        check(index(0) + size >= 0)
    # The output must not be smaller than the image.
    check(tirx.any(product(image) > 0, tirx.EQ(product(dims_of(x)), index(0))))
    shape = image if output_shape is None else plain(requested_sizes(output_shape))
    room = [simplified(index(0) + size - kept) for size, kept in zip(shape, image, strict=True)]
    for more in room:
        check(more >= 0, f"output_shape {shape} is smaller than the image {image}")
    flat = [reshaped_to(each, [product(dims_of(x))]) for each in (x, places)]
    (filled,) = emit_kernel("max_unpool", flat, [(image, ex.dtype_of(x))], _put_back)
    return apply("Pad", filled, of_sizes.vector_of(*[0] * len(room), *plain(room)))


def _put_back(x: Expr, places: Expr, filled: Expr) -> None:
    """Stores elements at their indices among zeros; indices are clipped, negative ones wrap."""
    size = product(filled.shape)
    image = I.decl_buffer([size], filled.dtype, data=filled.data)
    with I.serial(size) as at:
        put(image, tirx.const(0, image.dtype), at)
    with I.serial(x.shape[0]) as number:
        place = places[number]
        place = place + tirx.Select(place < 0, size, index(0))
        put(image, x[number], te.max(te.min(place, size - 1), index(0)))


@operator("Col2Im")
def _col2im(x: Expr, image_shape: Expr, block_shape: Expr, **attrs: Any) -> Expr:
    block, dtype = ex.known_array(block_shape, "block_shape must be a constant"), ex.dtype_of(x)
    image, sizes = plain(requested_sizes(image_shape)), [int(n) for n in block]
    form = window_form(attrs, len(image))
    dilations, strides, pads = (form[name] for name in ("dilations", "strides", "pads"))
    counts = window_counts(image, sizes, form)
    _, rows, columns = plain_dims(x)
    if not isinstance(rows, int):
        raise ValueError("the number of rows, channels times the size of a block, must be known")
    channels, rest = divmod(rows, math.prod(sizes))
    misfit = f"{rows} x {columns} elements are not blocks of {sizes} at {counts} places"
    if rest:
        raise ValueError(misfit)
    for count in counts:
        check(index(0) + count >= 0, misfit)
    check_equal(dims_of(x)[2], product(counts), misfit)
    wide = {"float16": "float32", "bfloat16": "float32", "bool": "int32"}.get(dtype, dtype)

    def element(place: Place, x: te.Tensor, extents: list[int | Expr]) -> Expr:
        item, row, *pixel = place
        axes, column = [te.reduce_axis((0, size)) for size in sizes], tirx.const(0, "int32")
        inside, windows = [], window_counts(extents, sizes, form)
        for axis, step in enumerate(axes):
            start = pixel[axis] + pads[axis] - step.var * dilations[axis]
            window = tirx.floordiv(start, strides[axis])
            inside += [start % strides[axis] == 0, window >= 0, window < windows[axis]]
            held = te.max(te.min(window, windows[axis] - 1), 0)
            row, column = row * sizes[axis] + step.var, column * windows[axis] + held
        zero = tirx.const(0, wide)
        return te.sum(te.if_then_else(te.all(*inside), x[item, row, column], zero), axis=axes)

    shape = [*plain_dims(x)[:1], channels, *image]
    summed = ex.emit_each("col2im", shape, element, ex.cast(x, wide), image, hint="col2im")
    return ex.cast(summed, dtype)


# MaxRoiPool: the largest element of each bin of a region.
#
# TVM's operator compares every element of an image with every bin. This kernel only reads a bin's
# elements: vectors reduce the rows of a bin to one line, then each bin's columns are reduced.
#
# Coordinates are rounded, and bins divided, as in ONNX Runtime; as there, a bin that contains only
# -inf gives the least finite number. The maximum of a NaN is NaN, as in MaxPool; in ONNX Runtime it
# depends on the elements after the NaN. A batch index is clipped to the batch.


_FAR = 1 << 30  # larger than all coordinates
_LANES = 16  # vector length for reducing the rows of a bin


class _Bins:
    """The bins along one axis of a region, by their first elements and ends."""

    def __init__(self, count: int, first: Expr, last: Expr, extent: Expr) -> None:
        self.starts, self.ends = (I.sblock_alloc_buffer([count], INDEX) for _ in range(2))
        dtype = "float32"
        # The bins divide the coordinates from `first` to `last` evenly; neighbours may share an
        # element.
        size = te.max(last - first + 1, index(1)).astype(dtype) / tirx.const(count, dtype)

        def inside(place: Expr) -> Expr:
            return te.min(te.max(place.astype(INDEX) + first, index(0)), extent)

        with I.serial(index(count)) as number:
            put(self.starts, inside(te.floor(number.astype(dtype) * size)), number)
            put(self.ends, inside(te.ceil((number + 1).astype(dtype) * size)), number)

    def of(self, number: Expr) -> tuple[Expr, Expr]:
        """First element of a bin, and its number of elements; 0 if it is outside the image."""
        start = self.starts[number]
        return start, te.max(self.ends[number] - start, index(0))


@operator("MaxRoiPool")
def _max_roi_pool(
    x: Expr, regions: Expr, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Expr:
    dtype, (height, width) = ex.dtype_of(x), pooled_shape
    if dtype != "float64":  # float32 holds types of 16 bits exactly
        x, regions = (ex.cast(each, "float32") for each in (x, regions))
    scale = tirx.const(spatial_scale, ex.dtype_of(regions))
    least = tirx.min_value(ex.dtype_of(x))

    def body(x: Expr, regions: Expr, y: Expr) -> None:
        images, channels, *extents = x.shape
        with I.parallel(regions.shape[0]) as region, opaque_block("region"):
            first = [_rounded(regions[region, axis] * scale) for axis in range(1, 5)]
            rows = _Bins(height, first[1], first[3], extents[0])
            columns = _Bins(width, first[0], first[2], extents[1])
            image = te.min(te.max(_whole(regions[region, 0]), index(0)), images - 1)
            line, part = table(extents[1], str(x.dtype)), cell(str(x.dtype))
            start = columns.starts[0]
            span = te.max(columns.ends[width - 1] - start, index(0))
            with I.grid(channels, index(height)) as (channel, bin_row):
                top, count = rows.of(bin_row)

                def element(row: Expr, column: Expr) -> Expr:
                    return x[image, channel, top + row, column]

                _largest_of_rows(line, element, (start, span), count)
                with I.serial(index(width)) as bin_column:
                    left, wide = columns.of(bin_column)
                    put(part, tirx.const(-math.inf, str(x.dtype)))
                    with I.serial(wide) as place:
                        put(part, _larger(part[0], line[left + place]))
                    empty = tirx.EQ(te.min(count, wide), index(0))
                    value = tirx.Select(empty, tirx.const(0, y.dtype), te.max(part[0], least))
                    put(y, value, region, channel, bin_row, bin_column)

    shape = [dims_of(regions)[0], dims_of(x)[1], height, width]
    (y,) = emit_kernel("max_roi_pool", [x, regions], [(shape, ex.dtype_of(x))], body)
    return ex.cast(y, dtype)


def _largest_of_rows(
    line: Expr, element: Callable[[Expr, Expr], Expr], columns: tuple[Expr, Expr], count: Expr
) -> None:
    """Writes the maximum over `count` rows for a range of columns; -inf if there are no rows."""
    (start, span), extent, none = columns, line.shape[0], tirx.const(-math.inf, line.dtype)
    with I.If(extent >= _LANES):
        with I.Then():
            # Vectors stay in registers for all rows.
            best = I.sblock_alloc_buffer([_LANES], line.dtype)
            with I.serial(tirx.floordiv(span + (_LANES - 1), index(_LANES))) as number:
                # The last vector is moved back to end inside the line.
                at = te.min(start + number * _LANES, extent - _LANES)
                with I.vectorized(index(_LANES)) as lane:
                    put(best, none, lane)
                with I.serial(count) as row, I.vectorized(index(_LANES)) as lane:
                    put(best, _larger(best[lane], element(row, at + lane)), lane)
                with I.vectorized(index(_LANES)) as lane:
                    put(line, best[lane], at + lane)
        with I.Else():
            with I.serial(span) as place:
                put(line, none, start + place)
            with I.grid(count, span) as (row, place):
                put(line, te.max(line[start + place], element(row, start + place)), start + place)


def _larger(old: Expr, new: Expr) -> Expr:
    """The larger of two floats; NaN if either is NaN."""
    # `llvm.maximum` would also order the zeros.
    some = old <= tirx.const(math.inf, str(old.ty.dtype))
    return tirx.Select(some, tirx.Select(old > new, old, new), old)


def _whole(number: Expr) -> Expr:
    """The integer part of a float as an index; a far index for NaN and infinity."""
    far = tirx.const(_FAR, str(number.ty.dtype))
    held = tirx.Select(number > -far, number, -far)
    return tirx.Select(held < far, held, far).astype(INDEX)


def _rounded(number: Expr) -> Expr:
    """The nearest index; ties round away from 0, whereas TVM rounds them to even."""
    dtype = str(number.ty.dtype)
    whole, half = _whole(number), tirx.const(0.5, dtype)
    rest = number - whole.astype(dtype)
    up, down = (tirx.Select(each, index(1), index(0)) for each in (rest >= half, rest <= -half))
    return whole + up - down


def window_form(attrs: Attrs, rank: int | None = None) -> Attrs:
    """Attributes of windows along `rank` axes, with defaults for the absent ones."""
    rank = len(attrs["kernel_shape"]) if rank is None else rank
    ones, flags = [1] * rank, ("ceil_mode", "count_include_pad", "storage_order")
    defaults = {"strides": ones, "dilations": ones, "pads": [0, 0] * rank, "group": 1}
    given = {name: value for name, value in attrs.items() if value != []}
    return {**defaults, "output_padding": [0] * rank, **dict.fromkeys(flags, 0), **given}


def window_counts(extents: Sequence[Any], kernel: Sequence[int], form: Attrs) -> list[Any]:
    """Sizes of the result of a convolution or pool along all axes."""
    pads, rank = form["pads"], len(kernel)
    around = zip(pads[:rank], pads[rank:], strict=True)
    axes = zip(extents, around, kernel, form["strides"], form["dilations"], strict=True)
    return [window_count(*axis, bool(form["ceil_mode"])) for axis in axes]


def window_count(
    extent: Any, pads: tuple[int, int], kernel: int, stride: int, dilation: int, ceil: bool = False
) -> Any:
    """Size of the result of a convolution or pool along an axis.

    Parameters
    ----------
    extent
        A number, or an expression of dynamic sizes; the result is then an expression too.
    pads
        Before and after the axis.
    ceil
        Whether the last window may exceed the padding; it must not begin in the padding at the end.
    """
    room = extent + sum(pads) - (dilation * (kernel - 1) + 1)
    if not ceil:
        return room // stride + 1
    count = -(-room // stride) + 1
    behind = (count - 1) * stride >= extent + pads[0]
    if isinstance(extent, int):
        return count - behind
    return count - tirx.Select(behind, tirx.const(1, "int64"), tirx.const(0, "int64"))
