"""Operators on shapes, and those that move elements without looking at them.

Sizes are numbers, or follow from other sizes, or are read from a tensor at run time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper
from tvm import relax, te, tirx

from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE
from relay_passes.legalize.moves import PLACES

from ... import expressions as ex
from ...expressions import Expr, Place
from ..graph import requests
from ..graph import sizes as of_sizes
from ..graph.elements import known_elements
from ..graph.kernels import emit_kernel, put, reshaped_to, sizes_in
from ..graph.requests import broadcast, check, check_equal, requested_sizes
from ..graph.sizes import (
    INDEX,
    dims_of,
    index,
    is_dynamic,
    product,
    same_size,
    scalar_of,
    simplified,
)
from ..operators import operator
from .resize_taps import KERNEL


@operator("Shape")
def _shape(x: Expr, *, start: int = 0, end: int | None = None) -> Expr:
    return relax.op.shape_to_tensor(relax.ShapeExpr(dims_of(x)[start:end]))


operator("Size")(lambda x: scalar_of(product(dims_of(x))))


@operator("Reshape")
def _reshape(x: Expr, shape: Expr, *, allowzero: int = 0) -> Expr:
    dims = dims_of(x)
    sizes = requests.reshaped_sizes(dims, shape, not allowzero)
    check_equal(product(sizes), product(dims))
    return reshaped_to(x, sizes)


@operator("Flatten")
def _flatten(x: Expr, *, axis: int = 1) -> Expr:
    dims = dims_of(x)

    return reshaped_to(x, [product(dims[:axis]), product(dims[axis:])])


@operator("Unsqueeze")
def _unsqueeze(x: Expr, axes: Expr) -> Expr:
    known = ex.constant(axes)
    if known is None:
        raise ValueError("axes must be constant")
    rank = ex.rank_of(x) + known.size
    return relax.op.expand_dims(x, sorted(axis % rank for axis in known.ravel().tolist()))


@operator("Squeeze")
def _squeeze(x: Expr, axes: Expr) -> Expr:
    dims, known = dims_of(x), ex.constant(axes)
    if axes is None and not is_dynamic(x):
        return relax.op.squeeze(x)
    if known is None:
        raise ValueError("axes must be given and constant")
    dropped = {axis % len(dims) for axis in known.ravel().tolist()}
    for axis in dropped:
        check_equal(dims[axis], index(1), f"an axis of {dims[axis]} elements cannot be squeezed")
    if not is_dynamic(x):
        return relax.op.squeeze(x, known.ravel().tolist())
    return reshaped_to(x, [d for i, d in enumerate(dims) if i not in dropped])


@operator("Expand")
def _expand(data: Expr, shape: Expr) -> Expr:
    return broadcast(data, requests.common_shape([dims_of(data), requested_sizes(shape)]))


@operator("ConstantOfShape")
def _constant_of_shape(shape: Expr, *, value: TensorProto | None = None) -> Expr:
    filling = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value)
    return broadcast(ex.literal(filling.reshape(())), requested_sizes(shape))


@operator("Tile")
def _tile(data: Expr, repeats: Expr) -> Expr:
    known, dims = ex.constant(repeats), dims_of(data)
    if not is_dynamic(data) and known is not None:
        return relax.op.tile(data, known.tolist())
    sizes = [size * n for size, n in zip(dims, requested_sizes(repeats), strict=True)]

    def element(places: Place, data: te.Tensor) -> Expr:
        return data(*(i % te.max(size, 1) for i, size in zip(places, data.shape, strict=True)))

    return ex.emit_each("tiled", sizes, element, data, hint="tile")


@operator("Transpose")
def _transpose(x: Expr, *, perm: list[int] | None = None) -> Expr:
    return relax.op.permute_dims(x, perm) if ex.rank_of(x) else x


_KINDS = {tirx.IntImm: 0, tirx.Var: 2}  # rank of a size's form; expressions rank between


@operator("Concat")
def _concat(*inputs: Expr, axis: int) -> Expr:
    """Concat; the program checks that dynamic sizes agree in all axes but one."""
    values = list(inputs)
    if any(map(is_dynamic, values)):
        shapes = [dims_of(value) for value in values]
        wanted = list(shapes[0])
        for place, sizes in enumerate(zip(*shapes, strict=False)):
            if place != axis % len(wanted):
                # A number, else an expression: no part can be cast to the size of a symbol.
                wanted[place] = min(sizes, key=lambda size: _KINDS.get(type(size), 1))
                for size in sizes:
                    check_equal(wanted[place], size)
        for place, shape in enumerate(shapes):
            wanted[axis] = shape[axis]
            others = [a for a, b in zip(wanted, shape, strict=True) if not same_size(a, b)]
            # With a symbol TVM would replace the symbol by itself, without end.
            if others and not any(isinstance(size, tirx.Var) for size in others):
                known = relax.TensorType(list(wanted), values[place].ty.dtype)
                values[place] = ex.match_cast(values[place], known)
    return relax.op.concat(values, axis=axis)


@operator("Split")
def _split(
    x: Expr, split: Expr, *, axis: int = 0, num_outputs: int = 0, node_outputs: Sequence[str]
) -> Expr:
    size, count, misfit = dims_of(x)[axis], len(node_outputs), "the parts do not add up to the axis"
    if split is not None:
        ends = np.cumsum(ex.known_array(split, "the sizes of the parts are computed at run time"))
        check_equal(size, index(ends[-1] if ends.size else 0), misfit)
        return relax.op.split(x, ends[:-1].tolist(), axis)
    if num_outputs:  # the last part may be smaller
        part = tirx.floordiv(size + index(count - 1), index(count))
        check(size >= part * index(count - 1), misfit)
    else:
        check_equal(tirx.floormod(size, index(count)), index(0), misfit)
    return relax.op.split(x, count, axis)


@operator("DepthToSpace")
def _depth_to_space(x: Expr, *, blocksize: int, mode: str = "DCR") -> Expr:
    (batch, channels, height, width), size = dims_of(x), blocksize
    left = channels // (size * size)
    check_equal(channels % index(size**2), index(0), "the channels are no multiple of the block")
    if _is_depth_first(mode):
        split, order = (batch, size, size, left, height, width), [0, 3, 4, 1, 5, 2]
    else:
        split, order = (batch, left, size, size, height, width), [0, 1, 4, 2, 5, 3]
    return moved(x, split, order, (batch, left, height * size, width * size))


@operator("SpaceToDepth")
def _space_to_depth(x: Expr, *, blocksize: int, mode: str = "DCR") -> Expr:
    (batch, channels, height, width), size = dims_of(x), blocksize
    for extent in (height, width):
        check_equal(extent % index(size), index(0), "the extents are no multiple of the block")
    blocks = (batch, channels, height // size, size, width // size, size)
    order = [0, 3, 5, 1, 2, 4] if _is_depth_first(mode) else [0, 1, 3, 5, 2, 4]
    shape = (batch, channels * size * size, height // size, width // size)
    return moved(x, blocks, order, shape)


def _is_depth_first(mode: str) -> bool:
    """Whether the position inside a block is the outer part of the channels."""
    if mode not in ("DCR", "CRD"):
        raise ValueError(f"mode={mode!r} is neither DCR nor CRD")
    return mode == "DCR"


def moved(x: Expr, split: Sequence[Expr], order: list[int], shape: Sequence[Expr]) -> Expr:
    """Splits axes by a reshape to `split`, permutes them, and joins them by one to `shape`."""
    cut = ex.normalize(relax.op.reshape(x, tuple(split)))
    return ex.normalize(relax.op.reshape(relax.op.permute_dims(cut, order), tuple(shape)))


@operator("Trilu")
def _trilu(x: Expr, shift: Expr, *, upper: int = 1) -> Expr:
    diagonal = np.array(0) if shift is None else ex.constant(shift)
    if diagonal is not None:
        return (relax.op.triu if upper else relax.op.tril)(x, int(diagonal.item()))
    *_, rows, columns = dims_of(x)
    row, column = map(of_sizes.counted, (rows, columns))
    row = ex.normalize(relax.op.reshape(row, (rows, 1)))
    distance = ex.normalize(relax.op.reshape(column, (1, columns)) - row)
    shift = relax.op.astype(shift, "int64")
    kept = distance >= shift if upper else distance <= shift
    kept = relax.op.broadcast_to(kept, relax.ShapeExpr(dims_of(x)))
    return relax.op.where(kept, x, ex.number(x, 0))


# Range. Its elements are start + i * delta, rounded once if the type is narrower than float64.
# Its length is computed exactly for integers, and in float64 for floats.


LONGEST = 1 << 31  # longer ranges are refused as a mistake: memory has to hold them


@operator("Range")
def _range(*inputs: Expr) -> Expr:
    dtype = ex.dtype_of(inputs[0])
    wide = "float64" if "float" in dtype else INDEX
    known = [each for each in map(ex.constant, inputs) if each is not None]
    if len(known) == len(inputs):
        start, limit, delta = (each.astype(wide).item() for each in known)
        count = max(0, math.ceil((limit - start) / delta))
        return ex.literal((start + np.arange(count, dtype=wide) * delta).astype(known[0].dtype))
    vectors = [ex.normalize(relax.op.reshape(each, (1,))) for each in inputs]
    elements = [each.item() for each in map(known_elements, inputs) if each is not None]
    if len(elements) == len(inputs) and isinstance(elements[2], int) and elements[2] > 0:
        start, limit, delta = elements
        up = te.max(index(0) + limit - start, index(0)) + index(delta - 1)
        length = simplified(tirx.floordiv(up, index(delta)))
        plain = ex.normalize(relax.op.arange(start, limit, delta, dtype))
        if same_size(dims_of(plain)[0], length):
            return plain
    else:
        length = _length(vectors, wide)

    def element(place: Place, start: te.Tensor, delta: te.Tensor) -> Expr:
        first, step = tirx.Cast(wide, start[0]), tirx.Cast(wide, delta[0])
        return tirx.Cast(dtype, first + tirx.Cast(wide, place[0]) * step)

    return ex.emit_each("range", [length], element, vectors[0], vectors[2], hint="range")


def _length(vectors: list[Expr], wide: str) -> Expr:
    """The length, computed by the program, which refuses a delta of 0."""

    def body(*tensors: Expr) -> None:
        *given, found = tensors
        start, limit, delta = (tirx.Cast(wide, each[0]) for each in given)
        zero, one = tirx.const(0, wide), tirx.const(1, wide)
        stands: Expr = tirx.EQ(delta, zero)
        step = tirx.Select(stands, one, delta)
        if wide == INDEX:
            up, size = step > 0, tirx.Select(step > 0, step, zero - step)
            ahead = tirx.Select(up, limit - start, start - limit)
            count = tirx.floordiv(te.max(ahead, zero) + size - 1, size)
        else:
            steps = te.ceil((limit - start) / step)
            possible = tirx.all(steps > zero, steps < tirx.const(LONGEST, wide))
            count = tirx.Cast(INDEX, tirx.Select(possible, steps, zero))
            stands = tirx.any(stands, tirx.Not(steps < tirx.const(LONGEST, wide)))
        put(found, count, 1)
        fits = tirx.all(tirx.Not(stands), found[1] < index(LONGEST))
        put(found, tirx.Select(fits, index(1), index(0)))

    (found,) = emit_kernel("range_length", vectors, [([2], INDEX)], body)
    return sizes_in(found)[0]


# Pad: amounts are numbers or follow from sizes; negative amounts crop.
#
#     Pad(x, pads)                            ->    R.nn.pad(x, pads)
#     Pad(x, pads), some of them negative     ->    R.nn.pad(R.strided_slice(x, ...), ...)
#     Pad(x: [n, 4], [m - n, 0, 0, 0])        ->    a kernel: y[i, j] = x[i - (m - n), j], or 0
#     Pad(x, pads, mode=reflect)              ->    R.take(x, [1, 0, 1, 2, ...], axis), axis by axis
#     along an axis of dynamic size, or by
#     amounts that follow from sizes          ->    R.take with a table that the program computes


_MODES = ("reflect", "edge", "wrap")  # modes that repeat elements of the tensor

Pads = list[tuple[Expr, Expr]]
"""The amounts before and after each axis."""


@operator("Pad")
def _pad(x: Expr, pads: Expr, value: Expr, axes: Expr, *, mode: str = "constant") -> Expr:
    if any(item is not None and ex.constant(item) is None for item in (value, axes)):
        raise ValueError("the value to pad with, or the axes, are computed at run time")
    amounts, number, places = known_elements(pads), ex.constant(value), ex.constant(axes)
    if amounts is None:
        raise ValueError("the amounts to pad by are computed at run time")
    rank = len(dims_of(x))
    around: Pads = [(index(0), index(0))] * rank
    every = range(rank) if places is None else (places % rank).tolist()
    for axis, (before, after) in zip(every, np.reshape(amounts, (2, -1)).T, strict=True):
        around[axis] = simplified(index(before)), simplified(index(after))
    if mode == "constant":
        return _pad_with(x, around, number.item() if number is not None and number.size else 0.0)
    if mode not in _MODES:
        raise ValueError(f"unknown mode {mode!r}")
    for axis, pair in enumerate(around):
        x = _pad_from(x, axis, pair, mode)
    return x


def _pad_with(x: Expr, pads: Pads, number: float) -> Expr:
    """Pads a tensor with a number."""
    dims = dims_of(x)
    changed = [
        axis for axis, pair in enumerate(pads) if not all(of_sizes.is_number(n, 0) for n in pair)
    ]
    known = all(isinstance(each, tirx.IntImm) for pair in pads for each in pair)
    cropped = [axis for axis in changed if known and min(map(int, pads[axis])) < 0]
    if known and all(isinstance(dims[axis], tirx.IntImm) for axis in cropped):
        if cropped:
            begin = [max(0, -int(pads[axis][0])) for axis in cropped]
            end = [int(dims[axis]) - max(0, -int(pads[axis][1])) for axis in cropped]
            x = ex.normalize(relax.op.strided_slice(x, cropped, begin, end))
        amounts = [max(0, int(each)) for pair in pads for each in pair]
        return relax.op.nn.pad(x, amounts, "constant", number) if any(amounts) else x
    for extent, pair in zip(dims, pads, strict=True):  # no more is cropped than there is
        check(extent + sum(te.min(each, index(0)) for each in pair) >= 0)
    sizes = [simplified(n + sum(pair, start=index(0))) for n, pair in zip(dims, pads, strict=True)]

    def element(place: Place, x: te.Tensor, before: list[Expr]) -> Expr:
        at = [i - behind for i, behind in zip(place, before, strict=True)]
        inside = [tirx.all(at[axis] >= 0, at[axis] < x.shape[axis]) for axis in changed]
        outside = tirx.const(number, str(x.dtype))
        return tirx.if_then_else(tirx.all(*inside), x(*at), outside)

    return ex.emit_each("padded", sizes, element, x, [pair[0] for pair in pads], hint="pad")


def _pad_from(x: Expr, axis: int, pads: tuple[Expr, Expr], mode: str) -> Expr:
    """Pads an axis with elements of the tensor itself."""
    extent, (before, after) = dims_of(x)[axis], pads
    if of_sizes.is_number(before, 0) and of_sizes.is_number(after, 0):
        return x
    # Negative amounts crop first, as in ONNX Runtime; the order matters in mode "wrap".
    cropped = [te.min(each, index(0)) for each in pads]
    kept, size = simplified(extent + cropped[0] + cropped[1]), simplified(extent + before + after)
    check(kept >= 0)  # no more is cropped than there is
    some = tirx.any(kept > 0, tirx.EQ(size, index(0)))
    check(some, "an empty axis cannot be padded with its own elements")
    if all(isinstance(each, tirx.IntImm) for each in (extent, *pads)):
        place = np.arange(int(size)) - max(int(before), 0)
        source = _source(mode, place, int(kept), np)
        places: Expr = ex.literal(source - min(int(before), 0))
        return ex.normalize(relax.op.take(x, places, axis, mode="clip"))

    def element(place: Place, kept: Expr, before: Expr) -> Expr:
        inner = place[0] - te.max(before, index(0))
        outside = _source(mode, inner, kept, KERNEL)
        behind = tirx.if_then_else(inner < kept, inner, outside)
        return tirx.if_then_else(inner < 0, outside, behind) - te.min(before, index(0))

    own = {OP_PATTERN: OPAQUE, PLACES: True}
    places = ex.emit_each("places", [size], element, kept, before, hint="pad_places", **own)
    return ex.normalize(relax.op.take(x, places, axis, mode="clip"))


def _source(mode: str, place: Any, extent: Any, m: Any) -> Any:
    """The index to read for a position that may be outside; `m` is NumPy or `KERNEL`."""
    if mode == "edge":
        return m.maximum(m.minimum(place, extent - 1), 0)
    if mode == "wrap":
        return place % m.maximum(extent, 1)
    period = m.maximum(2 * (extent - 1), 1)  # to the last element and back
    inside = place % period
    return m.minimum(inside, period - inside)
