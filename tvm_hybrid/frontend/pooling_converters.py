"""Converters of the places of maxima, and of operators that put windows back into an image.

operator         Relax
MaxPoolPlaces    a kernel: an argmax over each window (the front end's own operator)
MaxUnpool        R.scatter_elements into zeros
Col2Im           a kernel: for each pixel the sum over the windows that it lies in
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from .expressions import Converter, Expr, cast, constant, dtype_of, given, is_nan, known_dims
from .windows import window_count


def _max_pool_places(
    builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    """Places in the flat tensor; the first NaN if there is one, else the first of the maxima."""
    x, dims = inputs[0], known_dims(inputs[0])
    if "float16" in dtype_of(x):
        x = cast(builder, x, "float32")
    extents, kernel, sizes = dims[2:], attrs["kernel_shape"], attrs["sizes"]
    image = math.prod(extents)
    nowhere = tirx.const(-1, "int64")

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

    largest = te.comm_reducer(combine, none, name="largest")

    def compute(x: te.Tensor) -> list[te.Tensor]:
        axes = [te.reduce_axis((0, size)) for size in kernel]

        def element(batch: Expr, channel: Expr, *window: Expr) -> tuple[Expr, ...]:
            inside, held, place = [], [], (batch * dims[1] + channel).astype("int64")
            for axis, step in enumerate(axes):
                at = window[axis] * attrs["strides"][axis] - attrs["before"][axis]
                at += step.var * attrs["dilations"][axis]
                inside += [at >= 0, at < extents[axis]]
                held.append(te.max(te.min(at, extents[axis] - 1), 0))
                place = place * extents[axis] + at
            found = te.if_then_else(te.all(*inside), place, nowhere)
            return largest((found, x[(batch, channel, *held)]), axis=axes)

        return te.compute((*dims[:2], *sizes), element, name="max_pool_places")

    def by_columns(place: Expr) -> Expr:
        """Where a place is if the first spatial axis is the one without gaps."""
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

    def move(places: te.Tensor) -> te.Tensor:
        return te.compute(places.shape, lambda *place: by_columns(places[place]))

    return builder.emit_te(move, places, primfunc_name_hint="places_by_columns")


def _max_unpool(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """The places count in the image that pooling came from, which `output_shape` may extend."""
    x, places, dims = inputs[0], inputs[1], known_dims(inputs[0])
    kernel = attrs["kernel_shape"]
    rank = len(kernel)
    strides, pads = attrs.get("strides") or [1] * rank, attrs.get("pads") or [0, 0] * rank
    image = [*dims[:2]]
    for axis, size in enumerate(kernel):
        cropped = pads[axis] + pads[rank + axis]
        image.append((dims[axis + 2] - 1) * strides[axis] - cropped + size)
    shape = image
    if given(inputs, 2) is not None:
        whole = constant(inputs[2])
        if whole is None:
            raise ValueError("output_shape must be a constant")
        shape = [int(size) for size in whole]
    room = [size - kept for size, kept in zip(shape, image, strict=True)]
    if min(room) < 0:
        raise ValueError(f"output_shape {shape} is smaller than the image {image}")

    def emit(call: Expr) -> Expr:
        return builder.normalize(call)

    zeros = emit(relax.op.zeros((math.prod(image),), dtype_of(x)))
    flat = emit(
        relax.op.scatter_elements(
            zeros, emit(relax.op.reshape(places, (-1,))), emit(relax.op.reshape(x, (-1,)))
        )
    )
    filled = emit(relax.op.reshape(flat, tuple(image)))
    if not any(room):
        return filled
    return relax.op.nn.pad(filled, [amount for after in room for amount in (0, after)])


def _col2im(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    x, dtype = inputs[0], dtype_of(inputs[0])
    image, block = constant(inputs[1]), constant(inputs[2])
    if image is None or block is None:
        raise ValueError("image_shape and block_shape must be constants")
    extents, sizes = [int(n) for n in image], [int(n) for n in block]
    rank = len(extents)
    dilations, strides = (attrs.get(name) or [1] * rank for name in ("dilations", "strides"))
    pads = attrs.get("pads") or [0, 0] * rank
    around = zip(pads[:rank], pads[rank:], strict=True)
    windows = [
        window_count(*axis) for axis in zip(extents, around, sizes, strides, dilations, strict=True)
    ]
    batch, rows, columns = known_dims(x)
    channels, rest = divmod(rows, math.prod(sizes))
    if rest or columns != math.prod(windows):
        raise ValueError(
            f"{rows} x {columns} elements are not blocks of {sizes} at {windows} places"
        )
    wide = {"float16": "float32", "bfloat16": "float32", "bool": "int32"}.get(dtype, dtype)

    def compute(x: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((0, size)) for size in sizes]

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

        return te.compute((batch, channels, *extents), element, name="col2im")

    summed = builder.emit_te(compute, cast(builder, x, wide), primfunc_name_hint="col2im")
    return cast(builder, summed, dtype)


POOLING_CONVERTERS: dict[str, Converter] = {
    "Col2Im": _col2im,
    "MaxPoolPlaces": _max_pool_places,
    "MaxUnpool": _max_unpool,
}
