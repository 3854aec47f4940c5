"""Operators on shapes, and those that move elements without looking at them.

Sizes are numbers, or follow from other sizes, or are read from a tensor when the program runs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax, te, tirx

from ... import expressions as ex
from ...expressions import OUTPUTS, Attrs, Expr, Inputs
from ..graph import requests
from ..graph.elements import known_elements
from ..graph.kernels import emit_kernel, put, reshaped_to, sizes_in
from ..graph.requests import broadcast, check, check_equal, requested_sizes
from ..graph.sizes import INDEX, dims_of, index, is_open, product, same_size, scalar_of, simplified
from ..operators import operator


@operator("Shape")
def _shape(inputs: Inputs, attrs: Attrs) -> Any:
    sizes = dims_of(inputs[0])[attrs.get("start", 0) : attrs.get("end")]
    return relax.op.shape_to_tensor(relax.ShapeExpr(sizes))


operator("Size")(lambda inputs, attrs: scalar_of(product(dims_of(inputs[0]))))


@operator("Reshape")
def _reshape(inputs: Inputs, attrs: Attrs) -> Any:
    data, dims = inputs[0], dims_of(inputs[0])
    sizes = requests.reshaped_sizes(dims, inputs[1], not attrs.get("allowzero", 0))
    check_equal(product(sizes), product(dims))
    return reshaped_to(data, sizes)


@operator("Flatten")
def _flatten(inputs: Inputs, attrs: Attrs) -> Any:
    dims, axis = dims_of(inputs[0]), attrs.get("axis", 1)
    axis = axis + len(dims) if axis < 0 else axis
    return reshaped_to(inputs[0], [product(dims[:axis]), product(dims[axis:])])


@operator("Unsqueeze")
def _unsqueeze(inputs: Inputs, attrs: Attrs) -> Any:
    axes = _axes(inputs, attrs)
    if axes is None:
        raise ValueError("axes must be constant")
    rank = ex.rank_of(inputs[0]) + len(axes)
    return relax.op.expand_dims(inputs[0], sorted(axis % rank for axis in axes))


@operator("Squeeze")
def _squeeze(inputs: Inputs, attrs: Attrs) -> Any:
    opened, axes, dims = is_open(inputs[0]), _axes(inputs, attrs), dims_of(inputs[0])
    if axes is None:
        if opened or inputs[1] is not None:
            raise ValueError("axes must be given and constant")
        return relax.op.squeeze(inputs[0])
    dropped = {axis % len(dims) for axis in axes}
    for axis in dropped:
        check_equal(dims[axis], index(1), f"an axis of {dims[axis]} elements cannot be left out")
    if not opened:
        return relax.op.squeeze(inputs[0], axes)
    return reshaped_to(inputs[0], [d for i, d in enumerate(dims) if i not in dropped])


def _axes(inputs: Inputs, attrs: Attrs) -> list[int] | None:
    """The axes, from an attribute or a constant input."""
    value = inputs[1]
    found = attrs.get("axes") if value is None else ex.constant(value)
    return None if found is None else [int(axis) for axis in np.ravel(found)]


@operator("Expand")
def _expand(inputs: Inputs, attrs: Attrs) -> Any:
    data, shape = inputs
    return broadcast(data, requests.common_shape([dims_of(data), requested_sizes(shape)]))


@operator("ConstantOfShape")
def _constant_of_shape(inputs: Inputs, attrs: Attrs) -> Any:
    value = numpy_helper.to_array(attrs["value"]) if "value" in attrs else np.zeros(1, np.float32)
    return broadcast(ex.literal(value.reshape(())), requested_sizes(inputs[0]))


@operator("Tile")
def _tile(inputs: Inputs, attrs: Attrs) -> Any:
    data, repeats = inputs
    known, dims = ex.constant(repeats), dims_of(data)
    if not is_open(data) and known is not None:
        return relax.op.tile(data, known.tolist())
    sizes = [size * n for size, n in zip(dims, requested_sizes(repeats), strict=True)]

    def compute(data: te.Tensor) -> te.Tensor:
        def element(*places: Expr) -> Expr:
            pairs = zip(places, dims, strict=True)
            return data(*(tirx.floormod(place, te.max(size, 1)) for place, size in pairs))

        return te.compute(sizes, element, name="tiled")

    return ex.emit_te(compute, data, primfunc_name_hint="tile")


@operator("Transpose")
def _transpose(inputs: Inputs, attrs: Attrs) -> Any:
    x = inputs[0]
    return relax.op.permute_dims(x, attrs.get("perm")) if ex.rank_of(x) else x


_KINDS = {tirx.IntImm: 0, tirx.Var: 2}  # of sizes; those that are computed lie between


@operator("Concat")
def _concat(inputs: Inputs, attrs: Attrs) -> Any:
    """The program checks that open parts agree in all axes but one."""
    values, axis = list(inputs), attrs["axis"]
    if any(map(is_open, values)):
        shapes = [dims_of(value) for value in values]
        wanted = list(shapes[0])
        for place, sizes in enumerate(zip(*shapes, strict=False)):
            if place != axis % len(wanted):
                # A number, else what is computed: no part is known to have the size of a symbol.
                wanted[place] = min(sizes, key=lambda size: _KINDS.get(type(size), 1))
                for size in sizes:
                    check_equal(wanted[place], size)
        for place, shape in enumerate(shapes):
            wanted[axis] = shape[axis]
            pairs = zip(wanted, shape, strict=True)
            others = [size for size, own in pairs if not same_size(size, own)]
            # TVM would put a symbol in the place of itself, for ever.
            if others and not any(isinstance(size, tirx.Var) for size in others):
                known = relax.TensorType(list(wanted), values[place].ty.dtype)
                values[place] = ex.match_cast(values[place], known)
    return relax.op.concat(values, axis=axis)


@operator("Split")
def _split(inputs: Inputs, attrs: Attrs) -> Any:
    sizes, given, count = attrs.get("split"), inputs[1], len(attrs[OUTPUTS])
    if given is not None:
        misfit = "the sizes of the parts are computed at run time"
        sizes = ex.known_array(given, misfit).tolist()
    axis, misfit = attrs.get("axis", 0), "the parts are not the whole"
    size = dims_of(inputs[0])[axis]
    if sizes is not None:
        check_equal(size, index(sum(sizes)), misfit)
        return relax.op.split(inputs[0], [int(end) for end in np.cumsum(sizes)[:-1]], axis)
    if "num_outputs" in attrs:  # the last part may be smaller
        part = tirx.floordiv(size + index(count - 1), index(count))
        check(size >= part * index(count - 1), misfit)
    else:
        check_equal(tirx.floormod(size, index(count)), index(0), misfit)
    return relax.op.split(inputs[0], count, axis)


@operator("DepthToSpace")
def _depth_to_space(inputs: Inputs, attrs: Attrs) -> Any:
    batch, channels, height, width = dims_of(inputs[0])
    size = attrs["blocksize"]
    left = channels // (size * size)
    check_equal(channels % index(size**2), index(0), "the channels are no whole blocks")
    if _is_depth_first(attrs):
        split, order = (batch, size, size, left, height, width), [0, 3, 4, 1, 5, 2]
    else:
        split, order = (batch, left, size, size, height, width), [0, 1, 4, 2, 5, 3]
    return _moved(inputs[0], split, order, (batch, left, height * size, width * size))


@operator("SpaceToDepth")
def _space_to_depth(inputs: Inputs, attrs: Attrs) -> Any:
    batch, channels, height, width = dims_of(inputs[0])
    size = attrs["blocksize"]
    for extent in (height, width):
        check_equal(extent % index(size), index(0), "the extents are no whole blocks")
    blocks = (batch, channels, height // size, size, width // size, size)
    order = [0, 3, 5, 1, 2, 4] if _is_depth_first(attrs) else [0, 1, 3, 5, 2, 4]
    shape = (batch, channels * size * size, height // size, width // size)
    return _moved(inputs[0], blocks, order, shape)


def _is_depth_first(attrs: Attrs) -> bool:
    """Whether the places inside a block are the outer part of the channels."""
    mode = attrs.get("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise ValueError(f"mode={mode!r} is neither DCR nor CRD")
    return bool(mode == "DCR")


def _moved(x: Expr, split: tuple[Expr, ...], order: list[int], shape: tuple[Expr, ...]) -> Expr:
    """Axes cut in pieces, in another order, and joined."""
    return relax.op.reshape(relax.op.permute_dims(relax.op.reshape(x, split), order), shape)


@operator("Trilu")
def _trilu(inputs: Inputs, attrs: Attrs) -> Any:
    x, above = inputs[0], bool(attrs.get("upper", 1))
    shift = inputs[1]
    diagonal = np.array(0) if shift is None else ex.constant(shift)
    if diagonal is not None:
        return (relax.op.triu if above else relax.op.tril)(x, int(diagonal.item()))
    *_, rows, columns = dims_of(x)
    row, column = (ex.normalize(relax.op.arange(0, size, 1, "int64")) for size in (rows, columns))
    row = ex.normalize(relax.op.reshape(row, (rows, 1)))
    distance = ex.normalize(relax.op.reshape(column, (1, columns)) - row)
    shift = relax.op.astype(shift, "int64")
    kept = distance >= shift if above else distance <= shift
    kept = relax.op.broadcast_to(kept, relax.ShapeExpr(dims_of(x)))
    return relax.op.where(kept, x, ex.number(x, 0))


# Range. Its elements are start + i * delta, rounded once where the type is narrower than float64.
# Its length is that of exact arithmetic of integers, and of float64 for floats.


LONGEST = 1 << 31  # a longer one would be taken for a mistake: memory has to hold it


@operator("Range")
def _range(inputs: Inputs, attrs: Attrs) -> Any:
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

    def compute(start: te.Tensor, delta: te.Tensor, length: Expr) -> te.Tensor:
        def element(place: Expr) -> Expr:
            first, step = tirx.Cast(wide, start[0]), tirx.Cast(wide, delta[0])
            return tirx.Cast(dtype, first + tirx.Cast(wide, place) * step)

        return te.compute((length,), element, name="range")

    return ex.emit_te(compute, vectors[0], vectors[2], length, primfunc_name_hint="range")


def _length(vectors: list[Expr], wide: str) -> Expr:
    """The length as the program computes it; it refuses a delta of 0."""

    def body(ins: list[Expr], outs: list[Expr]) -> None:
        start, limit, delta = (tirx.Cast(wide, each[0]) for each in ins)
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
        (found,) = outs
        put(found, count, 1)
        fits = tirx.all(tirx.Not(stands), found[1] < index(LONGEST))
        put(found, tirx.Select(fits, index(1), index(0)))

    (found,) = emit_kernel("range_length", vectors, [([2], INDEX)], body)
    return sizes_in(found)[0]
