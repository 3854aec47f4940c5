"""Converters of the places of maxima, and of operators that put windows back into an image.

operator         Relax
MaxPoolPlaces    a kernel: an argmax over each window (the front end's own operator)
MaxUnpool        a kernel: zeros, then each element at its place
Col2Im           a kernel: for each pixel the sum over the windows that it lies in
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm.tirx.script.builder.ir as I
from tvm import relax, te, tirx

from .data_sized.kernels import emit_kernel, index, put
from .data_sized.requests import check, check_equal, requested_sizes
from .data_sized.sizes import dims_of, is_open, plain, plain_dims, product, reshaped_to, simplified
from .expressions import Converter, Expr, cast, constant, dtype_of, given, is_nan
from .windows import window_count


def _max_pool_places(
    builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    """Places in the flat tensor; the first NaN if there is one, else the first of the maxima."""
    x, kernel, pads = inputs[0], attrs["kernel_shape"], attrs["pads"]
    if "float16" in dtype_of(x):
        x = cast(builder, x, "float32")
    nowhere = tirx.const(-1, "int64")

    def sizes_of(extents: Sequence[int | Expr]) -> list[int | Expr]:
        around = zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)
        axes = zip(extents, around, kernel, attrs["strides"], attrs["dilations"], strict=True)
        return [window_count(*axis, bool(attrs["ceil_mode"])) for axis in axes]

    def wins(place: Expr, value: Expr, other_place: Expr, other: Expr) -> Expr:
        nan, other_nan = (is_nan(each) for each in (value, other))
        larger = te.any(te.all(nan, tirx.Not(other_nan)), value > other)
        same = te.any(te.all(nan, other_nan), value == other)
        better = te.any(larger, te.all(same, place < other_place))
        return te.all(place >= 0, te.any(other_place < 0, better))

    def combine(first: Sequence[Expr], second: Sequence[Expr]) -> tuple[Expr, ...]:
        chosen = wins(*first, *second)
        return tuple(tirx.Select(chosen, a, b) for a, b in zip(first, second, strict=True))

    def none(place_dtype: str, dtype: str) -> tuple[Expr, Expr]:
        return nowhere, tirx.const(0, dtype)

    if is_open(x):
        nothing = tirx.EQ(product(sizes_of(dims_of(x)[2:])), index(0))
        check(builder, tirx.any(product(dims_of(x)[2:]) > 0, nothing))
    largest = te.comm_reducer(combine, none, name="largest")

    def compute(x: te.Tensor) -> list[te.Tensor]:
        axes = [te.reduce_axis((0, size)) for size in kernel]
        images, channels, *extents = plain(x.shape)

        def element(batch: Expr, channel: Expr, *window: Expr) -> tuple[Expr, ...]:
            inside, held, place = [], [], (batch * channels + channel).astype("int64")
            for axis, step in enumerate(axes):
                at = window[axis] * attrs["strides"][axis] - pads[axis]
                at += step.var * attrs["dilations"][axis]
                inside += [at >= 0, at < extents[axis]]
                held.append(te.max(te.min(at, extents[axis] - 1), 0))
                place = place * extents[axis] + at
            found = te.if_then_else(te.all(*inside), place, nowhere)
            return largest((found, x[(batch, channel, *held)]), axis=axes)

        return te.compute((images, channels, *sizes_of(extents)), element, name="max_pool_places")

    def by_columns(place: Expr, extents: Sequence[int | Expr]) -> Expr:
        """Where a place is if the first spatial axis is the one without gaps."""
        image = math.prod(extents)
        rest, moved, step = place, tirx.const(0, "int64"), image
        for extent in reversed(extents):
            step //= extent
            moved += tirx.floormod(rest, extent) * step
            rest = tirx.floordiv(rest, extent)
        return rest * image + moved

    pair = builder.emit_te(compute, x, primfunc_name_hint="max_pool_places")
    places = builder.normalize(relax.TupleGetItem(pair, 0))
    if attrs["storage_order"] == 0:
        return places

    def move(places: te.Tensor, extents: list[int | Expr]) -> te.Tensor:
        return te.compute(places.shape, lambda *place: by_columns(places[place], extents))

    extents = plain_dims(x)[2:]
    return builder.emit_te(move, places, extents, primfunc_name_hint="places_by_columns")


def _max_unpool(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """The places count in the image that pooling came from, which `output_shape` may extend."""
    x, places, dims = inputs[0], inputs[1], plain_dims(inputs[0])
    for one, other in zip(dims_of(x), dims_of(places), strict=True):
        check_equal(builder, one, other, "there are not as many places as elements")
    kernel = attrs["kernel_shape"]
    rank = len(kernel)
    strides, pads = attrs.get("strides") or [1] * rank, attrs.get("pads") or [0, 0] * rank
    image = [*dims[:2]]
    for axis, size in enumerate(kernel):
        cropped = pads[axis] + pads[rank + axis]
        image.append((dims[axis + 2] - 1) * strides[axis] - cropped + size)
    if any(not isinstance(size, int) for size in image):
        for size in image:
            check(builder, index(0) + size >= 0)
        # There is room for what is put back.
        nothing = tirx.EQ(product(dims_of(x)), index(0))
        check(builder, tirx.any(product(image) > 0, nothing))
    shape = image
    if given(inputs, 2) is not None:
        shape = plain(requested_sizes(builder, inputs[2]))
    room = [_difference(size, kept) for size, kept in zip(shape, image, strict=True)]
    for more in room:
        misfit = f"output_shape {shape} is smaller than the image {image}"
        check(builder, index(0) + more >= 0, misfit)

    count = product(dims_of(x))
    flat = [reshaped_to(builder, each, [count]) for each in (x, places)]
    (filled,) = emit_kernel(builder, "max_unpool", flat, [(image, dtype_of(x))], _put_back)
    if all(isinstance(more, int) for more in room):
        if not any(room):
            return filled
        return relax.op.nn.pad(filled, [amount for after in room for amount in (0, after)])

    def extend(filled: te.Tensor, shape: list[Expr]) -> te.Tensor:
        def element(*place: Expr) -> Expr:
            inside = [at < size for at, size in zip(place, filled.shape, strict=True)]
            return tirx.if_then_else(te.all(*inside), filled(*place), tirx.const(0, filled.dtype))

        return te.compute(shape, element, name="extended")

    return builder.emit_te(extend, filled, shape, primfunc_name_hint="extend")


def _put_back(ins: list[Expr], outs: list[Expr]) -> None:
    """Stores elements at their places, held inside and negative ones from the end, among zeros."""
    (x, places), size = ins, product(outs[0].shape)
    image = I.decl_buffer([size], outs[0].dtype, data=outs[0].data)
    with I.serial(size) as at:
        put(image, tirx.const(0, image.dtype), at)
    with I.serial(x.shape[0]) as number:
        place = places[number]
        place = place + tirx.Select(place < 0, size, index(0))
        put(image, x[number], te.max(te.min(place, size - 1), index(0)))


def _difference(one: int | Expr, other: int | Expr) -> int | Expr:
    """A number if it is one, whatever the sizes are."""
    left = one - other
    return left if isinstance(left, int) else plain([simplified(left)])[0]


def _col2im(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x, dtype, block = inputs[0], dtype_of(inputs[0]), constant(inputs[2])
    if block is None:
        raise ValueError("block_shape must be a constant")
    image, sizes = plain(requested_sizes(builder, inputs[1])), [int(n) for n in block]
    rank = len(image)
    dilations, strides = (attrs.get(name) or [1] * rank for name in ("dilations", "strides"))
    pads = attrs.get("pads") or [0, 0] * rank

    def windows_of(extents: Sequence[int | Expr]) -> list[int | Expr]:
        around = zip(pads[:rank], pads[rank:], strict=True)
        axes = zip(extents, around, sizes, strides, dilations, strict=True)
        return [window_count(*axis) for axis in axes]

    _, rows, columns = plain_dims(x)
    if not isinstance(rows, int):
        raise ValueError("the number of rows, channels times the size of a block, must be known")
    channels, rest = divmod(rows, math.prod(sizes))
    misfit = f"{rows} x {columns} elements are not blocks of {sizes} at {windows_of(image)} places"
    if rest:
        raise ValueError(misfit)
    for count in windows_of(image):
        check(builder, index(0) + count >= 0, misfit)
    check_equal(builder, dims_of(x)[2], product(windows_of(image)), misfit)
    wide = {"float16": "float32", "bfloat16": "float32", "bool": "int32"}.get(dtype, dtype)

    def compute(x: te.Tensor, extents: list[int | Expr]) -> te.Tensor:
        axes = [te.reduce_axis((0, size)) for size in sizes]
        windows = windows_of(extents)

        def element(item: Expr, channel: Expr, *pixel: Expr) -> Expr:
            inside, row, column = [], channel, tirx.const(0, "int32")
            for axis, step in enumerate(axes):
                start = pixel[axis] + pads[axis] - step.var * dilations[axis]
                window = tirx.floordiv(start, strides[axis])
                inside += [start % strides[axis] == 0, window >= 0, window < windows[axis]]
                held = te.max(te.min(window, windows[axis] - 1), 0)
                row, column = row * sizes[axis] + step.var, column * windows[axis] + held
            zero = tirx.const(0, wide)
            return te.sum(te.if_then_else(te.all(*inside), x[item, row, column], zero), axis=axes)

        return te.compute((*plain(x.shape[:1]), channels, *extents), element, name="col2im")

    summed = builder.emit_te(compute, cast(builder, x, wide), image, primfunc_name_hint="col2im")
    return cast(builder, summed, dtype)


POOLING_CONVERTERS: dict[str, Converter] = {
    "Col2Im": _col2im,
    "MaxPoolPlaces": _max_pool_places,
    "MaxUnpool": _max_unpool,
}
